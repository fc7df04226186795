"""From logits to tokens."""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from padir import rng
from padir.decoding.leaves import with_leaves
from padir.errors import PadirError
from padir.nn import reductions
from padir.runtime.platforms import choices
from padir.types import PAD_ID, Array, TokenIds


def forbid_reserved(logits: Array, ids: TokenIds) -> Array:
    """Forbids padding, MASK and every other id that no text contains: logits [..., V] → [..., V]."""
    return forbid_tokens(logits, jnp.arange(logits.shape[-1]), ids)


def forbid_tokens(logits: Array, tokens: Array, ids: TokenIds) -> Array:
    """The same for logits [..., C] of chosen tokens, int32 and broadcastable to them."""
    return jnp.where((tokens != PAD_ID) & (tokens < ids.num_pieces), logits, -jnp.inf)


def log_probabilities(logits: Array, ids: TokenIds) -> Array:
    """Log-probability of each id: logits [..., V] → [..., V] float32.

    The normaliser includes reserved ids, as in training, but not the rows that pad the table to V. Ids that no text
    contains are then set to -inf.
    """
    logits = logits.astype(jnp.float32)
    real = jnp.arange(logits.shape[-1]) < ids.unpadded_size
    normalizer = logsumexp(jnp.where(real, logits, -jnp.inf))
    # In this order: logits may end in a multiplication, and XLA computes them anew for each of their readers. Were the
    # difference next to it, one reader might round both at once and another twice, and `argmax` compares their results.
    return forbid_reserved(logits, ids) - normalizer[..., None]


def log_probability(logits: Array, tokens: Array, ids: TokenIds) -> Array:
    """Log-probability of one id at each position: logits [..., V], tokens [...] int32 → [...] float32.

    As `log_probabilities` has it, for ids that texts contain; those of the other ids are not computed.
    """
    logits = logits.astype(jnp.float32)
    logits = jnp.where(jnp.arange(logits.shape[-1]) < ids.unpadded_size, logits, -jnp.inf)
    if choices().reduces_jointly:
        return reductions.log_probability(logits, tokens)
    return take(logits, tokens[..., None])[..., 0] - logsumexp(logits)


def argmax(logits: Array) -> Array:
    """The first index of the largest value: logits [..., V] → [...] int32, as `jnp.argmax`.

    Uses plain reductions, which compilers vectorise. They seldom vectorise a reduction over (value, index) pairs.
    """
    if _has_columns(logits):
        return _likeliest(_columns(logits), logits.shape[-1])[0].reshape(logits.shape[:-1])
    if _has_groups(logits):
        return _likeliest_of_many(logits)[0]
    return _argmax_of_rows(logits)


def _argmax_of_rows(logits: Array) -> Array:
    size = logits.shape[-1]
    largest = logits == logits.max(axis=-1, keepdims=True)
    return jnp.where(largest, jnp.arange(size, dtype=jnp.int32), size - 1).min(axis=-1)


# Entries of a row that are looked at together: a line of vector registers on CPUs, of lanes on TPUs.
_GROUP = 128
# With fewer rows than these, or shorter ones, XLA on CPU is faster along them than down their columns.
_FEWEST_COLUMNS = 8
_SHORTEST_COLUMNS = 1024


def _has_columns(values: Array) -> bool:
    """Whether values [..., V] are compared down the columns of [V, rows].

    That is so where they may be logits of all tokens that `weights.project` has just written in that order, as it does
    for few rows: to turn them takes as long as computing them. Of values that lie otherwise the result is the same.
    """
    few = _FEWEST_COLUMNS <= math.prod(values.shape[:-1]) <= choices().weight_first_rows
    return few and values.shape[-1] >= _SHORTEST_COLUMNS


def _has_groups(values: Array) -> bool:
    """Whether the largest of each of many long rows [..., V] is first looked for among the largest of its groups.

    Then all of them are read once. To compare them with the largest is a second time, which XLA on CPU does not
    vectorise.
    """
    many = math.prod(values.shape[:-1]) > choices().weight_first_rows
    return choices().searches_in_groups and many and values.shape[-1] >= _SHORTEST_COLUMNS


def _in_groups(values: Array) -> Array:
    """Values [..., V] → [rows, groups, `_GROUP`] of V padded with the lowest there is."""
    padding = [(0, 0)] * (values.ndim - 1) + [(0, -values.shape[-1] % _GROUP)]
    padded = jnp.pad(values, padding, constant_values=_lowest(values))
    return padded.reshape(math.prod(values.shape[:-1]), -1, _GROUP)


