"""T5 layers as Flax NNX modules: dense, embedding, RMS norm, MLP, relative position bias.

Parameters are float32; each layer computes in the `dtype` it is given. Dropout takes an explicit
key (None: off), so a layer is a pure function of its inputs and can be rematerialised.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from padir.nn.weights import for_products, project
from padir.runtime.sharding import constrain
from padir.types import Array

ACTIVATIONS = ("relu", "gated-gelu")
# From here on, all relative positions are one.
MAX_DISTANCE = 128


def dropout(x: Array, rate: float, key: Array | None) -> Array:
    """Zeroes elements with probability `rate` and scales the rest by 1/(1-rate).

    Args:
      x: [..., L, n], two axes at least; one decision is shared along the length, as in T5.
      rate: probability of a zero.
      key: randomness; None leaves `x` as it is (evaluation).
    """
    if key is None or rate == 0.0:
        return x
    keep = jax.random.bernoulli(key, 1.0 - rate, (*x.shape[:-2], 1, x.shape[-1]))
    return jnp.where(keep, x / (1.0 - rate), jnp.zeros((), x.dtype))


def subkeys(key: Array | None, count: int) -> Array | tuple[None, ...]:
    """Derives a key for each of `count` consumers, all at once; None for each of None (dropout off)."""
    return (None,) * count if key is None else jax.random.split(key, count)


class Dense(nnx.Module):
    """Linear map without a bias: [..., in] → [..., out]."""

    for_products: nnx.Module | None = None

    def __init__(self, in_features: int, out_features: int, *, dtype: jnp.dtype, rngs: nnx.Rngs, scale: float = 1.0):
        """Draws a weight [out, in] float32 from N(0, scale²/in), the T5 initialisation."""
        stddev = scale / math.sqrt(in_features)
        self.weight = nnx.Param(jax.random.normal(rngs.params(), (out_features, in_features), jnp.float32) * stddev)
        self.dtype = dtype

    def __call__(self, x: Array) -> Array:
        return self._times(x, self.dtype)

    def in_float32(self, x: Array) -> Array:
        """The same product of activations in `dtype`, but added up and returned in float32: for logits."""
        return self._times(x, jnp.dtype("float32"))

    def _times(self, x: Array, dtype: jnp.dtype) -> Array:
        if self.for_products is not None:
            return self.for_products(x, dtype)
        return project(self.weight[...].astype(self.dtype), x, dtype)

    def prepare(self, compute_type: str | None, *, keep_weight: bool = False) -> None:
        """Keeps the weight as decoding multiplies with it (`weights.for_products`), in the place of `weight`.

        `keep_weight` is for who reads some of its rows: it stays, too, in the type of activations.
        """
        weight = self.weight[...].astype(self.dtype)
        self.for_products = for_products(weight, self.dtype, compute_type)
        if keep_weight:
            self.weight = nnx.Param(weight)
        else:
            del self.weight


class Embed(nnx.Module):
    """A table [size, E] looked up by id, and used transposed as tied logits.

    In training it may be [copies, size, E], all equal: each is used for its share of the rows.
    """

    for_products: nnx.Module | None = None

    def __init__(self, size: int, features: int, *, dtype: jnp.dtype, rngs: nnx.Rngs, stddev: float = 1.0):
        self.embedding = nnx.Param(jax.random.normal(rngs.params(), (size, features), jnp.float32) * stddev)
        self.dtype = dtype

    def __call__(self, ids: Array) -> Array:
        """ids [...] int32 → [..., E]. A gather, not a one-hot product: the table is read once per token."""
        rows = _of_own_rows(lambda table, ids: jnp.take(table, ids, axis=0), self.embedding[...], ids)
        return rows.astype(self.dtype)

    def attend(self, x: Array) -> Array:
        """x [..., E] → dot products with every row of the table [..., size], in float32."""
        if self.for_products is not None:
            return self.for_products(x, jnp.dtype("float32"))
        table = self.embedding[...].astype(self.dtype)
        return _of_own_rows(lambda table, x: project(table, x, jnp.dtype("float32")), table, x)

    def mean(self, probabilities: Array) -> Array:
        """Mean of the rows of the table: weights of each [..., size] float32 → [..., E]."""
        weights, table = probabilities.astype(self.dtype), self.embedding[...].astype(self.dtype)
        return _of_own_rows(lambda table, weights: jnp.einsum("...v,ve->...e", weights, table), table, weights)

    def prepare(self, compute_type: str | None, *, attended: bool) -> None:
        """Keeps the table in the type it is looked up in, so that no request need convert it.

        If it is `attended` to, also as decoding multiplies with it (`weights.for_products`).
        """
        self.embedding = nnx.Param(self.embedding[...].astype(self.dtype))
        if attended:
            self.for_products = for_products(self.embedding[...], self.dtype, compute_type)


def _of_own_rows(function: Callable[[Array, Array], Array], table: Array, x: Array) -> Array:
    """function(table, x); of tables [copies, size, E] each is for its share of the rows of x [N, …]."""
    if table.ndim == 2:
        return function(table, x)
    result = jax.vmap(function)(table, x.reshape(len(table), -1, *x.shape[1:]))
    return result.reshape(len(x), *result.shape[2:])


class RMSNorm(nnx.Module):
    """T5's layer norm: x / rms(x) · scale, no mean, no bias; statistics in float32, epsilon 1e-6."""

    def __init__(self, features: int, *, dtype: jnp.dtype):
        self.scale = nnx.Param(jnp.ones((features,), jnp.float32))
        self.dtype = dtype

    def __call__(self, x: Array) -> Array:
        x = x.astype(jnp.float32)
        inverse_rms = jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + 1e-6)
        return (x * inverse_rms * self.scale[...]).astype(self.dtype)


