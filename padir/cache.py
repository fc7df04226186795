"""The key-value cache of autoregressive decoding, kept out of the modules (layer 1)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct

from padir.attention import KeyValue
from padir.types import Array


@struct.dataclass
class DecoderCache:
    """What one autoregressive decode remembers.

    Attributes:
      layers: per decoder layer, self-attention keys and values [N, max_length, H, D]; positions at
        or after `position` hold zeros and are masked out.
      position: [] int32, how many target positions are filled.
    """

    layers: tuple[KeyValue, ...]
    position: Array


def empty_cache(
    num_layers: int, rows: int, max_length: int, num_heads: int, head_dim: int, dtype: jnp.dtype
) -> DecoderCache:
    """A cache with room for `max_length` target positions in each of `rows` rows."""
    shape = (rows, max_length, num_heads, head_dim)
    layers = tuple(KeyValue(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype)) for _ in range(num_layers))
    return DecoderCache(layers, jnp.zeros((), jnp.int32))


def write(layer: KeyValue, new: KeyValue, position: Array) -> KeyValue:
    """Writes new keys and values [N, q, H, D] at `position` and returns the updated layer."""
    return jax.tree.map(
        lambda old, fresh: jax.lax.dynamic_update_slice_in_dim(old, fresh.astype(old.dtype), position, axis=1),
        layer,
        new,
    )


def reorder(cache: DecoderCache, rows: Array) -> DecoderCache:
    """The cache whose row n is what row rows[n] was: rows [N] int32."""
    return cache.replace(layers=jax.tree.map(lambda field: field[rows], cache.layers))
