"""What goes to remasked positions."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np

from padir.decoding.replacement import (
    ReplaceWithInitial,
    ReplaceWithPrevious,
    ReplaceWithRandom,
    ReplaceWithSummedLogits,
    noise_of_step,
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


def test_noise_differs_by_source_step_and_hypothesis_and_not_by_what_lies_beside_it():
    keys = jax.random.split(jax.random.key(3), 2)
    inside = jnp.ones((4, 60), bool)
    drawn = np.asarray(noise_of_step(keys, jnp.int32(1), 2, inside, 10))
    assert ((drawn >= 2) & (drawn < 10)).all()
    for one, other in itertools.combinations([*drawn, *noise_of_step(keys, jnp.int32(2), 2, inside, 10)], 2):
        assert (one != other).mean() > 0.6
    alone = noise_of_step(keys[1:], jnp.int32(1), 2, inside[:2, :9], 10)
    np.testing.assert_array_equal(alone, drawn[2:, :9])


def test_only_what_is_needed_is_carried_or_drawn():
    needs = {
        policy: (policy.needs_logits_sum, policy.needs_noise)
        for policy in (ReplaceWithInitial, ReplaceWithPrevious, ReplaceWithSummedLogits, ReplaceWithRandom)
    }
    assert list(needs.values()) == [(False, False), (False, False), (True, False), (False, True)]
