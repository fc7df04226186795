"""Repeated tokens, dropped once the last step is done (paper section 4.2.3)."""

from __future__ import annotations

import jax.numpy as jnp

from padir.types import PAD_ID, Array


def drop_repeats(tokens: Array, inside: Array, kept: Array | None = None) -> Array:
    """Drops every token that repeats its left neighbour and closes the gaps.

    Args:
      tokens: [N, L] int32.
      inside: [N, L] bool, positions within each row's length.
      kept: [N, L] bool, positions whose token stays even if it is a repeat; None for none.

    Returns:
      [N, L] int32, padded with 0 at the end.
    """
    repeats = jnp.pad(tokens[:, 1:] == tokens[:, :-1], ((0, 0), (1, 0)))
    keep = inside & (~repeats if kept is None else ~repeats | kept)
    # Dropped tokens are sent to a column of their own beyond the end, which is then cut off.
    column = jnp.where(keep, jnp.cumsum(keep, axis=-1) - 1, tokens.shape[-1])
    rows = jnp.arange(tokens.shape[0])[:, None]
    room = jnp.full((tokens.shape[0], tokens.shape[1] + 1), PAD_ID, tokens.dtype)
    return room.at[rows, column].set(tokens)[:, :-1]
