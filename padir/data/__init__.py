"""From a Seqio task to batches: the task runs once, is written to ArrayRecord files, and is read through Grain.

TensorFlow is imported only in child processes: the one that prepares a data set and the one that runs BLEURT. The order
of batches is a pure function of seed, epoch and step.
"""
