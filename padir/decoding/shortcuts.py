"""Shortcuts: computing fewer tokens, hypotheses, positions and rows, and the logits of a block at a time.

The first three may change translations, so they are off by default; `benchmarks/shortcuts.py` measures what they cost
in quality and gain in time. The others change only the order in which floats are added up. Leaving finished rows out
takes longer to compile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from padir.decoding.sampling import argmax, entropy, logsumexp, take, top_k
from padir.decoding.state import Candidates, RefinementState, StepOutput
from padir.nn.masks import length_mask
from padir.runtime.platforms import choices
from padir.types import EOS_ID, Array


def count(candidates: int) -> int:
    """How many tokens each position chooses among if each puts `candidates` forward: its own, its neighbours', EOS."""
    return 3 * candidates + 1


def count_shared(length: int, candidates: int) -> int:
    """How many `shared_candidates` there are of hypotheses padded to `length`: those of all positions, and EOS."""
    return length * candidates + 1


def candidates(output: StepOutput, inside: Array, each: int) -> Candidates:
    """Each position's likeliest tokens in the first step, and those of its two neighbours.

    The neighbours' tokens are included because a step's typical error is one of order: a word stands one position too
    early or too late.

    Args:
      output: of the first step; logits of -inf forbid a token. Its own candidates, if any, are `shared_candidates`.
      inside: [N, L] bool, positions within each row's length.
      each: how many tokens each position puts forward.

    Returns:
      `Candidates` with C = `count(each)`: EOS is always one, so that the end can be written.
    """
    eos = EOS_ID if output.candidates is None else _SHARED_EOS
    places = _put_forward(output.logits, inside, each, eos)
    left = jnp.pad(places[:, :-1], ((0, 0), (1, 0), (0, 0)), constant_values=eos)
    right = jnp.pad(places[:, 1:], ((0, 0), (0, 1), (0, 0)), constant_values=eos)
    end = jnp.full((*inside.shape, 1), eos, jnp.int32)
    places = jnp.concatenate([places, left, right, end], axis=-1)
    repeated = _repeated(places)
    among = log_normalizer(take(output.logits, places), repeated)
    log_rest = logsumexp(output.logits) - among
    if output.candidates is None:
        return Candidates(places, repeated, log_rest)
    tokens = jnp.take_along_axis(output.candidates.tokens, places, axis=-1)
    return Candidates(tokens, repeated, log_rest + output.candidates.log_rest)


def shared_candidates(logits: Array, lengths: Array, each: int) -> Candidates:
    """The tokens that all hypotheses of a source choose among in the first step: those that one of them provides.

    Args:
      logits: [B, L, V] of that hypothesis in that step; -inf forbids a token.
      lengths: [B] int32, of it.
      each: how many tokens each of its positions puts forward.

    Returns:
      `Candidates` with tokens [B, 1, `count_shared(L, each)`] and log_rest [B, L], which at a position beyond the
      length is taken to be that of the last within it.
    """
    batch, length = logits.shape[:2]
    own = _put_forward(logits, length_mask(lengths, length), each, EOS_ID).reshape(batch, 1, -1)
    tokens = jnp.pad(own, ((0, 0), (0, 0), (1, 0)), constant_values=EOS_ID)
    repeated = _repeated(tokens)
    here = take(logits, jnp.broadcast_to(tokens, (batch, length, tokens.shape[-1])))
    log_rest = logsumexp(logits) - log_normalizer(here, repeated)
    nearest = jnp.minimum(jnp.arange(length), lengths[:, None] - 1)
    return Candidates(tokens, repeated, jnp.take_along_axis(log_rest, nearest, axis=1))


# Where `shared_candidates` have EOS.
_SHARED_EOS = 0


def _put_forward(logits: Array, inside: Array, each: int, eos: int) -> Array:
    """Where the `each` largest of logits [N, L, V] are, [N, L, each] int32; `eos` beyond the length."""
    return jnp.where(inside[..., None], top_k(logits, each)[1], eos)


def _repeated(tokens: Array) -> Array:
    """Which of tokens [..., C] stand further ahead, too: [..., C] bool."""
    earlier = jnp.tril(jnp.ones((tokens.shape[-1],) * 2, bool), -1)
    return ((tokens[..., :, None] == tokens[..., None, :]) & earlier).any(-1)


def logits_block(config: Any) -> int | None:
    """Of how many positions a `Refinement` computes logits at a time on this platform; None for all."""
    return choices().logits_block if config.logits_block == "auto" else config.logits_block


def in_blocks(config: Any, rows: int, length: int) -> bool:
    """Whether a step over all tokens of [rows, length] positions is `chosen_in_blocks`; `config` is a `Refinement`."""
    block = logits_block(config)
    if block is None or rows * length <= block:
        return False
    return config.logits_callback is None and not config.replace.needs_logits_sum


