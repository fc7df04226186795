"""Length prediction."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from numerics import assert_close

from padir.nn.length import (
    AffineLengthPredictor,
    FertilityLengthPredictor,
    LengthTokenPredictor,
    prepend_length_token,
    top_lengths,
)


def test_the_length_token_goes_first():
    source = jnp.array([[5, 1, 0], [0, 0, 0]])
    assert prepend_length_token(source, 9).tolist() == [[9, 5, 1, 0], [9, 0, 0, 0]]


@pytest.fixture(scope="module")
def tiny(release):
    return release("padir_tiny_tied.npz")


def test_logits_equal_the_release(tiny):
    _, logits = tiny.model.encode(tiny.params, tiny.arrays["encoder_input_tokens"])
    assert_close(logits, tiny.arrays["length_logits"], 3e-6)


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
    assert_close(logits, np.asarray(encoded[:, 0], np.float64) @ table.T, 1e-5)


def test_relative_logits_score_the_difference_in_length(encoded):
    relative = predictor(6, relative=True)
    state = np.asarray(encoded, np.float32)
    total = np.stack([state[0, 1:3].sum(0), state[1, 1:4].sum(0)])  # padding does not count
    read = state[:, 0] + total @ np.asarray(relative.sum.weight[...]).T
    scores = read @ np.asarray(relative.length_embed.embedding[...]).T
    # Row 3 of 6 stands for equal lengths; lengths 1 to 6 after sources of 2 and of 3 tokens. What lies beyond
    # the table shares its ends: 5 - 2 = +3 and 6 - 2 = +4 count as +2.
    expected = [scores[0, [2, 3, 4, 5, 5, 5]], scores[1, [1, 2, 3, 4, 5, 5]]]
    assert_close(relative(encoded, SOURCE), np.stack(expected), 1e-5)


def test_relative_logits_do_not_see_padding(encoded):
    relative = predictor(6, relative=True)
    wide = jnp.pad(encoded, ((0, 0), (0, 2), (0, 0)), constant_values=9.0)
    padded = relative(wide, jnp.pad(SOURCE, ((0, 0), (0, 2))))
    assert_close(padded, relative(encoded, SOURCE), 1e-5)


def test_an_affine_predictor_ranks_lengths_by_their_distance_from_its_line():
    affine = AffineLengthPredictor(8)
    assert affine.scale_and_offset[...].tolist() == [1.0, 0.0], "it starts at the source's own length"
    affine.scale_and_offset[...] = jnp.array([1.5, 0.75])
    logits = affine(None, SOURCE)
    # Sources of 2 and 3 tokens: 3.75 and 5.25.
    expected = [[-((length - estimate) ** 2) for length in range(1, 9)] for estimate in (3.75, 5.25)]
    np.testing.assert_allclose(logits, expected, rtol=1e-6)
    assert top_lengths(logits, 4, 8)[0].tolist() == [[4, 3, 5, 2], [5, 6, 4, 7]]
    np.testing.assert_array_equal(affine(None, jnp.pad(SOURCE, ((0, 0), (0, 3)))), logits)


@pytest.mark.parametrize(("estimate", "expected"), [(40.0, [5, 4, 3]), (-3.0, [1, 2, 3])])
def test_an_estimate_beyond_the_lengths_gives_the_nearest(estimate, expected):
    affine = AffineLengthPredictor(5)
    affine.scale_and_offset[...] = jnp.array([0.0, estimate])
    assert top_lengths(affine(None, SOURCE), 3, 5)[0].tolist() == [expected] * 2


class TestFertility:
    @pytest.fixture(scope="class")
    @classmethod
    def fertility(cls):
        return FertilityLengthPredictor(9, 400, rngs=nnx.Rngs(params=jax.random.key(0)))

    def test_it_adds_up_what_each_source_token_is_expected_to_become(self, fertility, encoded):
        state = np.asarray(encoded[:, 1:], np.float64)
        hidden = np.asarray(jax.nn.gelu(state @ np.asarray(fertility.mlp.weight[...], np.float64).T))
        scores = np.exp(hidden @ np.asarray(fertility.logits_dense.weight[...]).T)
        assert scores.shape == (2, 3, 3), "each token becomes 0, 1 or 2"
        expected = (scores / scores.sum(-1, keepdims=True)) @ [0.0, 1.0, 2.0]
        estimates = [expected[0, :2].sum(), expected[1].sum()]  # padding becomes nothing
        logits = fertility(encoded[:, 1:], SOURCE)
        assert logits.dtype == jnp.float32
        found = [[-((length - estimate) ** 2) for length in range(1, 10)] for estimate in estimates]
        np.testing.assert_allclose(logits, found, rtol=1e-3, atol=1e-3)

    def test_no_source_token_becomes_more_than_two(self, fertility):
        fertility = nnx.clone(fertility)
        fertility.logits_dense.weight[...] = jnp.zeros((3, 400)).at[2].set(100.0)
        certain = fertility(jnp.ones((2, 3, 400)) * jnp.sign(fertility.mlp.weight[...].sum(0)), SOURCE)
        np.testing.assert_allclose(certain[:, 3], [0.0, -4.0], atol=1e-3)  # estimates 4 and 6

    def test_it_does_not_train_the_encoder(self, fertility, encoded):
        gradient = jax.grad(lambda state: fertility(state, SOURCE).sum())(encoded[:, 1:])
        np.testing.assert_array_equal(gradient, 0)
