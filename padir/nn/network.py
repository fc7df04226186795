"""One T5-style encoder-decoder, causal or parallel (DESIGN section 3).

The decoder is split by how often a thing must be computed. A `DecodePlan` holds what depends only
on the source and the target lengths (cross-attention keys and values, biases, positional-attention
weights): training makes one for all its stages, decoding one for all its steps. Hypotheses of one
source are rows N = B·K; cross-attention folds them into the query axis instead of copying the source.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx, struct

from padir.checks import whole
from padir.errors import PadirError
from padir.nn import cache as kv_cache
from padir.nn import masks, stack
from padir.nn.attention import KeyValue, MultiHeadAttention, joined, unfold_queries
from padir.nn.cache import DecoderCache, LayerCache
from padir.nn.decode_plan import DecodePlan
from padir.nn.layers import ACTIVATIONS, MLP, Dense, Embed, RelativePositionBias, RMSNorm, dropout, subkeys
from padir.nn.weights import factor_type
from padir.runtime.remat import rematerialised
from padir.runtime.sharding import constrain
from padir.types import Array

_SIZES = (
    *("vocab_size", "embed_dim", "num_heads", "head_dim", "mlp_dim"),
    *("num_encoder_layers", "num_decoder_layers", "max_positions"),
)


@dataclass(frozen=True)
class NetworkConfig:
    """Size and shape of the network. The defaults are the paper's base model, with a parallel decoder unless `causal`.

    Attributes:
      vocab_size: padded vocabulary size V.
      causal: True for an autoregressive decoder, False for a parallel one.
      positional_attention: whether decoder layers attend by position (Gu et al. 2018); parallel only.
      max_positions: how many target positions have a learnt embedding (positional attention).
      dtype: activations' type, 'float32' or 'bfloat16'; parameters, logits and loss are float32.
      float32_attention_logits: compute attention logits and their softmax in float32 rather than in `dtype`.
    """

    vocab_size: int = 32_128
    embed_dim: int = 512
    num_heads: int = 8
    head_dim: int = 64
    mlp_dim: int = 2048
    num_encoder_layers: int = 6
    num_decoder_layers: int = 6
    mlp_activation: str = "relu"
    tied_logits: bool = True
    causal: bool = False
    positional_attention: bool = True
    max_positions: int = 256
    dropout_rate: float = 0.1
    dtype: str = "float32"
    float32_attention_logits: bool = True

    def __post_init__(self):
        for name in _SIZES:
            whole(f"NetworkConfig.{name}", getattr(self, name))
        if self.mlp_activation not in ACTIVATIONS:
            raise PadirError(
                f"NetworkConfig.mlp_activation: unknown {self.mlp_activation!r}; choose one of {', '.join(ACTIVATIONS)}"
            )
        if self.dtype not in ("float32", "bfloat16"):
            raise PadirError(f"NetworkConfig.dtype: unknown {self.dtype!r}; choose float32 or bfloat16")
        if self.causal and self.positional_attention:
            raise PadirError("NetworkConfig: positional_attention needs a parallel decoder; set causal=False")
        if not 0.0 <= self.dropout_rate < 1.0:
            raise PadirError(f"NetworkConfig.dropout_rate: {self.dropout_rate} is not in [0, 1)")


@struct.dataclass
class DecoderOutput:
    """What the decoder returns.

    Attributes:
      hidden: [N, Lt, E] after the last norm: the decoder embeddings that logits are made of.
      self_attentions: [N, layers, H, Lt, keys] float32.
      cross_attentions: [N, layers, H, Lt, Ls] float32.
      cache: the updated cache; of a pass without one, what was computed of all positions.
    """

    hidden: Array
    self_attentions: Array
    cross_attentions: Array
    cache: DecoderCache


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
        x = _residual(x + dropout(attended, self.dropout_rate, keys[1]))
        fed = self.mlp(self.pre_mlp_layer_norm(x), keys[2])
        return _residual(x + dropout(fed, self.dropout_rate, keys[3]))


class Encoder(nnx.Module):
    """Embedded source → hidden states, with one relative bias table shared by the layers."""

    def __init__(self, config: NetworkConfig, rngs: nnx.Rngs):
        self.relpos_bias = RelativePositionBias(config.num_heads, bidirectional=True, rngs=rngs)
        self.layers = nnx.List([EncoderLayer(config, rngs) for _ in range(config.num_encoder_layers)])
        self.encoder_norm = RMSNorm(config.embed_dim, dtype=jnp.dtype(config.dtype))
        self.dropout_rate = config.dropout_rate

    def __call__(self, x: Array, mask: Array, key: Array | None) -> Array:
        """x [B, Ls, E], mask [B, 1, Ls, Ls] bool → [B, Ls, E]."""
        bias = self.relpos_bias(x.shape[1]) + masks.to_bias(mask)
        first, last, *of_layers = subkeys(key, 2 + len(self.layers))
        x = dropout(x, self.dropout_rate, first)

        x, _ = stack.through(self.layers, lambda of, x, key: (rematerialised(of)(x, bias, key), None), x, of_layers)
        return dropout(self.encoder_norm(x), self.dropout_rate, last)


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
        key: Array | None,
    ) -> tuple[Array, Array, Array, LayerCache]:
        """x [N, q, E] → (x, self-attention weights, cross-attention weights, keys and values).

        `cached` is (keys and values of all positions, position): the new ones are written there.
        """
        dropout_keys = subkeys(key, 7)
        query, keys = self.self_attention.query_key_value(self.pre_self_attention_layer_norm(x))
        if cached is not None:
            keys = kv_cache.write(cached[0].self_attention, keys, cached[1])
        attended, self_weights = self.self_attention(query, keys, self_bias, dropout_keys[0])
        x = _residual(x + dropout(attended, self.dropout_rate, dropout_keys[1]))

        values = None
        if positional_weights is not None:
            # Values are the residual itself, un-normed, and the output is not dropped: as in the release.
            weights = dropout(positional_weights, self.dropout_rate, dropout_keys[2])
            values = self.positional_attention.values(x)
            if cached is not None:
                values = kv_cache.write(cached[0].positional, values, cached[1])
            x = _residual(x + self.positional_attention.apply(weights, values))

        normed = self.pre_cross_attention_layer_norm(x)
        # [B·K, q, E] → [B, K·q, E]: all hypotheses of a source are just more queries on its one memory.
        folded = self.encoder_decoder_attention.queries(normed.reshape(source.key.shape[0], -1, normed.shape[-1]))
        attended, cross = self.encoder_decoder_attention(folded, source, source_bias, dropout_keys[3])
        x = _residual(x + dropout(attended.reshape(x.shape), self.dropout_rate, dropout_keys[4]))

        fed = self.mlp(self.pre_mlp_layer_norm(x), dropout_keys[5])
        x = _residual(x + dropout(fed, self.dropout_rate, dropout_keys[6]))
        return x, self_weights, unfold_queries(cross, x.shape[0]), LayerCache(keys, values)


class Decoder(nnx.Module):
    """Embedded target → hidden states, given a plan."""

    positional_table: nnx.Param | None = None
    joined_source: nnx.Module | None = None

    def __init__(self, config: NetworkConfig, rngs: nnx.Rngs):
        dtype = jnp.dtype(config.dtype)
        self.relpos_bias = RelativePositionBias(config.num_heads, bidirectional=not config.causal, rngs=rngs)
        if config.positional_attention:
            self.abs_pos_embed = Embed(config.max_positions, config.embed_dim, dtype=dtype, rngs=rngs)
        self.layers = nnx.List([DecoderLayer(config, rngs) for _ in range(config.num_decoder_layers)])
        self.decoder_norm = RMSNorm(config.embed_dim, dtype=dtype)
        self.dropout_rate = config.dropout_rate

    def positional_logits(self, length: int) -> Array:
        """Of positional attention, of every layer: [layers, H, length, length] without a bias."""
        if self.positional_table is not None:
            return self.positional_table[..., :length, :length]
        embeddings = self.abs_pos_embed(jnp.arange(length))
        return jnp.concatenate([layer.positional_logits(embeddings) for layer in self.layers])

    def source_memory(self, encoded: Array) -> tuple[KeyValue, ...]:
        """Encoder output [B, Ls, E] → each layer's keys and values of cross-attention [B, Ls, H, D]."""
        attentions = [layer.encoder_decoder_attention for layer in self.layers]
        if self.joined_source is None:
            nothing = (None,) * len(attentions)
            return stack.through(attentions, lambda of, *_: (None, of.key_value(encoded)), None, nothing)[1]
        parts = jnp.split(self.joined_source(encoded, attentions[0].dtype), 2 * len(attentions), axis=-1)
        heads = [attention.split_heads(part) for attention, part in zip(2 * attentions, parts, strict=True)]
        return tuple(map(KeyValue, heads[: len(attentions)], heads[len(attentions) :]))

    def join_source(self, compute_type: str | None) -> None:
        """For decoding: one weight for the keys and values of all layers, in the place of theirs."""
        attentions = [layer.encoder_decoder_attention for layer in self.layers]
        maps = [attention.key for attention in attentions] + [attention.value for attention in attentions]
        self.joined_source = joined(maps, maps[0].dtype, compute_type)
        for attention in attentions:
            del attention.key, attention.value

    def __call__(self, x: Array, plan: DecodePlan, cache: DecoderCache | None, key: Array | None) -> DecoderOutput:
        """x [N, q, E] → DecoderOutput; q is Lt without a cache, the number of new positions with one."""
        self_bias, positional = plan.self_bias, plan.positional_weights or (None,) * len(self.layers)
        if cache is not None:
            queries = partial(kv_cache.queries, cache.position, x.shape[1])
            self_bias, positional = jax.tree.map(queries, (self_bias, positional))
        first, last, *of_layers = subkeys(key, 2 + len(self.layers))
        x = dropout(x, self.dropout_rate, first)
        caches = (None,) * len(self.layers) if cache is None else cache.layers

        def run(layer: DecoderLayer, x: Array, of_layer: tuple) -> tuple[Array, tuple[Array, Array, LayerCache]]:
            source, positional, layer_cache, key = of_layer
            cached = None if cache is None else (layer_cache, cache.position)
            x, *found = rematerialised(layer)(x, source, plan.source_bias, self_bias, positional, cached, key)
            return x, tuple(found)

        x, found = stack.through(self.layers, run, x, [*zip(plan.source, positional, caches, of_layers, strict=True)])
        self_attentions, cross_attentions, written = zip(*found, strict=True)
        hidden = dropout(self.decoder_norm(x), self.dropout_rate, last)
        # What was written one after the other goes on behind it.
        position = jnp.zeros((), jnp.int32) if cache is None else cache.position
        new_cache = DecoderCache(written, position + x.shape[1] if position.ndim == 0 else position)
        # Under jit the stacks cost nothing unless somebody reads them.
        return DecoderOutput(hidden, jnp.stack(self_attentions, 1), jnp.stack(cross_attentions, 1), new_cache)


