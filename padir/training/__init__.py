"""The training loop, the step it repeats, and what guards them.

A job that was killed at any moment and started again ends with the same parameters, bit for bit, as one never killed.
"""
