"""The two models, PaDIR and autoregressive: the only place where network, objective and decoding meet.

A model is static and hashable: configuration and token ids, no arrays. Its parameters are a pytree that `init` makes
and every other method takes, so that each method can be jitted as it stands.
"""
