"""What the TPU's own compiler says of our programs, without a TPU: does it fit, and what would it cost.

Every figure is an estimate of XLA's compiler. Nothing is run.
"""
