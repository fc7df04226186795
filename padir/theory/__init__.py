"""The theory of the paper's chapter 4, on models small enough to enumerate: cost of training, limits of sampling.

All computations are exact, over all 2^N states, and in float64: call them inside `with jax.enable_x64(True):`.
`run.theory` draws the chapter's figures and checks its theorems numerically.
"""
