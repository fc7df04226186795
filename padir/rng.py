"""Named random streams, folded by step.

One integer seed gives every random number of a run. A stream is named for what it is used for, so
adding a consumer never shifts the numbers of another, and folding in the step makes every step's
randomness a pure function of (seed, name, step): resuming at step n needs only n.
"""

from __future__ import annotations

import zlib

import jax
import jax.numpy as jnp
import numpy as np

from padir.types import Array


def stream(seed: int | Array, name: str, step: int | Array | None = None) -> Array:
    """Returns the key of the stream `name`, at `step` if given.

    Args:
      seed: the run's integer seed, or a key to derive from.
      name: what the numbers are for, e.g. 'parameters', 'corruption', 'dropout'.
      step: training step, a Python int or a traced int32 scalar.

    Returns:
      A typed JAX key, shape [].
    """
    is_key = isinstance(seed, jax.Array) and jax.dtypes.issubdtype(seed.dtype, jax.dtypes.prng_key)
    key = seed if is_key else jax.random.key(seed)
    # CRC rather than hash(): Python salts string hashes anew in every process.
    key = jax.random.fold_in(key, zlib.crc32(name.encode()))
    return key if step is None else jax.random.fold_in(key, step)


def folded(keys: Array, data: Array | int) -> Array:
    """Returns `jax.random.fold_in` of each key: keys [N], data [] int32 → [N] keys."""
    return jax.vmap(jax.random.fold_in, (0, None))(keys, data)


def numbered(keys: Array, count: int) -> Array:
    """Returns keys of `count` things of each key's: keys [N] → [N, count] keys; none depends on the count."""
    return jax.vmap(folded, (None, 0), 1)(keys, jnp.arange(count))


def of_sources(key: Array, source: Array) -> Array:
    """A key for each source, whatever it is padded to and whatever its neighbours are: source [B, Ls] int32 → [B] keys.

    With one key for all of them, whole corpora would be translated with the same draws.
    """
    return jax.vmap(jax.random.fold_in, (None, 0))(key, number_of_source(source))


def number_of_source(source: Array) -> Array:
    """A number that hardly any two sources share, whatever they are padded to: [B, Ls] int32 → [B] int32.

    The numbers of sources are far apart, so that a few samples of each can be counted up from them.
    """
    # Padding is 0 and adds nothing. Then bits are mixed as at the end of MurmurHash3.
    powers = np.cumprod(np.full(source.shape[1], 0x01000193, np.uint32), dtype=np.uint32)
    found = (source.astype(jnp.uint32) * powers).sum(axis=-1, dtype=jnp.uint32)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        found = (found ^ (found >> shift)) * jnp.uint32(factor)
    return jax.lax.bitcast_convert_type(found ^ (found >> 16), jnp.int32)
