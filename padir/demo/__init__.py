"""The whole method in one command, on a small synthetic language pair that comes with padir.

The demo trains a teacher, distils its translations, trains two students and compares them all. It resumes after an
interruption.
"""
