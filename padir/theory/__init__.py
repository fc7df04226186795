"""Chapter 4's theory on models small enough to enumerate: what training costs and what parallel sampling can reach.

Everything here is exact, over all 2^N states, in float64: call it inside `with jax.enable_x64(True):`. `run.theory`
draws the chapter's figures and checks its theorems, each claim from the numbers.
"""
