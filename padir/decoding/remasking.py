"""What to remask between steps (layer 4; paper section 4.2.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import jax.numpy as jnp

from padir.masks import stutter_mask
from padir.types import Array


class RemaskPolicy(Protocol):
    """Chooses the positions that the next step shall see as they were at the start."""

    def __call__(self, proposal: Array, log_probs: Array, inside: Array) -> Array:
        """proposal [N, L] int32, log_probs [N, L] float32, inside [N, L] bool → remask [N, L] bool."""


@dataclass(frozen=True)
class RemaskNothing:
    """The next step reads exactly what this one wrote."""

    def __call__(self, proposal: Array, log_probs: Array, inside: Array) -> Array:
        return jnp.zeros_like(inside)


@dataclass(frozen=True)
class RemaskStutter:
    """Token-level stutter, consecutive repeated tokens, is remasked (the paper's recipe)."""

    def __call__(self, proposal: Array, log_probs: Array, inside: Array) -> Array:
        return stutter_mask(proposal, inside)
