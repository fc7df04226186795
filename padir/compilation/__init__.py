"""What the compilers for TPUs and GPUs say of our programs, without such a device: do they fit, what would they cost.

Nothing is run. What is said of time is an estimate of the compiler for TPUs; of GPUs no time is estimated.
"""
