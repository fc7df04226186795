"""Length prediction."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from padir.length import LengthTokenPredictor, prepend_length_token, top_lengths


def test_the_length_token_goes_first():
    source = jnp.array([[5, 1, 0], [0, 0, 0]])
    assert prepend_length_token(source, 9).tolist() == [[9, 5, 1, 0], [9, 0, 0, 0]]


@pytest.fixture(scope="module")
def tiny(release):
    return release("padir_tiny_tied.npz")


def test_logits_equal_the_release(tiny):
    _, logits = tiny.model.encode(tiny.params, tiny.arrays["encoder_input_tokens"])
    np.testing.assert_allclose(logits, tiny.arrays["length_logits"], atol=1e-5)


@pytest.mark.parametrize("k", [1, 3])
def test_top_lengths_equal_the_release(tiny, k):
    lengths, _ = top_lengths(jnp.asarray(tiny.arrays["length_logits"]), k, 16)
    expected = tiny.arrays[f"predicted_lengths_top{k}"]
    # The release turns a predicted length of 1 into 2 when it decodes, but reports it as it is.
    np.testing.assert_array_equal(lengths, expected)


def test_top_lengths_by_hand():
    logits = jnp.log(jnp.array([[0.1, 0.2, 0.3, 0.4], [0.6, 0.1, 0.2, 0.1]]))
    lengths, log_probs = top_lengths(logits, 2, 4)
    assert lengths.tolist() == [[4, 3], [1, 3]]
    np.testing.assert_allclose(log_probs, np.log([[0.4, 0.3], [0.6, 0.2]]), rtol=1e-5)


def test_lengths_that_do_not_fit_are_excluded_but_keep_their_probability():
    logits = jnp.log(jnp.array([[0.1, 0.2, 0.3, 0.4]]))
    lengths, log_probs = top_lengths(logits, 3, 3)
    assert lengths.tolist() == [[3, 2, 1]]
    np.testing.assert_allclose(log_probs, np.log([[0.3, 0.2, 0.1]]), rtol=1e-5)


@pytest.fixture(scope="module")
def encoded():
    """Encoder output of [LENGTH] and three tokens for two sources, as a bfloat16 model would make it."""
    return jnp.asarray(np.random.default_rng(0).normal(size=(2, 4, 400)), jnp.bfloat16)


def predictor(size, **options):
    return LengthTokenPredictor(size, 400, **options, rngs=nnx.Rngs(params=jax.random.key(0)))


SOURCE = jnp.array([[5, 1, 0], [4, 5, 1]])


def test_logits_are_unscaled_dot_products_in_float32(encoded):
    absolute = predictor(7)
    table = np.asarray(absolute.length_embed.embedding[...])
    assert table.std() == pytest.approx(1 / 20, rel=0.05)
    logits = absolute(encoded, SOURCE)
    assert logits.dtype == jnp.float32
    np.testing.assert_allclose(logits, np.asarray(encoded[:, 0], np.float32) @ table.T, atol=1e-5)


def test_relative_logits_score_the_difference_in_length(encoded):
    relative = predictor(6, relative=True)
    state = np.asarray(encoded, np.float32)
    total = np.stack([state[0, 1:3].sum(0), state[1, 1:4].sum(0)])  # padding does not count
    read = state[:, 0] + total @ np.asarray(relative.sum.kernel[...])
    scores = read @ np.asarray(relative.length_embed.embedding[...]).T
    # Row 3 of 6 stands for equal lengths; lengths 1 to 6 after sources of 2 and of 3 tokens. What lies beyond
    # the table shares its ends: 5 - 2 = +3 and 6 - 2 = +4 count as +2.
    expected = [scores[0, [2, 3, 4, 5, 5, 5]], scores[1, [1, 2, 3, 4, 5, 5]]]
    np.testing.assert_allclose(relative(encoded, SOURCE), expected, atol=1e-4)


def test_relative_logits_do_not_see_padding(encoded):
    relative = predictor(6, relative=True)
    wide = jnp.pad(encoded, ((0, 0), (0, 2), (0, 0)), constant_values=9.0)
    padded = relative(wide, jnp.pad(SOURCE, ((0, 0), (0, 2))))
    np.testing.assert_allclose(padded, relative(encoded, SOURCE), atol=1e-5)