def chosen_in_blocks(
    output: StepOutput, inside: Array, numbers: Array | None, progress: Array, config: Any
) -> tuple[tuple[Array, Array], Array | None, Candidates | None]:
    """The tokens of a step, with the logits of `logits_block` positions (of whole rows) at a time.

    On CPU a block's logits are still in the cache when they are compared.

    Args:
      output: with `hidden` [N, L, E]; with `active_positions` but no `candidates` also [N, k, E].
      inside: [N, L] bool, positions within each row's length.
      numbers: [N, L] float32, random ones; None where `config.sampling` is greedy.
      progress: [] float32, as `config.sampling` takes it.
      config: a `Refinement`.

    Returns:
      ((tokens [N, L] int32, log-probabilities [N, L] float32), the entropy [N, L] of each distribution if a policy
      needs it, the first step's `candidates` if the configuration has any); None for what there is not.
    """

    def one(block: tuple[Array, Array, Array | None]) -> tuple[tuple[Array, Array], Array | None, Candidates | None]:
        hidden, inside, numbers = block
        logits, every = output.logits_of(hidden), config.candidates
        return (
            config.sampling.at(numbers, logits, progress),
            entropy(logits) if config.needs_entropy else None,
            None if every is None else candidates(StepOutput(logits), inside, every),
        )

    return map_blocks(one, (output.hidden, inside, numbers), logits_block(config))


def map_blocks(of_block: Callable[[Any], Any], fields: Any, positions: int | None) -> Any:
    """What `of_block` makes of some rows at a time, put together.

    Args:
      of_block: arrays of `fields` of n rows → arrays of n rows.
      fields: arrays [N, L, ...].
      positions: about so many positions of whole rows make a block. None: all at once, as where there are no more.

    Returns:
      What `of_block` returns, of N rows.
    """
    rows, length = jax.tree.leaves(fields)[0].shape[:2]
    if positions is None or rows * length <= positions:
        return of_block(fields)
    blocks = -(-rows // max(1, positions // length))
    at_once = -(-rows // blocks)

    def split(field: Array) -> Array:
        more = jnp.pad(field, [(0, blocks * at_once - rows)] + [(0, 0)] * (field.ndim - 1))
        return more.reshape(blocks, at_once, *field.shape[1:])

    made = jax.lax.map(of_block, jax.tree.map(split, fields))
    return jax.tree.map(lambda field: field.reshape(blocks * at_once, *field.shape[2:])[:rows], made)


def log_normalizer(logits: Array, repeated: Array) -> Array:
    """Log of the sum of exp over different tokens: logits [N, L, C], repeated ones' left out → [N, L] float32."""
    return jax.nn.logsumexp(jnp.where(repeated, -jnp.inf, logits.astype(jnp.float32)), axis=-1)


def choose(logits: Array, candidates: Candidates) -> tuple[Array, Array]:
    """The likeliest candidates: logits [N, L, C] → (tokens [N, L] int32, log-probabilities [N, L] float32)."""
    best = argmax(logits)
    token = jnp.take_along_axis(candidates.tokens, best[..., None], axis=-1)[..., 0]
    normalizer = log_normalizer(logits, candidates.repeated) + candidates.log_rest
    return token, logits.astype(jnp.float32).max(axis=-1) - normalizer


# The first step reads nothing but the start, and the second what is new everywhere: both decode every position.
WHOLE_STEPS = 2


def decodes_some(active: int | None, length: int) -> bool:
    """Whether a step of `Refinement.active_positions` leaves any of `length` positions out."""
    return active is not None and active < length


def active_positions(state: RefinementState, inside: Array, count: int) -> Array:
    """The positions to decode next: [N, count] int32, all different.

    First those that would read another token than when they were decoded, which once decoded are so no more; then those
    that would not read what they wrote, as remasked ones; then the others; of either kind the least probable first.
    """
    kind = jnp.where(state.tokens != state.read, 2.0, jnp.where(state.tokens != state.proposal, 1.0, 0.0))
    certainty = jnp.clip(state.log_probs, -1000.0, 0.0) - 1001.0 * kind
    return jax.lax.top_k(-jnp.where(inside, certainty, jnp.inf), count)[1].astype(jnp.int32)


def best_rows(scores: Array, keep: int) -> Array:
    """Rows of the `keep` best hypotheses of each source: scores [B, K] float32 → [B · keep] int32 into B · K rows.

    They stay in the order they were in.
    """
    chosen = jnp.sort(jax.lax.top_k(scores, keep)[1], axis=-1)
    return (chosen + jnp.arange(scores.shape[0])[:, None] * scores.shape[1]).reshape(-1).astype(jnp.int32)


def keep_rows(state: RefinementState, rows: Array) -> RefinementState:
    """The state of some of its rows: rows [M] int32."""
    trace = None if state.trace is None else jax.tree.map(lambda field: field[:, rows], state.trace)
    kept = jax.tree.map(lambda field: field[rows], state.replace(step=None, trace=None))
    return kept.replace(step=state.step, trace=trace)


def put_back(state: RefinementState, some: RefinementState, rows: Array) -> RefinementState:
    """The state with some of its rows as they are in another: rows [M] int32, `some` of M rows."""
    whole, part = state.replace(step=None), some.replace(step=None)
    return jax.tree.map(lambda field, new: field.at[rows].set(new), whole, part).replace(step=some.step)
