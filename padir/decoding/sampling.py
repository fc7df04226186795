"""From logits to tokens (layer 4)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from padir.errors import PadirError
from padir.types import PAD_ID, Array, TokenIds
from padir.weights import FEW_ROWS


def forbid_reserved(logits: Array, ids: TokenIds) -> Array:
    """Makes padding, MASK and every other id that no text can contain impossible: logits [..., V] → [..., V]."""
    return forbid_tokens(logits, jnp.arange(logits.shape[-1]), ids)


def forbid_tokens(logits: Array, tokens: Array, ids: TokenIds) -> Array:
    """The same for logits [..., C] of chosen tokens, int32 and broadcastable to them."""
    return jnp.where((tokens != PAD_ID) & (tokens < ids.num_pieces), logits, -jnp.inf)


def log_probabilities(logits: Array, ids: TokenIds) -> Array:
    """How likely a model of text thinks each id: logits [..., V] → log-probabilities [..., V] float32.

    They are of all ids there are, reserved ones too, as in training; only the rows that pad the table to V have no
    part in them. Then ids that no text can contain are forbidden: -inf.
    """
    logits = logits.astype(jnp.float32)
    real = jnp.arange(logits.shape[-1]) < ids.unpadded_size
    normalizer = jax.nn.logsumexp(logits, axis=-1, where=real, keepdims=True)
    return forbid_reserved(logits - normalizer, ids)


def argmax(logits: Array) -> Array:
    """The first index of the largest value: logits [..., V] → [...] int32, as `jnp.argmax`.

    As two plain reductions, which compilers vectorise; a reduction over (value, index) pairs they mostly do not.
    """
    size = logits.shape[-1]
    largest = logits == logits.max(axis=-1, keepdims=True)
    return jnp.where(largest, jnp.arange(size, dtype=jnp.int32), size - 1).min(axis=-1)


# Entries of a row that `top_k` looks at together: a line of vector registers on CPUs, of lanes on TPUs.
_GROUP = 128


def top_k(values: Array, k: int) -> tuple[Array, Array]:
    """The k largest, in order, and where they are: values [..., V] → ([..., k], [..., k] int32), as `jax.lax.top_k`.

    The largest k lie in the k groups with the largest maxima, so of a long row no more than these need sorting. Groups
    and entries are taken in the order of their indices, so that of equal values the first counts as larger, too.
    """
    size = values.shape[-1]
    if size < 2 * k * _GROUP:
        return jax.lax.top_k(values, k)
    lowest = -jnp.inf if jnp.issubdtype(values.dtype, jnp.floating) else jnp.iinfo(values.dtype).min
    padding = [(0, 0)] * (values.ndim - 1) + [(0, -size % _GROUP)]
    groups = jnp.pad(values, padding, constant_values=lowest).reshape(*values.shape[:-1], -1, _GROUP)
    chosen = jnp.sort(jax.lax.top_k(groups.max(axis=-1), k)[1], axis=-1)
    within = jnp.take_along_axis(groups, chosen[..., None], axis=-2).reshape(*values.shape[:-1], k * _GROUP)
    largest, at = jax.lax.top_k(within, k)
    group = jnp.take_along_axis(chosen, at // _GROUP, axis=-1)
    return largest, (group * _GROUP + at % _GROUP).astype(jnp.int32)


# With fewer distributions than these, XLA on CPU is faster along their rows.
_FEWEST_COLUMNS = 8


def greedy(logits: Array) -> tuple[Array, Array]:
    """The likeliest token: logits [..., V] → (tokens [...] int32, log-probabilities [...] float32)."""
    logits = logits.astype(jnp.float32)
    if _FEWEST_COLUMNS <= math.prod(logits.shape[:-1]) <= FEW_ROWS:
        return _greedy_of_columns(logits)
    return argmax(logits), logits.max(axis=-1) - jax.nn.logsumexp(logits, axis=-1)


def _greedy_of_columns(logits: Array) -> tuple[Array, Array]:
    """The same where `weights.project` has computed [V, rows]: such logits are never turned, which takes longer.

    The index is looked for only in the group of tokens that has the largest logit.
    """
    size, shape = logits.shape[-1], logits.shape[:-1]
    # Of each group [group, row] the largest; then of each row.
    groups = jnp.moveaxis(logits, -1, 0).reshape(math.gcd(size, _GROUP), -1, math.prod(shape))
    # Barriers: XLA would compute the logits once for every reader, and take the largest of all from all of them again.
    groups = jax.lax.optimization_barrier(groups)
    of_group = jax.lax.optimization_barrier(groups.max(axis=1))
    largest = of_group.max(axis=0)
    first = argmax(of_group.T)
    within = jax.vmap(lambda row, group: groups[group, :, row])(jnp.arange(first.size), first)
    tokens = first * groups.shape[1] + argmax(within)
    return tokens.reshape(shape), -jnp.log(jnp.exp(groups - largest).sum(axis=(0, 1))).reshape(shape)


@dataclass(frozen=True)
class Sampling:
    """How a token is drawn from its logits; the default takes the likeliest.

    Attributes:
      temperature: what logits are divided by before anything else; 0 is greedy, 1 draws from the model as it is.
      top_k: draw among the k likeliest tokens only (of equal ones, the lower id counts as likelier).
      top_p: draw among the fewest likeliest tokens that hold at least this probability, and those as likely as
        the last of them (nucleus sampling, Holtzman et al. 2020). At most one of top_k and top_p.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self):
        if not 0.0 <= self.temperature < math.inf:
            raise PadirError(f"Sampling.temperature: {self.temperature} is not 0 (greedy) or a positive number")
        if self.top_k is not None and (self.top_k < 1 or self.top_k != int(self.top_k)):
            raise PadirError(f"Sampling.top_k: {self.top_k} is not None or a whole number of at least 1")
        if self.top_p is not None and not 0.0 < self.top_p <= 1.0:
            raise PadirError(f"Sampling.top_p: {self.top_p} is not None or in (0, 1]")
        if self.top_k is not None and self.top_p is not None:
            raise PadirError("Sampling: top_k and top_p contradict each other; set one of them to None")
        if self.temperature == 0.0 and (self.top_k, self.top_p) != (None, None):
            raise PadirError("Sampling: temperature 0 is greedy and uses no top_k or top_p; set a positive temperature")

    def __call__(self, logits: Array, key: Array) -> tuple[Array, Array]:
        """Draws one token from each distribution.

        All rows (the first axis) share their random numbers, and along the other axes each index has its own, the
        same whatever the size of the axis: so what a row gets depends on neither its neighbours in the batch nor
        the bucket it is padded to. Logits of one axis are one distribution.

        Args:
          logits: [rows, ..., V]; -inf forbids a token.
          key: [] random key, unused if greedy; fold in whatever must make a difference, such as the step.

        Returns:
          (tokens [rows, ...] int32, their log-probabilities [rows, ...] float32 under the logits as given).
        """
        if self.temperature == 0.0:
            return greedy(logits)
        logits = logits.astype(jnp.float32)
        warm, ids = logits / self.temperature, None
        if self.top_k is not None:
            warm, ids = top_k(warm, min(int(self.top_k), warm.shape[-1]))
        elif self.top_p is not None:
            warm = _nucleus(warm, self.top_p)
        # The largest of logits plus Gumbel noise is a draw from their softmax.
        token = argmax(warm + _gumbel(key, warm.shape[1:] or warm.shape))
        if ids is not None:
            token = jnp.take_along_axis(ids, token[..., None], axis=-1)[..., 0]
        chosen = jnp.take_along_axis(logits, token[..., None], axis=-1)[..., 0]
        return token, chosen - jax.nn.logsumexp(logits, axis=-1)


def _nucleus(logits: Array, top_p: float) -> Array:
    """Forbids what lies outside the nucleus: logits [..., V] → [..., V]."""
    ordered = jnp.sort(logits, axis=-1, descending=True)
    probabilities = jax.nn.softmax(ordered, axis=-1)
    # A token is inside while those before it do not yet hold top_p, so the likeliest always is.
    inside = jnp.cumsum(probabilities, axis=-1) - probabilities < top_p
    least = jnp.where(inside, ordered, jnp.inf).min(axis=-1, keepdims=True)
    return jnp.where(logits >= least, logits, -jnp.inf)


def _gumbel(key: Array, shape: tuple[int, ...]) -> Array:
    """Gumbel noise whose values at an index do not depend on the sizes of any axis but the last."""
    if len(shape) == 1:
        return jax.random.gumbel(key, shape)
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(shape[0]))
    return jax.vmap(lambda each: _gumbel(each, shape[1:]))(keys)
