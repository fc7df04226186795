"""Sampling at a temperature that falls from step to step."""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax.numpy as jnp

from padir.decoding.sampling import logsumexp, token_at
from padir.errors import PadirError
from padir.types import Array


@dataclass(frozen=True)
class AnnealedSampling:
    """Draws tokens at a temperature that changes linearly from the first step to the last; for `Refinement` only.

    Attributes:
      temperature: of the first step.
      final_temperature: of the last step that may run (`Refinement.num_steps`), as of an only one; 0 is greedy.
    """

    temperature: float = 1.0
    final_temperature: float = 0.0

    def __post_init__(self):
        if not 0.0 < self.temperature < math.inf:
            raise PadirError(f"AnnealedSampling.temperature: {self.temperature} is not a positive number; use Sampling")
        if not 0.0 <= self.final_temperature < math.inf:
            raise PadirError(
                f"AnnealedSampling.final_temperature: {self.final_temperature} is not 0 or a positive number"
            )

    def at(self, numbers: Array, logits: Array, progress: Array) -> tuple[Array, Array]:
        """Draws one token from each distribution, as `Sampling.at` does.

        Args:
          numbers: [...] float32 in [0, 1), random ones.
          logits: [..., V]; -inf forbids a token.
          progress: [] float32, 0 in the first step, 1 in the last.

        Returns:
          (tokens [...] int32, their log-probabilities [...] float32 under the logits as given).
        """
        logits = logits.astype(jnp.float32)
        temperature = self.temperature + (self.final_temperature - self.temperature) * progress
        token = token_at(numbers, logits, temperature)
        chosen = jnp.take_along_axis(logits, token[..., None], axis=-1)[..., 0]
        return token, chosen - logsumexp(logits)
