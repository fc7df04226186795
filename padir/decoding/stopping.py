"""When a row stops (layer 4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import jax.numpy as jnp

from padir.types import Array


class StopPolicy(Protocol):
    """Decides per row, from what a step read and what the next would read."""

    def __call__(self, read: Array, next_tokens: Array) -> Array:
        """read [N, L] int32, next_tokens [N, L] int32 → stop [N] bool."""


@dataclass(frozen=True)
class StopWhenUnchanged:
    """Stops where X^(t+1) = X^(t) (paper section 4.2.2.1): all later steps would repeat this one."""

    def __call__(self, read: Array, next_tokens: Array) -> Array:
        return (read == next_tokens).all(axis=-1)


@dataclass(frozen=True)
class StopNever:
    """Runs every step, for benchmarks of a fixed amount of work."""

    def __call__(self, read: Array, next_tokens: Array) -> Array:
        return jnp.zeros((read.shape[0],), bool)
