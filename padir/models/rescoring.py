"""Scoring hypotheses with an autoregressive model."""

from __future__ import annotations

import jax.numpy as jnp
from flax import struct

from padir.decoding.autoregressive import START_ID
from padir.decoding.sampling import log_probabilities
from padir.errors import PadirError
from padir.models.autoregressive import AutoregressiveModel
from padir.types import PAD_ID, Array, PyTree, TokenIds


@struct.dataclass
class Rescorer:
    """An autoregressive model that ranks another model's hypotheses; a pytree, so `jit` takes it as an argument.

    Attributes:
      model: of the same vocabulary; static.
      params: its parameters.
    """

    model: AutoregressiveModel = struct.field(pytree_node=False)
    params: PyTree

    def check(self, ids: TokenIds) -> None:
        """Raises PadirError if the model's vocabulary is not the one of `ids`."""
        if self.model.ids.num_pieces != ids.num_pieces:
            raise PadirError(
                f"rescorer: its vocabulary has {self.model.ids.num_pieces} pieces, the hypotheses' {ids.num_pieces}"
            )

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
        plan = network.plan(network.encode(source), source, rows.shape[1])
        inputs = jnp.pad(rows[:, :-1], ((0, 0), (1, 0)), constant_values=START_ID)
        log_probs = log_probabilities(network.logits(network.decode(inputs, plan).hidden), self.model.ids)
        chosen = jnp.take_along_axis(log_probs, rows[..., None], axis=-1)[..., 0]
        return jnp.where(rows == PAD_ID, 0.0, chosen).reshape(tokens.shape)
