"""Translation of single texts, streams of lines, and large files in shards; and distillation with a teacher.

Every input line is either translated exactly once or listed in the rejects file, even if a job is killed and restarted.
"""
