"""Layers against numpy, and dropout's promises."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from numerics import assert_close

from padir.nn import layers

FLOAT32 = jnp.dtype("float32")


@pytest.fixture
def rngs():
    return nnx.Rngs(params=jax.random.key(0))


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def test_dropout_without_a_key_or_rate_changes_nothing():
    x = jnp.asarray(random(3, 4))
    assert layers.dropout(x, 0.5, None) is x
    assert layers.dropout(x, 0.0, jax.random.key(0)) is x


def test_dropout_zeroes_a_share_and_scales_the_rest():
    x = jnp.ones((100, 1, 100))
    dropped = np.asarray(layers.dropout(x, 0.2, jax.random.key(1)))
    np.testing.assert_allclose(np.unique(dropped), [0.0, 1.25])
    # 10,000 coins of probability 0.2: standard deviation 0.004.
    assert abs((dropped == 0).mean() - 0.2) < 0.016
    np.testing.assert_array_equal(dropped, layers.dropout(x, 0.2, jax.random.key(1)))


def test_dropout_shares_its_decision_along_the_length():
    dropped = np.asarray(layers.dropout(jnp.ones((4, 7, 32)), 0.5, jax.random.key(2)))
    np.testing.assert_array_equal(dropped, np.broadcast_to(dropped[:, :1], dropped.shape))
    assert len(np.unique(dropped[:, 0], axis=0)) == 4, "rows must not share their decisions"


def test_subkeys_differ_by_consumer_and_stay_off():
    key = jax.random.key(3)
    assert layers.subkeys(None, 3) == (None, None, None)
    data = {tuple(jax.random.key_data(subkey).tolist()) for subkey in layers.subkeys(key, 10)}
    assert len(data) == 10
    # However many there are, and as runs before this had them, which go on with the same decisions.
    folded = [jax.random.fold_in(key, i) for i in range(10)]
    assert data == {tuple(jax.random.key_data(subkey).tolist()) for subkey in folded}
    assert (jax.random.key_data(layers.subkeys(key, 3)) == jax.random.key_data(layers.subkeys(key, 10)[:3])).all()


def test_dense_is_a_matrix_product_with_t5_initialisation(rngs):
    dense = layers.Dense(400, 300, dtype=FLOAT32, rngs=rngs, scale=0.5)
    weight = np.asarray(dense.weight[...])
    assert weight.std() == pytest.approx(0.5 / 20, rel=0.02)
    assert abs(weight.mean()) < 1e-3
    x = random(2, 400)
    assert_close(dense(jnp.asarray(x)), x @ weight.T, 1e-5)


def test_dense_computes_in_its_dtype_and_keeps_float32_parameters(rngs):
    dense = layers.Dense(4, 3, dtype=jnp.dtype("bfloat16"), rngs=rngs)
    assert dense.weight[...].dtype == jnp.float32
    assert dense(jnp.ones((2, 4))).dtype == jnp.bfloat16


def test_a_dense_product_in_float32_is_not_rounded_to_its_dtype(rngs):
    dense = layers.Dense(64, 3, dtype=jnp.dtype("bfloat16"), rngs=rngs)
    x = jnp.asarray(random(50, 64)).astype(jnp.bfloat16)
    exact = np.asarray(x, np.float64) @ np.asarray(dense.weight[...].astype(jnp.bfloat16), np.float64).T
    assert dense.in_float32(x).dtype == jnp.float32
    assert_close(dense.in_float32(x), exact, 1e-5)
    assert np.abs(dense(x).astype(jnp.float32) - exact).max() > 1e-3


def test_embed_looks_up_rows_and_attends_to_them(rngs):
    embed = layers.Embed(5, 3, dtype=FLOAT32, rngs=rngs)
    table = np.asarray(embed.embedding[...])
    np.testing.assert_array_equal(embed(jnp.array([[4, 0]])), table[None, [4, 0]])
    x = random(2, 3)
    assert_close(embed.attend(jnp.asarray(x)), x @ table.T, 1e-6)


def test_embed_attends_in_float32_whatever_its_dtype(rngs):
    embed = layers.Embed(5, 3, dtype=jnp.dtype("bfloat16"), rngs=rngs)
    assert embed.attend(jnp.ones((1, 3))).dtype == jnp.float32


def test_rms_norm_against_numpy():
    norm = layers.RMSNorm(8, dtype=FLOAT32)
    norm.scale[...] = jnp.arange(8.0)
    x = random(2, 3, 8) * 10 + 3
    expected = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * np.arange(8)
    assert_close(norm(jnp.asarray(x)), expected, 1e-6)


def test_rms_norm_of_nothing_is_nothing():
    np.testing.assert_array_equal(layers.RMSNorm(4, dtype=FLOAT32)(jnp.zeros((1, 4))), np.zeros((1, 4)))


def test_rms_norm_takes_its_statistics_in_float32():
    """In bfloat16 (8 bits) 1 + 2^-12 in the square would be lost; here equal elements stay exactly 1."""
    norm = layers.RMSNorm(300, dtype=jnp.dtype("bfloat16"))
    out = norm(jnp.full((1, 300), 3.0, jnp.bfloat16))
    assert out.dtype == jnp.bfloat16
    np.testing.assert_array_equal(out.astype(jnp.float32), np.ones((1, 300)))


def test_relu_mlp_against_numpy(rngs):
    mlp = layers.MLP(4, 6, activation="relu", dropout_rate=0.5, dtype=FLOAT32, rngs=rngs)
    x = random(2, 3, 4)
    hidden = np.maximum(x @ np.asarray(mlp.wi.weight[...]).T, 0)
    assert_close(mlp(jnp.asarray(x)), hidden @ np.asarray(mlp.wo.weight[...]).T, 2e-6)


def test_gated_gelu_mlp_against_numpy(rngs):
    mlp = layers.MLP(4, 6, activation="gated-gelu", dropout_rate=0.0, dtype=FLOAT32, rngs=rngs)
    x = random(2, 3, 4)
    gate = x @ np.asarray(mlp.wi_0.weight[...]).T
    gelu = 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
    hidden = gelu * (x @ np.asarray(mlp.wi_1.weight[...]).T)
    assert_close(mlp(jnp.asarray(x)), hidden @ np.asarray(mlp.wo.weight[...]).T, 2e-6)


def test_a_table_keeps_its_meaning_in_the_buckets_of_the_other_kind():
    """Causal buckets: 0 to 15 one distance each; bidirectional ones: 0 to 7 to the left, 17 to 23 to the right."""
    causal = jnp.stack([jnp.arange(32.0), 100 + jnp.arange(32.0)])
    both = layers.rebucketed(causal, bidirectional=True)
    assert both[0, :9].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8]
    assert both[0, 17:25].tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    # The next one begins at a distance of 12, and 91 is the first of the last.
    assert both[0, [9, 25, 15, 31]].tolist() == [12, 12, 29, 29]
    np.testing.assert_array_equal(both[1], 100 + both[0])
    back = layers.rebucketed(both, bidirectional=False)
    assert back[0, :9].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8]
    # Distances of 8 to 11 were one bucket.
    assert back[0, 8:13].tolist() == [8, 8, 8, 8, 12]


@pytest.mark.parametrize(
    ("bidirectional", "distances", "buckets"),
    [
        # 16 buckets a side: 8 exact ones, then 8 + floor(8 · log(d/8) / log(128/8)); keys to the right add 16.
        (
            True,
            [0, -1, -7, -8, -12, -127, -500, 1, 7, 8, 12, 127, 500],
            [0, 1, 7, 8, 9, 15, 15, 17, 23, 24, 25, 31, 31],
        ),
        # 32 buckets to the left: 16 exact ones, then 16 + floor(16 · log(d/16) / log(128/16)); the right shares 0.
        (False, [0, -1, -15, -16, -20, -127, -500, 1, 9], [0, 1, 15, 16, 17, 31, 31, 0, 0]),
    ],
)
def test_relative_position_buckets_by_hand(bidirectional, distances, buckets):
    found = layers.relative_position_bucket(
        jnp.array(distances), bidirectional=bidirectional, num_buckets=32, max_distance=128
    )
    assert found.tolist() == buckets


def test_relative_position_buckets_equal_the_release(golden):
    expected = golden("padir_tiny_tied.npz")["relpos_bucket_300x300"]
    positions = jnp.arange(300)
    found = layers.relative_position_bucket(
        positions[None, :] - positions[:, None], bidirectional=True, num_buckets=32, max_distance=128
    )
    np.testing.assert_array_equal(found, expected)


def test_more_buckets_tell_more_distances_apart(rngs):
    """Causal attention with 80 buckets has one for each distance below 40, with 32 for each below 16."""
    for count, exact in ((80, 40), (32, 16)):
        bias = layers.RelativePositionBias(2, bidirectional=False, num_buckets=count, rngs=rngs)
        of_distance = np.asarray(bias(50))[0, 0, -1, ::-1]
        assert bias.rel_embedding[...].shape == (2, count)
        assert len(np.unique(of_distance[:exact])) == exact
        assert len(np.unique(of_distance[exact:])) < 50 - exact


def test_relative_position_bias_reads_key_minus_query(rngs):
    bias = layers.RelativePositionBias(2, bidirectional=True, rngs=rngs)
    table = np.asarray(bias.rel_embedding[...])
    out = bias(6)
    assert out.shape == (1, 2, 6, 6)
    # Queries 0 and 5, keys 0 and 3: distances [[0, 3], [-5, -2]] → buckets [[0, 19], [5, 2]]
    np.testing.assert_array_equal(out[0][:, [[0, 0], [5, 5]], [[0, 3], [0, 3]]], table[:, [[0, 19], [5, 2]]])
    assert np.abs(table).max() <= np.sqrt(3 / 17)
