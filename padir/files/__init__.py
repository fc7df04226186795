"""Files: lines of text, shards of lines, checksums, and atomic writes.

An output file gets its final name only when it is complete.
"""
