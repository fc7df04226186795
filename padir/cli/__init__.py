"""The `padir` command: what each subcommand is called, which flags it has, and how gin configures it.

The only folder that knows gin; everything below it is plain Python that a notebook can call.
"""
