"""Which lengths a source's hypotheses have."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from padir.types import Array


def with_neighbours(lengths: Array, beam: int, max_length: int) -> Array:
    """Tries lengths near the given ones as well.

    Around a length ℓ that is ℓ, ℓ − 1, ℓ + 1, ℓ − 2, … Where that would go beyond [1, max_length], or meet a length
    that is taken already, the next nearest free length takes its place: so there are always k·beam different ones.

    Args:
      lengths: [B, k] int32, in [1, max_length], the most important first.
      beam: how many there shall be for each of them, itself counted; k·beam is at most max_length.
      max_length: the longest length there is.

    Returns:
      [B, k·beam] int32: the given lengths in their order (once each), then the others, nearest first.
    """
    if beam == 1:
        return lengths
    candidates = jnp.arange(1, max_length + 1)
    difference = candidates[None, None, :] - lengths[:, :, None]
    # One number for (distance, shorter before longer, importance of the length it is near to); no two candidates
    # share one, since the three say which candidate it is.
    side = 2 * jnp.abs(difference) + (difference > 0)
    order = (side * lengths.shape[1] + jnp.arange(lengths.shape[1])[None, :, None]).min(axis=1)
    return jax.lax.top_k(-order, lengths.shape[1] * beam)[1].astype(jnp.int32) + 1
