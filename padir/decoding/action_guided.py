"""Sampling under a value function, action by action.

A value function estimates the outcome reward τ that a prefix may expect. To weigh every next token by it multiplies its
errors over the length; the walk of `padir.decoding.value_guided` does not.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import struct

from padir.checks import whole
from padir.decoding.children import ByPasses, children
from padir.decoding.generation import (
    Generated,
    PrefixStepFn,
    Rows,
    ValueFunction,
    cut,
    draw,
    is_complete,
    last_tokens,
    put,
)
from padir.decoding.leaves import with_leaves
from padir.decoding.outcomes import Outcome, positive, uniforms, values_of_children
from padir.decoding.queries import Queries
from padir.decoding.sampling import Sampling, take
from padir.errors import PadirError
from padir.types import Array, PyTree


@struct.dataclass
class _ActionState:
    """The carry of `ActionValueGuided`: fields of `Generated`, and

    Attributes:
      trials: [N] int32, tokens rejected at the current prefix.
      draws: [N] int32, random numbers used.
      done: [N] bool.
      cache: of the generator.
    """

    tokens: Array
    lengths: Array
    failed: Array
    score: Array
    queries: Queries
    batch_steps: Array
    trials: Array
    draws: Array
    done: Array
    cache: PyTree


@with_leaves()
@dataclass(frozen=True)
class ActionValueGuided:
    """Draws every token in proportion to π_ref(a | y) · V̂(y∘a). With values 0 and 1 it is locally constrained decoding.

    Attributes:
      sampling: how a token is drawn: from these weights, or from π_ref if there is a bound. Plain sampling by default.
      bound: None weighs all tokens. A bound M ≥ V̂ draws from π_ref instead, and accepts with probability V̂(y∘a) / M,
        which has the same law under plain sampling; values above M count as M. Each draw is a query.
      max_trials: draws at most for a position, if there is a bound; then the row has failed.
    """

    sampling: Sampling = Sampling(temperature=1.0)
    bound: float | None = None
    max_trials: int = 1000

    def __post_init__(self):
        if not isinstance(self.sampling, Sampling):
            raise PadirError(f"ActionValueGuided.sampling: {self.sampling!r} is not a policy; choose one of Sampling()")
        if self.bound is not None:
            positive("ActionValueGuided.bound", self.bound)
            if self.sampling.temperature == 0.0:
                raise PadirError("ActionValueGuided.bound: greedy draws are all equal; set a Sampling.temperature")
        whole("ActionValueGuided.max_trials", self.max_trials)

    def generate(
        self,
        step_fn: PrefixStepFn,
        cache: PyTree,
        rows: Rows,
        judge: ValueFunction | ByPasses,
        key: Array,
        outcome: Outcome | None = None,
    ) -> Generated:
        """Writes token after token until every row is at a leaf, or fails where no token has any weight.

        Args:
          step_fn: the generator.
          cache: with the prompts' keys and values.
          rows: prompts and limits, [N, …].
          judge: V̂, of all children at once or `ByPasses`. Each child that the generator allows, or of a bound each that
            is drawn, counts as a call.
          key: [] randomness.
          outcome: τ, which replaces V̂ of complete outputs.

        Returns:
          The outputs. A token drawn again at the same prefix is a query and erased, but needs no other pass.
        """
        size = len(rows.live)
        first = _ActionState(
            tokens=rows.tokens,
            lengths=rows.prompt_lengths,
            failed=jnp.zeros((size,), bool),
            score=jnp.zeros((size,), jnp.float32),
            queries=Queries.none(size),
            batch_steps=jnp.int32(0),
            trials=jnp.zeros((size,), jnp.int32),
            draws=jnp.zeros((size,), jnp.int32),
            done=~rows.live | is_complete(rows.tokens, rows.prompt_lengths, rows.limits),
            cache=cache,
        )

        def step(state: _ActionState) -> _ActionState:
            log_probs, features, cache = step_fn(last_tokens(state.tokens, state.lengths), state.lengths, state.cache)
            prefixes = state.tokens, state.lengths, rows.limits
            given, passes, judged = children(judge, step_fn, cache, *prefixes, features, log_probs)
            last = ~state.done & (state.lengths + 1 >= rows.limits)
            values = values_of_children(given, outcome, state.tokens, state.lengths, last, floor=0.0)
            account = state.queries
            # Those of a prefix at which a token is drawn again have been made.
            new = ~state.done & (state.trials == 0)
            account = account.replace(decoder_passes=account.decoder_passes + new * passes)
            state = state.replace(cache=cache, queries=account, batch_steps=state.batch_steps + passes)
            return self._write(state, rows, log_probs, values, judged, key)

        state = jax.lax.while_loop(lambda state: ~state.done.all(), step, first)
        tokens = cut(state.tokens, state.lengths)
        return Generated(tokens, state.lengths, state.failed, state.score, state.queries, state.batch_steps)

    def _write(
        self, state: _ActionState, rows: Rows, log_probs: Array, values: Array, possible: Array, key: Array
    ) -> _ActionState:
        """Draws, and writes what is accepted: log_probs and values of children [N, V], `possible` of them [N]."""
        bounded = self.bound is not None
        logits = log_probs if bounded else log_probs + jnp.log(values)
        dead = ~state.done & (logits.max(axis=-1) == -jnp.inf)
        drawn = ~state.done & ~dead
        token = draw(self.sampling, logits, key, rows.sample_ids, state.draws)[0]
        taken = drawn
        if bounded:
            value = take(values, token[:, None])[:, 0]
            taken &= uniforms(key, rows.sample_ids, state.draws + 1) * self.bound < value
        trials = jnp.where(taken, 0, state.trials + 1)
        lengths = state.lengths + taken
        tokens = put(state.tokens, state.lengths, token, taken)
        failed = dead | (drawn & (trials >= self.max_trials))
        new = ~state.done & (state.trials == 0)
        judged = drawn if bounded else jnp.where(new, possible, 0)
        account = state.queries
        return state.replace(
            tokens=tokens,
            lengths=lengths,
            failed=state.failed | failed,
            score=state.score + jnp.where(taken, take(log_probs, token[:, None])[:, 0], 0.0),
            queries=account.replace(
                queries=account.queries + drawn,
                verifier_calls=account.verifier_calls + judged,
                decoder_passes=account.decoder_passes + new,
                backtracks=account.backtracks + (drawn & ~taken),
                erased=account.erased + (drawn & ~taken),
            ),
            batch_steps=state.batch_steps + 1,
            trials=trials,
            draws=state.draws + (1 + bounded),
            done=state.done | failed | (taken & is_complete(tokens, lengths, rows.limits)),
        )
