"""The autoregressive model: teacher, and the baseline that every speed-up is measured against."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from flax import nnx

from padir import rng
from padir.decoding import autoregressive, beam, constrained
from padir.decoding.automaton import Automaton
from padir.decoding.autoregressive import Autoregressive
from padir.decoding.beam import BeamSearch
from padir.decoding.guided import Guided
from padir.decoding.sampling import log_probabilities
from padir.decoding.state import Hypotheses
from padir.errors import PadirError
from padir.models import guided
from padir.models.base import BaseModel, Batch, Metrics
from padir.models.guided import Judge
from padir.nn.cache import DecoderCache
from padir.nn.layers import subkeys
from padir.nn.network import EncoderDecoder, NetworkConfig
from padir.types import EOS_ID, PAD_ID, Array, PyTree


class _Autoregressive(nnx.Module):
    """The modules of an autoregressive model."""

    def __init__(self, config: NetworkConfig, rngs: nnx.Rngs):
        self.network = EncoderDecoder(config, rngs)


@dataclass(frozen=True)
class AutoregressiveModel(BaseModel):
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
        of_encoder, of_decoder = subkeys(rng.stream(key, "dropout") if train else None, 2)
        logits = self.target_logits(network, self.encode(network, source, of_encoder), source, targets, of_decoder)
        weights = (targets != PAD_ID).astype(jnp.float32)
        loss, _, metrics = self.stage_metrics("stage_1", logits, targets, weights)
        return loss, {**metrics, "loss": loss}

    def encode(self, network: EncoderDecoder, source: Array, dropout_key: Array | None = None) -> Array:
        """Source [B, Ls] int32 → encoder output [B, Ls, E], by `network` of `module`."""
        return network.encode(source, dropout_key)

    def target_logits(
        self,
        network: EncoderDecoder,
        encoded: Array,
        source: Array,
        targets: Array,
        dropout_key: Array | None = None,
    ) -> Array:
        """Logits [B, Lt, V] of targets [B, Lt] int32, each given those before it (teacher forcing)."""
        plan = network.plan(encoded, source, targets.shape[1])
        inputs = jnp.pad(targets[:, :-1], ((0, 0), (1, 0)), constant_values=autoregressive.START_ID)
        return network.logits(network.decode(inputs, plan, dropout_key=dropout_key).hidden)

    def decode(
        self,
        params: PyTree,
        source: Array,
        key: Array,
        config: Autoregressive | BeamSearch | Guided,
        *,
        lengths: Array | None = None,
        judge: Judge | None = None,
        constraint: Automaton | None = None,
    ) -> Hypotheses:
        """Translates a batch with cached self- and cross-attention.

        Args:
          params: parameters.
          source: [B, Ls] int32.
          key: randomness of sampling; the same for every batch, so that a translation depends on its source alone.
          config: greedy decoding or sampling, beam search, or generation under a verifier (static).
          lengths: [B] int32, tokens to write instead of writing until EOS, which is then never written; at most what
            `config` allows a source. For timing weights that do not know where to end.
          judge: of generation under a verifier; see `guided.decode`.
          constraint: of B rows, what each source's translation must obey; see `constrained.decode`.

        Returns:
          `Hypotheses` with K = what `config` returns per source and L = max_target_length.

        Raises:
          PadirError: a configuration of another kind of model, or what `guided.check` or `constrained.check` refuses.
        """
        if isinstance(config, Guided):
            guided.check(config, judge, has_lengths=lengths is not None)
            return guided.decode(self, params, source, key, config, judge, constraint)
        if not isinstance(config, Autoregressive | BeamSearch):
            raise PadirError(
                f"{type(config).__name__} does not fit an AutoregressiveModel; use Autoregressive, BeamSearch or Guided"
            )
        network = self.module(params).network
        max_length = config.max_length(source.shape[1], self.max_target_length)
        plan = network.plan(self.encode(network, source), source, max_length)

        def step(last: Array, cache: DecoderCache) -> tuple[Array, DecoderCache]:
            output = network.decode(last[:, None], plan, cache)
            log_probs = log_probabilities(network.logits(output.hidden)[:, 0], self.ids)
            return log_probs if lengths is None else log_probs.at[:, EOS_ID].set(-jnp.inf), output.cache

        # A source that only pads the batch has nothing to say; started as done, it cannot hold the others up. What
        # a row may write depends on its own source alone, never on the bucket it is padded to.
        source_lengths = (source != PAD_ID).sum(-1)
        limits = jnp.minimum(config.max_length(source_lengths, self.max_target_length), max_length)
        if lengths is not None:
            limits = jnp.minimum(limits, lengths)
        live = source_lengths > 0
        cache = network.empty_cache(source.shape[0] * config.rows_per_source, max_length)
        search = step, cache, live, limits, max_length, config, rng.of_sources(key, source)
        if constraint is not None:
            if lengths is not None:
                raise PadirError("constraint: with given lengths no output ends; leave the lengths out")
            found = constrained.decode(*search, constraint)
        else:
            found = (beam.decode if isinstance(config, BeamSearch) else autoregressive.decode)(*search)
        pad = ((0, 0), (0, 0), (0, self.max_target_length - max_length))
        return found.replace(tokens=jnp.pad(found.tokens, pad))
