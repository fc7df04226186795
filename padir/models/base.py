"""What all models share: static configuration, pure parameters, the metrics of a stage (layer 5)."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property

import jax
import jax.numpy as jnp
from flax import nnx

from padir import losses, rng
from padir.decoding.sampling import argmax
from padir.network import NetworkConfig
from padir.types import Array, PyTree, TokenIds

Batch = dict[str, Array]
Metrics = dict[str, Array]


@dataclass(frozen=True)
class LossConfig:
    """Weights of the losses (DESIGN section 4)."""

    label_smoothing: float = 0.0
    z_loss: float = 0.0
    length_loss_weight: float = 1.0


@dataclass(frozen=True)
class BaseModel:
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
