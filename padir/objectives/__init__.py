"""What training asks of a model: how targets are corrupted, and which losses are taken.

Pure functions of arrays and a random key.
"""
