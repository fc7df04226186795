"""Attention masks: pure functions that can be checked by hand.

A mask is boolean, True where a query may look at a key, broadcastable to [N, H, queries, keys].
"""

from __future__ import annotations

import jax.numpy as jnp

from padir.types import MASKED_LOGIT, PAD_ID, Array


def source_mask(tokens: Array) -> Array:
    """Which source positions hold a token: tokens [B, Ls] int32 → [B, 1, 1, Ls] bool."""
    return (tokens != PAD_ID)[:, None, None, :]


def _between(seen: Array) -> Array:
    """True between two seen positions: [N, L] bool → [N, 1, L, L] bool.

    Padding queries see nothing and so attend evenly; nothing reads them, but T5X computes them so,
    and its arrays are then matched everywhere.
    """
    return seen[:, None, :, None] & seen[:, None, None, :]


def encoder_mask(tokens: Array) -> Array:
    """Encoder self-attention, between non-pad positions: tokens [B, Ls] int32 → [B, 1, Ls, Ls] bool."""
    return _between(tokens != PAD_ID)


def parallel_decoder_mask(tokens: Array) -> Array:
    """Parallel decoder self-attention: tokens [N, Lt] int32 → [N, 1, Lt, Lt] bool.

    Every non-pad position sees every other. Position 0 always counts as one, as in the T5X release,
    so that no hypothesis is ever empty.
    """
    return _between((tokens != PAD_ID) | (jnp.arange(tokens.shape[-1]) == 0))


def length_mask(lengths: Array, max_length: int) -> Array:
    """Positions inside each row's length: lengths [N] int32 → [N, max_length] bool."""
    return jnp.arange(max_length) < lengths[:, None]


def causal_mask(length: int) -> Array:
    """Each position sees itself and what is left of it: → [1, 1, length, length] bool."""
    positions = jnp.arange(length)
    return (positions[:, None] >= positions[None, :])[None, None]


def to_bias(mask: Array) -> Array:
    """Turns a mask into what is added to attention logits: 0 where True, a large negative where not (float32)."""
    return jnp.where(mask, 0.0, MASKED_LOGIT).astype(jnp.float32)


def stutter_mask(tokens: Array, inside: Array) -> Array:
    """Positions that repeat the token on their left.

    Args:
      tokens: [N, L] int32.
      inside: [N, L] bool, positions within each row's length.

    Returns:
      [N, L] bool, True at the second and later of a run of equal tokens; never at position 0.
    """
    repeats = tokens[:, 1:] == tokens[:, :-1]
    return jnp.pad(repeats, ((0, 0), (1, 0))) & inside
