"""Checkpoints of T5X and Hugging Face, read and written: names and arrays, no text and no run directories.

Every array is accounted for: one that is missing, left over or of another shape is an error that names it.
"""
