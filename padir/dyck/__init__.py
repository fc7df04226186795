"""`padir dyck`: a language model of balanced brackets, a verifier of its prefixes, and all samplers at equal cost.

Experiment E1 of the thesis's section 3.2.1, and of its section 3.3 the comparison with VGB.
"""
