"""Decoding loops and the small policies that they are made of.

A loop takes a function that returns logits, never a model, so that it can be tested with logits written by hand.
"""
