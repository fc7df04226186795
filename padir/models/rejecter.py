"""A learnt rejecter: which of the predicted tokens are wrong, so that decoding can remask them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from padir.models.base import Metrics
from padir.nn.layers import Dense
from padir.objectives import losses
from padir.types import Array


class Rejecter(nnx.Module):
    """Predicts from the decoder's hidden state whether a predicted token is right."""

    def __init__(self, features: int, rngs: nnx.Rngs):
        self.projection = Dense(features, 1, dtype=jnp.dtype("float32"), rngs=rngs)

    def __call__(self, hidden: Array) -> Array:
        """Decoder embeddings [N, L, E] → logits of keeping each token [N, L] float32.

        No gradient reaches the hidden states, which are trained to predict tokens only.
        """
        return self.projection(jax.lax.stop_gradient(hidden))[..., 0]


def metrics_of_stage(stage: int, logits: Array, right: Array, weights: Array, total: Array) -> tuple[Array, Metrics]:
    """A learnt rejecter's loss in one stage, a mean over `total` weights, and its metrics."""
    loss = losses.weighted_mean(losses.binary_cross_entropy(logits, right), weights, total)
    accuracy = losses.weighted_mean(((logits > 0) == right).astype(jnp.float32), weights, total)
    return loss, {f"loss/rejecter_stage_{stage}": loss, f"rejecter_accuracy/stage_{stage}": accuracy}
