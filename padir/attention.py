"""Multi-head attention, in the pieces that decoding computes at different times (layer 1).

Keys and values of the source are needed once per source, positional-attention weights once per
decode, self-attention in every step: so projecting, weighing and applying are separate methods.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx, struct

from padir.layers import Dense, dropout
from padir.sharding import constrain
from padir.types import Array


@struct.dataclass
class KeyValue:
    """Projected keys and values: each [B, keys, H, D] in the activation dtype."""

    key: Array
    value: Array


class MultiHeadAttention(nnx.Module):
    """T5 attention: no biases, no 1/sqrt(D) (the query initialisation carries it)."""

    def __init__(
        self,
        features: int,
        num_heads: int,
        head_dim: int,
        *,
        dropout_rate: float,
        dtype: jnp.dtype,
        rngs: nnx.Rngs,
        float32_logits: bool = True,
    ):
        """Draws the projections.

        Args:
          features: E.
          num_heads, head_dim: H and D.
          dropout_rate: of the attention weights.
          dtype: of activations.
          rngs: randomness.
          float32_logits: whether logits and their softmax are in float32 rather than in `dtype`.
        """
        inner = num_heads * head_dim
        self.query = Dense(features, inner, dtype=dtype, rngs=rngs, scale=head_dim**-0.5)
        self.key = Dense(features, inner, dtype=dtype, rngs=rngs)
        self.value = Dense(features, inner, dtype=dtype, rngs=rngs)
        self.out = Dense(inner, features, dtype=dtype, rngs=rngs)
        self.num_heads = num_heads
        self.dropout_rate = dropout_rate
        self.dtype = dtype
        self.logits_dtype = jnp.dtype("float32") if float32_logits else dtype

    def _split_heads(self, x: Array) -> Array:
        split = x.reshape(*x.shape[:-1], self.num_heads, -1)
        # Positions that all rows share come as one row, which cannot be split.
        return constrain(split, "batch" if len(x) > 1 else None, "length", "act_heads", None)

    def values(self, x: Array) -> Array:
        """x [B, keys, E] → values [B, keys, H, D]."""
        return self._split_heads(self.value(x))

    def key_value(self, x: Array) -> KeyValue:
        """x [B, keys, E] → keys and values [B, keys, H, D]."""
        return KeyValue(self._split_heads(self.key(x)), self.values(x))

    def logits(self, query_input: Array, key: Array) -> Array:
        """What asks [B, Q, E], projected keys [B, K, H, D] → attention logits without a bias [B, H, Q, K]."""
        query = self._split_heads(self.query(query_input))
        return jnp.einsum("bqhd,bkhd->bhqk", query, key, preferred_element_type=self.logits_dtype)

    def normalised(self, logits: Array, bias: Array) -> Array:
        """Logits [B, H, Q, K] and what is broadcast to them → attention weights [B, H, Q, K] float32."""
        return jax.nn.softmax(logits + bias.astype(self.logits_dtype), axis=-1).astype(jnp.float32)

    def weights(self, query_input: Array, key: Array, bias: Array) -> Array:
        """Attention weights.

        Args:
          query_input: [B, Q, E] what asks.
          key: [B, K, H, D] projected keys.
          bias: broadcastable to [B, H, Q, K], mask and relative positions, float32.

        Returns:
          [B, H, Q, K] float32, each row over K sums to 1.
        """
        return self.normalised(self.logits(query_input, key), bias)

    def apply(self, weights: Array, value: Array) -> Array:
        """Weighted sum of values, projected back: [B, H, Q, K], [B, K, H, D] → [B, Q, E]."""
        mixed = jnp.einsum("bhqk,bkhd->bqhd", weights.astype(self.dtype), value)
        return self.out(mixed.reshape(*mixed.shape[:-2], -1))

    def __call__(self, x: Array, keys: KeyValue, bias: Array, dropout_key: Array | None = None) -> tuple[Array, Array]:
        """Attends from x [B, Q, E] to projected keys: → (output [B, Q, E], weights [B, H, Q, K])."""
        weights = self.weights(x, keys.key, bias)
        dropped = dropout(weights, self.dropout_rate, dropout_key, broadcast_axis=-2)
        return self.apply(dropped, keys.value), weights
