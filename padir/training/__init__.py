"""Training: the loop, the training step, the optimizer, validation, and guards against failures.

A job that is killed at any moment and started again ends with exactly the parameters of an uninterrupted job.
"""
