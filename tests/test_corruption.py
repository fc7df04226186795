"""Training noise: what is exact, and what is statistics."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from padir import corruption
from padir.corruption import CorruptionConfig
from padir.decoding.initial import StartWithMask
from padir.decoding.refinement import Refinement, initial_state, refinement_step
from padir.errors import PadirError
from padir.types import TokenIds

pytestmark = pytest.mark.usefixtures("quick_compiles")

IDS = TokenIds(num_pieces=28)
MASK = IDS.mask_id
KEY = jax.random.key(0)
corrupt = jax.jit(corruption.corrupt, static_argnums=(2, 3))


def targets(rows, length, seed=0):
    """Random pieces, row lengths 0 to `length`."""
    generator = np.random.default_rng(seed)
    tokens = generator.integers(1, IDS.num_pieces, (rows, length))
    lengths = generator.integers(0, length + 1, rows)
    return jnp.asarray(np.where(np.arange(length) < lengths[:, None], tokens, 0), jnp.int32)


def test_keeping_everything_is_the_identity():
    tokens = targets(20, 10)
    np.testing.assert_array_equal(corrupt(KEY, tokens, IDS, CorruptionConfig(keep_probability=1.0)), tokens)


def test_keeping_nothing_masks_all_but_eos_and_padding():
    tokens = jnp.array([[5, 9, 2, 1, 0], [1, 0, 0, 0, 0], [0, 0, 0, 0, 0]])
    corrupted = corrupt(KEY, tokens, IDS, CorruptionConfig(keep_probability=0.0))
    assert corrupted.tolist() == [[MASK, MASK, MASK, 1, 0], [1, 0, 0, 0, 0], [0, 0, 0, 0, 0]]


def test_the_share_kept_is_the_probability():
    tokens = jnp.full((200, 100), 5, jnp.int32)
    corrupted = corrupt(KEY, tokens, IDS, CorruptionConfig(keep_probability=0.15))
    assert set(np.unique(corrupted)) == {5, MASK}
    # 20,000 coins of probability 0.15: standard deviation 0.0025.
    assert abs((corrupted == 5).mean() - 0.15) < 0.01


def test_random_noise_is_uniform_over_pieces_without_padding_and_eos():
    tokens = jnp.full((260, 100), 5, jnp.int32)
    corrupted = corrupt(KEY, tokens, IDS, CorruptionConfig(keep_probability=0.0, random_probability=1.0))
    counts = np.bincount(np.ravel(corrupted), minlength=128)
    assert counts[:2].sum() == 0 and counts[28:].sum() == 0
    # 26 pieces, 1,000 expected each: standard deviation 31.
    assert (abs(counts[2:28] - 1000) < 150).all()


def test_a_mixture_holds_both_kinds_in_proportion():
    tokens = jnp.full((200, 100), 5, jnp.int32)
    corrupted = corrupt(KEY, tokens, IDS, CorruptionConfig(keep_probability=0.0, random_probability=0.3))
    assert abs((corrupted == MASK).mean() - 0.7) < 0.015
    assert ((corrupted == MASK) | ((corrupted >= 2) & (corrupted < 28))).all()


def test_noise_is_reproducible_from_its_key_and_differs_between_keys():
    tokens, config = targets(20, 10), CorruptionConfig(random_probability=0.5)
    first = corrupt(KEY, tokens, IDS, config)
    np.testing.assert_array_equal(first, corrupt(KEY, tokens, IDS, config))
    assert (first != corrupt(jax.random.key(1), tokens, IDS, config)).any()


def test_whether_to_keep_and_what_to_put_are_drawn_apart():
    """The same coin for both would put a random token exactly where the keep coin fell low."""
    tokens = jnp.full((100, 100), 5, jnp.int32)
    key = jax.random.key(3)
    kept = corrupt(key, tokens, IDS, CorruptionConfig(keep_probability=0.5)) == 5
    masked = corrupt(key, tokens, IDS, CorruptionConfig(keep_probability=0.0, random_probability=0.5)) == MASK
    assert abs((kept & masked).mean() - 0.25) < 0.03


@settings(deadline=None, max_examples=40)
@given(
    rows=st.lists(st.integers(0, 8), min_size=4, max_size=4),
    seed=st.integers(0, 2**31 - 1),
    config=st.sampled_from([CorruptionConfig(k, r) for k in (0.0, 0.3, 1.0) for r in (0.0, 0.4, 1.0)]),
)
def test_every_result_is_padding_the_target_or_noise(rows, seed, config):
    tokens = np.where(np.arange(8) < np.array(rows)[:, None], np.arange(1, 33).reshape(4, 8) % 27 + 1, 0)
    corrupted = np.asarray(corrupt(jax.random.key(seed), jnp.asarray(tokens), IDS, config))
    np.testing.assert_array_equal(corrupted == 0, tokens == 0)
    assert (corrupted[tokens == 1] == 1).all()
    changed = corrupted[corrupted != tokens]
    assert ((changed == MASK) | (changed < 28)).all()
    if config.random_probability == 0.0:
        assert (changed == MASK).all()
    if config.keep_probability == 0.0 and config.random_probability == 0.0:
        assert (changed.size == (tokens > 1).sum()) and (corrupted[tokens > 1] == MASK).all()


def test_hand_over_noises_stutter_and_keeps_padding():
    prediction = jnp.array([[7, 7, 7, 9, 9, 9], [4, 5, 4, 4, 6, 1]])
    target = jnp.array([[3, 4, 5, 1, 0, 0], [3, 4, 5, 6, 7, 1]])
    handed = corruption.hand_over(KEY, prediction, target, IDS, CorruptionConfig())
    # Right or wrong, a prediction stays: refinement must learn to mend it.
    assert handed.tolist() == [[7, MASK, MASK, 9, 0, 0], [4, 5, 4, MASK, 6, 1]]


def test_hand_over_restores_the_last_position_as_decoding_does():
    """Remasked positions go back to the start, whose last token is EOS (decoding/initial.py)."""
    prediction, target = jnp.array([[4, 6, 6, 6, 9]]), jnp.array([[3, 4, 5, 1, 0]])
    lengths = (target != 0).sum(-1)
    initial = StartWithMask()(KEY, lengths, 5, IDS)
    step = initial_state(initial, lengths > 0, Refinement())
    read_next = refinement_step(
        lambda tokens: jax.nn.one_hot(prediction, 128), step, initial, target != 0, Refinement()
    ).tokens
    assert read_next.tolist() == [[4, 6, MASK, 1, 0]]
    np.testing.assert_array_equal(corruption.hand_over(KEY, prediction, target, IDS, CorruptionConfig()), read_next)


def test_hand_over_noises_with_random_tokens_where_training_does():
    prediction = jnp.full((50, 40), 7)
    config = CorruptionConfig(random_probability=1.0)
    handed = corruption.hand_over(KEY, prediction, jnp.full((50, 40), 3), IDS, config)
    assert (handed[:, 0] == 7).all()
    assert ((handed >= 2) & (handed < 28)).all() and len(np.unique(handed)) == 26


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"keep_probability": 1.5}, r"CorruptionConfig.keep_probability: 1.5 is not in \[0, 1\]"),
        ({"random_probability": -0.1}, r"CorruptionConfig.random_probability: -0.1 is not in \[0, 1\]"),
    ],
)
def test_probabilities_outside_their_range_are_refused(option, message):
    with pytest.raises(PadirError, match=message):
        CorruptionConfig(**option)
