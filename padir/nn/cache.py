"""Keys and values of target positions that a decoder keeps between steps, outside its modules.

An autoregressive decoder writes one position after the other, or some that another model has drafted (`Verified`). A
parallel one can write some positions anew and keep the others as they were (`Refinement.active_positions`).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct

from padir.nn.attention import KeyValue
from padir.types import Array, PyTree


@struct.dataclass
class LayerCache:
    """Of one decoder layer, for every target position.

    Attributes:
      self_attention: keys and values [N, max_length, H, D].
      positional: values of positional attention [N, max_length, H, D]; None without it.
    """

    self_attention: KeyValue
    positional: Array | None = None


@struct.dataclass
class DecoderCache:
    """The caches of all decoder layers during one decode.

    Attributes:
      layers: per decoder layer.
      position: which target positions the next tokens [N, q] are: [] int32, the first of q neighbours, where those from
        there on are masked out; or [N, q] int32, the positions of each row. Of equal ones the first counts.
      progress: fields [N, …], how far each row has come under a constraint (`decoding.constrained`); None without one.
    """

    layers: tuple[LayerCache, ...]
    position: Array
    progress: PyTree = None


def empty_cache(num_layers: int, rows: int, max_length: int, heads: tuple[int, ...], dtype: jnp.dtype, positional: bool) -> DecoderCache:
    """A causal decoder's cache with room for `max_length` target positions in each of `rows` rows.

    `heads` are the sizes of a position's key: (H, D), or (H · D,) of masked heads.
    """
    nothing = jnp.zeros((rows, max_length, *heads), dtype)
    of_layer = LayerCache(KeyValue(nothing, nothing), nothing if positional else None)
    return DecoderCache((of_layer,) * num_layers, jnp.zeros((), jnp.int32))


def write(old: PyTree, new: PyTree, position: Array) -> PyTree:
    """Writes fields [N, q, …] over fields [N, max_length, …] at a `DecoderCache.position`; returns those."""
    if position.ndim == 0:
        return jax.tree.map(
            lambda old, fresh: jax.lax.dynamic_update_slice_in_dim(old, fresh.astype(old.dtype), position, axis=1),
            old,
            new,
        )
    # Each place looks up what is new to it: on CPU a scatter would be a loop over the positions.
    places = jnp.arange(jax.tree.leaves(old)[0].shape[1])
    hits = position[:, None, :] == places[:, None]

    def put(old: Array, fresh: Array) -> Array:
        more = (1,) * (old.ndim - 2)
        looked_up = jnp.take_along_axis(fresh, hits.argmax(-1).reshape(*hits.shape[:2], *more), axis=1)
        return jnp.where(hits.any(-1).reshape(*hits.shape[:2], *more), looked_up.astype(old.dtype), old)

    return jax.tree.map(put, old, new)


def read(fields: PyTree, position: Array, count: int) -> PyTree:
    """Fields [N, max_length, …] of `count` positions q at a `DecoderCache.position`: → fields [N, q, …]."""

    def take(field: Array) -> Array:
        if position.ndim == 0:
            return jax.lax.dynamic_slice_in_dim(field, position, count, axis=1)
        return jnp.take_along_axis(field, position.reshape(*position.shape, *(1,) * (field.ndim - 2)), axis=1)

    return jax.tree.map(take, fields)


def queries(position: Array, count: int, weights: Array) -> Array:
    """Of biases or weights [N or 1, H, Lt, keys], those of `count` queries at a `DecoderCache.position`."""
    if position.ndim == 0:
        return jax.lax.dynamic_slice_in_dim(weights, position, count, axis=2)
    if len(weights) == 1:
        return jnp.moveaxis(jnp.take(weights[0], position, axis=1), 1, 0)
    return jnp.take_along_axis(weights, position[:, None, :, None], axis=2)


def reorder(cache: DecoderCache, rows: Array) -> DecoderCache:
    """The cache whose row n is what row rows[n] was: rows [N] int32."""
    layers, progress = jax.tree.map(lambda field: field[rows], (cache.layers, cache.progress))
    return cache.replace(layers=layers, progress=progress)
