"""The `padir` command: its subcommands, their flags, and their configuration with gin.

This is the only folder that uses gin. Everything below it is plain Python that a notebook can call.
"""
