"""Training contexts of a disentangled model (DisCo: Kasai et al. 2020), drawn on device inside the step."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from padir.types import EOS_ID, PAD_ID, Array


def draw(key: Array, targets: Array) -> Array:
    """Draws which tokens each position observes.

    A position observes a uniformly random subset of the other words. Its size is uniform, too, from none to all, and
    each position has its own. All observe EOS, as in the authors' code: the length is given, so EOS gives nothing away.

    Args:
      key: randomness.
      targets: [B, Lt] int32, padded with 0.

    Returns:
      Contexts for `DecodePlan.observing`: [B, Lt, Lt] bool.
    """
    subset_key, size_key = jax.random.split(key)
    # How many of some independent uniform numbers lie below a further one is any count, equally often, and then any
    # subset of that many. So nothing need be sorted.
    numbers = jax.random.uniform(subset_key, (*targets.shape, targets.shape[1]))
    below = numbers < jax.random.uniform(size_key, (*targets.shape, 1))
    observed = (below & predicted(targets)[:, None, :]) | (targets == EOS_ID)[:, None, :]
    return observed & ~jnp.eye(targets.shape[1], dtype=bool)


def predicted(targets: Array) -> Array:
    """Positions that are predicted, and learn: all but EOS, which is known. targets [B, Lt] int32 → [B, Lt] bool."""
    return (targets != PAD_ID) & (targets != EOS_ID)
