"""Beam search with length penalty and early exit: the strongest autoregressive baseline.

The semantics are those of Hugging Face's search, so that results can be compared one to one: of the 2K best
candidates of a step, those among the first K that are finished are kept apart, and the K best unfinished ones live on.

Under a constraint, hypotheses that have not begun what they must write would crowd out the others until no room is
left. So the best hypothesis of each number of tokens still to write is put first: dynamic beam allocation (Post and
Vilar 2018), with the distance from acceptance in place of the count of words met.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import struct

from padir.checks import finite, whole
from padir.decoding.autoregressive import START_ID, StepFn, TargetRoom
from padir.decoding.sampling import argmax, top_k
from padir.decoding.state import Hypotheses
from padir.errors import PadirError
from padir.nn import cache as kv_cache
from padir.nn.cache import DecoderCache
from padir.types import EOS_ID, PAD_ID, Array

EARLY_EXITS = ("exact", "current_length", "full")

# The cache after a pass → how many tokens each continuation still has to write at least, EOS counted: [N, V] int32.
DistancesFn = Callable[[DecoderCache], Array]


@dataclass(frozen=True)
class BeamSearch(TargetRoom):
    """The static configuration of a beam search; hashable, so `jit` takes it as a static argument.

    Attributes:
      max_length_ratio, max_length_offset: see `TargetRoom`.
      beam_size: hypotheses that live at a time (K). A beam of 1 is greedy decoding.
      alpha: scores are summed log-probability over length^alpha; 0 favours short hypotheses.
      num_hypotheses: how many are returned, the best ones; all K if None. The search for fewer ends earlier and,
        with the exact exit, finds the same ones.
      early_exit: when a source is finished. 'exact': when no live hypothesis can still beat the worst that would be
        returned, however it continues. 'current_length': when none would beat it if it ended now, which is what
        Hugging Face does by default (early_stopping=False). 'full': by the same rule, but at the latest when K
        hypotheses are finished (early_stopping=True).
    """

    beam_size: int = 5
    alpha: float = 1.0
    num_hypotheses: int | None = None
    early_exit: str = "exact"

    def __post_init__(self):
        super().__post_init__()
        whole("BeamSearch.beam_size", self.beam_size)
        finite("BeamSearch.alpha", self.alpha)
        if self.alpha < 0:
            # A negative one would make scores fall with length, and the exits are about how far they can rise.
            raise PadirError(f"BeamSearch.alpha: {self.alpha} is not 0 or more")
        is_whole = isinstance(self.num_hypotheses, numbers.Integral)
        if self.num_hypotheses is not None and not (is_whole and 1 <= self.num_hypotheses <= self.beam_size):
            raise PadirError(
                f"BeamSearch.num_hypotheses: {self.num_hypotheses} is not None or from 1 to beam_size {self.beam_size}"
            )
        if self.early_exit not in EARLY_EXITS:
            raise PadirError(
                f"BeamSearch.early_exit: unknown {self.early_exit!r}; choose one of {', '.join(EARLY_EXITS)}"
            )

    @property
    def rows_per_source(self) -> int:
        """Decoder rows that a source takes."""
        return self.beam_size

    @property
    def num_returned(self) -> int:
        """Hypotheses per source in the result."""
        return self.beam_size if self.num_hypotheses is None else self.num_hypotheses


@struct.dataclass
class BeamState:
    """The carry of the loop; B sources, K hypotheses each, N = B·K decoder rows.

    Attributes:
      tokens: [B, K, L] int32, live hypotheses, 0 from the current position on.
      last: [N] int32, the token that the next step reads.
      log_probs: [B, K] float32, summed, the most important first; -inf where there is no hypothesis.
      kept_tokens: [B, K, L] int32, the best finished hypotheses, 0 after EOS.
      kept_scores: [B, K] float32, log-probability over length^alpha, best first; -inf where there is none yet.
      done: [B] bool, sources whose kept hypotheses never change again.
      steps_run: [B] int32, decoder passes each source took part in before it was done.
      cache: keys and values of the live hypotheses.
    """

    tokens: Array
    last: Array
    log_probs: Array
    kept_tokens: Array
    kept_scores: Array
    done: Array
    steps_run: Array
    cache: DecoderCache


@struct.dataclass
class _Candidates:
    """The best continuations of a step, the most important first: each [B, C].

    Attributes:
      log_probs: float32, summed.
      parents: int32 in [0, K), the live hypothesis each continues.
      tokens: int32, with what.
      ranks: float32, the higher the more important: the log-probability, or what `_with_leaders` says.
    """

    log_probs: Array
    parents: Array
    tokens: Array
    ranks: Array


def decode(
    step_fn: StepFn,
    cache: DecoderCache,
    live: Array,
    limits: Array,
    max_length: int,
    config: BeamSearch,
    keys: Array | None = None,
    distances: DistancesFn | None = None,
) -> Hypotheses:
    """Searches; arguments as in `beam_search` (`keys` is unused).

    Returns:
      `Hypotheses` with K = config.num_returned and L = max_length. A source for which there are fewer has scores of
      -inf and no tokens at the end.
    """
    del keys
    state = beam_search(step_fn, cache, live, limits, max_length, config, distances)
    tokens = state.kept_tokens[:, : config.num_returned]
    lengths = (tokens != PAD_ID).sum(-1)
    return Hypotheses(
        tokens=tokens,
        scores=state.kept_scores[:, : config.num_returned],
        predicted_lengths=lengths,
        steps_run=jnp.broadcast_to(state.steps_run[:, None], lengths.shape),
        batch_steps=state.cache.position,
    )


def beam_search(
    step_fn: StepFn,
    cache: DecoderCache,
    live: Array,
    limits: Array,
    max_length: int,
    config: BeamSearch,
    distances: DistancesFn | None = None,
) -> BeamState:
    """Searches until every source is done.

    Args:
      step_fn: one decoder pass with its cache over N = B·K rows.
      cache: empty, with N rows and room for `max_length` tokens.
      live: [B] bool, False for sources that only pad the batch: they count as done from the start.
      limits: [B] int32, most tokens a target may have, EOS counted; one that reaches it counts as finished.
      max_length: the largest of them, static.
      config: size of the beam, scores and exit.
      distances: of constrained decoding, how far continuations are from a complete output; `step_fn` forbids those that
        are too far from one.

    Returns:
      The final state; `cache.position` is the number of steps run.
    """
    sources, size = live.shape[0], config.beam_size

    def running(state: BeamState) -> Array:
        return (state.cache.position < max_length) & ~state.done.all()

    def step(state: BeamState) -> BeamState:
        next_log_probs, new_cache = step_fn(state.last, state.cache)
        candidates = _best_continuations(next_log_probs, state.log_probs)
        if distances is not None:
            candidates = _with_leaders(candidates, next_log_probs, state.log_probs, distances(new_cache))
        return _advance(state.replace(cache=new_cache), candidates, state.cache.position, limits, config)

    nothing = jnp.full((sources, size), -jnp.inf, jnp.float32)
    empty = jnp.full((sources, size, max_length), PAD_ID, jnp.int32)
    first = BeamState(
        tokens=empty,
        last=jnp.full((sources * size,), START_ID, jnp.int32),
        # There is one start, not K equal ones.
        log_probs=nothing.at[:, 0].set(0.0),
        kept_tokens=empty,
        kept_scores=nothing,
        done=~live,
        steps_run=jnp.zeros((sources,), jnp.int32),
        cache=cache,
    )
    return jax.lax.while_loop(running, step, first)


def _best_continuations(next_log_probs: Array, log_probs: Array) -> _Candidates:
    """The 2K best of all K·V continuations: next_log_probs [N, V], log_probs [B, K] of the live hypotheses.

    2K, because at most one continuation of each hypothesis is EOS: K unfinished ones are always among them.
    """
    sources, size = log_probs.shape
    # The best of all are among the best of each.
    best, tokens = top_k(next_log_probs, min(2 * size, next_log_probs.shape[-1]))
    sums = best + log_probs.reshape(-1, 1)
    sums, index = jax.lax.top_k(sums.reshape(sources, -1), 2 * size)
    parents = index // best.shape[-1]
    return _Candidates(sums, parents, jnp.take_along_axis(tokens.reshape(sources, -1), index, axis=-1), sums)


def _with_leaders(best: _Candidates, next_log_probs: Array, log_probs: Array, distances: Array) -> _Candidates:
    """Puts the leaders of a step behind its best continuation and ahead of the others.

    The leader of a distance is the likeliest of the continuations that still need so many tokens. There are as many
    leaders as hypotheses, the nearest to completion first: one that is as near as can be is never lost.

    Args:
      best: of `_best_continuations`.
      next_log_probs: [N, V] float32, -inf forbids a token.
      log_probs: [B, K] float32, of the live hypotheses.
      distances: [N, V] int32, see `DistancesFn`.

    Returns:
      2K candidates.
    """
    sources, size = log_probs.shape
    vocabulary = next_log_probs.shape[-1]
    sums = (next_log_probs + log_probs.reshape(-1, 1)).reshape(sources, -1)
    none = jnp.iinfo(jnp.int32).max
    levels = jnp.where(sums > -jnp.inf, distances.reshape(sources, -1), none)

    def next_leader(passed: Array, _: None) -> tuple[Array, Array]:
        level = jnp.where(levels > passed, levels, none).min(axis=-1, keepdims=True)
        return level, argmax(jnp.where((levels == level) & (level < none), sums, -jnp.inf))

    _, leaders = jax.lax.scan(next_leader, jnp.full((sources, 1), -1, jnp.int32), length=size)
    leaders = leaders.T
    others = best.parents * vocabulary + best.tokens
    every = jnp.concatenate([leaders, others], axis=1)
    # What is there twice counts once, as the leader; the best of all comes first in any case.
    again = jnp.tril(every[:, :, None] == every[:, None, :], -1).any(-1)
    found = jnp.take_along_axis(sums, every, axis=1)
    ahead = jnp.concatenate([2.0 * size - jnp.arange(size), jnp.zeros(2 * size)])
    ranks = jnp.where(every == others[:, :1], 3.0 * size, ahead + jnp.where(ahead > 0, 0.0, found))
    ranks = jnp.where(again | (found == -jnp.inf), -jnp.inf, ranks)
    ranks, order = jax.lax.top_k(ranks, 2 * size)
    chosen = _take(every, order)
    log_probs = jnp.where(ranks > -jnp.inf, _take(found, order), -jnp.inf)
    return _Candidates(log_probs, chosen // vocabulary, chosen % vocabulary, ranks)


def _advance(
    state: BeamState, candidates: _Candidates, position: Array, limits: Array, config: BeamSearch
) -> BeamState:
    """Sorts candidates into finished and live ones; `position` [] int32 is where their tokens belong."""
    size = config.beam_size
    length = position + 1
    ended = (candidates.tokens == EOS_ID) | (length >= limits)[:, None]
    tokens = _take(state.tokens, candidates.parents)
    tokens = jax.lax.dynamic_update_index_in_dim(tokens, candidates.tokens, position, axis=2)

    # A done source goes on through the decoder (the shape is fixed) but keeps what it has.
    eligible = ended[:, :size] & ~state.done[:, None]
    scores = jnp.where(eligible, candidates.log_probs[:, :size] / _penalty(length, config), -jnp.inf)
    kept_scores, order = jax.lax.top_k(jnp.concatenate([state.kept_scores, scores], axis=1), size)
    kept_tokens = _take(jnp.concatenate([state.kept_tokens, tokens[:, :size]], axis=1), order)

    _, order = jax.lax.top_k(jnp.where(ended, -jnp.inf, candidates.ranks), size)
    log_probs = _take(jnp.where(ended, -jnp.inf, candidates.log_probs), order)
    parents = _take(candidates.parents, order)
    rows = jnp.arange(parents.shape[0])[:, None] * size + parents
    return BeamState(
        tokens=_take(tokens, order),
        last=_take(candidates.tokens, order).reshape(-1),
        log_probs=log_probs,
        kept_tokens=kept_tokens,
        kept_scores=kept_scores,
        done=state.done | _settled(log_probs.max(axis=-1), kept_scores, length, limits, config),
        steps_run=state.steps_run + ~state.done,
        cache=kv_cache.reorder(state.cache, rows.reshape(-1)),
    )


def _settled(best_live: Array, kept_scores: Array, length: Array, limits: Array, config: BeamSearch) -> Array:
    """Whether the exit rule holds: best_live [B], kept_scores [B, K], limits [B] → [B] bool."""
    # Log-probabilities only fall, so the most that a live hypothesis can reach is its own over the longest length.
    longest = limits if config.early_exit == "exact" else length
    settled = best_live / _penalty(longest, config) <= kept_scores[:, config.num_returned - 1]
    if config.early_exit == "full" or config.beam_size == 1:
        # A beam of 1 has no second hypothesis that could go on once the first is finished: it is greedy decoding.
        settled |= kept_scores[:, -1] > -jnp.inf
    return settled


def _penalty(length: Array, config: BeamSearch) -> Array:
    return length.astype(jnp.float32) ** config.alpha


def _take(field: Array, index: Array) -> Array:
    """Chooses hypotheses: field [B, K, …], index [B, C] → [B, C, …]."""
    return jnp.take_along_axis(field, index.reshape(index.shape + (1,) * (field.ndim - 2)), axis=1)
