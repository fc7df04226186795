"""FLOPs and bytes of decoding a batch, counted from shapes."""

from __future__ import annotations

from padir.decoding import shortcuts
from padir.decoding.refinement import Refinement
from padir.decoding.verified import Verified
from padir.models import last_reading
from padir.models.kinds import DecodeConfig, Model
from padir.models.padir_decoding import conditions_itself, target_buckets
from padir.nn import flops


def decode_cost(
    model: Model,
    decode: DecodeConfig,
    *,
    rows: int,
    source: int,
    target: int,
    steps: int,
    hypotheses: int,
    rescorer: Model | None = None,
) -> flops.Cost:
    """Returns the work of decoding a batch, padding included.

    If rows are compacted while decoding, the result is an upper bound. If the likeliest hypothesis is decoded first, it
    is the work of decoding all of them in `steps` passes.

    Args:
      model: the model.
      decode: its decode configuration.
      rows: the number of sources, padding included.
      source: tokens that each is padded to.
      target: tokens that targets are padded to; for an autoregressive model the room of its cache.
      steps: decoder passes.
      hypotheses: decoder rows per source.
      rescorer: another model that ranks them.
    """
    network, count = model.network, rows * hypotheses
    once = flops.encode(network, rows, source + model.source_prefix)
    once += flops.plan(network, rows, source, target, prepared=True)
    shape = {"keys": target, "source": source, "sources": rows}
    if not isinstance(decode, Refinement):
        return once + steps * flops.decoder_pass(network, count, 1, **shape)
    kept = count if decode.keep_hypotheses is None else rows * decode.keep_hypotheses
    every = decode.candidates is None
    first = flops.decoder_pass(network, count, target, **shape, logits=not decode.shared_candidates)
    if decode.shared_candidates:
        shared = shortcuts.count_shared(target, decode.candidates)
        first += flops.all_logits(network, rows * target)
        first += flops.candidate_logits(network, count * target, shared, lists=rows)

    def later(queries: int) -> flops.Cost:
        cost = flops.decoder_pass(network, kept, queries, **shape, logits=every)
        if every:
            return cost
        positions = kept * queries
        return cost + flops.candidate_logits(network, positions, shortcuts.count(decode.candidates), lists=positions)

    if conditions_itself(model, decode) and steps > 1:
        # The last step passes nothing on.
        first += flops.conditioning(network, count * target)
        first += (steps - 2) * flops.conditioning(network, kept * target)
    whole = min(steps, shortcuts.WHOLE_STEPS)
    some = decode.active_positions if shortcuts.decodes_some(decode.active_positions, target) else target
    once += _last_reading_cost(model, decode, rescorer, kept, target, shape)
    return once + first + (whole - 1) * later(target) + (steps - whole) * later(some)


def _last_reading_cost(
    model: Model, decode: Refinement, rescorer: Model | None, kept: int, target: int, shape: dict[str, int]
) -> flops.Cost:
    """The work of reading `kept` finished hypotheses to rank them, `shape` as for `flops.decoder_pass`."""
    rows, source = shape["sources"], shape["source"]
    cost = flops.Cost()
    if last_reading.by_causal_model(model, decode, rescorer is not None, kept // rows):
        if rescorer is not None:
            cost += flops.encode(rescorer.network, rows, source + rescorer.source_prefix)
        reading = rescorer or model.causal_mode
        cost += flops.plan(reading.network, rows, source, target, prepared=True)
        cost += flops.decoder_pass(reading.network, kept, target, **shape)
    if last_reading.by_ranker(model, decode, kept // rows):
        cost += flops.decoder_pass(model.network, kept, target, **shape) + flops.ranker(model.network, kept * target)
    return cost


def verified_cost(
    model: Model,
    verifier: Model,
    decode: Verified,
    *,
    rows: int,
    source: int,
    target: int,
    room: int,
    rounds: int,
    encodes_once: bool = False,
) -> flops.Cost:
    """Returns the work of verified decoding of a batch, padding included, if no row outgrows its draft.

    Args:
      model, verifier: the models.
      decode: how they decode.
      rows: the number of sources, padding included.
      source: tokens that each is padded to.
      target: tokens that drafts are padded to.
      room: tokens that the verifier's cache has room for.
      rounds: passes of the verifier.
      encodes_once: whether the verifier reads the drafting model's encoder output.
    """
    drafting, reading = model.network, verifier.network
    total = flops.encode(drafting, rows, source + model.source_prefix)
    if not encodes_once:
        total += flops.encode(reading, rows, source)
    total += flops.plan(drafting, rows, source, target, prepared=True)
    total += flops.plan(reading, rows, source, room, prepared=True)
    keys = {"source": source, "sources": rows}

    def one_round(drafts: int, passes: int, positions: int) -> flops.Cost:
        # All positions go through the drafter, but only some to the logits.
        draft = flops.decoder_pass(drafting, rows * drafts, target, keys=target, **keys, logits=False)
        draft += flops.all_logits(drafting, rows * drafts * positions)
        return passes * draft + flops.decoder_pass(reading, rows * drafts, positions, keys=room, **keys)

    later = one_round(decode.length_beam, decode.redraft_steps, min(decode.window, target))
    return total + one_round(decode.num_hypotheses, decode.draft_steps, target) + (rounds - 1) * later


def rows_per_source(decode: DecodeConfig) -> int:
    """Returns the decoder rows that a source takes."""
    return decode.hypotheses_per_source if isinstance(decode, Refinement) else decode.rows_per_source


def target_width(model: Model, decode: DecodeConfig, source: int, longest: int) -> int:
    """Returns the number of target tokens that a batch is padded to.

    Args:
      model: the model.
      decode: its decode configuration.
      source: tokens that sources are padded to, which decide for an autoregressive model.
      longest: the longest target, which decides for a parallel one.
    """
    if not isinstance(decode, Refinement | Verified):
        return decode.max_length(source, model.max_target_length)
    return next((bucket for bucket in target_buckets(model, decode) if longest <= bucket), model.max_target_length)
