"""Reading and writing files: lines of text, shards of lines, checksums, atomic writes.

A file appears under its name only when it is whole.
"""
