"""Attention against numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from numerics import assert_close

from padir.nn.attention import KeyValue, MultiHeadAttention
from padir.runtime.platforms import tracing_for
from padir.types import MASKED_LOGIT

HEADS, WIDTH, FEATURES = 2, 3, 5


@pytest.fixture(scope="module")
def attention():
    return MultiHeadAttention(
        FEATURES,
        HEADS,
        WIDTH,
        dropout_rate=0.5,
        dtype=jnp.dtype("float32"),
        rngs=nnx.Rngs(params=jax.random.key(0)),
    )


def random(*shape, seed):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def plain_attention(attention, x, memory, bias):
    """One head and one query at a time."""
    kernels = {name: np.asarray(getattr(attention, name).weight[...]).T for name in ("query", "key", "value", "out")}
    batch, queries, keys = x.shape[0], x.shape[1], memory.shape[1]
    weights = np.zeros((batch, HEADS, queries, keys))
    mixed = np.zeros((batch, queries, HEADS * WIDTH))
    for b in range(batch):
        for h in range(HEADS):
            columns = slice(h * WIDTH, (h + 1) * WIDTH)
            key, value = memory[b] @ kernels["key"][:, columns], memory[b] @ kernels["value"][:, columns]
            for q in range(queries):
                logits = key @ (x[b, q] @ kernels["query"][:, columns]) + bias[b, h, q]
                exponentials = np.exp(logits - logits.max())
                weights[b, h, q] = exponentials / exponentials.sum()
                mixed[b, q, columns] = weights[b, h, q] @ value
    return mixed @ kernels["out"], weights


def test_attention_against_plain_loops(attention):
    x, memory, bias = random(2, 4, FEATURES, seed=1), random(2, 6, FEATURES, seed=2), random(2, HEADS, 4, 6, seed=3)
    queries, keys = attention.queries(jnp.asarray(x)), attention.key_value(jnp.asarray(memory))
    output, weights = attention(queries, keys, jnp.asarray(bias))
    expected_output, expected_weights = plain_attention(attention, x, memory, bias)
    np.testing.assert_allclose(weights, expected_weights, atol=1e-6)
    assert_close(output, expected_output, 1e-5)


def test_masked_keys_weigh_exactly_nothing_and_a_blind_query_stays_finite(attention):
    x, memory = jnp.asarray(random(1, 2, FEATURES, seed=1)), jnp.asarray(random(1, 3, FEATURES, seed=2))
    bias = jnp.array([[0.0, MASKED_LOGIT, 0.0], [MASKED_LOGIT] * 3])[None, None]
    weights = attention.weights(attention.queries(x), attention.key_value(memory).key, bias)
    assert (weights[:, :, 0, 1] == 0).all()
    np.testing.assert_allclose(weights.sum(-1), 1.0, atol=1e-6)
    # The mask swamps whatever the blind query thought of each key.
    np.testing.assert_allclose(weights[:, :, 1], 1 / 3, atol=1e-6)


@pytest.mark.parametrize("masked", [False, True])
def test_a_single_key_has_all_the_weight_without_any_product(attention, masked):
    """What the softmax says, and its gradient, bit for bit."""
    x, memory = jnp.asarray(random(2, 4, FEATURES, seed=1)), jnp.asarray(random(2, 1, FEATURES, seed=2))
    bias = jnp.full((2, 1, 1, 1), MASKED_LOGIT if masked else 0.5)

    def by_softmax(x):
        keys = attention.key_value(memory)
        weights = attention.normalised(attention.logits(attention.queries(x), keys.key), bias)
        return attention.apply(weights, keys.value), weights

    def shortly(x):
        return attention(attention.queries(x), attention.key_value(memory), bias)

    for expected, found in zip(by_softmax(x), shortly(x), strict=True):
        np.testing.assert_array_equal(found, expected)
    for function in (by_softmax, shortly):
        assert not jax.grad(lambda x, function=function: (function(x)[0] ** 2).sum())(x).any()
    exponentials = ["exponential" in jax.jit(each).lower(x).compile().as_text() for each in (by_softmax, shortly)]
    assert exponentials == [True, False]


def test_the_query_initialisation_carries_the_scale():
    wide = MultiHeadAttention(
        256, 4, 64, dropout_rate=0.0, dtype=jnp.dtype("float32"), rngs=nnx.Rngs(params=jax.random.key(1))
    )
    assert float(wide.query.weight[...].std()) == pytest.approx(1 / np.sqrt(256 * 64), rel=0.02)
    assert float(wide.key.weight[...].std()) == pytest.approx(1 / np.sqrt(256), rel=0.02)


def test_dropout_reaches_what_is_applied_but_not_the_reported_weights(attention):
    x = jnp.asarray(random(1, 4, FEATURES, seed=1))
    query, keys = attention.query_key_value(x)
    bias = jnp.zeros((1, 1, 4, 4))
    plain_output, plain_weights = attention(query, keys, bias)
    output, weights = attention(query, keys, bias, jax.random.key(5))
    np.testing.assert_array_equal(weights, plain_weights)
    assert not np.allclose(output, plain_output)


def gradients(dtype, logits, applied):
    """Of everything that two such functions of a query, a key, a value and a bias are given."""
    shapes = {"query": (2, 4, HEADS, WIDTH), "key": (2, 6, HEADS, WIDTH), "value": (2, 6, HEADS, WIDTH)}
    given = [jnp.asarray(random(*shape, seed=i), dtype) for i, shape in enumerate(shapes.values())]
    bias, wanted = jnp.asarray(random(2, HEADS, 4, 6, seed=5)), random(2, 4, FEATURES, seed=6)

    def summed(query, key, value, bias):
        weights = jax.nn.softmax(logits(query, key) + bias, axis=-1)
        return (applied(weights, value).astype(jnp.float32) * wanted).sum()

    return jax.jit(jax.grad(summed, argnums=(0, 1, 2, 3)))(*given, bias)


@pytest.mark.parametrize("platform", ["cpu", "gpu", "tpu"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gradients_against_those_of_plain_einsums(dtype, platform):
    attention = MultiHeadAttention(
        FEATURES, HEADS, WIDTH, dropout_rate=0.0, dtype=jnp.dtype(dtype), rngs=nnx.Rngs(params=jax.random.key(0))
    )

    def logits(query, key):
        return jnp.einsum("bqhd,bkhd->bhqk", query, key, preferred_element_type=jnp.float32)

    def applied(weights, value):
        mixed = jnp.einsum("bhqk,bkhd->bqhd", weights.astype(dtype), value)
        return attention.out(mixed.reshape(*mixed.shape[:-2], -1))

    expected = gradients(dtype, logits, applied)
    with tracing_for(platform):
        found = gradients(dtype, attention.logits, attention.apply)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        assert_close(one, other, {"float32": 1e-6, "bfloat16": 0.01}[dtype])


def test_only_cpu_is_told_to_turn_a_factor_first(attention):
    """For others the compiler chooses layouts, and a barrier would be in its way."""
    shape = jax.ShapeDtypeStruct((2, 4, HEADS, WIDTH), jnp.float32)
    for platform, count in {"cpu": 1, "cuda": 0, "tpu": 0}.items():
        gradient = jax.jit(jax.grad(lambda query, key: attention.logits(query, key).sum(), argnums=1))
        with tracing_for(platform):
            lowered = gradient.trace(shape, shape).lower(lowering_platforms=(platform,)).as_text()
        assert lowered.count("optimization_barrier") == count, platform


def test_weights_are_float32_in_a_bfloat16_model():
    narrow = MultiHeadAttention(
        FEATURES,
        HEADS,
        WIDTH,
        dropout_rate=0.0,
        dtype=jnp.dtype("bfloat16"),
        rngs=nnx.Rngs(params=jax.random.key(0)),
    )
    x = jnp.asarray(random(1, 4, FEATURES, seed=1))
    query, keys = narrow.query_key_value(x)
    assert isinstance(keys, KeyValue) and keys.key.dtype == jnp.bfloat16
    output, weights = narrow(query, keys, jnp.zeros((1, 1, 4, 4)))
    assert (output.dtype, weights.dtype) == (jnp.bfloat16, jnp.float32)


def test_logits_and_softmax_in_the_activation_dtype_if_asked():
    options = {"dropout_rate": 0.0, "dtype": jnp.dtype("bfloat16")}
    full, half = (
        MultiHeadAttention(
            FEATURES, HEADS, WIDTH, **options, float32_logits=exact, rngs=nnx.Rngs(params=jax.random.key(0))
        )
        for exact in (True, False)
    )
    x, bias = jnp.asarray(random(2, 7, FEATURES, seed=1)), jnp.asarray(random(1, HEADS, 7, 7, seed=2))
    keys = half.key_value(x)
    query = half.queries(x)
    logits = jnp.einsum("bqhd,bkhd->bhqk", query, keys.key) + bias.astype(jnp.bfloat16)
    assert logits.dtype == jnp.bfloat16
    weights = half.weights(query, keys.key, bias)
    assert weights.dtype == jnp.float32
    np.testing.assert_allclose(weights, jax.nn.softmax(logits, axis=-1).astype(jnp.float32), atol=0.004)
    # Every weight is a bfloat16 number, which those of float32 logits are not; both agree to bfloat16's precision.
    np.testing.assert_array_equal(weights, weights.astype(jnp.bfloat16).astype(jnp.float32))
    exact = full.weights(full.queries(x), full.key_value(x).key, bias)
    assert (exact != exact.astype(jnp.bfloat16).astype(jnp.float32)).mean() > 0.9
    np.testing.assert_allclose(weights, exact, atol=0.02)
