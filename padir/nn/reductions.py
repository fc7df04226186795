"""Softmax statistics found in one reduction, so that a compiler can take them while it computes the logits.

A maximum and a sum of exponentials after it are two reductions, and the logits must be kept for the second. Here one
reduction carries both along (Milakov and Gimelshein 2018, "Online normalizer calculation for softmax"). XLA for TPU
fuses it into the product that makes the logits, which are then never written to memory. XLA for CPU does not vectorise
such reductions: see `platforms.Choices.reduces_jointly`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from padir.types import Array

# The largest logit so far, and the sum of exp(logit - largest).
_Statistics = tuple[Array, Array]


def _merged(one: _Statistics, other: _Statistics) -> _Statistics:
    largest = jnp.maximum(one[0], other[0])
    # Where all logits so far are -inf, so that exp(-inf - shift) is 0.
    shift = jnp.where(largest == -jnp.inf, 0.0, largest)
    return largest, one[1] * jnp.exp(one[0] - shift) + other[1] * jnp.exp(other[0] - shift)


def max_and_sum_of_exp(logits: Array) -> _Statistics:
    """Logits [..., V] float32 → (largest, sum of exp(logits - largest)), [...] float32 each."""
    start = jnp.float32(-jnp.inf), jnp.float32(0)
    return jax.lax.reduce((logits, jnp.ones_like(logits)), start, _merged, (logits.ndim - 1,))


def likeliest(logits: Array) -> tuple[Array, Array]:
    """The first index of the largest logit and its log-probability: [..., V] float32 → [...] int32, [...] float32."""
    _, summed, index = _largest_sum_index(logits)
    return index, -jnp.log(summed)


def log_probability(logits: Array, index: Array) -> Array:
    """The log-probability of one entry of each row: logits [..., V] float32, index [...] int32 → [...] float32."""

    def merged(one: tuple[Array, Array, Array], other: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        return *_merged(one[:2], other[:2]), one[2] + other[2]

    own = jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1) == index[..., None]
    start = jnp.float32(-jnp.inf), jnp.float32(0), jnp.float32(0)
    operands = logits, jnp.ones_like(logits), jnp.where(own, logits, 0.0)
    largest, summed, chosen = jax.lax.reduce(operands, start, merged, (logits.ndim - 1,))
    return chosen - largest - jnp.log(summed)


def statistics(logits: Array) -> tuple[Array, Array, Array]:
    """Logits [..., V] float32 → (logarithm of the sum of exp(logits), largest, its first index), [...] each.

    The first has the gradient of `jax.nn.logsumexp`, the others have none.
    """
    largest, summed, index = _largest_sum_index(jax.lax.stop_gradient(logits))
    return _log_sum_exp(logits, largest, summed), largest, index


def _largest_sum_index(logits: Array) -> tuple[Array, Array, Array]:
    """Logits [..., V] → (largest, sum of exp(logits - largest), first index of the largest), [...] each."""
    size = logits.shape[-1]

    def merged(one: tuple[Array, Array, Array], other: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        later = (other[0] > one[0]) | ((other[0] == one[0]) & (other[2] < one[2]))
        return *_merged(one[:2], other[:2]), jnp.where(later, other[2], one[2])

    indices = jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)
    start = jnp.float32(-jnp.inf), jnp.float32(0), jnp.int32(size)
    largest, summed, index = jax.lax.reduce((logits, jnp.ones_like(logits), indices), start, merged, (logits.ndim - 1,))
    # Of logits that are not numbers none is the largest.
    return largest, summed, jnp.minimum(index, size - 1)


@jax.custom_jvp
def _log_sum_exp(logits: Array, largest: Array, summed: Array) -> Array:
    return largest + jnp.log(summed)


@_log_sum_exp.defjvp
def _log_sum_exp_jvp(primals: tuple[Array, ...], tangents: tuple[Array, ...]) -> tuple[Array, Array]:
    found = _log_sum_exp(*primals)
    return found, (jnp.exp(primals[0] - found[..., None]) * tangents[0]).sum(axis=-1)


@jax.custom_jvp
def softmax(logits: Array) -> Array:
    """`jax.nn.softmax` over the last axis of float32 logits, by `max_and_sum_of_exp`."""
    largest, summed = max_and_sum_of_exp(logits)
    return jnp.exp(logits - largest[..., None]) / summed[..., None]


@softmax.defjvp
def _softmax_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    # JAX cannot differentiate a reduction over pairs.
    weights = softmax(*primals)
    weighted = weights * tangents[0]
    return weights, weighted - weights * weighted.sum(axis=-1, keepdims=True)
