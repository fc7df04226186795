"""Credit for tokens that keep being proposed (CreditDecoding: Wang et al. 2025, arXiv 2510.06133).

A token that was likely in earlier steps, too, is more certain than its probability in this step alone says.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from padir.decoding.state import RefinementState
from padir.errors import PadirError
from padir.types import Array


@dataclass(frozen=True)
class Credit:
    """What a proposed token gathers over the steps, and how much it counts.

    Before each step's own p^power is added, a token's credit C decays. Where another token is proposed it is lost. (The
    paper keeps credit of all tokens: V numbers a position instead of one.) Remasking policies then see the probability
    that the token would have if its logit were higher by weight · log(1 + C). Scores and other policies keep the
    model's own.

    Attributes:
      decay: share of the credit that is left after a step (β in the paper).
      power: exponent of the probability that is added (γ); below 1 even unlikely proposals gather credit.
      weight: of the credit in the logit (λ).
    """

    decay: float = 0.65
    power: float = 0.5
    weight: float = 0.7

    def __post_init__(self):
        if not 0.0 <= self.decay <= 1.0:
            raise PadirError(f"Credit.decay: {self.decay} is not in [0, 1]")
        for name in ("power", "weight"):
            if not 0.0 < getattr(self, name) < math.inf:
                raise PadirError(f"Credit.{name}: {getattr(self, name)} is not a positive number")

    def gathered(self, credit: Array, same: Array, log_probs: Array) -> Array:
        """The credit after a step.

        Args:
          credit: [N, L] float32, before it.
          same: [N, L] bool, where it proposed the token of the step before.
          log_probs: [N, L] float32, log-probabilities of what it proposed.

        Returns:
          [N, L] float32.
        """
        return jnp.where(same, self.decay * credit, 0.0) + jnp.exp(self.power * log_probs)

    def raised(self, log_probs: Array, credit: Array) -> Array:
        """Log-probabilities as remasking policies see them: log_probs, credit [N, L] float32 → [N, L] float32."""
        gain = self.weight * jnp.log1p(credit)
        # Only this token's logit rises, so the other tokens keep the rest: p·g / (1 − p + p·g) for a gain of log g.
        return log_probs + gain - jnp.log1p(jnp.exp(log_probs) * jnp.expm1(gain))


def with_credit(state: RefinementState, same: Array, log_probs: Array, config: Any) -> tuple[Array, Array | None]:
    """Log-probabilities as remasking sees them, and the credit after a step: [N, L] float32; None without.

    `same` [N, L] bool marks where it proposed the token of the step before; `config` is a `Refinement`.
    """
    if config.credit is None:
        return log_probs, None
    credit = config.credit.gathered(state.credit, same, log_probs)
    if config.rewrite_only_remasked:
        # What a step could not write was not proposed again.
        credit = jnp.where(state.remasked, credit, state.credit)
    return config.credit.raised(log_probs, credit), credit
