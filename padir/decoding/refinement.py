"""Parallel decoding by iterative refinement: the loop (layer 4; paper section 4.2.2.1, eq. 4.9).

The loop takes a logits function, never a model, so it can be tested with hand-made logits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from padir.decoding.initial import StartPolicy, StartWithMask
from padir.decoding.ranking import RankByLogProbability, RankPolicy
from padir.decoding.remasking import RemaskPolicy, RemaskStutter
from padir.decoding.sampling import greedy
from padir.decoding.state import RefinementState, Trace
from padir.decoding.stopping import StopPolicy, StopWhenUnchanged
from padir.errors import PadirError
from padir.masks import length_mask
from padir.types import PAD_ID, Array

LogitsFn = Callable[[Array], Array]


@dataclass(frozen=True)
class Refinement:
    """Everything static about a parallel decode; hashable, so `jit` takes it whole.

    Attributes:
      num_steps: decoder passes at most (T).
      num_hypotheses: lengths tried per source, the likeliest ones (B_l in the paper).
      start: the initial hypothesis.
      remask: what goes back to its initial token between steps.
      stop: when a row is finished before its steps are spent.
      rank: what orders the hypotheses of a source.
      drop_repeats: drop tokens that repeat their left neighbour after the last step (paper section 4.2.3).
      target_buckets: padded target lengths, ascending; the smallest that holds the longest predicted
        length is the one computed. The longest target of the model is always added.
      return_trace: keep every step of the best hypothesis.
    """

    num_steps: int = 4
    num_hypotheses: int = 1
    start: StartPolicy = StartWithMask()
    remask: RemaskPolicy = RemaskStutter()
    stop: StopPolicy = StopWhenUnchanged()
    rank: RankPolicy = RankByLogProbability()
    drop_repeats: bool = True
    target_buckets: tuple[int, ...] = (8, 16, 24, 32, 48, 64, 96, 128)
    return_trace: bool = False

    def __post_init__(self):
        object.__setattr__(self, "target_buckets", tuple(self.target_buckets))
        for name in ("num_steps", "num_hypotheses"):
            if getattr(self, name) < 1:
                raise PadirError(f"Refinement.{name}: {getattr(self, name)} is not at least 1")
        if list(self.target_buckets) != sorted(set(self.target_buckets)) or min(self.target_buckets, default=1) < 1:
            raise PadirError(f"Refinement.target_buckets: {self.target_buckets} are not ascending positive lengths")


def refine(
    logits_fn: LogitsFn,
    initial: Array,
    lengths: Array,
    live: Array,
    config: Refinement,
    num_steps: Array | None = None,
) -> RefinementState:
    """Rewrites all positions at once, `num_steps` times at most.

    Args:
      logits_fn: tokens [N, L] int32 → logits [N, L, V]; -inf forbids a token.
      initial: [N, L] int32, the first hypothesis, 0 beyond each length.
      lengths: [N] int32, at most L.
      live: [N] bool, False for rows that only pad the batch: they count as finished from the start.
      config: steps and policies.
      num_steps: [] int32, overrides `config.num_steps`, so that one compiled loop serves any number of steps;
        at most `config.num_steps` where a trace is kept.

    Returns:
      The final state. A row's `proposal` is what its last step wrote.
    """
    inside = length_mask(lengths, initial.shape[1])
    limit = config.num_steps if num_steps is None else num_steps

    def running(state: RefinementState) -> Array:
        return (state.step < limit) & ~state.done.all()

    def step(state: RefinementState) -> RefinementState:
        return refinement_step(logits_fn, state, initial, inside, config)

    return jax.lax.while_loop(running, step, initial_state(initial, live, config))


def initial_state(initial: Array, live: Array, config: Refinement) -> RefinementState:
    """The state before the first step; `initial` [N, L] int32, `live` [N] bool."""
    rows, length = initial.shape
    trace = None
    if config.return_trace:
        tokens = jnp.zeros((config.num_steps, rows, length), jnp.int32)
        trace = Trace(tokens, tokens, jnp.zeros(tokens.shape, jnp.float32))
    return RefinementState(
        step=jnp.zeros((), jnp.int32),
        tokens=initial,
        proposal=initial,
        log_probs=jnp.zeros(initial.shape, jnp.float32),
        done=~live,
        steps_run=jnp.zeros((rows,), jnp.int32),
        trace=trace,
    )


def refinement_step(
    logits_fn: LogitsFn, state: RefinementState, initial: Array, inside: Array, config: Refinement
) -> RefinementState:
    """One decoder pass over every row; `inside` [N, L] bool marks positions within each length."""
    proposal, log_probs = greedy(logits_fn(state.tokens))
    proposal = jnp.where(inside, proposal, PAD_ID)
    log_probs = jnp.where(inside, log_probs, 0.0)
    remasked = config.remask(proposal, log_probs, inside)
    tokens = jnp.where(remasked, initial, proposal)

    # Finished rows are held: their neighbours' further steps must never change them, or a translation
    # would depend on what else is in the batch.
    held = state.done[:, None]
    confidence = jnp.where(remasked.any(-1), -jnp.inf, log_probs.min(-1))
    stop = config.stop(state.tokens, tokens, confidence)
    trace = state.trace
    if trace is not None:
        trace = _record(trace, state, jnp.where(held, state.proposal, proposal), log_probs, held)
    return RefinementState(
        step=state.step + 1,
        tokens=jnp.where(held, state.tokens, tokens),
        proposal=jnp.where(held, state.proposal, proposal),
        log_probs=jnp.where(held, state.log_probs, log_probs),
        done=state.done | stop,
        steps_run=state.steps_run + ~state.done,
        trace=trace,
    )


def drop_repeats(tokens: Array, inside: Array) -> Array:
    """Drops every token that repeats its left neighbour and closes the gaps.

    Args:
      tokens: [N, L] int32.
      inside: [N, L] bool, positions within each row's length.

    Returns:
      [N, L] int32, padded with 0 at the end.
    """
    repeats = jnp.pad(tokens[:, 1:] == tokens[:, :-1], ((0, 0), (1, 0)))
    keep = inside & ~repeats
    # Dropped tokens are sent to a column of their own beyond the end, which is then cut off.
    column = jnp.where(keep, jnp.cumsum(keep, axis=-1) - 1, tokens.shape[-1])
    rows = jnp.arange(tokens.shape[0])[:, None]
    room = jnp.full((tokens.shape[0], tokens.shape[1] + 1), PAD_ID, tokens.dtype)
    return room.at[rows, column].set(tokens)[:, :-1]


def _record(trace: Trace, state: RefinementState, proposal: Array, log_probs: Array, held: Array) -> Trace:
    """Writes one step's fields at `state.step`."""

    def put(field: Array, value: Array) -> Array:
        return jax.lax.dynamic_update_index_in_dim(field, value, state.step, 0)

    return Trace(
        put(trace.inputs, state.tokens),
        put(trace.proposals, proposal),
        put(trace.log_probs, jnp.where(held, state.log_probs, log_probs)),
    )