def _likeliest_of_many(values: Array) -> tuple[Array, Array]:
    """The first of the largest of each row: values [..., V] → (where [...] int32, what [...])."""
    groups, shape = _in_groups(values), values.shape[:-1]
    of_group = _largest_of_groups(groups, axis=-1)
    group = _argmax_of_rows(of_group)
    within = jnp.take_along_axis(groups, group[:, None, None], axis=1)[:, 0]
    index = jnp.minimum(group * _GROUP + _argmax_of_rows(within), values.shape[-1] - 1)
    return index.reshape(shape), of_group.max(axis=-1).reshape(shape)


def _columns(values: Array) -> Array:
    """Values [..., V] → [groups, `_GROUP`, rows] of V padded with the lowest there is."""
    rows = math.prod(values.shape[:-1])
    columns = jnp.pad(
        jnp.moveaxis(values, -1, 0).reshape(-1, rows),
        ((0, -values.shape[-1] % _GROUP), (0, 0)),
        constant_values=_lowest(values),
    )
    # A barrier: XLA would compute logits anew for every reader.
    return jax.lax.optimization_barrier(columns.reshape(-1, _GROUP, rows))


def _lowest(values: Array) -> float | int:
    return -jnp.inf if jnp.issubdtype(values.dtype, jnp.floating) else jnp.iinfo(values.dtype).min


def _largest_of_groups(groups: Array, axis: int = 1) -> Array:
    """`_columns` → the largest of each group, [groups, rows]; of `_in_groups`, along the last axis, [rows, groups]."""
    # A barrier: XLA would take the largest of all groups from all their entries again.
    return jax.lax.optimization_barrier(groups.max(axis=axis))


