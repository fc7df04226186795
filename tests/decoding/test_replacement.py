"""What goes to remasked positions."""

import jax
import jax.numpy as jnp
import numpy as np

from padir.decoding.replacement import (
    ReplaceWithInitial,
    ReplaceWithPrevious,
    ReplaceWithRandom,
    ReplaceWithSummedLogits,
    random_pieces,
)
from padir.decoding.state import ReplaceView

INITIAL = jnp.array([[7, 7, 1]])
READ = jnp.array([[2, 3, 1]])


def test_initial_and_previous_tokens():
    assert ReplaceWithInitial()(ReplaceView(INITIAL, READ)).tolist() == [[7, 7, 1]]
    assert ReplaceWithPrevious()(ReplaceView(INITIAL, READ)).tolist() == [[2, 3, 1]]


def test_the_likeliest_token_by_the_sum():
    logits = jnp.array([[[0.0, 2.0, 1.0], [-jnp.inf, -3.0, -2.0], [4.0, 4.0, 0.0]]])
    assert ReplaceWithSummedLogits()(ReplaceView(INITIAL, READ, logits)).tolist() == [[1, 2, 0]]


def test_noise_but_the_end_keeps_its_eos():
    assert ReplaceWithRandom()(ReplaceView(INITIAL, READ, None, jnp.array([[4, 5, 6]]))).tolist() == [[4, 5, 1]]


def test_noise_is_uniform_over_pieces_and_does_not_depend_on_how_much_is_drawn():
    key = jax.random.key(3)
    pieces = np.asarray(random_pieces(key, (3, 4000), 10))
    # Ids 2 to 9; expected 1,500 of each, with a standard deviation of 36.
    counts = np.bincount(pieces.ravel(), minlength=10)
    assert counts[:2].tolist() == [0, 0] and len(counts) == 10
    assert abs(counts[2:] - 1500).max() < 5 * 36
    assert (pieces[:2, :50] == random_pieces(key, (2, 50), 10)).all()
    assert (pieces[0] != pieces[1]).mean() > 0.8


def test_only_what_is_needed_is_carried_or_drawn():
    needs = {
        policy: (policy.needs_logits_sum, policy.needs_noise)
        for policy in (ReplaceWithInitial, ReplaceWithPrevious, ReplaceWithSummedLogits, ReplaceWithRandom)
    }
    assert list(needs.values()) == [(False, False), (False, False), (True, False), (False, True)]
