"""The whole of the method in one command, on a small language pair that comes with padir.

Teacher, distillation, two students and their comparison; a demo that was stopped goes on where it was.
"""
