"""How to rank hypotheses of one source against each other (layer 4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import jax.numpy as jnp

from padir.types import Array


class RankPolicy(Protocol):
    """Scores hypotheses; the highest is the best."""

    def __call__(self, log_probs: Array, inside: Array) -> Array:
        """log_probs [N, L] float32, inside [N, L] bool → scores [N] float32."""


@dataclass(frozen=True)
class RankByLogProbability:
    """Summed log-probability over length^alpha.

    Attributes:
      alpha: 1 ranks by the mean per token, 0 by the plain sum (which favours short hypotheses).
    """

    alpha: float = 1.0

    def __call__(self, log_probs: Array, inside: Array) -> Array:
        length = jnp.maximum(inside.sum(-1), 1).astype(jnp.float32)
        return jnp.where(inside, log_probs, 0.0).sum(-1) / length**self.alpha
