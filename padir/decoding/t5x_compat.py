"""Refinement exactly as the T5X release does it, with its faults, kept in this one place.

What is different from `refinement.refine`, each seen by running the release:

1. A length of 1 becomes 2. A length beyond the buffer is dropped, and the lengths of *all* later rows of the batch
   move up by one row; the rows at the end that are left without one get 2 tokens.
2. The model may write any id: MASK, padding, ids without a piece. Padding inside a hypothesis hides that position
   from attention in the next step, so `logits_fn` must make its decoder mask from the tokens it is given.
3. Stutter wraps round: position 0 is compared with the last column of the buffer. It is replaced after the last
   step as well, though nothing reads the replacement then but the result.
4. A row is never finished for good: all rows run until every one is unchanged in the same step, or the steps end.
5. What is returned is the last step's tokens with stutter replaced, and with every token that equals its initial
   token turned into 0: a right EOS vanishes, a MASK that is left makes a hole. Repeats are kept.
6. A score is the plain sum of the last step's log-probabilities, of the likeliest token even where stutter replaced
   it, without the positions that became 0: so holes make a hypothesis score better.
7. Of equal scores the later hypothesis wins.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from padir.decoding import initial as starts
from padir.decoding.initial import StartWithRandom
from padir.decoding.refinement import Refinement, initial_state
from padir.decoding.remasking import RemaskStutter
from padir.decoding.sampling import greedy
from padir.decoding.state import LogitsFn, RefinementState, ReplaceView
from padir.decoding.writing import as_output, with_callback
from padir.types import PAD_ID, UNK_ID, Array, TokenIds


def hypothesis_lengths(lengths: Array, config: Refinement, max_length: int) -> Array:
    """The release's lengths of hypotheses.

    Args:
      lengths: [B, k] int32, as predicted or given.
      config: its length_beam (odd) and parallel_starts.
      max_length: tokens that the buffer holds.

    Returns:
      [B, k·length_beam·parallel_starts] int32, in [2, max_length] (fault 1); neighbours of a length lie around it,
      shorter first, and are not kept apart from those of another.
    """
    last = lengths.reshape(-1) - 1
    fits = last < max_length
    moved_up = last[jnp.argsort(~fits, stable=True)]
    last = jnp.where(jnp.arange(last.size) < fits.sum(), moved_up, 0)
    half = config.length_beam // 2
    last = jnp.clip(last[:, None] + jnp.arange(-half, half + 1), 1, max_length - 1)
    return jnp.repeat(last + 1, config.parallel_starts, axis=1).reshape(lengths.shape[0], -1).astype(jnp.int32)


def start(config: Refinement, key: Array, lengths: Array, max_length: int, ids: TokenIds) -> Array:
    """The release's initial tokens: lengths [N] int32 → [N, max_length] int32.

    A random start draws each row anew, from all ids above UNK, reserved ones too.
    """
    if not isinstance(config.start, StartWithRandom):
        return config.start(jax.random.split(key, len(lengths)), lengths, max_length, ids)
    shape = (lengths.shape[0], max_length)
    return starts.end(jax.random.randint(key, shape, UNK_ID + 1, ids.unpadded_size), lengths)


def refine(
    logits_fn: LogitsFn, initial: Array, live: Array, config: Refinement, num_steps: Array | None = None
) -> RefinementState:
    """The release's loop; arguments as in `refinement.refine`.

    Returns:
      The final state. `tokens` is what the release calls its sequences, `done` what it calls ended, `log_probs` its
      log-probabilities; a row's `steps_run` is that of all.
    """
    limit = config.num_steps if num_steps is None else num_steps
    inside = initial != PAD_ID

    def step(state: RefinementState) -> RefinementState:
        """One decoder pass over every row, finished ones too."""
        if config.state_callback is not None:
            state = config.state_callback(state)
        output, logits_sum = with_callback(as_output(logits_fn(state.tokens)), state, config)
        proposal, log_probs = greedy(output.logits)
        proposal = jnp.where(inside, proposal, PAD_ID)
        log_probs = jnp.where(inside, log_probs, 0.0)
        tokens = proposal
        if isinstance(config.remask, RemaskStutter):
            stutter = (proposal == jnp.roll(proposal, 1, axis=-1)) & (proposal != PAD_ID)
            tokens = jnp.where(stutter, config.replace(ReplaceView(initial, state.tokens, logits_sum)), proposal)
        unchanged = (tokens == state.tokens).all(axis=-1)
        trace = state.trace
        if trace is not None:
            trace = trace.record(state.step, state.tokens, proposal, log_probs, output)
        return state.replace(
            step=state.step + 1,
            tokens=tokens,
            proposal=proposal,
            log_probs=log_probs,
            done=unchanged | (state.step + 1 >= limit) | ~live,
            steps_run=state.steps_run + live,
            trace=trace,
            logits_sum=logits_sum,
        )

    state = initial_state(initial, live, config, logits_fn)
    state = jax.lax.while_loop(lambda state: ~state.done.all(), step, state)
    return state if config.state_callback is None else config.state_callback(state)


def finish(state: RefinementState, initial: Array) -> tuple[Array, Array]:
    """The release's result: the final state and the initial tokens → (tokens [N, L] int32, scores [N] float32)."""
    tokens = jnp.where(state.tokens == initial, PAD_ID, state.tokens)
    return tokens, jnp.where(tokens != PAD_ID, state.log_probs, 0.0).sum(axis=-1)


def best_first(scores: Array) -> Array:
    """The order of hypotheses, [B, K] float32 → [B, K] int32; the release's own, turned round."""
    return jnp.argsort(scores, axis=-1, stable=True)[:, ::-1]
