"""Where network, loss and decoding meet (layer 5): `PadirModel` and `AutoregressiveModel`.

A model object is static and hashable: configuration and token ids, no arrays. Parameters are a pure
pytree that `init` makes and every other method takes, so each method can be jitted as it stands.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property

import jax
import jax.numpy as jnp
from flax import nnx

from padir import corruption, losses, rng
from padir.corruption import CorruptionConfig
from padir.decoding import autoregressive
from padir.decoding.autoregressive import Autoregressive
from padir.decoding.refinement import Refinement, drop_repeats, refine
from padir.decoding.sampling import argmax, forbid_reserved
from padir.decoding.state import Hypotheses
from padir.errors import PadirError
from padir.layers import subkey
from padir.length import LengthTokenPredictor, prepend_length_token, top_lengths
from padir.masks import length_mask
from padir.network import DecodePlan, EncoderDecoder, NetworkConfig
from padir.types import PAD_ID, Array, PyTree, TokenIds

Batch = dict[str, Array]
Metrics = dict[str, Array]


@dataclass(frozen=True)
class LossConfig:
    """Weights of the losses (DESIGN section 4)."""

    label_smoothing: float = 0.0
    z_loss: float = 0.0
    length_loss_weight: float = 1.0


class _Padir(nnx.Module):
    """The modules of a PaDIR model."""

    def __init__(self, config: NetworkConfig, max_target_length: int, relative_length: bool, rngs: nnx.Rngs):
        self.network = EncoderDecoder(config, rngs)
        self.length_predictor = LengthTokenPredictor(
            max_target_length, config.embed_dim, relative=relative_length, rngs=rngs
        )


class _Autoregressive(nnx.Module):
    """The modules of an autoregressive model."""

    def __init__(self, config: NetworkConfig, rngs: nnx.Rngs):
        self.network = EncoderDecoder(config, rngs)


@dataclass(frozen=True)
class _Model:
    """What both models share."""

    ids: TokenIds
    network: NetworkConfig = NetworkConfig()
    max_source_length: int = 128
    max_target_length: int = 128
    loss: LossConfig = LossConfig()

    def __post_init__(self):
        # The vocabulary decides its own size; whoever builds a model names only the rest.
        sized = dataclasses.replace(self.network, vocab_size=self.ids.vocab_size)
        object.__setattr__(self, "network", sized)

    def build(self, rngs: nnx.Rngs) -> nnx.Module:
        raise NotImplementedError

    @cached_property
    def _graph(self) -> nnx.GraphDef:
        return nnx.split(nnx.eval_shape(lambda: self.build(nnx.Rngs(params=jax.random.key(0)))))[0]

    def init(self, seed: int | Array) -> PyTree:
        """Draws fresh parameters: a nested dict of float32 arrays under T5X's names."""
        module = self.build(nnx.Rngs(params=rng.stream(seed, "parameters")))
        return nnx.to_pure_dict(nnx.state(module, nnx.Param))

    def module(self, params: PyTree) -> nnx.Module:
        """The modules with these parameters, for use inside a traced function or a notebook."""
        return nnx.merge(self._graph, nnx.State(jax.tree.map(nnx.Param, params)))

    def parameter_count(self) -> int:
        """How many numbers `init` draws, found from shapes alone."""
        return sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(self.init, 0)))

    def _stage_metrics(self, stage: int, logits: Array, targets: Array, weights: Array) -> tuple[Array, Array, Metrics]:
        """One stage's mean loss, its argmax [B, Lt] and its metrics."""
        per_token = losses.cross_entropy(
            logits, targets, label_smoothing=self.loss.label_smoothing, z_loss=self.loss.z_loss
        )
        loss = losses.weighted_mean(per_token, weights)
        prediction = argmax(logits)
        accuracy = losses.weighted_mean((prediction == targets).astype(jnp.float32), weights)
        return loss, prediction, {f"loss/stage_{stage}": loss, f"token_accuracy/stage_{stage}": accuracy}


