"""Scoring hypotheses with an autoregressive model."""

from __future__ import annotations

from typing import ClassVar

import jax.numpy as jnp
from flax import struct

from padir.decoding.autoregressive import START_ID
from padir.decoding.sampling import log_probabilities
from padir.models.helper import Helper
from padir.types import PAD_ID, Array


@struct.dataclass
class Rescorer(Helper):
    """Ranks another model's hypotheses; its products are not rounded."""

    role: ClassVar[str] = "rescorer"
    option: ClassVar[str] = "rescore_with"
    task: ClassVar[str] = "rescoring"

    def token_log_probs(self, source: Array, tokens: Array) -> Array:
        """Log-probability of each token given those on its left, in one pass for all hypotheses.

        Args:
          source: [B, Ls] int32; encoded once, whatever K.
          tokens: [B, K, L] int32, padded with 0.

        Returns:
          Log-probabilities [B, K, L] float32; 0 at padding.
        """
        network = self.model.module(self.params).network
        rows = tokens.reshape(-1, tokens.shape[-1])
        plan = network.plan(self.model.encode(network, source), source, rows.shape[1])
        inputs = jnp.pad(rows[:, :-1], ((0, 0), (1, 0)), constant_values=START_ID)
        log_probs = log_probabilities(network.logits(network.decode(inputs, plan).hidden), self.model.ids)
        chosen = jnp.take_along_axis(log_probs, rows[..., None], axis=-1)[..., 0]
        return jnp.where(rows == PAD_ID, 0.0, chosen).reshape(tokens.shape)
