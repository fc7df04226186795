"""The theory of the paper's chapters 3 and 4, on instances small enough to enumerate.

Chapter 3 is about generation under a verifier: what it costs, and which law its outputs have. Chapter 4 is about the
cost of training and the limits of parallel sampling. All computations are exact and in float64: call those of chapter 4
inside `with jax.enable_x64(True):`. `run.theory` draws the figures and checks the claims numerically.
"""
