"""Text in, text out, in any amount: one sentence, a stream of lines, or shards divided among hosts.

Each input line is written exactly once or lands in the rejects file, also when a job is killed and started again.
"""
