"""What goes to remasked positions."""

import jax.numpy as jnp

from padir.decoding.replacement import ReplaceWithInitial, ReplaceWithPrevious, ReplaceWithSummedLogits

INITIAL = jnp.array([[7, 7, 1]])
READ = jnp.array([[2, 3, 1]])


def test_initial_and_previous_tokens():
    assert ReplaceWithInitial()(INITIAL, READ, None).tolist() == [[7, 7, 1]]
    assert ReplaceWithPrevious()(INITIAL, READ, None).tolist() == [[2, 3, 1]]


def test_the_likeliest_token_by_the_sum():
    logits = jnp.array([[[0.0, 2.0, 1.0], [-jnp.inf, -3.0, -2.0], [4.0, 4.0, 0.0]]])
    assert ReplaceWithSummedLogits()(INITIAL, READ, logits).tolist() == [[1, 2, 0]]


def test_only_the_sum_is_ever_carried():
    assert [policy.needs_logits_sum for policy in (ReplaceWithInitial, ReplaceWithPrevious)] == [False, False]
    assert ReplaceWithSummedLogits.needs_logits_sum