class MLP(nnx.Module):
    """T5 feed-forward block: ReLU (1.0) or gated GELU (1.1), dropout on the hidden layer."""

    def __init__(
        self, features: int, hidden: int, *, activation: str, dropout_rate: float, dtype: jnp.dtype, rngs: nnx.Rngs
    ):
        if activation == "gated-gelu":
            self.wi_0 = Dense(features, hidden, dtype=dtype, rngs=rngs)
            self.wi_1 = Dense(features, hidden, dtype=dtype, rngs=rngs)
        else:
            self.wi = Dense(features, hidden, dtype=dtype, rngs=rngs)
        self.wo = Dense(hidden, features, dtype=dtype, rngs=rngs)
        self.activation = activation
        self.dropout_rate = dropout_rate

    def __call__(self, x: Array, dropout_key: Array | None = None) -> Array:
        """x [N, L, E] → [N, L, E]."""
        if self.activation == "gated-gelu":
            hidden = jax.nn.gelu(self.wi_0(x), approximate=True) * self.wi_1(x)
        else:
            hidden = jax.nn.relu(self.wi(x))
        hidden = constrain(hidden, "batch", "length", "act_mlp")
        return self.wo(dropout(hidden, self.dropout_rate, dropout_key))


class RelativePositionBias(nnx.Module):
    """T5 relative position bias: one learnt number per (head, bucket of key − query distance)."""

    def __init__(
        self,
        num_heads: int,
        *,
        bidirectional: bool,
        rngs: nnx.Rngs,
        num_buckets: int = 32,
        max_distance: int = MAX_DISTANCE,
    ):
        # Uniform with variance 1/fan_avg, the T5X initialisation of this table.
        limit = math.sqrt(3.0 / ((num_heads + num_buckets) / 2))
        shape = (num_heads, num_buckets)
        self.rel_embedding = nnx.Param(jax.random.uniform(rngs.params(), shape, jnp.float32, -limit, limit))
        self.bidirectional = bidirectional
        self.num_buckets = num_buckets
        self.max_distance = max_distance

    def __call__(self, length: int) -> Array:
        """The bias between all positions, [1, H, length, length] float32."""
        # Buckets depend on nothing that a program is given: it need not take their logarithms at every request.
        with jax.ensure_compile_time_eval():
            positions = jnp.arange(length)
            buckets = relative_position_bucket(
                positions[None, :] - positions[:, None],
                bidirectional=self.bidirectional,
                num_buckets=self.num_buckets,
                max_distance=self.max_distance,
            )
        return jnp.take(self.rel_embedding[...], buckets, axis=1)[None]


def rebucketed(table: Array, *, bidirectional: bool, max_distance: int = MAX_DISTANCE) -> Array:
    """A learnt table of `RelativePositionBias` for the other kind of attention.

    Args:
      table: [H, buckets] float32: of causal attention if the result is to be bidirectional, else the other way round.
      bidirectional: what the result is for. Keys to the right then take what was learnt for as far to the left.
      max_distance: as in `RelativePositionBias`.

    Returns:
      [H, buckets] float32: each bucket has the value that `table` has for the nearest distance in it.
    """
    num_buckets = table.shape[1]
    distance = jnp.array(sorted(range(-max_distance, max_distance + 1), key=abs, reverse=True))
    options = {"num_buckets": num_buckets, "max_distance": max_distance}
    new = relative_position_bucket(distance, bidirectional=bidirectional, **options)
    learnt = relative_position_bucket(-jnp.abs(distance), bidirectional=not bidirectional, **options)
    # Of the distances in a bucket the nearest is written last.
    source = dict(zip(new.tolist(), learnt.tolist(), strict=True))
    # Bidirectional attention has a bucket that no distance falls into: whatever it holds is never read.
    return table[:, jnp.array([source.get(bucket, 0) for bucket in range(num_buckets)])]


def relative_position_bucket(distance: Array, *, bidirectional: bool, num_buckets: int, max_distance: int) -> Array:
    """Buckets of T5 (Raffel et al. 2020, section 2.1): near distances one each, far ones logarithmic.

    Args:
      distance: key position − query position, int32, any shape.
      bidirectional: half the buckets for keys to the right; otherwise those all share bucket 0.
      num_buckets: how many buckets there are.
      max_distance: every distance from here on shares the last bucket.

    Returns:
      Bucket ids in [0, num_buckets), int32, same shape.
    """
    offset = jnp.zeros_like(distance)
    if bidirectional:
        num_buckets //= 2
        offset = jnp.where(distance > 0, num_buckets, 0)
        distance = jnp.abs(distance)
    else:
        distance = jnp.maximum(-distance, 0)
    exact = num_buckets // 2
    log_ratio = jnp.log(distance.astype(jnp.float32) / exact + jnp.finfo(jnp.float32).eps) / math.log(
        max_distance / exact
    )
    far = jnp.minimum(exact + (log_ratio * (num_buckets - exact)).astype(jnp.int32), num_buckets - 1)
    return offset + jnp.where(distance < exact, distance, far)
