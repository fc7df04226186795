"""Masks against tables written by hand."""

import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from padir.nn import masks
from padir.types import MASKED_LOGIT


def rows(*lines: str) -> np.ndarray:
    """A boolean table drawn with x for True and . for False."""
    return np.array([[mark == "x" for mark in line] for line in lines])


def test_source_mask_hides_padding_only():
    mask = masks.source_mask(jnp.array([[7, 9, 1, 0], [1, 0, 0, 0]]))
    assert mask.shape == (2, 1, 1, 4)
    np.testing.assert_array_equal(mask[:, 0, 0], rows("xxx.", "x..."))


def test_encoder_mask_links_tokens_with_tokens():
    mask = masks.encoder_mask(jnp.array([[7, 9, 1, 0], [0, 0, 0, 0]]))
    assert mask.shape == (2, 1, 4, 4)
    np.testing.assert_array_equal(mask[0, 0], rows("xxx.", "xxx.", "xxx.", "...."))
    assert not mask[1].any()


def test_parallel_decoder_mask_sees_both_ways_and_always_position_0():
    mask = masks.parallel_decoder_mask(jnp.array([[5, 6, 1, 0], [0, 0, 0, 0]]))
    np.testing.assert_array_equal(mask[0, 0], rows("xxx.", "xxx.", "xxx.", "...."))
    np.testing.assert_array_equal(mask[1, 0], rows("x...", "....", "....", "...."))


def test_length_mask():
    np.testing.assert_array_equal(masks.length_mask(jnp.array([0, 1, 3, 4]), 4), rows("....", "x...", "xxx.", "xxxx"))


def test_causal_mask():
    mask = masks.causal_mask(4)
    assert mask.shape == (1, 1, 4, 4)
    np.testing.assert_array_equal(mask[0, 0], rows("x...", "xx..", "xxx.", "xxxx"))


def test_bias_is_zero_where_seen_and_finite_where_not():
    bias = masks.to_bias(jnp.array([True, False]))
    assert bias.dtype == jnp.float32
    np.testing.assert_array_equal(bias, np.float32([0.0, MASKED_LOGIT]))
    assert np.isfinite(bias).all()


def test_stutter_mask_marks_every_repeat_but_the_first():
    tokens = jnp.array([[5, 5, 5, 6, 6, 5, 0, 0], [4, 5, 4, 5, 4, 5, 4, 5], [5, 6, 7, 5, 5, 5, 5, 5]])
    inside = masks.length_mask(jnp.array([6, 8, 5]), 8)
    expected = rows(".xx.x...", "........", "....x...")
    np.testing.assert_array_equal(masks.stutter_mask(tokens, inside), expected)


def test_stutter_mask_does_not_wrap_around():
    """The T5X release compares position 0 with the last column; a hypothesis has no such neighbour."""
    tokens = jnp.array([[5, 6, 5]])
    assert not masks.stutter_mask(tokens, jnp.ones((1, 3), bool)).any()


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 3), min_size=6, max_size=6), st.integers(0, 6))
def test_stutter_mask_equals_a_plain_loop(tokens, length):
    expected = [i > 0 and i < length and tokens[i] == tokens[i - 1] for i in range(6)]
    mask = masks.stutter_mask(jnp.array([tokens]), masks.length_mask(jnp.array([length]), 6))
    assert mask[0].tolist() == expected
