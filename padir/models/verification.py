"""Verified decoding with two networks: a parallel model drafts, an autoregressive one verifies."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import struct

from padir import rng
from padir.decoding import constrained, verified
from padir.decoding.automaton import Automaton
from padir.decoding.constrained import Track
from padir.decoding.sampling import forbid_reserved, log_probabilities
from padir.decoding.state import Hypotheses
from padir.decoding.verified import Verified, VerifiedState, VerifyFn
from padir.errors import PadirError
from padir.models.base import BaseModel
from padir.models.causal_mode import causal_params
from padir.models.helper import Helper
from padir.nn import cache as kv_cache
from padir.nn.cache import DecoderCache
from padir.nn.length import top_lengths
from padir.types import PAD_ID, Array, PyTree


@struct.dataclass
class Verifier(Helper):
    """Verifies another model's drafts.

    Attributes:
      is_own: whether it is the causal mode of the model that drafts (`PadirModel.causal_mode`), with the parameters of
        that, so that both read one encoder output; static.
    """

    role: ClassVar[str] = "verifier"
    option: ClassVar[str] = "verify_with"
    task: ClassVar[str] = "verification"

    is_own: bool = struct.field(pytree_node=False, default=False)

    @classmethod
    def own(cls, model: BaseModel, params: PyTree) -> Verifier:
        """A `PadirModel` that verifies itself, by the causal mode it has learnt; `params` are those of training."""
        return cls(model.causal_mode, causal_params(params, model.causal_positions), is_own=True)

    def for_decoding(self, compute_type: str | None) -> Verifier:
        """With parameters in the form of decoding, so that its output is that of its own greedy decoding."""
        return self.replace(params=self.model.for_decoding(self.params, compute_type))


def check(model: BaseModel, config: Verified, *, has_lengths: bool) -> None:
    """Refuses a configuration that this model cannot draft with.

    Raises:
      PadirError: a disentangled context, a start that targets are too long for, more hypotheses than lengths, or an
        oracle that nobody tells the lengths.
    """
    if model.network.disentangled_context:
        raise PadirError(
            "decode: Verified drafts without contexts, but this model has NetworkConfig.disentangled_context; use "
            "Refinement with an order"
        )
    config.start.check(model.max_target_length, model.ids)
    if config.num_hypotheses > model.max_target_length:
        raise PadirError(
            f"Verified.num_hypotheses: {config.num_hypotheses} exceeds the {model.max_target_length} lengths there are"
        )
    if not has_lengths and model.length_predictor == "oracle":
        raise PadirError("decode: a model with the length predictor 'oracle' needs the lengths of its targets")


def decode(
    model: BaseModel,
    params: PyTree,
    source: Array,
    key: Array,
    config: Verified,
    verifier: Verifier,
    *,
    lengths: Array | None = None,
    constraint: Automaton | None = None,
) -> Hypotheses:
    """Translates a batch; everything is one program, and rows of different progress go on side by side.

    Args:
      model: a `PadirModel`, which drafts.
      params: its parameters.
      source: [B, Ls] int32.
      key: randomness of sampling; the same for every batch, so that a translation depends on its source alone.
      config: steps and policies (static).
      verifier: the autoregressive model whose output this is.
      lengths: [B] or [B, k] int32, EOS counted: lengths of the first drafts instead of the likeliest ones. The verifier
        may end elsewhere.
      constraint: of B rows, what each source's translation must obey. Then the output is the verifier's under the
        constraint (`constrained.decode`): the draft is free, and what it may not write is not accepted.

    Returns:
      `Hypotheses` with K = 1, L = the verifier's max_target_length, and what the rounds were.

    Raises:
      PadirError: what `check` refuses, or the models have different vocabularies.
    """
    check(model, config, has_lengths=lengths is not None)
    verifier.check(model.ids)
    longest = verifier.model.max_target_length
    room = config.max_length(source.shape[1], longest)
    # What a row may write depends on its own source alone, never on the bucket it is padded to.
    limits = jnp.minimum(config.max_length((source != PAD_ID).sum(-1), longest), room)
    encoded, length_logits = model.encode(params, source)
    given = live = (source != PAD_ID).any(-1)
    possible = jnp.ones_like(live) if constraint is None else constraint.fewest() <= limits
    live &= possible
    lengths = _lengths(model, config, length_logits, lengths, jnp.where(live, limits, 1))
    of_start, of_rounds, of_rest = (rng.of_sources(each, source) for each in jax.random.split(key, 3))

    verify, cache = _reading(verifier, source, encoded if verifier.is_own else None, config, limits, room, constraint)
    drafting = model.module(params).network
    sources = drafting.plan_of_sources(encoded, source)

    def start(lengths: Array) -> Array:
        of_rows = jnp.repeat(of_start, len(lengths) // len(source))
        tokens = config.start(of_rows, lengths, model.max_target_length, model.ids)[:, :room]
        return jnp.pad(tokens, ((0, 0), (0, room - tokens.shape[1])))

    def job(width: int) -> verified.Job:
        of_length = drafting.of_length(width)

        def draft(tokens: Array, position: Array, count: int) -> Array:
            read = tokens[:, :width]
            hidden = drafting.decode(read, drafting.plan_of_targets(sources, read, of_length)).hidden
            hidden = kv_cache.read(hidden, jnp.minimum(position, width - 1), count)
            return forbid_reserved(drafting.logits(hidden), model.ids)

        return verified.Job(start, draft, verify, config, limits, of_rounds)

    # One compiled branch per padded length of the drafts, chosen on device.
    widest = min(room, model.max_target_length)
    buckets = [*(length for length in config.target_buckets if length < widest), widest]
    own = jnp.asarray(buckets)[jnp.searchsorted(jnp.asarray(buckets), lengths.max(axis=1))]
    own = jnp.minimum(own, limits)
    branches = [lambda state, width=width: verified.rounds(job(width), state, lengths, own, width) for width in buckets]
    state = verified.initial_state(live, cache, room)
    state = jax.lax.switch(jnp.searchsorted(jnp.asarray(buckets), own.max()), branches, state)
    state = verified.finish(dataclasses.replace(job(widest), keys=of_rest), state)
    found = _hypotheses(state, longest, config)
    return found if constraint is None else constrained.with_failed(found, given, possible)


def _reading(
    verifier: Verifier,
    source: Array,
    encoded: Array | None,
    config: Verified,
    limits: Array,
    room: int,
    constraint: Automaton | None,
) -> tuple[VerifyFn, DecoderCache]:
    """How the verifier reads drafts of up to `room` tokens, and its empty cache.

    `encoded` [B, Ls, E] is its encoder's output, if another model has computed it. Rows obey the constraint within
    their `limits` [B].
    """
    network = verifier.model.module(verifier.params).network
    encoded = verifier.model.encode(network, source) if encoded is None else encoded
    plan = network.plan(encoded, source, room)

    def verify(inputs: Array, cache: DecoderCache) -> tuple[Array, DecoderCache]:
        output = network.decode(inputs, plan, cache)
        return log_probabilities(network.logits(output.hidden), verifier.model.ids), output.cache

    cache = network.empty_cache(len(source), room)
    if constraint is None:
        return verify, cache
    is_greedy = config.accept.sampling.temperature == 0.0
    track = Track.empty(constraint, limits, room)
    return constrained.constrained_windows(verify, constraint, ends_early=is_greedy), cache.replace(progress=track)


def _hypotheses(state: VerifiedState, longest: int, config: Verified) -> Hypotheses:
    """Complete rows as a result with targets padded to `longest`."""
    count = (state.tokens != PAD_ID).sum(-1)
    return Hypotheses(
        tokens=jnp.pad(state.tokens, ((0, 0), (0, longest - state.tokens.shape[1])))[:, None],
        scores=(state.score / jnp.maximum(count, 1) ** config.alpha)[:, None],
        predicted_lengths=count[:, None],
        steps_run=(state.rounds + state.drafts)[:, None],
        batch_steps=state.batch_steps,
        rounds=state.rounds[:, None],
    )


def _lengths(
    model: BaseModel, config: Verified, length_logits: Array | None, given: Array | None, limits: Array
) -> Array:
    """Lengths of the first drafts, given or the likeliest, none beyond `limits` [B]: [B, k] int32."""
    if given is None:
        given = top_lengths(length_logits, config.num_hypotheses, model.max_target_length)[0]
    lengths, batch = jnp.asarray(given, jnp.int32), len(limits)
    if lengths.ndim not in (1, 2) or lengths.shape[0] != batch or not lengths.size:
        raise PadirError(f"decode: lengths of shape {lengths.shape} are not [{batch}] or [{batch}, k]")
    lengths = lengths.reshape(batch, -1)
    if config.accept.needs_draft_logits and lengths.shape[1] > 1:
        raise PadirError(
            f"decode: {type(config.accept).__name__} allows one draft; give one length for each source, "
            f"not {lengths.shape[1]}"
        )
    return jnp.clip(lengths, 1, jnp.minimum(limits, model.max_target_length)[:, None])