class EncoderDecoder(nnx.Module):
    """The whole network; parameter names follow T5X, so its checkpoints map by rule (see `interop.t5x`)."""

    def __init__(self, config: NetworkConfig, rngs: nnx.Rngs):
        dtype = jnp.dtype(config.dtype)
        self.config = config
        self.token_embedder = Embed(config.vocab_size, config.embed_dim, dtype=dtype, rngs=rngs)
        self.encoder = Encoder(config, rngs)
        self.decoder = Decoder(config, rngs)
        if not config.tied_logits:
            self.logits_dense = Dense(config.embed_dim, config.vocab_size, dtype=dtype, rngs=rngs)

    def encode(self, tokens: Array, dropout_key: Array | None = None) -> Array:
        """Source tokens [B, Ls] int32 → encoder output [B, Ls, E]."""
        return self.encoder(_residual(self.token_embedder(tokens)), masks.encoder_mask(tokens), dropout_key)

    def plan(self, encoded: Array, source_tokens: Array, target: Array | int) -> DecodePlan:
        """Computes what all steps of a decode, or all stages of training, share.

        Args:
          encoded: [B, Ls, E] encoder output.
          source_tokens: [B, Ls] int32; padding is masked out of cross-attention.
          target: for a parallel decoder, tokens [N, Lt] int32 whose non-pad positions are the
            hypotheses' lengths; for a causal one, the target length Lt.

        Returns:
          A `DecodePlan`.
        """
        length = target if isinstance(target, int) else target.shape[-1]
        sources = self.plan_of_sources(encoded, source_tokens)
        return self.plan_of_targets(sources, target, self.of_length(length))

    def plan_of_sources(self, encoded: Array, source_tokens: Array) -> DecodePlan:
        """What a plan holds of sources, for `plan_of_targets`; arguments as for `plan`."""
        return DecodePlan(self.decoder.source_memory(encoded), masks.to_bias(masks.source_mask(source_tokens)))

    def of_length(self, length: int) -> tuple[Array, Array | None]:
        """Of a padded target length: relative bias [1, H, Lt, Lt], positional logits [layers, H, Lt, Lt] or None."""
        bias = self.decoder.relpos_bias(length)
        if not self.config.positional_attention:
            return bias, None
        if length > self.config.max_positions:
            hint = "shorten the longest target bucket or raise NetworkConfig.max_positions"
            raise PadirError(f"target length {length} exceeds the {self.config.max_positions} learnt positions: {hint}")
        return bias, self.decoder.positional_logits(length)

    def plan_of_targets(
        self, plan: DecodePlan, target: Array | int, of_length: tuple[Array, Array | None]
    ) -> DecodePlan:
        """The plan of the same sources and these targets, with `of_length` of their length; `target` as for `plan`."""
        bias, logits = of_length
        mask = masks.causal_mask(target) if self.config.causal else masks.parallel_decoder_mask(target)
        self_bias = bias + masks.to_bias(mask)
        if logits is None:
            return plan.replace(self_bias=self_bias, positional_weights=())
        weights = tuple(
            layer.positional_attention.normalised(logits[index, None], self_bias)
            for index, layer in enumerate(self.decoder.layers)
        )
        return plan.replace(self_bias=self_bias, positional_weights=weights)

    def decode(
        self,
        tokens: Array,
        plan: DecodePlan,
        cache: DecoderCache | None = None,
        dropout_key: Array | None = None,
        conditioning: Array | None = None,
    ) -> DecoderOutput:
        """Target tokens [N, q] int32, and what is added to their embeddings [N, q, E] → DecoderOutput."""
        x = self.token_embedder(tokens)
        return self.decoder(_residual(x if conditioning is None else x + conditioning), plan, cache, dropout_key)

    def logits(self, hidden: Array) -> Array:
        """Decoder embeddings [N, Lt, E] → logits [N, Lt, V] float32; tied ones are divided by sqrt(E)."""
        if self.config.tied_logits:
            logits = self._over_root(self.token_embedder.attend, hidden)
        else:
            logits = self.logits_dense.in_float32(hidden)
        return constrain(logits, "batch", "length", "act_vocab")

    def candidate_embeddings(self, tokens: Array) -> Array:
        """What `candidate_logits` takes of tokens [..., C] int32: their rows of the output table, [..., C, E]."""
        table = self.token_embedder.embedding if self.config.tied_logits else self.logits_dense.weight
        return jnp.take(table[...], tokens, axis=0).astype(jnp.dtype(self.config.dtype))

    def candidate_logits(self, hidden: Array, embeddings: Array) -> Array:
        """`logits` of a few tokens: hidden [N, Lt, E] → [N, Lt, C] float32.

        `embeddings` are [N, Lt, C, E], or [N, C, E] where they are of the same tokens at every position.
        """
        spec = "nle,nce->nlc" if embeddings.ndim == 3 else "nle,nlce->nlc"
        multiply = partial(jnp.einsum, spec, preferred_element_type=jnp.dtype("float32"))
        if self.config.tied_logits:
            return self._over_root(lambda x: multiply(x, embeddings), hidden)
        return multiply(hidden, embeddings)

    def _over_root(self, multiply: Callable[[Array], Array], hidden: Array) -> Array:
        """multiply(hidden) / sqrt(E): of float32 hidden vectors are divided, many fewer than the logits of all tokens.

        Narrower ones would be rounded once more.
        """
        root = math.sqrt(self.config.embed_dim)
        return multiply(hidden / root) if hidden.dtype == jnp.float32 else multiply(hidden) / root

    def empty_cache(self, rows: int, max_length: int) -> DecoderCache:
        """A self-attention cache for `rows` rows of up to `max_length` target tokens."""
        config, dtype = self.config, jnp.dtype(self.config.dtype)
        heads = config.num_heads, config.head_dim
        if self.decoder.layers[0].self_attention.masks_heads:
            heads, dtype = (math.prod(heads),), factor_type(dtype, None)
        return kv_cache.empty_cache(config.num_decoder_layers, rows, max_length, heads, dtype)


def _residual(x: Array) -> Array:
    """x [N, L, E], split over devices as the rules say; N = B where training does so."""
    return constrain(x, "batch", "length", "act_embed")


def _attention(config: NetworkConfig, rngs: nnx.Rngs) -> MultiHeadAttention:
    sizes = config.embed_dim, config.num_heads, config.head_dim
    return MultiHeadAttention(*sizes, float32_logits=config.float32_attention_logits, **_common(config, rngs))


def _mlp(config: NetworkConfig, rngs: nnx.Rngs) -> MLP:
    return MLP(config.embed_dim, config.mlp_dim, activation=config.mlp_activation, **_common(config, rngs))


def _common(config: NetworkConfig, rngs: nnx.Rngs) -> dict[str, Any]:
    return {"dropout_rate": config.dropout_rate, "dtype": jnp.dtype(config.dtype), "rngs": rngs}
