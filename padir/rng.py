"""Named random streams, folded by step.

One integer seed gives every random number of a run. A stream is named for what it is used for, so
adding a consumer never shifts the numbers of another, and folding in the step makes every step's
randomness a pure function of (seed, name, step): resuming at step n needs only n.
"""

from __future__ import annotations

import zlib

import jax

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
