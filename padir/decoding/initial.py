"""How to start: the first hypothesis of a refinement (layer 4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import jax
import jax.numpy as jnp

from padir.masks import length_mask
from padir.types import EOS_ID, PAD_ID, Array, TokenIds


class StartPolicy(Protocol):
    """Makes the initial tokens."""

    def __call__(self, key: Array, lengths: Array, max_length: int, ids: TokenIds) -> Array:
        """lengths [N] int32 → tokens [N, max_length] int32, 0 beyond each length."""


@dataclass(frozen=True)
class StartWithMask:
    """Every position is MASK."""

    def __call__(self, key: Array, lengths: Array, max_length: int, ids: TokenIds) -> Array:
        del key
        return jnp.where(length_mask(lengths, max_length), ids.mask_id, PAD_ID)


@dataclass(frozen=True)
class StartWithRandom:
    """Every position is a uniformly random piece, reproducible from the key."""

    def __call__(self, key: Array, lengths: Array, max_length: int, ids: TokenIds) -> Array:
        tokens = jax.random.randint(key, (lengths.shape[0], max_length), EOS_ID, ids.num_pieces)
        return jnp.where(length_mask(lengths, max_length), tokens, PAD_ID)
