"""What goes back to its initial token."""

import jax.numpy as jnp

from padir.decoding.remasking import RemaskNothing, RemaskStutter
from padir.masks import length_mask

TOKENS = jnp.array([[5, 5, 6, 6, 6], [5, 6, 5, 6, 5]])
LOG_PROBS = jnp.zeros((2, 5))
INSIDE = length_mask(jnp.array([4, 5]), 5)


def test_stutter():
    marked = RemaskStutter()(TOKENS, LOG_PROBS, INSIDE)
    assert marked.astype(int).tolist() == [[0, 1, 0, 1, 0], [0, 0, 0, 0, 0]]


def test_nothing():
    marked = RemaskNothing()(TOKENS, LOG_PROBS, INSIDE)
    assert marked.shape == (2, 5) and marked.dtype == bool and not marked.any()
