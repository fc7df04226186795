"""What later steps need not compute: other tokens, hypotheses, positions, finished rows (layer 4).

The first three change what comes out, so they are options, off by default; `benchmarks/shortcuts.py` measures what they
cost in quality and gain in time. Leaving finished rows out changes nothing (but the order in which floats are
added up), and takes longer to compile.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from padir.decoding.sampling import argmax
from padir.decoding.state import Candidates, RefinementState
from padir.types import EOS_ID, Array


def count(candidates: int) -> int:
    """How many tokens each position chooses among if each puts `candidates` forward: its own, its neighbours', EOS."""
    return 3 * candidates + 1


def candidates(logits: Array, inside: Array, each: int) -> Candidates:
    """Each position's likeliest tokens in the first step, and those of its two neighbours.

    The neighbours' are there because what a step gets wrong is mostly the order: words stand one position too early or
    too late.

    Args:
      logits: [N, L, V] of the first step; -inf forbids a token.
      inside: [N, L] bool, positions within each row's length.
      each: how many tokens each position puts forward.

    Returns:
      `Candidates` with C = `count(each)`: EOS is always one, so that the end can be written.
    """
    own = jax.lax.top_k(logits, each)[1].astype(jnp.int32)
    own = jnp.where(inside[..., None], own, EOS_ID)
    left = jnp.pad(own[:, :-1], ((0, 0), (1, 0), (0, 0)), constant_values=EOS_ID)
    right = jnp.pad(own[:, 1:], ((0, 0), (0, 1), (0, 0)), constant_values=EOS_ID)
    end = jnp.full((*inside.shape, 1), EOS_ID, jnp.int32)
    tokens = jnp.concatenate([own, left, right, end], axis=-1)
    among = log_normalizer(jnp.take_along_axis(logits, tokens, axis=-1), tokens)
    return Candidates(tokens, jax.nn.logsumexp(logits, axis=-1) - among)


def log_normalizer(logits: Array, tokens: Array) -> Array:
    """Log of the sum of exp over different tokens: logits [N, L, C] of tokens [N, L, C] int32 → [N, L] float32."""
    earlier = jnp.tril(jnp.ones((tokens.shape[-1],) * 2, bool), -1)
    repeated = ((tokens[..., :, None] == tokens[..., None, :]) & earlier).any(-1)
    return jax.nn.logsumexp(jnp.where(repeated, -jnp.inf, logits.astype(jnp.float32)), axis=-1)


def choose(logits: Array, candidates: Candidates) -> tuple[Array, Array]:
    """The likeliest candidates: logits [N, L, C] → (tokens [N, L] int32, log-probabilities [N, L] float32)."""
    best = argmax(logits)
    token = jnp.take_along_axis(candidates.tokens, best[..., None], axis=-1)[..., 0]
    normalizer = log_normalizer(logits, candidates.tokens) + candidates.log_rest
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
