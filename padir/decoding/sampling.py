"""From logits to tokens (layer 4)."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from padir.types import PAD_ID, Array, TokenIds


def forbid_reserved(logits: Array, ids: TokenIds) -> Array:
    """Makes padding, MASK and every other id that no text can contain impossible: logits [..., V] → [..., V]."""
    token = jnp.arange(logits.shape[-1])
    return jnp.where((token != PAD_ID) & (token < ids.num_pieces), logits, -jnp.inf)


def argmax(logits: Array) -> Array:
    """The first index of the largest value: logits [..., V] → [...] int32, as `jnp.argmax`.

    As two plain reductions, which compilers vectorise; a reduction over (value, index) pairs they mostly do not.
    """
    size = logits.shape[-1]
    largest = logits == logits.max(axis=-1, keepdims=True)
    return jnp.where(largest, jnp.arange(size, dtype=jnp.int32), size - 1).min(axis=-1)


def greedy(logits: Array) -> tuple[Array, Array]:
    """The likeliest token: logits [..., V] → (tokens [...] int32, log-probabilities [...] float32)."""
    logits = logits.astype(jnp.float32)
    return argmax(logits), logits.max(axis=-1) - jax.nn.logsumexp(logits, axis=-1)
