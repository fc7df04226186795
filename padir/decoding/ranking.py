"""How to rank hypotheses of one source against each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import jax.numpy as jnp

from padir.checks import finite
from padir.types import Array


class RankPolicy(Protocol):
    """Scores hypotheses; the highest is the best."""

    def __call__(self, log_probs: Array, inside: Array, length_log_probs: Array) -> Array:
        """Scores each hypothesis.

        Args:
          log_probs: [N, L] float32, of each token: by the last step, or by a rescoring model.
          inside: [N, L] bool, which of them count.
          length_log_probs: [N] float32, of the hypothesis' length by the length predictor.

        Returns:
          Scores [N] float32.
        """


class BoundedRank(RankPolicy, Protocol):
    """A rank policy that `Refinement.likeliest_first` can be used with."""

    def bound(self, length_log_probs: Array) -> Array:
        """What no hypothesis of such a length can score more than, whatever its tokens.

        Takes the log-probabilities of lengths; returns float32 of their shape.
        """


@dataclass(frozen=True)
class RankByLogProbability(BoundedRank):
    """Summed log-probability over length^alpha, plus the length's own log-probability if it has a weight.

    Attributes:
      alpha: 1 ranks by the mean per token, 0 by the plain sum (which favours short hypotheses).
      length_weight: weight of the log-probability of the predicted length; 0 ignores it.
    """

    alpha: float = 1.0
    length_weight: float = 0.0

    def __post_init__(self):
        for name in ("alpha", "length_weight"):
            finite(f"RankByLogProbability.{name}", getattr(self, name))

    def __call__(self, log_probs: Array, inside: Array, length_log_probs: Array) -> Array:
        length = jnp.maximum(inside.sum(-1), 1).astype(jnp.float32)
        score = jnp.where(inside, log_probs, 0.0).sum(-1) / length**self.alpha
        # Not added at weight 0: an impossible length (-inf), which a caller may give, would make NaN of it.
        return score + self.length_weight * length_log_probs if self.length_weight else score

    def bound(self, length_log_probs: Array) -> Array:
        """The score if all tokens were certain; see `BoundedRank.bound`."""
        return self.length_weight * length_log_probs if self.length_weight else jnp.zeros_like(length_log_probs)


POLICIES = (RankByLogProbability,)
