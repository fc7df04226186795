"""How good a system is: scores with significance, reports, tables beside the paper's, pictures.

Every score says how it was computed (signature, split, decode), and two systems are compared by a test.
"""
