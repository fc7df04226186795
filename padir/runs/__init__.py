"""What a run leaves behind, and how it is opened again: configuration, vocabulary, checkpoints.

A checkpoint counts only when it is whole; a damaged one is named and set aside.
"""
