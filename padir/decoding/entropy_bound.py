"""Acceptance of the surest positions, as long as their entropies add up to little.

The joint entropy of tokens is at most the sum of their own. To write several at once, each as if the others did not
matter, therefore costs little where that sum is small (EB-Sampler: Ben-Hamu et al. 2025, arXiv 2505.24857).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp

from padir.decoding.remasking import RemaskPolicy, open_positions
from padir.decoding.state import StepView
from padir.errors import PadirError
from padir.types import Array


@dataclass(frozen=True)
class RemaskBeyondEntropyBound(RemaskPolicy):
    """Accepts the open positions of lowest entropy whose sum stays within a bound, and remasks the other open ones.

    At least one position of each row is accepted, the leftmost of equals. `rewrite_only_remasked` as in
    `RemaskBelowThreshold`.

    Attributes:
      bound: of the summed entropies, in nats.
    """

    bound: float = 0.1

    accepts: ClassVar[bool] = True
    needs_entropy: ClassVar[bool] = True

    def __post_init__(self):
        if not 0.0 <= self.bound < math.inf:
            raise PadirError(f"RemaskBeyondEntropyBound.bound: {self.bound} is not a number of nats of at least 0")

    def __call__(self, view: StepView) -> Array:
        still_open = open_positions(view)
        entropy = jnp.where(still_open, view.entropy, jnp.inf)
        order = jnp.argsort(entropy, axis=-1, stable=True)
        total = jnp.cumsum(jnp.take_along_axis(entropy, order, axis=-1), axis=-1)
        accepted = (total <= self.bound) | (jnp.arange(total.shape[-1]) == 0)
        # Sorting an order gives its inverse: the rank of each position.
        return still_open & ~jnp.take_along_axis(accepted, jnp.argsort(order, axis=-1), axis=-1)
