"""One T5-style encoder-decoder, causal or parallel (docs/concepts/method.md).

The decoder is split by how often a thing must be computed. A `DecodePlan` holds what depends only
on the source and the target lengths (cross-attention keys and values, biases, positional-attention
weights): training makes one for all its stages, decoding one for all its steps. Hypotheses of one
source are rows N = B·K; cross-attention folds them into the query axis instead of copying the source.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx, struct

from padir.errors import PadirError
from padir.nn import cache as kv_cache
from padir.nn import masks, stack
from padir.nn.attention import KeyValue, joined
from padir.nn.blocks import DecoderLayer, EncoderLayer, residual
from padir.nn.cache import DecoderCache, LayerCache
from padir.nn.config import NetworkConfig
from padir.nn.decode_plan import DecodePlan
from padir.nn.layers import Dense, Embed, RelativePositionBias, RMSNorm, dropout, subkeys
from padir.nn.weights import factor_type
from padir.runtime.remat import rematerialised
from padir.runtime.sharding import constrain
from padir.types import Array


@struct.dataclass
class DecoderOutput:
    """What the decoder returns.

    Attributes:
      hidden: [N, Lt, E] after the last norm: the decoder embeddings that logits are made of.
      self_attentions: [N, layers, H, Lt, keys] float32.
      cross_attentions: [N, layers, H, Lt, Ls] float32.
      cache: the updated cache; of a pass without one, what was computed of all positions.
      layer_hidden: [N, layers, Lt, E], what each layer passes on, before the last norm; None unless asked for.
    """

    hidden: Array
    self_attentions: Array
    cross_attentions: Array
    cache: DecoderCache
    layer_hidden: Array | None = None


class Encoder(nnx.Module):
    """Embedded source → hidden states, with one relative bias table shared by the layers."""

    def __init__(self, config: NetworkConfig, rngs: nnx.Rngs):
        self.relpos_bias = RelativePositionBias(
            config.num_heads, bidirectional=True, num_buckets=config.relative_buckets, rngs=rngs
        )
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

    def attention_weights(self, x: Array, mask: Array) -> Array:
        """x [B, Ls, E], mask [B, 1, Ls, Ls] bool → weights of all layers [B, layers, H, Ls, Ls] float32."""
        bias = self.relpos_bias(x.shape[1]) + masks.to_bias(mask)
        found = []
        for layer in self.layers:
            found.append(layer.attention_weights(x, bias))
            x = layer(x, bias, None)
        return jnp.stack(found, 1)


class Decoder(nnx.Module):
    """Embedded target → hidden states, given a plan."""

    positional_table: nnx.Param | None = None
    joined_source: nnx.Module | None = None

    def __init__(self, config: NetworkConfig, rngs: nnx.Rngs):
        dtype = jnp.dtype(config.dtype)
        self.relpos_bias = RelativePositionBias(
            config.num_heads, bidirectional=not config.causal, num_buckets=config.relative_buckets, rngs=rngs
        )
        if config.positional_attention:
            self.abs_pos_embed = Embed(config.max_positions, config.embed_dim, dtype=dtype, rngs=rngs)
        self.layers = nnx.List([DecoderLayer(config, rngs) for _ in range(config.num_decoder_layers)])
        self.decoder_norm = RMSNorm(config.embed_dim, dtype=dtype)
        self.dropout_rate = config.dropout_rate
        self.disentangled_context = config.disentangled_context

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

    def __call__(
        self, x: Array, plan: DecodePlan, cache: DecoderCache | None, key: Array | None, keep_layers: bool = False
    ) -> DecoderOutput:
        """x [N, q, E] → DecoderOutput; q is Lt without a cache, the number of new positions with one.

        With a disentangled context x is [N, Lt + 1, E], the last of them MASK. `keep_layers` asks for `layer_hidden`.
        """
        self_bias, positional = plan.self_bias, plan.positional_weights or (None,) * len(self.layers)
        if cache is not None:
            queries = partial(kv_cache.queries, cache.position, x.shape[1])
            self_bias, positional = jax.tree.map(queries, (self_bias, positional))
        first, last, *of_layers = subkeys(key, 2 + len(self.layers))
        observed = None
        if self.disentangled_context:
            first, of_observed = subkeys(first, 2)
            observed = dropout(x, self.dropout_rate, of_observed)
            # Every position begins as MASK; hidden states never become keys or values.
            x = jnp.broadcast_to(x[:, -1:], x[:, :-1].shape)
        x = dropout(x, self.dropout_rate, first)
        caches = (None,) * len(self.layers) if cache is None else cache.layers

        def run(layer: DecoderLayer, x: Array, of_layer: tuple) -> tuple[Array, tuple[Array, Array, LayerCache]]:
            source, positional, layer_cache, key = of_layer
            cached = None if cache is None else (layer_cache, cache.position)
            biases = plan.source_bias, self_bias, positional
            x, *found = rematerialised(layer)(x, source, *biases, cached, observed, key)
            return x, (*found, x if keep_layers else None)

        x, found = stack.through(self.layers, run, x, [*zip(plan.source, positional, caches, of_layers, strict=True)])
        self_attentions, cross_attentions, written, passed_on = zip(*found, strict=True)
        hidden = dropout(self.decoder_norm(x), self.dropout_rate, last)
        # What was written one after the other goes on behind it.
        position = jnp.zeros((), jnp.int32) if cache is None else cache.position
        new_cache = DecoderCache(written, position + x.shape[1] if position.ndim == 0 else position)
        # Under jit the stacks cost nothing unless somebody reads them.
        stacks = jnp.stack(self_attentions, 1), jnp.stack(cross_attentions, 1)
        return DecoderOutput(hidden, *stacks, new_cache, jnp.stack(passed_on, 1) if keep_layers else None)


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
        return self.encoder(residual(self.token_embedder(tokens)), masks.encoder_mask(tokens), dropout_key)

    def encoder_attentions(self, tokens: Array) -> Array:
        """Source tokens [B, Ls] int32 → weights of the encoder [B, layers, H, Ls, Ls] float32, queries before keys."""
        x = residual(self.token_embedder(tokens))
        return self.encoder.attention_weights(x, masks.encoder_mask(tokens))

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
        keep_layers: bool = False,
    ) -> DecoderOutput:
        """Target tokens [N, q] int32, and what is added to their embeddings [N, q, E] → DecoderOutput.

        With a disentangled context the tokens are those of `decode_plan.with_mask`, the plan is one `observing`.
        `keep_layers` asks for `DecoderOutput.layer_hidden`.
        """
        x = self.token_embedder(tokens)
        x = residual(x if conditioning is None else x + conditioning)
        return self.decoder(x, plan, cache, dropout_key, keep_layers)

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
        return kv_cache.empty_cache(config.num_decoder_layers, rows, max_length, heads, dtype, config.positional_attention)
