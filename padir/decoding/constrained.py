"""Decoding under an automaton: greedy, sampling and beam search, and which decodes take none.

Sampling draws each token from the model's distribution over what is allowed: locally constrained decoding, whose law is
not that of the model's outputs that obey (thesis, section 3.1). Greedy decoding writes what it must where the model
would end; beam search also looks for a better place.
"""

from __future__ import annotations

import jax.numpy as jnp
from flax import struct

from padir.decoding import autoregressive, beam
from padir.decoding.automaton import Automaton
from padir.decoding.autoregressive import Autoregressive, StepFn
from padir.decoding.beam import BeamSearch
from padir.decoding.refinement import Refinement
from padir.decoding.sampling import argmax
from padir.decoding.state import Hypotheses
from padir.errors import PadirError
from padir.nn.cache import DecoderCache
from padir.types import EOS_ID, Array


def check(config: Autoregressive | BeamSearch) -> None:
    """Refuses what a constraint does not go with.

    Raises:
      PadirError: a beam search that ends with the first K complete hypotheses: under a constraint those are often the
        ones that wrote what they must at once, not the best.
    """
    if isinstance(config, BeamSearch) and config.early_exit == "full":
        raise PadirError("BeamSearch.early_exit: 'full' does not go with a constraint; choose 'exact'")


def check_refinement(config: Refinement) -> None:
    """Refuses the options of a refinement that a constraint does not go with.

    Raises:
      PadirError: tokens are drawn at random, not all logits or positions are computed, or written positions stay as
        they are: then the likeliest path is not known, or what is written would mix several.
    """
    wrong = {
        "sampling": (config.sampling.temperature > 0, "whose tokens are not drawn but the likeliest; set Sampling()"),
        "rewrite_only_remasked": (config.rewrite_only_remasked, "which writes all positions at once; set False"),
        "order": (config.order is not None, "which writes all positions at once; this model cannot take one"),
        "candidates": (config.candidates is not None, "which needs all logits; set None"),
        "active_positions": (config.active_positions is not None, "which needs all positions; set None"),
        "logits_callback": (config.logits_callback is not None, "which reads the model's own logits; set None"),
        "t5x_compat": (config.t5x_compat, "which the release does not have; set False"),
    }
    for name, (is_wrong, why) in wrong.items():
        if is_wrong:
            raise PadirError(f"Refinement.{name}: does not go with a constraint, {why}")


def decode(
    step_fn: StepFn,
    cache: DecoderCache,
    live: Array,
    limits: Array,
    max_length: int,
    config: Autoregressive | BeamSearch,
    key: Array | None,
    automaton: Automaton,
) -> Hypotheses:
    """Decodes B sources; every output obeys.

    Args:
      step_fn, cache, live, limits, max_length, config, key: as of `autoregressive.decode` and `beam.decode`.
      automaton: of B rows.

    Returns:
      The hypotheses. Where the shortest output is longer than the source's limit all have `failed`: they have no
      tokens and the score -inf, and cost no pass.

    Raises:
      PadirError: what `check` refuses.
    """
    check(config)
    possible = automaton.fewest() <= limits
    size = config.rows_per_source
    every = automaton.repeat(size)
    ends_early = isinstance(config, Autoregressive) and config.sampling.temperature == 0
    step = constrained(step_fn, every, ends_early=ends_early)
    loop, given = autoregressive.decode, {}
    if isinstance(config, BeamSearch):
        loop, given = beam.decode, {"distances": lambda cache: every.distances_after(cache.progress.states)}
    started = cache.replace(progress=Progress(every.starts(), jnp.repeat(limits, size)))
    found = loop(step, started, live & possible, limits, max_length, config, key, **given)
    return found.replace(
        scores=jnp.where(possible[:, None], found.scores, -jnp.inf),
        failed=jnp.broadcast_to((live & ~possible)[:, None], found.scores.shape),
    )


@struct.dataclass
class Progress:
    """How far each row has come; the cache carries it.

    Attributes:
      states: [N] int32, of the automaton.
      limits: [N] int32, most tokens that the output may have, EOS counted.
    """

    states: Array
    limits: Array


def constrained(step_fn: StepFn, automaton: Automaton, *, ends_early: bool = False) -> StepFn:
    """Decoder passes that forbid what could not be completed; the cache carries each row's `Progress`.

    Log-probabilities of what is allowed stay those of the model: they are not normalised anew.

    Args:
      step_fn: one decoder pass over N rows.
      automaton: of N rows; those whose limit is below `Automaton.fewest` are left alone.
      ends_early: once EOS is likeliest but does not obey yet, allow only the shortest way to an output that does.
        Greedy decoding would go on rambling up to its limit, only there to write what it must.
    """

    def step(last: Array, cache: DecoderCache) -> tuple[Array, DecoderCache]:
        """`step_fn` with what the automaton forbids at -inf, and the states in the cache."""
        position, before = cache.position, cache.progress
        # Nothing has been written before the first step.
        states = jnp.where(position > 0, automaton.after(before.states, last), before.states)
        log_probs, cache = step_fn(last, cache)
        distances = automaton.distances_after(states)
        limits = before.limits
        if ends_early:
            shortest = jnp.minimum(limits, position + 1 + distances.min(axis=-1))
            limits = jnp.where(argmax(log_probs) == EOS_ID, shortest, limits)
        allowed = distances < (limits - position)[:, None]
        # Of rows that are done nothing is written; without any finite number their sums would be no numbers.
        allowed |= ~allowed.any(axis=-1, keepdims=True)
        return jnp.where(allowed, log_probs, -jnp.inf), cache.replace(progress=Progress(states, limits))

    return step
