"""The layers of the encoder and of the decoder."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from flax import nnx

from padir.nn import cache as kv_cache
from padir.nn.attention import KeyValue, MultiHeadAttention, unfold_queries
from padir.nn.cache import LayerCache
from padir.nn.config import NetworkConfig
from padir.nn.layers import MLP, RMSNorm, dropout, subkeys
from padir.runtime.sharding import constrain
from padir.types import Array


class EncoderLayer(nnx.Module):
    """Self-attention and MLP, each normed before and added to the residual."""

    def __init__(self, config: NetworkConfig, rngs: nnx.Rngs):
        dtype = jnp.dtype(config.dtype)
        self.pre_attention_layer_norm = RMSNorm(config.embed_dim, dtype=dtype)
        self.attention = _attention(config, rngs)
        self.pre_mlp_layer_norm = RMSNorm(config.embed_dim, dtype=dtype)
        self.mlp = _mlp(config, rngs)
        self.dropout_rate = config.dropout_rate

    def __call__(self, x: Array, bias: Array, key: Array | None) -> Array:
        """x [B, Ls, E], bias [B, H, Ls, Ls] → [B, Ls, E]."""
        keys = subkeys(key, 4)
        attended, _ = self.attention(*self.attention.query_key_value(self.pre_attention_layer_norm(x)), bias, keys[0])
        x = residual(x + dropout(attended, self.dropout_rate, keys[1]))
        fed = self.mlp(self.pre_mlp_layer_norm(x), keys[2])
        return residual(x + dropout(fed, self.dropout_rate, keys[3]))

    def attention_weights(self, x: Array, bias: Array) -> Array:
        """Those that a call with x [B, Ls, E] and bias [B, H, Ls, Ls] has, without dropout: [B, H, Ls, Ls] float32."""
        query, keys = self.attention.query_key_value(self.pre_attention_layer_norm(x))
        return self.attention.weights(query, keys.key, bias)


class DecoderLayer(nnx.Module):
    """Self-attention, positional attention if any, cross-attention, MLP."""

    def __init__(self, config: NetworkConfig, rngs: nnx.Rngs):
        dtype = jnp.dtype(config.dtype)
        self.pre_self_attention_layer_norm = RMSNorm(config.embed_dim, dtype=dtype)
        self.self_attention = _attention(config, rngs)
        if config.positional_attention:
            self.pre_positional_attention_layer_norm = RMSNorm(config.embed_dim, dtype=dtype)
            self.positional_attention = _attention(config, rngs)
        self.pre_cross_attention_layer_norm = RMSNorm(config.embed_dim, dtype=dtype)
        self.encoder_decoder_attention = _attention(config, rngs)
        self.pre_mlp_layer_norm = RMSNorm(config.embed_dim, dtype=dtype)
        self.mlp = _mlp(config, rngs)
        self.dropout_rate = config.dropout_rate

    def positional_logits(self, position_embeddings: Array) -> Array:
        """Position embeddings [Lt, E] → logits of positional attention without a bias [1, H, Lt, Lt]."""
        query, keys = self.positional_attention.query_key_value(
            self.pre_positional_attention_layer_norm(position_embeddings)[None]
        )
        return self.positional_attention.logits(query, keys.key)

    def __call__(
        self,
        x: Array,
        source: KeyValue,
        source_bias: Array,
        self_bias: Array,
        positional_weights: Array | None,
        cached: tuple[LayerCache, Array] | None,
        observed: Array | None,
        key: Array | None,
    ) -> tuple[Array, Array, Array, LayerCache]:
        """x [N, q, E] → (x, self-attention weights, cross-attention weights, keys and values).

        `cached` is (keys and values of all positions, position): the new ones are written there. `observed` are the
        token embeddings [N, q + 1, E] that keys and values are made of with a disentangled context, None without.
        """
        dropout_keys = subkeys(key, 7)
        normed = self.pre_self_attention_layer_norm(x)
        if observed is None:
            query, keys = self.self_attention.query_key_value(normed)
        else:
            query = self.self_attention.queries(normed)
            keys = self.self_attention.key_value(self.pre_self_attention_layer_norm(observed))
        if cached is not None:
            keys = kv_cache.write(cached[0].self_attention, keys, cached[1])
        attended, self_weights = self.self_attention(query, keys, self_bias, dropout_keys[0])
        x = residual(x + dropout(attended, self.dropout_rate, dropout_keys[1]))

        values = None
        if positional_weights is not None:
            # Values are the residual itself, un-normed, and the output is not dropped: as in the release.
            weights = dropout(positional_weights, self.dropout_rate, dropout_keys[2])
            values = self.positional_attention.values(x if observed is None else observed)
            if cached is not None:
                values = kv_cache.write(cached[0].positional, values, cached[1])
            weights = jnp.broadcast_to(weights, (len(values), *weights.shape[1:]))
            x = residual(x + self.positional_attention.apply(weights, values))

        normed = self.pre_cross_attention_layer_norm(x)
        # [B·K, q, E] → [B, K·q, E]: all hypotheses of a source are just more queries on its one memory.
        folded = self.encoder_decoder_attention.queries(normed.reshape(source.key.shape[0], -1, normed.shape[-1]))
        attended, cross = self.encoder_decoder_attention(folded, source, source_bias, dropout_keys[3])
        x = residual(x + dropout(attended.reshape(x.shape), self.dropout_rate, dropout_keys[4]))

        fed = self.mlp(self.pre_mlp_layer_norm(x), dropout_keys[5])
        x = residual(x + dropout(fed, self.dropout_rate, dropout_keys[6]))
        return x, self_weights, unfold_queries(cross, x.shape[0]), LayerCache(keys, values)


def residual(x: Array) -> Array:
    """x [N, L, E], split over devices as the rules say; N = B where training does so."""
    return constrain(x, "batch", "length", "act_embed")


def _attention(config: NetworkConfig, rngs: nnx.Rngs) -> MultiHeadAttention:
    sizes = config.embed_dim, config.num_heads, config.head_dim
    return MultiHeadAttention(*sizes, float32_logits=config.float32_attention_logits, **_common(config, rngs))


def _mlp(config: NetworkConfig, rngs: nnx.Rngs) -> MLP:
    return MLP(config.embed_dim, config.mlp_dim, activation=config.mlp_activation, **_common(config, rngs))


def _common(config: NetworkConfig, rngs: nnx.Rngs) -> dict[str, Any]:
    return {"dropout_rate": config.dropout_rate, "dtype": jnp.dtype(config.dtype), "rngs": rngs}
