"""From a Seqio task to batches: a task is run once, written as ArrayRecord files, and read through Grain.

Only the child process that prepares a set (and the one that runs BLEURT) imports TensorFlow. The order of batches is a
pure function of seed, epoch and step.
"""
