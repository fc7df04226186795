"""Acceptance of every token that is likely enough (Fast-dLLM: Wu et al. 2025, arXiv 2505.22618)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp

from padir.decoding.remasking import RemaskPolicy, open_positions
from padir.decoding.state import StepView
from padir.errors import PadirError
from padir.types import Array


@dataclass(frozen=True)
class RemaskBelowThreshold(RemaskPolicy):
    """Remasks what is less likely than a threshold, but for the likeliest open position of each row.

    With `rewrite_only_remasked` a position that was accepted is never written again. Each step then accepts at least
    one, and a row is finished as soon as all are. Without it every step judges all positions anew.

    Attributes:
      threshold: the probability from which on a token is accepted; 0 accepts all, 1 little more than one a step.
    """

    threshold: float = 0.9

    accepts: ClassVar[bool] = True

    def __post_init__(self):
        if not 0.0 <= self.threshold <= 1.0:
            raise PadirError(f"RemaskBelowThreshold.threshold: {self.threshold} is not in [0, 1]")

    def __call__(self, view: StepView) -> Array:
        still_open = open_positions(view)
        log_probs = jnp.where(still_open, view.log_probs, -jnp.inf)
        likeliest = jax.nn.one_hot(jnp.argmax(log_probs, axis=-1), log_probs.shape[-1], dtype=bool)
        least = math.log(self.threshold) if self.threshold > 0.0 else -math.inf
        return still_open & (log_probs < least) & ~likeliest
