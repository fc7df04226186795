"""What one step of a refinement writes: from logits to the tokens of all positions."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from padir import rng
from padir.decoding import order, shortcuts
from padir.decoding.sampling import entropy, uniform
from padir.decoding.state import Candidates, LogitsFn, RefinementState, StepOutput, Written
from padir.nn import cache as kv_cache
from padir.types import Array


def written_by(
    logits_fn: LogitsFn,
    state: RefinementState,
    inside: Array,
    config: Any,
    limit: Array | int,
    *,
    first: bool,
    keys: Array | None,
    hypotheses: int,
) -> tuple[Written, StepOutput | None, Array | None]:
    """What a step writes, what the decoder said of every position (None of some), and the sum of logits with it.

    Arguments as in `refinement.refinement_step`; `config` is a `Refinement`.
    """
    # A step that is the only one is the last.
    progress = jnp.where(limit > 1, state.step / jnp.maximum(limit - 1, 1), 1.0)

    def chosen(output: StepOutput) -> tuple[tuple[Array, Array], Array | None, Candidates | None]:
        """Of every position decoded the token and its log-probability; entropies and candidates if asked for."""
        if output.hidden is not None:
            numbers = _random_numbers(inside.shape, state, config, keys, hypotheses)
            return shortcuts.chosen_in_blocks(output, inside, numbers, progress, config)
        entropies = entropy(output.logits) if config.needs_entropy else None
        if output.chosen is not None:
            return output.chosen, entropies, None
        if output.candidates is not None:
            return shortcuts.choose(output.logits, output.candidates), entropies, None
        numbers = _random_numbers(output.logits.shape[:2], state, config, keys, hypotheses)
        return config.sampling.at(numbers, output.logits, progress), entropies, None

    def every_position(state: RefinementState) -> tuple[Written, StepOutput, Array | None]:
        given = {}
        if state.conditioning is not None:
            given = {"conditioning": state.conditioning, "is_last": state.step + 1 >= limit}
        given |= {} if state.ranks is None else {"contexts": order.contexts(state.ranks)}
        output, logits_sum = with_callback(as_output(logits_fn(state.tokens, **given)), state, config)
        proposed, entropies, following = chosen(output)
        written = Written(*proposed, state.tokens, output.memory, entropies)
        return written, output.replace(next_candidates=following), logits_sum

    def some_positions(state: RefinementState) -> Written:
        """Decodes `config.active_positions` of every row."""
        positions = shortcuts.active_positions(state, inside, config.active_positions)
        tokens = kv_cache.read(state.tokens, positions, positions.shape[1])
        output = as_output(logits_fn(tokens, positions, state.memory))
        before = (state.proposal, state.log_probs, state.read)
        return Written(*kv_cache.write(before, (*chosen(output)[0], tokens), positions), output.memory)

    if first or not shortcuts.decodes_some(config.active_positions, state.tokens.shape[1]):
        written, output, logits_sum = every_position(state)
    else:
        written = jax.lax.cond(
            state.step < shortcuts.WHOLE_STEPS,
            lambda state: every_position(state)[0],
            some_positions,
            state,
        )
        output = logits_sum = None
    return written, output, logits_sum


def _random_numbers(
    shape: tuple[int, int], state: RefinementState, config: Any, keys: Array | None, hypotheses: int
) -> Array | None:
    """Of a step, for each of [N, L] positions: by its source, which hypothesis it is and where; None if greedy."""
    if config.sampling.temperature == 0:
        return None
    by_source = shape[0] // hypotheses, hypotheses, shape[1]
    return uniform(rng.folded(keys, state.step), by_source).reshape(shape)


def as_output(output: StepOutput | Array) -> StepOutput:
    """What a logits function returned, as a `StepOutput`."""
    return output if isinstance(output, StepOutput) else StepOutput(output)


def with_callback(output: StepOutput, state: RefinementState, config: Any) -> tuple[StepOutput, Array | None]:
    """Hands logits to their callback: → (output with its result, logits sum with them or None)."""
    if config.logits_callback is not None:
        output = output.replace(logits=config.logits_callback(output.logits, state))
    return output, None if state.logits_sum is None else state.logits_sum + output.logits
