"""Generation block by block: candidates of a block are drawn, a verifier judges them at their ends, and one goes on.

Each iteration is one pass over the last token of every row. It serves the verifier, if the token ends a candidate, and
whatever is drawn next. A new candidate is drawn from what the first pass at its block's beginning has left. So a row's
passes are its queries and one more, but where the best of several candidates goes on and is not the last of them, it is
read again first.

The samplers that do this are in `rejection`.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import struct

from padir.checks import whole
from padir.decoding.generation import Generated, PrefixStepFn, Rows, Verifier, cut, draw, is_complete, last_tokens, put
from padir.decoding.queries import Queries
from padir.decoding.sampling import Sampling, take
from padir.decoding.verifiers import ends_in, rejects
from padir.types import Array, PyTree


@dataclass(frozen=True)
class Block:
    """Where a block of generated text ends: at whichever comes first, or at EOS, or at the row's limit.

    Attributes:
      size: tokens of a block; None for no limit.
      delimiters: ids of tokens that end a block, such as a line's.
      shortest: tokens that a block must have for a delimiter to end it.
    """

    size: int | None = None
    delimiters: tuple[int, ...] = ()
    shortest: int = 1

    def __post_init__(self):
        object.__setattr__(self, "delimiters", tuple(self.delimiters))
        if self.size is not None:
            whole("Block.size", self.size, "None lets delimiters or the end of the text end a block")
        whole("Block.shortest", self.shortest)

    def ends(self, tokens: Array, starts: Array, lengths: Array, limits: Array) -> Array:
        """Which blocks, from `starts` to `lengths`, are complete: [N, L], then [N] int32 each → [N] bool."""
        ends = is_complete(tokens, lengths, limits)
        ends |= ends_in(tokens, lengths, self.delimiters) & (lengths - starts >= self.shortest)
        if self.size is not None:
            ends |= lengths - starts >= self.size
        return ends & (lengths > starts)


@dataclass(frozen=True)
class BlockPlan:
    """What the loop does; hashable.

    Attributes:
      sampling: how tokens are drawn.
      block: where blocks end.
      candidates: of one block at most; None if there is a budget instead.
      best: whether all candidates are drawn and the one judged best goes on, the first of equals. Otherwise the first
        acceptable one does.
      threshold: a candidate is rejected if its judgement lies below; for the first acceptable one.
      keep_last: whether the last candidate goes on although it is rejected; otherwise the row fails.
      budget: queries of a row after which it fails; None for no limit.
      max_blocks: blocks after which a row is complete; None for no limit.
    """

    sampling: Sampling
    block: Block
    candidates: int | None
    best: bool = False
    threshold: float = 0.0
    keep_last: bool = False
    budget: int | None = None
    max_blocks: int | None = None


@struct.dataclass
class Candidate:
    """A block's candidate: the row's tokens and their log-probabilities [N, L], how many [N], its judgement [N]."""

    tokens: Array
    scores: Array
    lengths: Array
    judgement: Array


@struct.dataclass
class BlockState:
    """The carry of the loop.

    Attributes:
      tokens: [N, L] int32; beyond a row's length stands what was discarded.
      scores: [N, L] float32, log-probability of each generated token.
      starts: [N] int32, where the current block begins: tokens before it stay.
      lengths: [N] int32, tokens that the generator has been given, or is given next. Less than `starts` only while a
        chosen candidate is read again.
      log_probs: [N, V] float32, of the token at `starts`, from the pass there.
      best: the best candidate of the block so far; None if the first acceptable one goes on.
      trials: [N] int32, complete candidates of the block so far.
      blocks: [N] int32, complete blocks.
      done, failed: [N] bool.
      queries: what it has cost.
      batch_steps: [] int32, decoder passes of the whole batch.
      cache: of the generator.
    """

    tokens: Array
    scores: Array
    starts: Array
    lengths: Array
    log_probs: Array
    best: Candidate | None
    trials: Array
    blocks: Array
    done: Array
    failed: Array
    queries: Queries
    batch_steps: Array
    cache: PyTree


def generate(
    plan: BlockPlan, step_fn: PrefixStepFn, cache: PyTree, rows: Rows, judge: Verifier, key: Array
) -> Generated:
    """The loop over blocks; arguments and result as for every sampler."""

    def step(state: BlockState) -> BlockState:
        """One pass: judges candidates that have ended, then appends a token to every row."""
        log_probs, features, cache = step_fn(last_tokens(state.tokens, state.lengths), state.lengths, state.cache)
        # The pass at a block's beginning serves all its candidates.
        state = state.replace(
            log_probs=jnp.where((state.lengths == state.starts)[:, None], log_probs, state.log_probs),
            queries=state.queries.replace(decoder_passes=state.queries.decoder_passes + ~state.done),
            batch_steps=state.batch_steps + 1,
            cache=cache,
        )
        ended = ~state.done & plan.block.ends(state.tokens, state.starts, state.lengths, rows.limits)
        judgement = judge(state.tokens, state.lengths, features)
        state = (_best if plan.best else _first)(plan, state, rows, ended, judgement, log_probs)
        return _write(plan, state, rows, log_probs, key)

    first = _initial_state(plan, step_fn, cache, rows)
    state = jax.lax.while_loop(lambda state: ~state.done.all(), step, first)
    return Generated(
        tokens=cut(state.tokens, state.lengths),
        lengths=state.lengths,
        failed=state.failed,
        score=cut(state.scores, state.lengths).sum(axis=-1),
        queries=state.queries,
        batch_steps=state.batch_steps,
    )


def _initial_state(plan: BlockPlan, step_fn: PrefixStepFn, cache: PyTree, rows: Rows) -> BlockState:
    size = len(rows.live)
    log_probs = jax.eval_shape(step_fn, rows.limits, rows.limits, cache)[0]
    none, nothing = jnp.zeros((size,), jnp.int32), jnp.zeros(rows.tokens.shape, jnp.float32)
    return BlockState(
        tokens=rows.tokens,
        scores=nothing,
        starts=rows.prompt_lengths,
        lengths=rows.prompt_lengths,
        log_probs=jnp.zeros(log_probs.shape, log_probs.dtype),
        best=Candidate(rows.tokens, nothing, none, jnp.zeros((size,), jnp.float32)) if plan.best else None,
        trials=none,
        blocks=none,
        done=~rows.live | is_complete(rows.tokens, rows.prompt_lengths, rows.limits),
        failed=jnp.zeros((size,), bool),
        queries=Queries.none(size),
        batch_steps=jnp.int32(0),
        cache=cache,
    )


def _first(
    plan: BlockPlan, state: BlockState, rows: Rows, ended: Array, judgement: Array, log_probs: Array
) -> BlockState:
    """Goes on with acceptable candidates, and back to the beginning of the block with others.

    Args:
      plan: what the loop does.
      state: after a pass at the rows' prefixes.
      rows: limits.
      ended: [N] bool, whether the prefix ends a candidate.
      judgement: [N] float32, what the verifier says of the prefix; used only where a candidate has ended.
      log_probs: [N, V] float32, of the next token.

    Returns:
      The state, in which each row is at the prefix that it continues.
    """
    trials = state.trials + ended
    spent = jnp.zeros_like(ended) if plan.candidates is None else trials >= plan.candidates
    rejected = ended & rejects(judgement, plan.threshold)
    if plan.keep_last:
        rejected &= ~spent
    failed = rejected & spent
    state = state.replace(trials=trials, failed=state.failed | failed, done=state.done | failed)
    return _go_on(plan, _judged(state, ended, rejected), rows, ended & ~rejected, log_probs)


def _best(
    plan: BlockPlan, state: BlockState, rows: Rows, ended: Array, judgement: Array, log_probs: Array
) -> BlockState:
    """Keeps the best candidate so far, and goes on with it after the last one; arguments and result as for `_first`."""
    better = ended & ((state.trials == 0) | (judgement > state.best.judgement))
    fresh = Candidate(state.tokens, state.scores, state.lengths, judgement)
    best = jax.tree.map(lambda new, old: _where(better, new, old), fresh, state.best)
    trials = state.trials + ended
    last = ended & (trials == plan.candidates)
    begun = state.starts
    # All candidates of the block are counted as erased, and then the best is not.
    state = _judged(state.replace(best=best, trials=trials), ended, ended)
    taken = best.lengths - begun
    account = state.queries
    state = state.replace(
        tokens=_where(last, best.tokens, state.tokens),
        scores=_where(last, best.scores, state.scores),
        lengths=jnp.where(last, best.lengths, state.lengths),
        queries=account.replace(
            backtracks=account.backtracks - last, erased=account.erased - jnp.where(last, taken, 0)
        ),
    )
    state = _go_on(plan, state, rows, last, log_probs)
    # The cache holds the last candidate. If another one goes on, it is read again, and so are its log-probabilities.
    stale = last & ~better & ~state.done
    return state.replace(lengths=jnp.where(stale, begun, state.lengths))


def _where(rows: Array, new: Array, old: Array) -> Array:
    """`new` in some rows [N], else `old`; both [N, …]."""
    return jnp.where(rows.reshape(-1, *(1,) * (new.ndim - 1)), new, old)


def _judged(state: BlockState, ended: Array, discarded: Array) -> BlockState:
    """Back at the beginning of the block where a candidate is `discarded` [N]; those that have `ended` were judged."""
    account = state.queries
    return state.replace(
        lengths=jnp.where(discarded, state.starts, state.lengths),
        queries=account.replace(
            verifier_calls=account.verifier_calls + ended,
            backtracks=account.backtracks + (discarded & (state.lengths > state.starts)),
            erased=account.erased + jnp.where(discarded, state.lengths - state.starts, 0),
        ),
    )


def _go_on(plan: BlockPlan, state: BlockState, rows: Rows, taken: Array, log_probs: Array) -> BlockState:
    """The next block begins at `lengths` in the rows `taken` [N], with log_probs [N, V] of its first token."""
    blocks = state.blocks + taken
    complete = is_complete(state.tokens, state.lengths, rows.limits)
    if plan.max_blocks is not None:
        complete |= blocks >= plan.max_blocks
    return state.replace(
        starts=jnp.where(taken, state.lengths, state.starts),
        log_probs=_where(taken, log_probs, state.log_probs),
        trials=jnp.where(taken, 0, state.trials),
        blocks=blocks,
        done=state.done | (taken & complete),
    )


def _write(plan: BlockPlan, state: BlockState, rows: Rows, log_probs: Array, key: Array) -> BlockState:
    """Appends a token to each row: the next one of a candidate that is read again, or one drawn; log_probs [N, V]."""
    if plan.budget is not None:
        spent = ~state.done & (state.queries.queries >= plan.budget)
        state = _judged(state, jnp.zeros_like(spent), spent)
        state = state.replace(failed=state.failed | spent, done=state.done | spent)
    writing = ~state.done & (state.lengths >= state.starts)
    log_probs = _where(state.lengths == state.starts, state.log_probs, log_probs)
    account = state.queries
    token = draw(plan.sampling, log_probs, key, rows.sample_ids, account.queries)[0]
    return state.replace(
        tokens=put(state.tokens, state.lengths, token, writing),
        scores=put(state.scores, state.lengths, take(log_probs, token[:, None])[:, 0], writing),
        lengths=state.lengths + ~state.done,
        queries=account.replace(queries=account.queries + writing),
    )