def top_k(values: Array, k: int) -> tuple[Array, Array]:
    """The k largest, in order, and where they are: values [..., V] → ([..., k], [..., k] int32), as `jax.lax.top_k`.

    The largest k lie in the k groups with the largest maxima, so of a long row no more than these need sorting. Groups
    and entries are taken in the order of their indices, so that of equal values the first counts as larger, too.
    """
    size, shape = values.shape[-1], values.shape[:-1]
    if size < 2 * k * _GROUP:
        return jax.lax.top_k(values, k)
    if _has_columns(values):
        groups = _columns(values)
        chosen = _first_groups(_largest_of_groups(groups).T, k)
        within = _within(groups, chosen)
    else:
        groups = _in_groups(values)
        chosen = _first_groups(groups.max(axis=-1), k)
        within = jnp.take_along_axis(groups, chosen[..., None], axis=-2)
    largest, at = jax.lax.top_k(within.reshape(-1, k * _GROUP), k)
    index = jnp.take_along_axis(chosen, at // _GROUP, axis=-1) * _GROUP + at % _GROUP
    return largest.reshape(*shape, k), index.astype(jnp.int32).reshape(*shape, k)


def _first_groups(of_group: Array, k: int) -> Array:
    """The k groups of each row with the largest maxima [rows, groups], in order: [rows, k] int32."""
    return jnp.sort(jax.lax.top_k(of_group, k)[1], axis=-1)


def _within(groups: Array, chosen: Array) -> Array:
    """The entries of some groups of each row: `_columns`, chosen [rows, k] int32 → [rows, k, `_GROUP`]."""
    return jax.vmap(lambda row, some: groups[some, :, row])(jnp.arange(groups.shape[-1]), chosen)


def take(values: Array, indices: Array) -> Array:
    """Some of values [..., V], those at indices [..., n] int32: [..., n]."""
    if not _has_columns(values):
        return jnp.take_along_axis(values, indices, axis=-1)
    groups, at = _columns(values), indices.reshape(-1, indices.shape[-1])
    rows = jnp.arange(len(at))[:, None]
    return groups[at // _GROUP, at % _GROUP, rows].reshape(indices.shape)


def logsumexp(logits: Array) -> Array:
    """Log of the sum of exp: logits [..., V] → [...] float32."""
    logits = logits.astype(jnp.float32)
    if not _has_columns(logits):
        return jax.nn.logsumexp(logits, axis=-1)
    groups = _columns(logits)
    shift = _finite(_largest_of_groups(groups).max(axis=0))
    return (shift + _log_sum_of_exp(groups, shift)).reshape(logits.shape[:-1])


def _finite(shift: Array) -> Array:
    return jax.lax.stop_gradient(jnp.where(jnp.isfinite(shift), shift, 0.0))


def _log_sum_of_exp(groups: Array, shift: Array) -> Array:
    """Of each row's logits less its `shift`: `_columns`, [rows] → [rows]."""
    return jnp.log(jnp.exp(groups - shift).sum(axis=(0, 1)))


def _likeliest(groups: Array, size: int) -> tuple[Array, Array]:
    """The first of the largest of each row: `_columns` of rows of `size` → (where [rows] int32, what [rows])."""
    of_group = _largest_of_groups(groups)
    # It is looked for only in the first group that has the largest.
    group = _argmax_of_rows(of_group.T)
    index = group * _GROUP + _argmax_of_rows(_within(groups, group[:, None])[:, 0])
    return jnp.minimum(index, size - 1), of_group.max(axis=0)


def greedy(logits: Array) -> tuple[Array, Array]:
    """The likeliest token: logits [..., V] → (tokens [...] int32, log-probabilities [...] float32)."""
    logits = logits.astype(jnp.float32)
    if choices().reduces_jointly:
        return reductions.likeliest(logits)
    if _has_groups(logits):
        tokens, largest = _likeliest_of_many(logits)
        return tokens, largest - jax.nn.logsumexp(logits, axis=-1)
    if not _has_columns(logits):
        return argmax(logits), logits.max(axis=-1) - jax.nn.logsumexp(logits, axis=-1)
    groups = _columns(logits)
    tokens, largest = _likeliest(groups, logits.shape[-1])
    shift = _finite(largest)
    log_probs = largest - shift - _log_sum_of_exp(groups, shift)
    return tokens.reshape(logits.shape[:-1]), log_probs.reshape(logits.shape[:-1])


def entropy(logits: Array) -> Array:
    """Entropy of each distribution: logits [..., V], -inf for what cannot be chosen → [...] float32, nats."""
    logits = logits.astype(jnp.float32)
    log_probs = logits - logsumexp(logits)[..., None]
    return jnp.where(log_probs == -jnp.inf, 0.0, -jnp.exp(log_probs) * log_probs).sum(axis=-1)


@with_leaves("top_p")
@dataclass(frozen=True)
class Sampling:
    """How a token is drawn from its logits; the default takes the likeliest.

    Attributes:
      temperature: divides the logits first; 0 is greedy, 1 draws from the model's own distribution.
      top_k: draw among the k likeliest tokens only (of equal ones, the lower id counts as likelier).
      top_p: draw among the fewest likeliest tokens that hold at least this probability, and those as likely as
        the last of them (nucleus sampling, Holtzman et al. 2020); 1 takes all. At most one of top_k and top_p.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self):
        if not 0.0 <= self.temperature < math.inf:
            raise PadirError(f"Sampling.temperature: {self.temperature} is not 0 (greedy) or a positive number")
        if self.top_k is not None and not (isinstance(self.top_k, numbers.Integral) and self.top_k >= 1):
            raise PadirError(f"Sampling.top_k: {self.top_k} is not None or a whole number of at least 1")
        if self.top_p is not None and not 0.0 < self.top_p <= 1.0:
            raise PadirError(f"Sampling.top_p: {self.top_p} is not None or in (0, 1]")
        if self.top_k is not None and self.top_p is not None:
            raise PadirError("Sampling: top_k and top_p contradict each other; set one of them to None")
        if self.temperature == 0.0 and (self.top_k, self.top_p) != (None, None):
            raise PadirError("Sampling: temperature 0 is greedy and uses no top_k or top_p; set a positive temperature")

    def __call__(self, logits: Array, keys: Array) -> tuple[Array, Array]:
        """Draws one token from each distribution.

        Each row (of the first axis) draws with its own key, and along the other axes each index has its own random
        number, the same whatever the size of the axis: so what a row gets depends on neither its neighbours in the
        batch nor the bucket it is padded to. Logits of one axis are one distribution.

        Args:
          logits: [rows, ..., V]; -inf forbids a token.
          keys: [rows], of logits of one axis []; unused if greedy. Fold in whatever must make a difference, such as the
            step.

        Returns:
          (tokens [rows, ...] int32, their log-probabilities [rows, ...] float32 under the logits as given).
        """
        return self.at(None if self.temperature == 0.0 else uniform(keys, logits.shape[:-1]), logits)

    def at(self, numbers: Array | None, logits: Array, progress: Array | None = None) -> tuple[Array, Array]:
        """The same by given numbers.

        Args:
          numbers: [...] float32 in [0, 1), random ones (see `token_at`); unused if greedy.
          logits: [..., V]; -inf forbids a token.
          progress: unused; see `AnnealedSampling`.

        Returns:
          (tokens [...] int32, their log-probabilities [...] float32 under the logits as given).
        """
        if self.temperature == 0.0:
            return greedy(logits)
        logits = logits.astype(jnp.float32)
        among, ids, temperature = logits, None, self.temperature
        if self.top_k is not None:
            among, ids = top_k(logits, min(int(self.top_k), logits.shape[-1]))
        elif self.top_p is not None:
            # The nucleus is that of the warm distribution; its largest logit is subtracted first, as in `token_at`.
            warm = (logits - _finite(logits.max(axis=-1, keepdims=True))) / max(temperature, COLDEST)
            among, temperature = _nucleus(warm, self.top_p), 1.0
        token = token_at(numbers, among, temperature)
        if ids is not None:
            token = jnp.take_along_axis(ids, token[..., None], axis=-1)[..., 0]
        chosen = jnp.take_along_axis(logits, token[..., None], axis=-1)[..., 0]
        return token, chosen - jax.nn.logsumexp(logits, axis=-1)


def _nucleus(logits: Array, top_p: float | Array) -> Array:
    """Forbids what lies outside the nucleus: logits [..., V] → [..., V]; a `top_p` of 1 forbids nothing.

    The weight of the least likely token inside is found by halving the range of its bits, which are ordered as the
    weights are: to sort all tokens would take many times as long.
    """
    weights = jnp.exp(logits - _finite(logits.max(axis=-1, keepdims=True)))
    bits = jax.lax.bitcast_convert_type(weights, jnp.int32)
    enough = top_p * weights.sum(axis=-1, keepdims=True)

    def halved(_: int, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        """Tokens from the first bound on hold enough, those from the second on do not."""
        low, high = bounds
        middle = low + (high - low) // 2
        holds = jnp.where(bits >= middle, weights, 0.0).sum(axis=-1, keepdims=True) >= enough
        return jnp.where(holds, middle, low), jnp.where(holds, high, middle)

    low = jnp.zeros_like(bits, shape=enough.shape)
    least, _ = jax.lax.fori_loop(0, _HALVINGS, halved, (low, jnp.full_like(low, _BITS_OF_ONE + 1)))
    # Sums are rounded: all but the unlikeliest may seem to hold all there is.
    return jnp.where(bits >= jnp.where(top_p >= 1.0, 0, least), logits, -jnp.inf)


# Of float32; of the likeliest token the weight is 1.
_BITS_OF_ONE = 0x3F800000
_HALVINGS = _BITS_OF_ONE.bit_length()


def token_at(numbers: Array, logits: Array, temperature: float | Array = 1.0) -> Array:
    """The token in which the running sum of a row's probabilities passes a number.

    Of a random number this is a draw, by inversion of the distribution function. It takes one number, where Gumbel's
    trick takes one for every logit. `uniform` gives multiples of 2^-23, and so are the chances of a token: one much
    less likely may have none. Sums of groups come first, so that no long row is summed up in order.

    Args:
      numbers: [...] float32 in [0, 1].
      logits: [..., V] float32; -inf is never chosen unless all are -inf.
      temperature: [] float32; 0 takes the first of the likeliest.

    Returns:
      Tokens [...] int32.
    """
    size, shape = logits.shape[-1], logits.shape[:-1]
    numbers = jnp.where(temperature > 0, numbers, 0.0)
    logits = logits.reshape(-1, size)
    # The largest is subtracted first: divided by a temperature near 0, all others then lose their weight.
    warm = (logits - _finite(logits.max(axis=-1, keepdims=True))) / jnp.maximum(temperature, COLDEST)
    weights = jnp.exp(_in_groups(warm))
    of_group = weights.sum(axis=-1)
    below = jnp.cumsum(of_group, axis=-1)
    number = numbers.reshape(-1) * below[:, -1]
    group = _first_beyond(below, number, of_group > 0)[:, None]
    rest = number - (jnp.take_along_axis(below, group, axis=1) - jnp.take_along_axis(of_group, group, axis=1))[:, 0]
    within = jnp.take_along_axis(weights, group[..., None], axis=1)[:, 0]
    token = group[:, 0] * _GROUP + _first_beyond(jnp.cumsum(within, axis=-1), rest, within > 0)
    return jnp.minimum(token, size - 1).reshape(shape)


# Below it a temperature counts as 0: logits that are divided by it must stay finite or become -inf.
COLDEST = 1e-30


def _first_beyond(sums: Array, numbers: Array, possible: Array) -> Array:
    """The first possible index at which sums exceed a number, the last possible one if none does.

    Sums are rounded, so that they may pass the number at an index of weight 0, or not at all.

    Args:
      sums: [N, n] float32, running sums.
      numbers: [N] float32.
      possible: [N, n] bool. Where nothing is, the index is 0.

    Returns:
      Indices [N] int32.
    """
    count = sums.shape[1]
    indices = jnp.arange(count, dtype=jnp.int32)
    first = jnp.where(possible & (sums > numbers[:, None]), indices, count).min(axis=1)
    return jnp.minimum(first, jnp.where(possible, indices, 0).max(axis=1))


def uniform(keys: Array, shape: tuple[int, ...]) -> Array:
    """Numbers in [0, 1) for the indices of a shape, each row's by its own key: keys [rows], or [] for the shape ().

    The number at an index is the same whatever the sizes of the axes.
    """
    for size in shape[1:]:
        keys = rng.numbered(keys.reshape(-1), size)
    return jax.vmap(jax.random.uniform)(keys.reshape(-1)).reshape(shape) if shape else jax.random.uniform(keys)
