"""The PaDIR model: training objective and decoding, where network, loss and policies meet."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property

import jax
import jax.numpy as jnp
from flax import nnx

from padir import rng
from padir.checks import whole
from padir.decoding.automaton import Automaton
from padir.decoding.refinement import Refinement
from padir.decoding.state import Hypotheses
from padir.decoding.verified import Verified
from padir.errors import PadirError
from padir.models import padir_decoding, ranker, rejecter, stages, verification
from padir.models.base import BaseModel, Batch, DecodingParams, Metrics
from padir.models.causal_mode import CausalMode
from padir.models.rescoring import Rescorer
from padir.models.verification import Verifier
from padir.nn import flops, for_decoding
from padir.nn.layers import Dense, RelativePositionBias, subkeys
from padir.nn.length import (
    LENGTH_PREDICTORS,
    AffineLengthPredictor,
    FertilityLengthPredictor,
    LengthTokenPredictor,
    prepend_length_token,
)
from padir.nn.network import Decoder, EncoderDecoder
from padir.objectives import corruption, losses
from padir.objectives.corruption import CorruptionConfig
from padir.runtime.sharding import constrain
from padir.types import PAD_ID, Array, PyTree

# Standard deviation of a conditioning at first, where that of an embedding is 1.
_FIRST_CONDITIONING = 0.1


class _Padir(nnx.Module):
    """The modules of a PaDIR model."""

    def __init__(self, model: PadirModel, rngs: nnx.Rngs):
        longest, features = model.max_target_length, model.network.embed_dim
        self.network = EncoderDecoder(model.network, rngs)
        if model.length_predictor == "token":
            self.length_predictor = LengthTokenPredictor(longest, features, relative=model.relative_length, rngs=rngs)
        elif model.length_predictor == "affine":
            self.length_predictor = AffineLengthPredictor(longest)
        elif model.length_predictor == "fertility":
            self.length_predictor = FertilityLengthPredictor(longest, features, rngs=rngs)
        if model.rejecter:
            self.rejecter = rejecter.Rejecter(features, rngs)
        if model.ranker:
            self.ranker = ranker.Ranker(features, rngs)
        if model.causal_stage and model.causal_layers:
            self.causal_decoder = Decoder(model.causal_mode.network, rngs)
        elif model.causal_stage:
            network = model.network
            self.causal_relpos_bias = RelativePositionBias(
                network.num_heads, bidirectional=False, num_buckets=network.relative_buckets, rngs=rngs
            )
        if model.self_conditioning:
            # Small at first, so that a warm start is hardly disturbed; zeros would grow too slowly with Adafactor.
            self.self_conditioning = Dense(
                features, features, dtype=jnp.dtype(model.network.dtype), rngs=rngs, scale=_FIRST_CONDITIONING
            )

    def conditioning(self, logits: Array) -> Array:
        """What the next step adds to its embeddings: logits of a step [N, L, V], -inf where forbidden → [N, L, E].

        The expected embedding is not normed: the less sure the step was, the shorter it is. No gradient flows through
        it into the step before.
        """
        expected = self.network.token_embedder.mean(jax.nn.softmax(logits))
        return self.self_conditioning(jax.lax.stop_gradient(constrain(expected, "batch", "length", "act_embed")))


@dataclass(frozen=True)
class PadirModel(BaseModel):
    """Parallel decoding by iterative refinement.

    With `NetworkConfig.disentangled_context` it is a DisCo model (Kasai et al. 2020): in place of noise it is trained
    with contexts, drawn for each position (`objectives.contexts`), and it decodes with `Refinement.order`.

    Attributes:
      ids, network, max_source_length, max_target_length, loss, freeze: see `BaseModel`; the decoder must not be
        causal.
      corruption: noise of the first training stage.
      num_stages: training stages S; each later one learns to refine what the one before predicts.
      hand_over: what a later stage reads: 'argmax' of the one before, with stutter noised again, or a 'sample' of its
        predictions, as SUNDAE does (Savinov et al. 2022).
      relative_length: predict target − source length instead of the length itself (beyond the paper).
      length_predictor: what the target's length is predicted from. 'token': a [LENGTH] token put before the source, as
        in the paper. 'affine': the source's length. 'fertility': a sum over source tokens. 'oracle': nothing; the
        caller gives lengths, and training has no length loss.
      rejecter: learn which predicted tokens are wrong, so that decoding can remask them.
      ranker: learn how good hypotheses of its own are, so that decoding ranks several by that; see `models.ranker`,
        which says what it is not for. Learnt by freezing all else, after training: until then they are worth little.
      causal_stage: learn the causal objective, too, as a further stage, in the same weights unless it has
        `causal_layers`. The model then also decodes as an autoregressive one and verifies its own drafts; see
        `CausalMode`.
      causal_layers: with `causal_stage`, layers of a causal decoder of its own, a part that `freeze` may name. It reads
        the same encoder output and embeddings. 0: the causal objective is learnt in the same weights.
      self_conditioning: each stage but the first also reads the embedding that the one before expected at each
        position, a mean over all tokens, through a linear map (after Chen et al. 2022, "Analog Bits"). `Refinement`
        does so step by step; drafts of `Verified` do not.
    """

    corruption: CorruptionConfig = CorruptionConfig()
    num_stages: int = 2
    hand_over: str = "argmax"
    relative_length: bool = False
    length_predictor: str = "token"
    rejecter: bool = False
    ranker: bool = False
    causal_stage: bool = False
    causal_layers: int = 0
    self_conditioning: bool = False

    def __post_init__(self):
        if self.length_predictor not in LENGTH_PREDICTORS:
            raise PadirError(
                f"PadirModel.length_predictor: unknown {self.length_predictor!r}; "
                f"choose one of {', '.join(LENGTH_PREDICTORS)}"
            )
        super().__post_init__()
        if self.network.causal:
            raise PadirError("PadirModel: NetworkConfig.causal must be False; use AutoregressiveModel instead")
        whole("PadirModel.num_stages", self.num_stages)
        if self.causal_layers:
            whole("PadirModel.causal_layers", self.causal_layers, "or 0")
            if not self.causal_stage:
                raise PadirError("PadirModel.causal_layers: they learn the causal objective; set causal_stage to True")
        if self.hand_over not in corruption.HAND_OVERS:
            raise PadirError(
                f"PadirModel.hand_over: unknown {self.hand_over!r}; choose one of {', '.join(corruption.HAND_OVERS)}"
            )
        if self.hand_over == "sample" and self.num_stages == 1:
            raise PadirError(
                "PadirModel.hand_over: a single stage hands nothing over; set PadirModel.num_stages to 2, or 'argmax'"
            )
        if self.self_conditioning and self.num_stages == 1:
            raise PadirError(
                "PadirModel.self_conditioning: a stage is conditioned on the one before; set PadirModel.num_stages to 2"
            )
        if self.ranker:
            ranker.check(self)
        if self.relative_length and self.length_predictor != "token":
            raise PadirError(
                f"PadirModel.relative_length: length_predictor {self.length_predictor!r} has no relative form; "
                "set it to False"
            )
        if self.network.positional_attention and self.max_target_length > self.network.max_positions:
            raise PadirError(
                f"PadirModel.max_target_length: {self.max_target_length} exceeds the "
                f"{self.network.max_positions} learnt positions; raise NetworkConfig.max_positions"
            )
        self.corruption.check(self.ids, self.max_target_length)
        if self.network.disentangled_context:
            self._check_disentangled()

    def _check_disentangled(self) -> None:
        """Refuses what means nothing to a model that observes tokens or does not, and never reads its own."""
        wrong = {
            "corruption": (self.corruption != CorruptionConfig(), "contexts are drawn, not noise; leave the defaults"),
            "num_stages": (self.num_stages != 1, "contexts are of true tokens, which no later stage has; set it to 1"),
            "rejecter": (self.rejecter, "no token is remasked; set it to False"),
            "causal_stage": (self.causal_stage, "there is no causal mode; set it to False"),
        }
        for name, (is_wrong, advice) in wrong.items():
            if is_wrong:
                raise PadirError(f"PadirModel.{name}: with NetworkConfig.disentangled_context {advice}")

    @property
    def source_prefix(self) -> int:
        """One for the [LENGTH] token."""
        return 1 if self.length_predictor == "token" else 0

    def trains(self, *parts: str) -> bool:
        """Whether training changes one of these parts. If not, the losses that are theirs are not computed."""
        return any(part in self.parts and part not in self.freeze for part in parts)

    @property
    def _trained_stages(self) -> int:
        return self.num_stages if self.trains("encoder", "decoder", "rejecter") else 0

    @property
    def _trains_causal_mode(self) -> bool:
        own = "causal_decoder" if self.causal_layers else "decoder"
        return self.causal_stage and self.trains("encoder", own)

    @property
    def loss_terms(self) -> int:
        """How many losses of tokens the objective is a mean of: one a stage that is not left out."""
        return self._trained_stages + self._trains_causal_mode

    @property
    def decoder_passes(self) -> int:
        """One a training stage that is not left out, the causal one included unless it has layers of its own."""
        return self._trained_stages + (self._trains_causal_mode and not self.causal_layers)

    @property
    def conditioned_passes(self) -> int:
        """All training stages but the first with `self_conditioning`."""
        return max(self._trained_stages - 1, 0) * self.self_conditioning

    def training_flops(self, batch: int, source: int, target: int) -> int:
        """See `BaseModel.training_flops`. The ranker's own translations are not counted."""
        counted = super().training_flops(batch, source, target)
        if not (self.causal_layers and self._trains_causal_mode):
            return counted
        encoder = 3 * flops.encode(self.network, batch, source + self.source_prefix).flops
        return counted + self.causal_mode.training_flops(batch, source, target) - encoder

    @cached_property
    def causal_mode(self) -> CausalMode:
        """The model that `causal_stage` trains beside this one; `causal_params` finds its parameters in this one's."""
        if not self.causal_stage:
            raise PadirError("PadirModel.causal_stage: this model was trained without; it has no causal mode")
        layers = self.causal_layers or self.network.num_decoder_layers
        network = dataclasses.replace(self.network, causal=True, positional_attention=False, num_decoder_layers=layers)
        has_token = self.length_predictor == "token"
        longest = (self.max_source_length, self.max_target_length)
        return CausalMode(self.ids, network, *longest, self.loss, length_token=has_token)

    def causal_network(self, params: PyTree | DecodingParams) -> EncoderDecoder:
        """The network of `causal_mode` in these very arrays, be they those of training or what `for_decoding` made.

        It is for passes over whole targets. Token by token `causal_mode.for_decoding` is faster, in arrays of its own.
        """
        mode, module = self.causal_mode, self.module(params)
        network = module.network
        network.config = mode.network
        if self.causal_layers:
            network.decoder = module.causal_decoder
        else:
            network.decoder.relpos_bias = module.causal_relpos_bias
        return network

    @property
    def parts(self) -> tuple[str, ...]:
        """What `freeze` may name."""
        predictor = () if self.length_predictor == "oracle" else ("length_predictor",)
        learnt = {"rejecter": self.rejecter, "ranker": self.ranker, "causal_decoder": self.causal_layers}
        heads = (name for name, is_learnt in learnt.items() if is_learnt)
        return (*super().parts, *predictor, *heads)

    def build(self, rngs: nnx.Rngs) -> nnx.Module:
        """Makes the modules with fresh parameters."""
        return _Padir(self, rngs)

    def prepare(self, module: nnx.Module, compute_type: str | None) -> None:
        """See `BaseModel.prepare`."""
        super().prepare(module, compute_type)
        if self.causal_layers:
            # It reads whole targets (`causal_network`), as a parallel decoder does.
            network = dataclasses.replace(self.causal_mode.network, causal=False)
            for_decoding.prepare_decoder(module.causal_decoder, network, compute_type)

    def encode(self, params: PyTree, source: Array, dropout_key: Array | None = None) -> tuple[Array, Array | None]:
        """Source [B, Ls] int32 → (encoder output [B, Ls, E], length logits [B, max_target_length]; oracle: None)."""
        module = self.module(params)
        if self.length_predictor == "token":
            encoded = module.network.encode(prepend_length_token(source, self.ids.length_id), dropout_key)
            return encoded[:, 1:], module.length_predictor(encoded, source)
        encoded = module.network.encode(source, dropout_key)
        return encoded, None if self.length_predictor == "oracle" else module.length_predictor(encoded, source)

    def loss_and_metrics(self, params: PyTree, batch: Batch, key: Array | None, train: bool) -> tuple[Array, Metrics]:
        """The training objective L = 1/S Σ L^(s) + length loss + those of rejecter and ranker (paper section 4.2.2.2).

        With `causal_stage` the causal loss is one of S + 1 terms of the mean; of parts that are frozen there are none.

        Args:
          params: parameters.
          batch: `encoder_input_tokens` [B, Ls], `decoder_target_tokens` [B, Lt] int32.
          key: randomness of corruption and dropout.
          train: whether dropout is on.

        Returns:
          (loss [] float32, metrics: scalars).
        """
        features = self.features(batch, key)
        return self.loss_share(params, features, key, train, self.totals(features))

    def features(self, batch: Batch, key: Array) -> Batch:
        """Adds the noise to a batch.

        Args:
          batch: as for `loss_and_metrics`.
          key: randomness; the same as for `loss_and_metrics`.

        Returns:
          The batch with `decoder_input_tokens` [B, Lt] int32 and `decoder_loss_weights` [B, Lt] float32 of the first
          stage, and for each later one `decoder_noise_tokens/stage_<s>` [B, Lt] int32, which replace stutter, or
          `decoder_uniform/stage_<s>` [B, Lt] float32, by which it is sampled. With a disentangled context the inputs
          are the targets, beside `decoder_contexts` [B, Lt, Lt] bool.
        """
        return stages.features(self, batch, key)

    def totals(self, features: Batch) -> dict[str, Array]:
        """What the terms of the loss divide by, [] float32: weights of the first stage, target tokens, targets."""
        inside = features["decoder_target_tokens"] != PAD_ID
        rows = inside.any(-1).sum().astype(jnp.float32)
        return {**super().totals(features), "first": features["decoder_loss_weights"].sum(), "rows": rows}

    def loss_share(
        self, params: PyTree, features: Batch, key: Array | None, train: bool, totals: dict[str, Array]
    ) -> tuple[Array, Metrics]:
        """The share that some rows have in the loss and metrics of a batch; see `BaseModel.loss_share`."""
        module = self.module(params)
        source, targets = features["encoder_input_tokens"], features["decoder_target_tokens"]
        dropout_keys = subkeys(rng.stream(key, "dropout") if train else None, 1 + self.num_stages + self.causal_stage)

        # The encoder's output is the same in every stage.
        encoded, length_logits = self.encode(params, source, dropout_keys[0])
        objective, metrics = jnp.zeros((), jnp.float32), Metrics()
        if self._trained_stages:
            objective, metrics = stages.loss(self, module, features, encoded, dropout_keys[1:], totals)
        if self._trains_causal_mode:
            causal = self.causal_network(params)
            logits = self.causal_mode.target_logits(causal, encoded, source, targets, dropout_keys[-1])
            inside = (targets != PAD_ID).astype(jnp.float32)
            loss, _, found = self.stage_metrics("causal", logits, targets, inside, totals["tokens"])
            objective = objective + loss / self.loss_terms
            metrics.update(found)
        if self.trains("encoder", "length_predictor") and length_logits is not None:
            loss, found = self._length_metrics(length_logits, targets, totals["rows"])
            objective = objective + self.loss.length_loss_weight * loss
            metrics.update(found)
        if self.trains("ranker"):
            loss, found = ranker.loss(self, params, source, targets, totals["rows"])
            objective = objective + self.loss.ranker_loss_weight * loss
            metrics.update(found)
        metrics["loss"] = objective
        return objective, metrics

    def _length_metrics(self, length_logits: Array, targets: Array, total: Array) -> tuple[Array, Metrics]:
        """The length loss, a mean over `total` rows, and its metrics."""
        lengths = (targets != PAD_ID).sum(-1)
        rows = (lengths > 0).astype(jnp.float32)
        is_token = self.length_predictor == "token"
        per_row = (losses.length_cross_entropy if is_token else losses.length_squared_error)(length_logits, lengths)
        loss = losses.weighted_mean(per_row, rows, total)
        right = (length_logits.argmax(-1) + 1 == lengths).astype(jnp.float32)
        return loss, {"loss/length": loss, "length_accuracy": losses.weighted_mean(right, rows, total)}

    def decode(
        self,
        params: PyTree,
        source: Array,
        key: Array,
        config: Refinement | Verified,
        num_steps: Array | None = None,
        *,
        lengths: Array | None = None,
        rescorer: Rescorer | None = None,
        verifier: Verifier | None = None,
        constraint: Automaton | None = None,
    ) -> Hypotheses:
        """Translates a batch; see `padir_decoding.decode`, and of `Verified` `verification.decode`."""
        if isinstance(config, Verified) != (verifier is not None):
            raise PadirError("decode: Verified and a verifier need each other; give both or neither")
        if isinstance(config, Verified):
            if rescorer is not None or num_steps is not None:
                raise PadirError("decode: Verified takes no rescorer or num_steps; leave them out")
            given = {"lengths": lengths, "constraint": constraint}
            return verification.decode(self, params, source, key, config, verifier, **given)
        options = {"lengths": lengths, "rescorer": rescorer, "constraint": constraint}
        return padir_decoding.decode(self, params, source, key, config, num_steps, **options)