@dataclass(frozen=True)
class PadirModel(_Model):
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
        """Translates a batch.

        Args:
          params: parameters.
          source: [B, Ls] int32.
          key: randomness of the start, where it is random.
          config: steps and policies (static).
          num_steps: [] int32, overrides the steps of `config` without compiling anew; see `refine`.

        Returns:
          `Hypotheses` with K = config.num_hypotheses and L = max_target_length.

        Raises:
          PadirError: more hypotheses than lengths.
        """
        if config.num_hypotheses > self.max_target_length:
            raise PadirError(
                f"Refinement.num_hypotheses: {config.num_hypotheses} exceeds the "
                f"{self.max_target_length} lengths there are"
            )
        encoded, length_logits = self.encode(params, source)
        lengths, _ = top_lengths(length_logits, config.num_hypotheses, self.max_target_length)
        # A row that only pads the batch gets the shortest length: it must not widen the others' bucket.
        lengths = jnp.where((source != PAD_ID).any(-1, keepdims=True), lengths, 1)
        # One compiled branch per padded length, chosen on device: no round trip to ask how long it will be.
        buckets = [*(b for b in config.target_buckets if b < self.max_target_length), self.max_target_length]
        branches = [
            lambda *args, bucket=bucket: self._refine(*args, bucket=bucket, config=config) for bucket in buckets
        ]
        index = jnp.searchsorted(jnp.asarray(buckets), lengths.max())
        return jax.lax.switch(index, branches, params, encoded, source, lengths, key, num_steps)

    def _refine(
        self,
        params: PyTree,
        encoded: Array,
        source: Array,
        lengths: Array,
        key: Array,
        num_steps: Array | None,
        *,
        bucket: int,
        config: Refinement,
    ) -> Hypotheses:
        """Refines hypotheses of the given lengths [B, K], all at most `bucket`."""
        network = self.module(params).network
        rows = lengths.reshape(-1)
        inside = length_mask(rows, bucket)
        start = config.start(key, rows, bucket, self.ids)
        plan = network.plan(encoded, source, start)
        live = jnp.repeat((source != PAD_ID).any(-1), lengths.shape[1])
        state = refine(lambda tokens: self.step_logits(network, tokens, plan), start, rows, live, config, num_steps)
        tokens = drop_repeats(state.proposal, inside) if config.drop_repeats else state.proposal
        scores = config.rank(state.log_probs, inside).reshape(lengths.shape)

        order = jnp.argsort(-scores, axis=-1, stable=True)
        pad = ((0, 0), (0, 0), (0, self.max_target_length - bucket))
        trace = None
        if state.trace is not None:
            best = jnp.arange(lengths.shape[0]) * lengths.shape[1] + order[:, 0]
            trace = jax.tree.map(lambda field: jnp.pad(field[:, best], pad), state.trace)
        ranked = {
            "tokens": jnp.pad(tokens.reshape(*lengths.shape, bucket), pad),
            "scores": scores,
            "predicted_lengths": lengths,
            "steps_run": state.steps_run.reshape(lengths.shape),
        }
        ranked = {name: _reorder(field, order) for name, field in ranked.items()}
        return Hypotheses(**ranked, batch_steps=state.step, trace=trace)

    def step_logits(self, network: EncoderDecoder, tokens: Array, plan: DecodePlan) -> Array:
        """One refinement pass: tokens [N, L] int32 → logits [N, L, V] float32, reserved ids forbidden."""
        return forbid_reserved(network.logits(network.decode(tokens, plan).hidden), self.ids)


@dataclass(frozen=True)
class AutoregressiveModel(_Model):
    """The same network decoding left to right: the teacher, and the baseline.

    Attributes: see `PadirModel`; the decoder must be causal.
    """

    network: NetworkConfig = NetworkConfig(causal=True, positional_attention=False)

    def __post_init__(self):
        super().__post_init__()
        if not self.network.causal:
            raise PadirError("AutoregressiveModel: NetworkConfig.causal must be True; use PadirModel instead")

    def build(self, rngs: nnx.Rngs) -> nnx.Module:
        """Makes the modules with fresh parameters."""
        return _Autoregressive(self.network, rngs)

    def loss_and_metrics(self, params: PyTree, batch: Batch, key: Array | None, train: bool) -> tuple[Array, Metrics]:
        """Teacher-forced cross-entropy; arguments and result as in `PadirModel.loss_and_metrics`."""
        network = self.module(params).network
        source, targets = batch["encoder_input_tokens"], batch["decoder_target_tokens"]
        dropout_key = rng.stream(key, "dropout") if train else None
        encoded = network.encode(source, subkey(dropout_key, 0))
        plan = network.plan(encoded, source, targets.shape[1])
        inputs = jnp.pad(targets[:, :-1], ((0, 0), (1, 0)), constant_values=autoregressive.START_ID)
        hidden = network.decode(inputs, plan, dropout_key=subkey(dropout_key, 1)).hidden
        weights = (targets != PAD_ID).astype(jnp.float32)
        loss, _, metrics = self._stage_metrics(1, network.logits(hidden), targets, weights)
        return loss, {**metrics, "loss": loss}

    def decode(self, params: PyTree, source: Array, key: Array, config: Autoregressive) -> Hypotheses:
        """Translates a batch greedily with cached self- and cross-attention; see `PadirModel.decode` (K = 1)."""
        del key
        network = self.module(params).network
        rows, source_length = source.shape
        max_length = config.max_length(source_length, self.max_target_length)
        plan = network.plan(network.encode(source), source, max_length)

        def step(last: Array, cache):
            output = network.decode(last[:, None], plan, cache)
            return forbid_reserved(network.logits(output.hidden)[:, 0], self.ids), output.cache

        # A row that only pads the batch has nothing to say; started as done, it cannot hold the others up. What
        # a row may write depends on its own source alone, never on the bucket it is padded to.
        source_lengths = (source != PAD_ID).sum(-1)
        limits = config.max_length(source_lengths, self.max_target_length)
        state = autoregressive.greedy_decode(
            step, network.empty_cache(rows, max_length), source_lengths > 0, limits, max_length
        )
        lengths = (state.tokens != PAD_ID).sum(-1)
        pad = ((0, 0), (0, self.max_target_length - max_length))
        return Hypotheses(
            tokens=jnp.pad(state.tokens, pad)[:, None],
            scores=(state.score / jnp.maximum(lengths, 1) ** config.alpha)[:, None],
            predicted_lengths=lengths[:, None],
            steps_run=lengths[:, None],
            batch_steps=state.cache.position,
        )


Model = PadirModel | AutoregressiveModel
DecodeConfig = Refinement | Autoregressive
MODELS = {"padir": PadirModel, "autoregressive": AutoregressiveModel}


def _reorder(field: Array, order: Array) -> Array:
    """Sorts hypotheses: field [B, K, …], order [B, K] → field[b, order[b]]."""
    return jnp.take_along_axis(field, order.reshape(order.shape + (1,) * (field.ndim - 2)), axis=1)
