"""Multi-head attention, in the pieces that decoding computes at different times.

Keys and values of the source are needed once per source, positional-attention weights once per
decode, self-attention in every step: so projecting, weighing and applying are separate methods.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx, struct

from padir.nn.layers import Dense, dropout
from padir.nn.reductions import softmax
from padir.nn.weights import factor_type, for_products, rounds_in_training
from padir.runtime.platforms import choices
from padir.runtime.sharding import constrain
from padir.types import Array


@struct.dataclass
class KeyValue:
    """Projected keys and values: each [B, keys, H, D] in the activation dtype, or [B, keys, H · D] of masked heads."""

    key: Array
    value: Array


class MultiHeadAttention(nnx.Module):
    """T5 attention: no biases, no 1/sqrt(D) (the query initialisation carries it)."""

    joined: nnx.Module | None = None
    out_of_heads: nnx.Param | None = None
    masks_heads: bool = False

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

    def split_heads(self, x: Array) -> Array:
        """x [B, L, H · D] → [B, L, H, D]; of masked heads as it is."""
        if self.masks_heads:
            return x
        split = x.reshape(*x.shape[:-1], self.num_heads, -1)
        # Positions that all rows share come as one row, which cannot be split.
        return constrain(split, "batch" if len(x) > 1 else None, "length", "act_heads", None)

    def _heads_of(self, dense: Dense, x: Array) -> Array:
        """x [B, L, E] by one of the projections → [B, L, H, D]."""
        if dense.for_products is not None or not _keeps_heads():
            return self.split_heads(dense(x))
        weight = dense.weight[...].astype(self.dtype)
        by_head = weight.reshape(self.num_heads, -1, weight.shape[-1])
        heads = jnp.einsum("bli,hdi->blhd", x.astype(self.dtype), by_head, preferred_element_type=self.dtype)
        return constrain(heads, "batch" if len(x) > 1 else None, "length", "act_heads", None)

    def values(self, x: Array) -> Array:
        """x [B, keys, E] → values [B, keys, H, D]."""
        return self._heads_of(self.value, x)

    def key_value(self, x: Array) -> KeyValue:
        """x [B, keys, E] → keys and values [B, keys, H, D]."""
        return KeyValue(self._heads_of(self.key, x), self.values(x))

    def queries(self, x: Array) -> Array:
        """x [B, Q, E] → queries [B, Q, H, D]."""
        return self._heads_of(self.query, x)

    def query_key_value(self, x: Array) -> tuple[Array, KeyValue]:
        """Of self-attention: x [B, Q, E] → queries, keys and values [B, Q, H, D]."""
        if self.joined is None:
            return self.queries(x), self.key_value(x)
        query, key, value = map(self.split_heads, jnp.split(self.joined(x, self.dtype), 3, axis=-1))
        return query, KeyValue(key, value)

    def join(self, compute_type: str | None, *, causal: bool = False) -> None:
        """For decoding: one weight for query, key and value in the place of theirs, one product instead of three.

        On platforms where three products are faster it does nothing. `causal` is for an autoregressive decoder.
        """
        if causal or choices().joins_queries:
            self.joined = joined((self.query, self.key, self.value), self.dtype, compute_type)
            del self.query, self.key, self.value

    def keep_heads(self, compute_type: str | None) -> None:
        """For decoding many positions at once: the output projection reads heads, where the platform wants that."""
        if choices().keeps_heads and compute_type != "int8":
            weight = self.out.weight[...].astype(factor_type(self.dtype, compute_type))
            self.out_of_heads = nnx.Param(_of_heads(weight, self.num_heads))
            del self.out

    def mask_heads(self) -> None:
        """For decoding few positions at once: heads stay side by side, [B, L, H · D], where the platform wants that.

        Each head then has a copy of the queries in which the other heads' features are 0. One product with the keys as
        they are, and one with the values, do the work of a small product for each head.
        """
        self.masks_heads = choices().masks_heads

    def _of_head(self, x: Array) -> Array:
        """x [B, H or 1, L, H · D] → [B, H, L, H · D], where head h has its own features of x and 0 elsewhere."""
        head = jnp.arange(x.shape[-1]) // (x.shape[-1] // self.num_heads)
        return jnp.where(head == jnp.arange(self.num_heads)[:, None, None], x, jnp.zeros((), x.dtype))

    def logits(self, query: Array, key: Array) -> Array:
        """Queries [B, Q, H, D], keys [B, K, H, D] → attention logits without a bias [B, H, Q, K]."""
        if self.masks_heads:
            narrow = factor_type(self.dtype, None)
            queries = self._of_head(query[:, None]).astype(narrow).reshape(len(query), -1, query.shape[-1])
            logits = jnp.einsum("bqf,bkf->bqk", queries, key.astype(narrow), preferred_element_type=self.logits_dtype)
            return logits.reshape(len(query), self.num_heads, -1, logits.shape[-1])
        return _dot_products(query.swapaxes(1, 2), key.swapaxes(1, 2), self.logits_dtype)

    def normalised(self, logits: Array, bias: Array) -> Array:
        """Logits [B, H, Q, K] and what is broadcast to them → attention weights [B, H, Q, K] float32."""
        biased = logits + bias.astype(self.logits_dtype)
        if choices().reduces_jointly and biased.dtype == jnp.float32:
            return softmax(biased)
        return jax.nn.softmax(biased, axis=-1).astype(jnp.float32)

    def weights(self, query: Array, key: Array, bias: Array) -> Array:
        """Attention weights.

        Args:
          query: [B, Q, H, D] projected queries.
          key: [B, K, H, D] projected keys.
          bias: broadcastable to [B, H, Q, K], mask and relative positions, float32.

        Returns:
          [B, H, Q, K] float32, each row over K sums to 1.
        """
        if key.shape[1] == 1:
            # It has all the weight, whatever the query and the bias: neither is multiplied with anything.
            return jnp.ones((len(query), self.num_heads, query.shape[1], 1), jnp.float32)
        return self.normalised(self.logits(query, key), bias)

    def apply(self, weights: Array, value: Array) -> Array:
        """Weighted sum of values, projected back: [B, H, Q, K], [B, K, H, D] → [B, Q, E]."""
        if self.masks_heads:
            narrow = factor_type(self.dtype, None)
            rows = weights.astype(narrow).reshape(len(value), -1, weights.shape[-1])
            mixed = jnp.einsum("bqk,bkf->bqf", rows, value.astype(narrow), preferred_element_type=self.dtype)
            return self.out(self._of_head(mixed.reshape(*weights.shape[:3], -1)).sum(axis=1))
        mixed = _weighted_sums(weights.astype(self.dtype), value.swapaxes(1, 2))
        of_heads = self.out_of_heads
        if of_heads is None and self.out.for_products is None and _keeps_heads():
            of_heads = _of_heads(self.out.weight[...].astype(self.dtype), self.num_heads)
        if of_heads is not None:
            mixed = mixed.astype(of_heads.dtype)
            return jnp.einsum("bhqd,hde->bqe", mixed, of_heads[...], preferred_element_type=self.dtype)
        mixed = mixed.swapaxes(1, 2)
        return self.out(mixed.reshape(*mixed.shape[:-2], -1))

    def __call__(
        self, query: Array, keys: KeyValue, bias: Array, dropout_key: Array | None = None
    ) -> tuple[Array, Array]:
        """Attends from projected queries to projected keys: → (output [B, Q, E], weights [B, H, Q, K])."""
        weights = self.weights(query, keys.key, bias)
        dropped = dropout(weights, self.dropout_rate, dropout_key)
        return self.apply(dropped, keys.value), weights


def joined(parts: Sequence[Dense], dtype: jnp.dtype, compute_type: str | None) -> nnx.Module:
    """What multiplies with the weights of several maps of one input at once: their outputs side by side."""
    return for_products(jnp.concatenate([part.weight[...] for part in parts]), dtype, compute_type)


def unfold_queries(weights: Array, rows: int) -> Array:
    """Cross-attention weights [B, H, K·q, Ls] → [B·K, H, q, Ls]."""
    batch, heads, _, source_length = weights.shape
    unfolded = weights.reshape(batch, heads, rows // batch, -1, source_length)
    return jnp.moveaxis(unfolded, 2, 1).reshape(rows, heads, -1, source_length)


def _keeps_heads() -> bool:
    """Whether products of weights as they are trained read and write heads as an axis."""
    return choices().keeps_heads and not rounds_in_training()


def _of_heads(weight: Array, num_heads: int) -> Array:
    """A weight [E, H · D] as [H, D, E]."""
    return weight.T.reshape(num_heads, -1, len(weight))


# The two products of attention, with gradients of their own (and so none forward, `jax.jvp`): JAX's are right, but on
# CPU those of the keys and the values, which add up over the queries, would take twice as long as all others.


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _dot_products(query: Array, key: Array, dtype: jnp.dtype) -> Array:
    """[B, H, Q, D], [B, H, K, D] → [B, H, Q, K] in `dtype`."""
    return _matmul(query, key, (3, 3), dtype)


def _dot_products_forward(query: Array, key: Array, dtype: jnp.dtype) -> tuple[Array, tuple[Array, Array]]:
    return _dot_products(query, key, dtype), (query, key)


def _dot_products_backward(dtype: jnp.dtype, kept: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    query, key = kept
    of_query, of_key = _matmul(gradient, key, (3, 2), dtype), _over_queries(gradient, query, dtype)
    return of_query.astype(query.dtype), of_key.astype(key.dtype)


_dot_products.defvjp(_dot_products_forward, _dot_products_backward)


@jax.custom_vjp
def _weighted_sums(weights: Array, value: Array) -> Array:
    """[B, H, Q, K], [B, H, K, D] → [B, H, Q, D]."""
    return _matmul(weights, value, (3, 2))


def _weighted_sums_forward(weights: Array, value: Array) -> tuple[Array, tuple[Array, Array]]:
    return _weighted_sums(weights, value), (weights, value)


def _weighted_sums_backward(kept: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    weights, value = kept
    return _matmul(gradient, value, (3, 3)), _over_queries(weights, gradient)


_weighted_sums.defvjp(_weighted_sums_forward, _weighted_sums_backward)


def _matmul(left: Array, right: Array, summed: tuple[int, int], dtype: jnp.dtype | None = None) -> Array:
    """[B, H, ., .] each, of the same B and H: the product over one axis of either, in `dtype` or else in theirs."""
    axes = tuple((axis,) for axis in summed), ((0, 1), (0, 1))
    return jax.lax.dot_general(left, right, axes, preferred_element_type=dtype)


def _over_queries(left: Array, right: Array, dtype: jnp.dtype | None = None) -> Array:
    """[B, H, Q, K], [B, H, Q, D] → [B, H, K, D]."""
    if not choices().turns_in_gradients:
        return _matmul(left, right, (2, 2), dtype)
    # The barrier keeps XLA from taking the transposition into the product, which then would go to no library.
    return _matmul(jax.lax.optimization_barrier(left.swapaxes(2, 3)), right, (3, 2), dtype)
