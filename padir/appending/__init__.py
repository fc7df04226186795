"""Test cases for a function that appends, written by a code model under a verifier (thesis, section 3.2.2).

For whoever has a pretrained model: protocol, table beside the thesis's. `mini` is a small one that trains here.
"""
