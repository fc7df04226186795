"""How good a system is: scores, significance tests, reports, comparison with the paper's tables, and figures.

Every score states how it was computed (signature, split, decoding), and two systems are compared with a
significance test.
"""
