"""Run directories: the configuration, vocabulary and checkpoints of a run, and how they are opened again.

Only a complete checkpoint is restored. Training reports a damaged one and sets it aside.
"""
