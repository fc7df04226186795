"""How a PaDIR model decodes: lengths, buckets, refinement, ranking."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx, struct

from padir import rng
from padir.decoding import constrained, shortcuts, t5x_compat
from padir.decoding.automaton import Automaton
from padir.decoding.length_beam import with_neighbours
from padir.decoding.refinement import Refinement, go_on, initial_state, refinement_step, unfinished
from padir.decoding.repeats import drop_repeats
from padir.decoding.state import Hypotheses, RefinementState, StepOutput
from padir.errors import PadirError
from padir.models import last_reading, rescoring
from padir.models.base import BaseModel
from padir.models.decoder_steps import decoder_pass, plain_step, sharing_step
from padir.models.hypothesis_rows import HypothesisRows
from padir.models.refined import Refined, preference, ranked, without_failed
from padir.models.rescoring import ReadFn, Rescorer
from padir.nn.length import top_lengths
from padir.nn.masks import length_mask
from padir.types import PAD_ID, Array, PyTree


def decode(
    model: BaseModel,
    params: PyTree,
    source: Array,
    key: Array,
    config: Refinement,
    num_steps: Array | None = None,
    *,
    lengths: Array | None = None,
    rescorer: Rescorer | None = None,
    constraint: Automaton | None = None,
) -> Hypotheses:
    """Translates a batch.

    Args:
      model: a `PadirModel`.
      params: parameters.
      source: [B, Ls] int32.
      key: randomness of the start and of sampling, where they are random; the same for every batch, so that a
        translation depends on its source alone.
      config: steps and policies (static).
      num_steps: [] int32, overrides the steps of `config` without compiling anew; see `refine`.
      lengths: [B] or [B, k] int32, target lengths to use, EOS counted, instead of the k = config.num_hypotheses
        likeliest ones. One beyond [1, max_target_length] is clipped, which concerns no other row.
      rescorer: ranks by this model's log-probabilities of the finished tokens, not by those of the last step.
      constraint: of B rows, what each source's translation must obey. Every step writes the likeliest tokens that do,
        and no repeats are dropped. A length with no such output is replaced by the next that has one (the longest of
        all if none follows). A source without any has `failed`: no tokens, and scores of -inf.

    Returns:
      `Hypotheses` with K = k · config.length_beam · config.parallel_starts (1 with `likeliest_first`) and L =
      max_target_length.

    Raises:
      PadirError: what `check` or `constrained.check_refinement` refuses, `lengths` of another shape, a rescorer of
        another vocabulary.
    """
    check(model, config, has_rescorer=rescorer is not None, has_lengths=lengths is not None)
    if rescorer is not None:
        rescorer.check(model.ids)
    encoded, length_logits = model.encode(params, source)
    live = (source != PAD_ID).any(-1)
    ranked = _ranked_lengths(model, config, length_logits, lengths, live.shape[0])
    lengths = _hypothesis_lengths(model, config, ranked, live)
    given = live
    if constraint is not None:
        constrained.check_refinement(config)
        feasible = constraint.feasible_lengths(lengths)
        live &= (feasible > 0).all(-1)
        lengths = jnp.where(live[:, None], feasible, 1)
    length_log_probs = jnp.zeros(lengths.shape)
    if length_logits is not None:
        length_log_probs = jnp.take_along_axis(jax.nn.log_softmax(length_logits), lengths - 1, axis=1)
    job = _Job(params, encoded, source, live, lengths, length_log_probs, key, num_steps, rescorer, constraint)
    if config.t5x_compat:
        return _refine_as_released(model, job, config)
    # One compiled branch per padded length, chosen on device: no round trip to ask how long it will be.
    buckets = target_buckets(model, config)
    branches = [lambda job, bucket=bucket: _refine(model, job, bucket, config) for bucket in buckets]
    index = jnp.searchsorted(jnp.asarray(buckets), lengths.max())
    found = jax.lax.switch(index, branches, job)
    return found if constraint is None else without_failed(found, given & ~live)


def target_buckets(model: BaseModel, config: Refinement) -> list[int]:
    """Returns the lengths that targets are padded to, ascending. A decode has a compiled branch for each."""
    return [*(length for length in config.target_buckets if length < model.max_target_length), model.max_target_length]


def check(model: BaseModel, config: Refinement, *, has_rescorer: bool = False, has_lengths: bool = True) -> None:
    """Refuses a configuration that this model cannot decode with.

    Raises:
      PadirError: an order without a disentangled context or the other way round, more hypotheses than lengths or
        candidates than pieces, a start that targets are too long for, a rejecter's policy without a rejecter, what
        `rescoring.check` refuses, or an oracle that nobody tells the lengths.
    """
    if model.network.disentangled_context != (config.order is not None):
        raise PadirError(
            "Refinement.order: this model has a disentangled context; set EasyFirst(), as gin/decode/disco_4.gin does"
            if config.order is None
            else "Refinement.order: only a model with NetworkConfig.disentangled_context has one; set None"
        )
    config.start.check(model.max_target_length, model.ids)
    if not has_lengths and model.length_predictor == "oracle":
        raise PadirError("decode: a model with the length predictor 'oracle' needs the lengths of its targets")
    rescoring.check(model, config, by_another=has_rescorer)
    _check_lengths("Refinement.num_hypotheses", config.num_hypotheses, config, model.max_target_length)
    if config.candidates is not None and config.candidates >= model.ids.num_pieces:
        raise PadirError(
            f"Refinement.candidates: {config.candidates} is not below the {model.ids.num_pieces} pieces there are"
        )
    if conditions_itself(model, config):
        for option in ("candidates", "active_positions", "logits_callback", "t5x_compat"):
            if getattr(config, option):
                raise PadirError(
                    f"Refinement.{option}: not with self-conditioning, which needs all of the model's own logits; "
                    "leave it out, or set Refinement.self_conditioning to False"
                )
    if config.remask.needs_rejecter and not model.rejecter:
        raise PadirError("Refinement.remask: RemaskRejected needs a model trained with PadirModel.rejecter = True")


def conditions_itself(model: BaseModel, config: Refinement) -> bool:
    """Whether each step reads what the one before expected: where the model has learnt to and nobody turns it off."""
    return model.self_conditioning and config.self_conditioning


@struct.dataclass
class _Job:
    """What a compiled branch works on: arrays, and everything made of them.

    Attributes:
      params, source, key, num_steps, rescorer, constraint: as `decode` takes them.
      encoded: [B, Ls, E].
      live: [B] bool, False for sources that only pad the batch.
      lengths: [B, K] int32, of every hypothesis.
      length_log_probs: [B, K] float32, theirs by the length predictor; 0 without one.
    """

    params: PyTree
    encoded: Array
    source: Array
    live: Array
    lengths: Array
    length_log_probs: Array
    key: Array
    num_steps: Array | None
    rescorer: Rescorer | None
    constraint: Automaton | None

    def hypotheses(self, config: Refinement) -> int:
        """How many finished ones each source has."""
        return config.keep_hypotheses or self.lengths.shape[1]

    def is_rescored(self, model: BaseModel, config: Refinement) -> bool:
        """Whether a causal model reads its finished hypotheses, which is unsure of EOS, too."""
        return last_reading.by_causal_model(model, config, self.rescorer is not None, self.hypotheses(config))


def _check_lengths(name: str, count: int, config: Refinement, longest: int) -> None:
    if count * config.length_beam > longest:
        times = f" times length_beam {config.length_beam}" if config.length_beam > 1 else ""
        raise PadirError(
            f"{name}: {count}{times} exceeds the {longest} lengths there are; "
            f"choose at most {longest // config.length_beam}"
        )


def _ranked_lengths(
    model: BaseModel, config: Refinement, length_logits: Array | None, given: Array | None, batch: int
) -> Array:
    """The lengths to try, given or predicted: [B, k] int32, the most important first."""
    if given is None:
        return top_lengths(length_logits, config.num_hypotheses, model.max_target_length)[0]
    given = jnp.asarray(given, jnp.int32)
    if given.ndim not in (1, 2) or given.shape[0] != batch or not given.size:
        raise PadirError(f"decode: lengths of shape {given.shape} are not [{batch}] or [{batch}, k]")
    given = given.reshape(batch, -1)
    if config.length_beam > 1:
        _check_lengths("decode: lengths given", given.shape[1], config, model.max_target_length)
    return given


def _hypothesis_lengths(model: BaseModel, config: Refinement, ranked: Array, live: Array) -> Array:
    """The length of every hypothesis, parallel starts of one length side by side: [B, k] → [B, K] int32."""
    # A row that only pads the batch gets the shortest length: it must not widen the others' bucket.
    ranked = jnp.where(live[:, None], ranked, 1)
    if config.t5x_compat:
        return t5x_compat.hypothesis_lengths(ranked, config, model.max_target_length)
    clipped = jnp.clip(ranked, 1, model.max_target_length)
    lengths = with_neighbours(clipped, config.length_beam, model.max_target_length)
    return jnp.repeat(jnp.where(live[:, None], lengths, 1), config.parallel_starts, axis=1)


def _refine(model: BaseModel, job: _Job, bucket: int, config: Refinement) -> Hypotheses:
    """Refines hypotheses whose lengths are all at most `bucket`."""
    module = model.module(job.params)
    start_key, sampling_key = jax.random.split(job.key)
    start = _start(model, rng.of_sources(start_key, job.source), job.lengths, config)
    start = start.reshape(*job.lengths.shape, -1)[:, :, :bucket]
    sources = module.network.plan_of_sources(job.encoded, job.source)
    of_length = module.network.of_length(bucket)
    keys = rng.of_sources(sampling_key, job.source)
    of_job = job.params, job.encoded, job.source, (sources, of_length), config, job.rescorer, job.hypotheses(config)
    read, is_rescored = last_reading.reader(model, module, *of_job), job.is_rescored(model, config)

    def refined(which: slice, live: Array) -> Refined:
        """Some hypotheses of every source; those that are not `live` [B, k] are left alone."""
        tokens, lengths = start[:, which].reshape(-1, bucket), job.lengths[:, which]
        plan = module.network.plan_of_targets(sources, tokens, of_length)
        inside = length_mask(lengths.reshape(-1), bucket)
        automaton = None if job.constraint is None else job.constraint.repeat(lengths.shape[1])
        of_lengths = lengths, job.length_log_probs[:, which]
        rows = HypothesisRows(tokens, inside, plan, *of_lengths, automaton=automaton, keys=keys)
        return _refine_rows(model, module, job, rows, live.reshape(-1), config, read)

    every = jnp.broadcast_to(job.live[:, None], job.lengths.shape)
    if not config.likeliest_first or every.shape[1] == 1:
        found, count = refined(slice(None), every), None
    else:
        first = refined(slice(0, 1), every[:, :1])
        found, count = _with_likelier(first, refined, every[:, 1:], job, config, is_rescored), 1
    preferred = preference(config, found.scores, found.lengths, rescored=is_rescored)
    order = jnp.argsort(-preferred, axis=-1, stable=True)[:, :count]
    return ranked(found, order, model.max_target_length)


def _with_likelier(
    first: Refined,
    refined: Callable[[slice, Array], Refined],
    live: Array,
    job: _Job,
    config: Refinement,
    is_rescored: bool,
) -> Refined:
    """The first hypothesis of each source, and those others that may turn out likelier; the rest score -inf."""
    to_beat = preference(config, first.scores, first.lengths, rescored=is_rescored)
    may_win = live & (config.rank.bound(job.length_log_probs[:, 1:]) > to_beat)

    def others() -> Refined:
        found = refined(slice(1, None), may_win)
        return found.replace(scores=jnp.where(may_win, found.scores, -jnp.inf))

    def none() -> Refined:
        empty = jax.tree.map(lambda field: jnp.zeros(field.shape, field.dtype), jax.eval_shape(others))
        return empty.replace(scores=jnp.full_like(empty.scores, -jnp.inf))

    rest = jax.lax.cond(may_win.any(), others, none)
    both = jax.tree.map(lambda *fields: jnp.concatenate(fields, 1), first.replace(steps=None), rest.replace(steps=None))
    return both.replace(steps=first.steps + rest.steps)


def _refine_rows(
    model: BaseModel,
    module: nnx.Module,
    job: _Job,
    rows: HypothesisRows,
    live: Array,
    config: Refinement,
    read: ReadFn | None,
) -> Refined:
    """Refines `rows`, those that are `live` [N], and scores them, by what `read` says of them if it is there."""
    state = initial_state(rows.start, live, config, plain_step(model, module, rows, config))
    if conditions_itself(model, config):
        state = state.replace(conditioning=jnp.zeros((*rows.start.shape, job.encoded.shape[-1]), job.encoded.dtype))
    if config.keep_hypotheses is not None or config.candidates is not None:
        state, rows = _first_step(model, module, job, config, state, rows)
    state = _go_on(model, module, job, config, state, rows)
    # Without a repeat an output might not obey any more.
    drops = config.drop_repeats and rows.automaton is None
    tokens = drop_repeats(state.proposal, rows.inside) if drops else state.proposal
    by_source = tokens.reshape(*rows.lengths.shape, -1)
    log_probs, counted = state.log_probs, rows.inside
    if read is not None:
        shown = rescoring.up_to_eos(by_source)
        log_probs = read(shown).reshape(tokens.shape)
        counted = (shown != PAD_ID).reshape(tokens.shape)
    scores = config.rank(log_probs, counted, rows.length_log_probs.reshape(-1)).reshape(rows.lengths.shape)
    steps_run = state.steps_run.reshape(rows.lengths.shape)
    return Refined(by_source, scores, rows.lengths, steps_run, state.step, state.trace)


def _first_step(
    model: BaseModel,
    module: nnx.Module,
    job: _Job,
    config: Refinement,
    state: RefinementState,
    rows: HypothesisRows,
) -> tuple[RefinementState, HypothesisRows]:
    """Runs the first step, and makes the others smaller: fewer hypotheses, fewer logits."""
    limit = config.num_steps if job.num_steps is None else job.num_steps
    hypotheses = rows.lengths.shape[1]
    step = sharing_step if config.shared_candidates else plain_step
    state, output = refinement_step(
        step(model, module, rows, config),
        state,
        rows.start,
        rows.inside,
        config,
        limit,
        first=True,
        keys=rows.keys,
        hypotheses=hypotheses,
        num_pieces=model.ids.num_pieces,
    )
    if config.keep_hypotheses is not None:
        if config.keep_hypotheses > hypotheses:
            raise PadirError(f"Refinement.keep_hypotheses: {config.keep_hypotheses} of {hypotheses} lengths given")
        scores = config.rank(state.log_probs, rows.inside, rows.length_log_probs.reshape(-1))
        preferred = preference(config, scores.reshape(rows.lengths.shape), rows.lengths)
        kept = shortcuts.best_rows(preferred, config.keep_hypotheses)
        state, rows = shortcuts.keep_rows(state, kept), rows.keep(kept)
        said = StepOutput(output.logits, candidates=output.candidates, next_candidates=output.next_candidates)
        output = jax.tree.map(lambda field: field[kept], said)
    if output.next_candidates is not None:
        rows = rows.replace(candidates=output.next_candidates)
    elif config.candidates is not None:
        rows = rows.replace(candidates=shortcuts.candidates(output, rows.inside, config.candidates))
    return state, rows


# Products of fewer positions than these sources have run at a lower rate, so that little would be gained.
_FEWEST_SOURCES = 8


def _go_on(
    model: BaseModel, module: nnx.Module, job: _Job, config: Refinement, state: RefinementState, rows: HypothesisRows
) -> RefinementState:
    """The steps from `state` on; with `config.compact_rows` of ever fewer rows."""
    sources, hypotheses = rows.lengths.shape
    fewer = sources // 2
    compact = config.compact_rows and fewer >= _FEWEST_SOURCES
    state = go_on(
        plain_step(model, module, rows, config),
        state,
        rows.start,
        rows.inside,
        config,
        job.num_steps,
        keys=rows.keys,
        hypotheses=hypotheses,
        num_pieces=model.ids.num_pieces,
        until=fewer if compact else 0,
    )
    # Nothing is decoded anew from here on, but by fewer rows with memories of their own.
    finished = state.replace(read=None, memory=None)
    if not compact:
        return finished
    going_on = unfinished(state, hypotheses)

    def with_fewer(state: RefinementState) -> RefinementState:
        kept, where = rows.keep_sources(jnp.argsort(~going_on, stable=True)[:fewer])
        some = _go_on(model, module, job, config, shortcuts.keep_rows(state, where), kept)
        return shortcuts.put_back(finished, some, where)

    # Where the steps are spent, or all rows finished at once, nothing is copied.
    limit = config.num_steps if job.num_steps is None else job.num_steps
    return jax.lax.cond((state.step < limit) & going_on.any(), with_fewer, lambda state: finished, state)


def _refine_as_released(model: BaseModel, job: _Job, config: Refinement) -> Hypotheses:
    """Refines as the T5X release does: one bucket, any id allowed, the decoder's mask made anew in every step."""
    module = model.module(job.params)
    longest = model.max_target_length
    start = t5x_compat.start(config, job.key, job.lengths.reshape(-1), longest, model.ids)

    def step(tokens: Array) -> StepOutput:
        plan = module.network.plan(job.encoded, job.source, tokens)
        output, hidden = decoder_pass(module, tokens, plan, config)
        return output.replace(logits=module.network.logits(hidden))

    live = jnp.repeat(job.live, job.lengths.shape[1])
    state = t5x_compat.refine(step, start, live, config, job.num_steps)
    tokens, scores = t5x_compat.finish(state, start)
    shape = job.lengths.shape
    scores, steps_run = scores.reshape(shape), state.steps_run.reshape(shape)
    found = Refined(tokens.reshape(*shape, longest), scores, job.lengths, steps_run, state.step, state.trace)
    return ranked(found, t5x_compat.best_first(scores), longest)


def _start(model: BaseModel, keys: Array, lengths: Array, config: Refinement) -> Array:
    """The first hypotheses: keys [B], lengths [B, K] int32 → tokens [B·K, max_target_length] int32."""
    ways = config.parallel_starts
    starts = []
    for way in range(ways):
        some = lengths[:, way::ways]
        of_rows = jnp.repeat(rng.folded(keys, way), some.shape[1])
        starts.append(config.start(of_rows, some.reshape(-1), model.max_target_length, model.ids))
    return jnp.stack(starts, axis=1).reshape(lengths.size, -1)
