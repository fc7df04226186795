"""Softmax statistics in one reduction against JAX's own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numerics import assert_close

from padir.decoding.sampling import greedy, log_probability
from padir.nn.reductions import likeliest, max_and_sum_of_exp, softmax, statistics
from padir.runtime.platforms import tracing_for
from padir.types import TokenIds


def logits(*shape, seed=0, scale=5.0):
    return scale * jax.random.normal(jax.random.key(seed), shape)


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_statistics(size):
    x = logits(3, 4, size)
    largest, summed = max_and_sum_of_exp(x)
    np.testing.assert_array_equal(largest, x.max(-1))
    assert_close(largest + jnp.log(summed), jax.nn.logsumexp(x, axis=-1), 1e-6)


@pytest.mark.parametrize("size", [1, 7, 5000])
def test_the_likeliest_as_other_platforms_find_it(size):
    x = logits(3, 4, size).at[1].set(-jnp.inf).at[1, :, size // 2].set(0.5)
    expected = greedy(x)
    found = jax.jit(likeliest)(x)
    np.testing.assert_array_equal(found[0], expected[0])
    assert_close(found[1], expected[1], 1e-5)
    with tracing_for("tpu"):
        np.testing.assert_array_equal(jax.jit(lambda x: greedy(x)[0])(x), expected[0])


@pytest.mark.parametrize("size", [21, 5000])
def test_the_log_probability_of_one_entry(size):
    """The same on every platform, whatever stands in the rows that pad the table."""
    x = logits(3, 4, size).at[..., 20:].set(jnp.where(jnp.arange(size - 20) < 1, -3.0, 99.0))
    ids, tokens = TokenIds(20, extra_ids=1), jnp.array([[0, 1, 2, 19]] * 3)
    expected = jax.nn.log_softmax(x[..., : ids.unpadded_size])
    expected = jnp.take_along_axis(expected, tokens[..., None], axis=-1)[..., 0]
    for platform in ("cpu", "tpu"):
        with tracing_for(platform):
            found = jax.jit(lambda x: log_probability(x, tokens, ids))(x)
        assert_close(found, expected, 1e-5)
    with tracing_for("tpu"):
        assert_close(log_probability(x.astype(jnp.bfloat16), tokens, ids), expected, 3e-2)


def test_all_statistics_of_logits_and_their_gradients():
    x, along = logits(3, 4, 50), logits(3, 4, seed=1)
    found, pull_found = jax.vjp(lambda x: statistics(x)[0], x)
    expected, pull = jax.vjp(lambda x: jax.nn.logsumexp(x, axis=-1), x)
    assert_close(found, expected, 1e-6)
    assert_close(pull_found(along)[0], pull(along)[0], 1e-5)
    np.testing.assert_array_equal(statistics(x)[1], x.max(-1))
    np.testing.assert_array_equal(statistics(x)[2], x.argmax(-1))
    assert not jax.grad(lambda x: statistics(x)[1].sum())(x).any()


def test_of_equal_ones_the_first():
    x = jnp.zeros((2, 300)).at[0, 17].set(3.0).at[0, 255].set(3.0)
    assert likeliest(x)[0].tolist() == [17, 0]


def test_what_is_not_a_number_gets_an_index_of_the_table():
    token, log_prob = likeliest(jnp.full((1, 9), jnp.nan))
    assert 0 <= int(token[0]) < 9 and np.isnan(log_prob[0])


def test_large_logits_do_not_overflow():
    x = logits(2, 50) + jnp.array([[1e4], [-1e4]])
    assert_close(likeliest(x)[1], jax.nn.log_softmax(x).max(-1), 1e-3)


def test_softmax_and_its_gradient():
    x, along = logits(2, 3, 40), logits(2, 3, 40, seed=1)
    expected, pull = jax.vjp(lambda x: jax.nn.softmax(x, axis=-1), x)
    found, pull_found = jax.vjp(softmax, x)
    assert_close(found, expected, 1e-6)
    assert_close(pull_found(along)[0], pull(along)[0], 1e-5)
