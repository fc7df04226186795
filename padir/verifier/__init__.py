"""A verifier for a generator: collects the generator's own first errors, trains a probe on them and saves it.

`padir verifier` does all three for a translation model; see `padir.verifier.run`.
"""
