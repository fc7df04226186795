"""What all models share: static configuration, pure parameters, the metrics of a stage."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from functools import cached_property

import jax
import jax.numpy as jnp
from flax import nnx, struct
from flax.traverse_util import flatten_dict, unflatten_dict

from padir import rng
from padir.checks import whole
from padir.decoding.sampling import argmax
from padir.errors import PadirError
from padir.nn import flops, for_decoding, reductions, weights
from padir.nn.network import NetworkConfig
from padir.objectives import losses
from padir.runtime import platforms
from padir.types import PAD_ID, Array, PyTree, TokenIds

Batch = dict[str, Array]
Metrics = dict[str, Array]

# Where the parameters of each part lie. Encoder and decoders all read the token embeddings, so what one of them
# computes can only be frozen together with those; likewise what makes logits of hidden states.
PART_PATHS = {
    "encoder": (("network", "encoder"), ("network", "token_embedder")),
    "decoder": (
        ("network", "decoder"),
        ("network", "logits_dense"),
        ("network", "token_embedder"),
        ("causal_relpos_bias",),
        ("self_conditioning",),
    ),
    "length_predictor": (("length_predictor",),),
    "rejecter": (("rejecter",),),
    "ranker": (("ranker",),),
    "causal_decoder": (("causal_decoder",), ("network", "logits_dense"), ("network", "token_embedder")),
}


@struct.dataclass
class DecodingParams:
    """What `BaseModel.for_decoding` makes of parameters; `module` takes either.

    Attributes:
      params: nested dict of arrays.
      compute_type: what factors of products with weights are rounded to.
    """

    params: PyTree
    compute_type: str | None = struct.field(pytree_node=False, default=None)


@dataclass(frozen=True)
class LossConfig:
    """Weights of the losses (docs/concepts/method.md).

    Attributes:
      label_smoothing, z_loss: of the token losses; see `losses.cross_entropy`.
      length_loss_weight: of the length loss: nats with the [LENGTH] token, squared tokens with an estimate.
      rejecter_loss_weight: of a learnt rejecter's loss.
      ranker_loss_weight: of a learnt ranker's loss.
    """

    label_smoothing: float = 0.0
    z_loss: float = 0.0
    length_loss_weight: float = 1.0
    rejecter_loss_weight: float = 1.0
    ranker_loss_weight: float = 1.0

    def __post_init__(self):
        if not 0.0 <= self.label_smoothing < 1.0:
            raise PadirError(f"LossConfig.label_smoothing: {self.label_smoothing} is not in [0, 1)")
        for name in ("z_loss", "length_loss_weight", "rejecter_loss_weight", "ranker_loss_weight"):
            if not 0.0 <= getattr(self, name) < math.inf:
                raise PadirError(f"LossConfig.{name}: {getattr(self, name)} is not a finite number of at least 0")


@dataclass(frozen=True)
class BaseModel:
    """What both models share.

    Attributes:
      ids: reserved ids of the vocabulary.
      network: size of the network.
      max_source_length, max_target_length: longest sequences in tokens, EOS counted.
      loss: loss weights.
      freeze: names of `parts` that training does not change. What a frozen part computes for given inputs stays the
        same, so the token embeddings are frozen together with the encoder or a decoder.
    """

    ids: TokenIds
    network: NetworkConfig = NetworkConfig()
    max_source_length: int = 128
    max_target_length: int = 128
    loss: LossConfig = LossConfig()
    freeze: tuple[str, ...] = ()

    @property
    def source_prefix(self) -> int:
        """How many tokens the encoder reads before the source's own."""
        return 0

    @property
    def decoder_passes(self) -> int:
        """How often the decoder runs in an update."""
        return 1

    @property
    def conditioned_passes(self) -> int:
        """How many of these are conditioned on the one before."""
        return 0

    def __post_init__(self):
        # The vocabulary decides its own size; whoever builds a model names only the rest.
        for limit in ("max_source_length", "max_target_length"):
            whole(f"{type(self).__name__}.{limit}", getattr(self, limit))
        sized = dataclasses.replace(self.network, vocab_size=self.ids.vocab_size)
        object.__setattr__(self, "network", sized)
        name = f"{type(self).__name__}.freeze"
        if isinstance(self.freeze, str):
            raise PadirError(f"{name}: {self.freeze!r} is text; give a tuple of names, such as ({self.freeze!r},)")
        object.__setattr__(self, "freeze", tuple(self.freeze))
        unknown = [part for part in self.freeze if part not in self.parts]
        if unknown:
            raise PadirError(f"{name}: this model has no {unknown[0]!r}; choose among {', '.join(self.parts)}")
        if set(self.freeze) == set(self.parts):
            raise PadirError(f"{name}: every part is frozen ({', '.join(self.freeze)}); leave one to be trained")

    @property
    def parts(self) -> tuple[str, ...]:
        """What `freeze` may name."""
        return ("encoder", "decoder")

    def build(self, rngs: nnx.Rngs) -> nnx.Module:
        """Makes the module with freshly drawn parameters; each model defines it."""
        raise NotImplementedError

    @cached_property
    def _abstract(self) -> tuple[nnx.GraphDef, nnx.State]:
        """The graph of the modules, and their parameters as shapes. Tracing the modules takes time, so once only."""
        return nnx.split(nnx.eval_shape(lambda: self.build(nnx.Rngs(params=jax.random.key(0)))))

    @property
    def param_shapes(self) -> PyTree:
        """What `init` returns, as a nested dict of `jax.ShapeDtypeStruct`."""
        return nnx.to_pure_dict(self._abstract[1])

    @cached_property
    def _decoding_graphs(self) -> dict[tuple, nnx.GraphDef]:
        return {}

    def _decoding_graph(self, compute_type: str | None) -> nnx.GraphDef:
        def prepared(state: nnx.State) -> nnx.Module:
            module = nnx.merge(self._abstract[0], state)
            self.prepare(module, compute_type)
            return module

        # The form of prepared parameters depends on all of these.
        of = (compute_type, platforms.choices(), weights.products_round())
        if of not in self._decoding_graphs:
            self._decoding_graphs[of] = nnx.split(nnx.eval_shape(prepared, self._abstract[1]))[0]
        return self._decoding_graphs[of]

    def init(self, seed: int | Array) -> PyTree:
        """Draws fresh parameters: a nested dict of float32 arrays, nearly T5X's (see `interop.t5x`)."""
        module = self.build(nnx.Rngs(params=rng.stream(seed, "parameters")))
        return nnx.to_pure_dict(nnx.state(module, nnx.Param))

    def for_decoding(self, params: PyTree, compute_type: str | None = None) -> DecodingParams:
        """Parameters in the form that decoding reads fastest; see `for_decoding.prepare`. Call it once, at loading."""
        module = self.module(params)
        self.prepare(module, compute_type)
        return DecodingParams(nnx.to_pure_dict(nnx.state(module, nnx.Param)), compute_type)

    def prepare(self, module: nnx.Module, compute_type: str | None) -> None:
        """Replaces parameters in these modules by what decoding reads; see `for_decoding.prepare`."""
        for_decoding.prepare(module.network, compute_type)

    def module(self, params: PyTree | DecodingParams) -> nnx.Module:
        """The modules with these parameters, for use inside a traced function or a notebook."""
        graph, _ = self._abstract
        if isinstance(params, DecodingParams):
            graph, params = self._decoding_graph(params.compute_type), params.params
        return nnx.merge(graph, nnx.State(jax.tree.map(nnx.Param, params)))

    def parameter_count(self) -> int:
        """How many numbers `init` draws, found from shapes alone."""
        return sum(leaf.size for leaf in jax.tree.leaves(self.param_shapes))

    def training_flops(self, batch: int, source: int, target: int) -> int:
        """Operations of one update on a batch padded to `source` and `target` tokens; see `flops.training_step`."""
        return flops.training_step(
            self.network,
            batch,
            source,
            target,
            stages=self.decoder_passes,
            source_prefix=self.source_prefix,
            conditioned=self.conditioned_passes,
        )

    def split_frozen(self, params: PyTree) -> tuple[PyTree, PyTree]:
        """Parameters → (those that are trained, those that are frozen), nested dicts of disjoint paths.

        Gradients and the optimizer see only the first. Frozen parameters cost no backward pass and no optimizer state,
        and nothing can change them.
        """
        if not self.freeze:
            return params, {}
        prefixes = {path for part in self.freeze for path in PART_PATHS[part]}
        trained, frozen = {}, {}
        for path, leaf in flatten_dict(params).items():
            held = any(path[: len(prefix)] == prefix for prefix in prefixes)
            (frozen if held else trained)[path] = leaf
        return unflatten_dict(trained), unflatten_dict(frozen)

    def join_frozen(self, trained: PyTree, frozen: PyTree) -> PyTree:
        """Puts together again what `split_frozen` took apart."""
        return unflatten_dict(flatten_dict(trained) | flatten_dict(frozen)) if frozen else trained

    def loss_and_metrics(self, params: PyTree, batch: Batch, key: Array | None, train: bool) -> tuple[Array, Metrics]:
        """The training objective.

        Args:
          params: parameters.
          batch: `encoder_input_tokens` [B, Ls], `decoder_target_tokens` [B, Lt] int32.
          key: randomness of corruption and dropout.
          train: whether dropout is on.

        Returns:
          (loss [] float32, metrics: scalars).
        """
        raise NotImplementedError

    # What follows computes the same loss in parts. Every term of it is a mean over something, so the rows of a
    # batch cannot be cut apart and their losses averaged: a part's sums are divided by the whole batch's totals.

    def features(self, batch: Batch, key: Array) -> Batch:
        """The batch together with all its random draws except dropout; any rows of the result are a batch too."""
        del key
        return batch

    def totals(self, features: Batch) -> dict[str, Array]:
        """The denominators of the loss's terms for a whole batch: here its non-pad target tokens, [] float32."""
        return {"tokens": (features["decoder_target_tokens"] != PAD_ID).sum().astype(jnp.float32)}

    def loss_share(
        self, params: PyTree, features: Batch, key: Array | None, train: bool, totals: dict[str, Array]
    ) -> tuple[Array, Metrics]:
        """The share that some rows have in the loss and the metrics of a whole batch; shares add up.

        Args:
          params: parameters.
          features: some rows of `features(batch, key)`.
          key: randomness of dropout.
          train: whether dropout is on.
          totals: of the whole batch.

        Returns:
          As `loss_and_metrics`. Unless a model says otherwise, its loss and metrics are means over target tokens.
        """
        share = self.totals(features)["tokens"] / jnp.maximum(totals["tokens"], 1.0)
        loss, metrics = self.loss_and_metrics(params, features, key, train)
        return loss * share, {name: value * share for name, value in metrics.items()}

    def stage_metrics(
        self, stage: str, logits: Array, targets: Array, weights: Array, total: Array | None = None
    ) -> tuple[Array, Array, Metrics]:
        """One stage's mean loss (over `total` weights, those given by default), its argmax [B, Lt], its metrics."""
        log_z, largest, prediction = _statistics(logits)
        per_token = losses.cross_entropy(
            logits, targets, label_smoothing=self.loss.label_smoothing, z_loss=self.loss.z_loss, log_z=log_z
        )
        loss = losses.weighted_mean(per_token, weights, total)
        hits = losses.hits(logits, targets, largest).astype(jnp.float32)
        accuracy = losses.weighted_mean(hits, weights, total)
        return loss, prediction, {f"loss/{stage}": loss, f"token_accuracy/{stage}": accuracy}


def _statistics(logits: Array) -> tuple[Array, Array, Array]:
    """Logits [..., V] float32 → (log Z, which has a gradient, the largest, and its first index), [...] each.

    Under jit, what nobody uses costs nothing, except where all three are found in one reduction.
    """
    if platforms.choices().reduces_jointly:
        return reductions.statistics(logits)
    without_gradient = jax.lax.stop_gradient(logits)
    return jax.nn.logsumexp(logits, axis=-1), without_gradient.max(axis=-1), argmax(without_gradient)
