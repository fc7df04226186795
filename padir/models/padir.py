"""The PaDIR model: training objective and decoding, where network, loss and policies meet (layer 5)."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import nnx

from padir import corruption, losses, rng
from padir.corruption import CorruptionConfig
from padir.decoding.refinement import Refinement
from padir.decoding.state import Hypotheses
from padir.errors import PadirError
from padir.layers import subkey
from padir.length import LengthTokenPredictor, prepend_length_token
from padir.models import padir_decoding
from padir.models.base import BaseModel, Batch, Metrics
from padir.network import EncoderDecoder, NetworkConfig
from padir.types import PAD_ID, Array, PyTree


class _Padir(nnx.Module):
    """The modules of a PaDIR model."""

    def __init__(self, config: NetworkConfig, max_target_length: int, relative_length: bool, rngs: nnx.Rngs):
        self.network = EncoderDecoder(config, rngs)
        self.length_predictor = LengthTokenPredictor(
            max_target_length, config.embed_dim, relative=relative_length, rngs=rngs
        )


@dataclass(frozen=True)
class PadirModel(BaseModel):
    """Parallel decoding by iterative refinement.

    Attributes:
      ids: reserved ids of the vocabulary.
      network: size of the network; its decoder must not be causal.
      max_source_length, max_target_length: longest sequences in tokens, EOS counted.
      loss: loss weights.
      corruption: noise of the first training stage.
      num_stages: training stages S; each later one learns to refine the argmax of the one before.
      relative_length: predict target − source length instead of the length itself, as the paper does.
    """

    corruption: CorruptionConfig = CorruptionConfig()
    num_stages: int = 2
    relative_length: bool = False

    def __post_init__(self):
        super().__post_init__()
        if self.network.causal:
            raise PadirError("PadirModel: NetworkConfig.causal must be False; use AutoregressiveModel instead")
        if self.num_stages < 1:
            raise PadirError(f"PadirModel.num_stages: {self.num_stages} is not at least 1")
        if self.network.positional_attention and self.max_target_length > self.network.max_positions:
            raise PadirError(
                f"PadirModel.max_target_length: {self.max_target_length} exceeds the "
                f"{self.network.max_positions} learnt positions; raise NetworkConfig.max_positions"
            )

    def build(self, rngs: nnx.Rngs) -> nnx.Module:
        """Makes the modules with fresh parameters."""
        return _Padir(self.network, self.max_target_length, self.relative_length, rngs)

    def encode(self, params: PyTree, source: Array, dropout_key: Array | None = None) -> tuple[Array, Array]:
        """Source [B, Ls] int32 → (encoder output [B, Ls, E], length logits [B, max_target_length])."""
        module = self.module(params)
        encoded = module.network.encode(prepend_length_token(source, self.ids.length_id), dropout_key)
        return encoded[:, 1:], module.length_predictor(encoded, source)

    def loss_and_metrics(self, params: PyTree, batch: Batch, key: Array | None, train: bool) -> tuple[Array, Metrics]:
        """The training objective L = 1/S Σ L^(s) + length loss (paper section 4.2.2.2).

        Args:
          params: parameters.
          batch: `encoder_input_tokens` [B, Ls], `decoder_target_tokens` [B, Lt] int32.
          key: randomness of corruption and dropout.
          train: whether dropout is on.

        Returns:
          (loss [] float32, metrics: scalars).
        """
        module = self.module(params)
        source, targets = batch["encoder_input_tokens"], batch["decoder_target_tokens"]
        dropout_key = rng.stream(key, "dropout") if train else None
        noise_key = rng.stream(key, "corruption")

        # The encoder, the cross-attention keys and the positional weights are the same in every stage.
        encoded, length_logits = self.encode(params, source, subkey(dropout_key, 0))
        plan = module.network.plan(encoded, source, targets)
        weights = (targets != PAD_ID).astype(jnp.float32)
        metrics: Metrics = {}
        total = jnp.zeros((), jnp.float32)
        inputs = corruption.corrupt(jax.random.fold_in(noise_key, 0), targets, self.ids, self.corruption)
        for stage in range(1, self.num_stages + 1):
            hidden = module.network.decode(inputs, plan, dropout_key=subkey(dropout_key, stage)).hidden
            logits = module.network.logits(hidden)
            loss, prediction, stage_metrics = self._stage_metrics(stage, logits, targets, weights)
            total = total + loss / self.num_stages
            metrics.update(stage_metrics)
            # An argmax has no gradient, so nothing flows back through the hand-over.
            inputs = corruption.hand_over(
                jax.random.fold_in(noise_key, stage), prediction, targets, self.ids, self.corruption
            )
        lengths = (targets != PAD_ID).sum(-1)
        rows = (lengths > 0).astype(jnp.float32)
        length_loss = losses.length_loss(length_logits, lengths, rows)
        right = (length_logits.argmax(-1) + 1 == lengths).astype(jnp.float32)
        metrics["loss/length"] = length_loss
        metrics["length_accuracy"] = losses.weighted_mean(right, rows)
        metrics["loss"] = total + self.loss.length_loss_weight * length_loss
        return metrics["loss"], metrics

    def decode(
        self, params: PyTree, source: Array, key: Array, config: Refinement, num_steps: Array | None = None
    ) -> Hypotheses:
        """Translates a batch; see `padir_decoding.decode`."""
        return padir_decoding.decode(self, params, source, key, config, num_steps)
