"""First hypotheses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from padir.decoding.initial import StartWithMask, StartWithMaskRange, StartWithRandom
from padir.errors import PadirError
from padir.types import TokenIds

IDS = TokenIds(num_pieces=28)
KEY = jax.random.key(0)


def test_mask_fills_each_length_up_to_its_eos():
    tokens = StartWithMask()(KEY, jnp.array([3, 0, 4, 1]), 4, IDS)
    assert tokens.tolist() == [[127, 127, 1, 0], [0, 0, 0, 0], [127, 127, 127, 1], [1, 0, 0, 0]]


def test_mask_range_gives_each_position_its_own_mask():
    tokens = StartWithMaskRange()(KEY, jnp.array([3, 0, 4, 1]), 4, IDS)
    assert tokens.tolist() == [[123, 124, 1, 0], [0, 0, 0, 0], [123, 124, 125, 1], [1, 0, 0, 0]]
    assert StartWithMaskRange()(KEY, jnp.array([2]), 125, IDS)[0, 0] == 2
    with pytest.raises(PadirError, match="126 masks do not fit below MASK = 127"):
        StartWithMaskRange()(KEY, jnp.array([2]), 126, IDS)


def test_random_is_uniform_over_pieces_without_padding():
    tokens = StartWithRandom()(jax.random.split(KEY, 260), jnp.full(260, 101), 101, IDS)
    assert (tokens[:, 100] == 1).all(), "EOS is no secret"
    counts = np.bincount(np.ravel(tokens[:, :100]), minlength=128)
    assert counts[:2].sum() == 0 and counts[28:].sum() == 0
    # 26 pieces, 1,000 expected each: standard deviation 31.
    assert (abs(counts[2:28] - 1000) < 150).all()
    assert abs((tokens[0, :100] == tokens[1:, :100]).mean() - 1 / 26) < 0.01, "no two rows share their start"


def test_random_is_reproducible_and_ends_in_eos_and_padding():
    lengths, keys = jnp.array([3, 0, 5]), jax.random.split(KEY, 3)
    tokens = StartWithRandom()(keys, lengths, 5, IDS)
    np.testing.assert_array_equal((tokens != 0).sum(-1), lengths)
    assert tokens[0, 2] == tokens[2, 4] == 1
    np.testing.assert_array_equal(tokens, StartWithRandom()(keys, lengths, 5, IDS))
    assert (tokens != StartWithRandom()(jax.random.split(jax.random.key(1), 3), lengths, 5, IDS)).any()


def test_random_depends_neither_on_padding_nor_on_the_rest_of_the_batch():
    """Or a translation would depend on its bucket and on the sentences beside it (DESIGN section 8)."""
    lengths, keys = jnp.array([3, 5]), jax.random.split(KEY, 2)
    tokens = StartWithRandom()(keys, lengths, 5, IDS)
    np.testing.assert_array_equal(StartWithRandom()(keys, lengths, 8, IDS)[:, :5], tokens)
    np.testing.assert_array_equal(StartWithRandom()(keys[1:], lengths[1:], 5, IDS)[0], tokens[1])
