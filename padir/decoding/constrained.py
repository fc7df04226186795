"""Decoding under an automaton: greedy, sampling, beam search, verified, under a verifier; and which decodes take none.

Sampling draws each token from the model's distribution over what is allowed: locally constrained decoding, whose law is
not that of the model's outputs that obey (thesis, section 3.1). Greedy decoding writes what it must where the model
would end; beam search also looks for a better place.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct

from padir.decoding import autoregressive, beam
from padir.decoding.automaton import Automaton
from padir.decoding.autoregressive import Autoregressive, StepFn
from padir.decoding.beam import BeamSearch
from padir.decoding.generation import PrefixStepFn
from padir.decoding.guided import Guided
from padir.decoding.refinement import Refinement
from padir.decoding.sampling import argmax, logsumexp
from padir.decoding.state import Hypotheses
from padir.decoding.verified import VerifyFn
from padir.errors import PadirError
from padir.nn import cache as kv_cache
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


def check_guided(config: Guided) -> None:
    """Refuses the options of a sampler under a verifier that a constraint does not go with.

    Raises:
      PadirError: outputs may end before they are complete.
    """
    if getattr(config.sampler, "max_blocks", None) is not None:
        name = type(config.sampler).__name__
        raise PadirError(f"{name}.max_blocks: may end an output before it obeys the constraint; set it to None")


def decode(
    step_fn: StepFn,
    cache: DecoderCache,
    live: Array,
    limits: Array,
    max_length: int,
    config: Autoregressive | BeamSearch,
    keys: Array | None,
    automaton: Automaton,
) -> Hypotheses:
    """Decodes B sources; every output obeys.

    Args:
      step_fn, cache, live, limits, max_length, config, keys: as of `autoregressive.decode` and `beam.decode`.
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
    found = loop(step, started, live & possible, limits, max_length, config, keys, **given)
    return with_failed(found, live, possible)


def with_failed(found: Hypotheses, live: Array, possible: Array) -> Hypotheses:
    """The hypotheses, of which those of `live` rows [B] that are not `possible` [B] have failed, beside others."""
    failed = jnp.broadcast_to((live & ~possible)[:, None], found.scores.shape)
    return found.replace(
        scores=jnp.where(possible[:, None], found.scores, -jnp.inf),
        failed=failed if found.failed is None else failed | found.failed,
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
        wants_to_end = argmax(log_probs) == EOS_ID if ends_early else None
        allowed, limits = _allowed(automaton, states, position, before.limits, wants_to_end)
        return jnp.where(allowed, log_probs, -jnp.inf), cache.replace(progress=Progress(states, limits))

    return step


def _allowed(
    automaton: Automaton, states: Array, position: Array, limits: Array, wants_to_end: Array | None
) -> tuple[Array, Array]:
    """Tokens [N, V] bool that may follow where `position` ([] or [N]) have been written, and limits [N] from there on.

    Rows that `wants_to_end` [N] take the shortest way.
    """
    distances = automaton.distances_after(states)
    if wants_to_end is not None:
        shortest = jnp.minimum(limits, position + 1 + distances.min(axis=-1))
        limits = jnp.where(wants_to_end, shortest, limits)
    allowed = distances < (limits - position)[:, None]
    # Of rows that are done nothing is written; without any finite number their sums would be no numbers.
    return allowed | ~allowed.any(axis=-1, keepdims=True), limits


@struct.dataclass
class Track:
    """What has become of each row's prefixes, by their number of tokens; so tokens can be erased.

    Attributes:
      states: [N, R, …] int32, of the automaton.
      limits: [N, R] int32, most tokens that the output may have.
      first: [N] int32, the same before anything is written.
    """

    states: Array
    limits: Array
    first: Array

    @classmethod
    def empty(cls, automaton: Automaton, limits: Array, room: int) -> Track:
        """Of rows that have nothing yet, with room for prefixes of up to room - 1 tokens; limits [N]."""
        starts = automaton.starts()
        states = jnp.broadcast_to(starts[:, None], (len(starts), room, *starts.shape[1:]))
        return cls(states, jnp.broadcast_to(limits[:, None], (len(limits), room)), limits)

    def before(self, places: Array) -> tuple[Array, Array]:
        """States [N, …] and limits [N] of the prefixes that are one token shorter than `places` [N]."""
        at = jnp.maximum(places - 1, 0)[:, None]
        states, limits = kv_cache.read((self.states, self.limits), at, 1)
        return states[:, 0], jnp.where(places > 0, limits[:, 0], self.first)


def constrained_prefixes(step_fn: PrefixStepFn, automaton: Automaton) -> PrefixStepFn:
    """A generator under a constraint, for the samplers that generate under a verifier; its cache carries a `Track`.

    What could not be completed within a row's limit is forbidden, and the rest normalised: the samplers are those of
    the locally constrained model, and the scores that model's.

    Args:
      step_fn: the generator.
      automaton: of its N rows; those that no output obeys within the limit are left alone.
    """

    def step(last: Array, position: Array, cache: DecoderCache) -> tuple[Array, Array, DecoderCache]:
        track = cache.progress
        states, limits = track.before(position)
        here = (position > 0).reshape(-1, *(1,) * (states.ndim - 1))
        states = jnp.where(here, automaton.after(states, last), automaton.starts())
        log_probs, features, cache = step_fn(last, position, cache)
        allowed, _ = _allowed(automaton, states, position, limits, None)
        log_probs = jnp.where(allowed, log_probs, -jnp.inf)
        track = track.replace(states=kv_cache.write(track.states, states[:, None], position[:, None]))
        return log_probs - logsumexp(log_probs)[:, None], features, cache.replace(progress=track)

    return step


def constrained_windows(verify_fn: VerifyFn, automaton: Automaton, *, ends_early: bool) -> VerifyFn:
    """A verifier of drafts under a constraint (`decoding.verified`); its cache carries a `Track`.

    What it says of each position is what `constrained` says token by token, given the draft on the left.

    Args:
      verify_fn: the verifier.
      automaton: of its B rows; a pass may have several drafts of each, side by side.
      ends_early: see `constrained`.
    """

    def verify(inputs: Array, cache: DecoderCache) -> tuple[Array, DecoderCache]:
        """The verifier's log-probabilities, -inf where the automaton allows no token; the cache has its states."""
        position, track = cache.position, cache.progress
        rows, size = inputs.shape
        every = automaton.repeat(rows // automaton.rows)
        places = jnp.broadcast_to(position + jnp.arange(size) if position.ndim == 0 else position, inputs.shape)
        log_probs, cache = verify_fn(inputs, cache)
        wants_to_end = argmax(log_probs) == EOS_ID if ends_early else jnp.zeros(inputs.shape, bool)

        def read(before: tuple[Array, Array], here: tuple[Array, ...]) -> tuple[tuple, tuple]:
            (states, limits), (place, token, wants_to_end) = before, here
            has_text = (place > 0).reshape(-1, *(1,) * (states.ndim - 1))
            states = jnp.where(has_text, every.after(states, token), every.starts())
            allowed, limits = _allowed(every, states, place, limits, wants_to_end)
            return (states, limits), (states, limits, allowed)

        along = places.T, inputs.T, wants_to_end.T
        _, found = jax.lax.scan(read, track.before(places[:, 0]), along)
        states, limits, allowed = (jnp.moveaxis(field, 0, 1) for field in found)
        kept = kv_cache.write((track.states, track.limits), (states, limits), position)
        track = track.replace(states=kept[0], limits=kept[1])
        return jnp.where(allowed, log_probs, -jnp.inf), cache.replace(progress=track)

    return verify
