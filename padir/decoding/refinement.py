"""Parallel decoding by iterative refinement: the loop (paper section 4.2.2.1, eq. 4.9).

The loop takes a logits function, never a model, so it can be tested with hand-made logits. With other policies it
is mask-predict (RemaskLinear, rewrite_only_remasked: gin/decode/mask_predict_4.gin), adaptive acceptance
(RemaskBelowThreshold: gin/decode/adaptive.gin), SUNDAE-style sampling (StartWithRandom, RemaskNothing, Sampling at a
low temperature) or, of a disentangled model, parallel easy-first (EasyFirst: gin/decode/disco_4.gin).
"""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from padir.checks import whole
from padir.decoding import policies, shortcuts
from padir.decoding.annealing import AnnealedSampling
from padir.decoding.callbacks import LogitsCallback, StateCallback
from padir.decoding.credit import Credit, with_credit
from padir.decoding.initial import StartPolicy, StartWithMask
from padir.decoding.order import KNOWN, OrderPolicy, initial_ranks
from padir.decoding.ranking import RankByLogProbability, RankPolicy
from padir.decoding.remasking import RemaskPolicy, RemaskStutter, before_last
from padir.decoding.replacement import ReplacePolicy, ReplaceWithInitial, noise_of_step
from padir.decoding.sampling import Sampling
from padir.decoding.state import (
    LogitsFn,
    RefinementState,
    ReplaceView,
    StepOutput,
    StepView,
    Trace,
)
from padir.decoding.stopping import StopPolicy, StopWhenUnchanged, stop_view
from padir.decoding.writing import as_output, written_by
from padir.errors import PadirError
from padir.nn.masks import length_mask
from padir.types import PAD_ID, Array

# Steps that a trace has room for at least, so that few programs serve all numbers of steps.
_ROOM = 8


@dataclass(frozen=True)
class Refinement:
    """The static configuration of a parallel decode; hashable, so `jit` takes it as a static argument.

    A source has num_hypotheses · length_beam · parallel_starts hypotheses.

    Attributes:
      num_steps: the largest number of decoder passes (T).
      num_hypotheses: how many lengths are tried for each source, the likeliest ones (B_l in the paper).
      length_beam: how many lengths are tried around each of them, itself included: the nearest that no other hypothesis
        has, shorter ones first.
      parallel_starts: hypotheses of each length; they differ by their random numbers.
      start: makes the initial hypothesis.
      sampling: how a step draws its tokens; greedy by default.
      rewrite_only_remasked: a step writes only where the step before remasked; other positions keep their token and
        log-probability (mask-predict). The last position keeps the EOS of the start, with log-probability 0.
      remask: chooses the tokens that the next step must not read.
      credit: lets `remask` see tokens that steps keep proposing as likelier than the model says; None leaves it out.
      replace: chooses what the next step reads in their place.
      order: of a disentangled model, which positions each position observes; None for any other model. The start is
        MASK, and nothing is remasked. The last position keeps the EOS of the start, with log-probability 0.
      stop: decides when a row is finished before its last step.
      rank: orders the hypotheses of a source.
      drop_repeats: after the last step, drop tokens that repeat their left neighbour (paper section 4.2.3).
      keep_hypotheses: how many hypotheses of each source go on after the first step: those that `rank` puts first.
        None keeps all. Dropped hypotheses are not returned.
      likeliest_first: decode the hypothesis of the likeliest length to its end, and then only those that could still
        score higher (`rank.bound`). The best hypothesis is the same up to rounding, and only it is returned.
      candidates: from the second step on, each position chooses among this many of its likeliest tokens of the first
        step and those of its two neighbours; other logits are not computed. None chooses among all tokens.
        Probabilities are then estimates; see `shortcuts.candidates`.
      shared_candidates: choose among candidates in the first step too. Only the likeliest length then computes the
        logits of all tokens, and its positions provide the candidates; see `shortcuts.shared_candidates`.
      active_positions: from the third step on, decode only this many positions of each hypothesis: those that changed
        and the least sure ones (see `shortcuts.active_positions`). The others keep their token, keys and values. This
        compiles a second decoder. None decodes all positions.
      compact_rows: on one device, in batches of 16 sources or more, continue with half of the rows whenever half of the
        sources are finished. Translations are the same up to rounding. Each halving compiles another decoder.
      logits_block: on one device, compute the logits of so many positions at a time, also where another model ranks.
        Translations are the same up to rounding, for memory that does not grow with the batch. 'auto': as many as suit
        the platform. None: all at once, as always on several devices, under a constraint, with self-conditioning,
        `shared_candidates` or `t5x_compat`, and where something reads or sums up the logits.
      self_conditioning: if the model has learnt to (`PadirModel.self_conditioning`), a step reads what the last one
        expected, too. A row whose tokens repeat then stops like any other, although its next step might differ.
      ranker_share: if the model has a ranker (`PadirModel.ranker`), it reads several hypotheses once more for `rank`.
        Where another model or the causal mode reads them, too, the ranker has this share in a mean. 0: no ranker.
      self_rescoring: `rank` sees the log-probabilities that the model's own causal mode (`PadirModel.causal_stage`)
        gives the finished tokens, in one more pass, instead of those of the last step.
      target_buckets: padded target lengths, ascending. The smallest that holds the longest predicted length is used.
        The model's longest target is always added.
      return_trace: return every step of every hypothesis.
      return_attentions: return their self-attention and cross-attention weights too.
      state_callback: called with the state before every step and after the last; see `callbacks`.
      logits_callback: called with the logits of every step and the state that the step began with.
      t5x_compat: decode token for token as the T5X release does, with its quirks (see `t5x_compat`). Options that the
        release handles in its own way (stop, rank, drop_repeats) must keep their defaults, and targets are padded to
        the longest length.
    """

    num_steps: int = 4
    num_hypotheses: int = 1
    length_beam: int = 1
    parallel_starts: int = 1
    start: StartPolicy = StartWithMask()
    sampling: Sampling | AnnealedSampling = Sampling()
    rewrite_only_remasked: bool = False
    remask: RemaskPolicy = RemaskStutter()
    credit: Credit | None = None
    replace: ReplacePolicy = ReplaceWithInitial()
    order: OrderPolicy | None = None
    stop: StopPolicy = StopWhenUnchanged()
    rank: RankPolicy = RankByLogProbability()
    drop_repeats: bool = True
    keep_hypotheses: int | None = None
    likeliest_first: bool = False
    candidates: int | None = None
    shared_candidates: bool = False
    active_positions: int | None = None
    compact_rows: bool = False
    logits_block: int | str | None = "auto"
    self_conditioning: bool = True
    ranker_share: float = 0.2
    self_rescoring: bool = False
    target_buckets: tuple[int, ...] = (8, 16, 24, 32, 48, 64, 96, 128)
    return_trace: bool = False
    return_attentions: bool = False
    state_callback: StateCallback | None = None
    logits_callback: LogitsCallback | None = None
    t5x_compat: bool = False

    def __post_init__(self):
        object.__setattr__(self, "target_buckets", tuple(self.target_buckets))
        for name in ("num_steps", "num_hypotheses", "length_beam", "parallel_starts"):
            whole(f"Refinement.{name}", getattr(self, name))
        policies.check_buckets("Refinement", self.target_buckets)
        policies.check(self)
        if self.remask.changes_with_step and self.num_steps == 1:
            raise PadirError(
                "Refinement.num_steps: a remasking schedule needs at least 2 steps; "
                "for one step use Refinement.remask = RemaskNothing()"
            )
        if self.parallel_starts > 1 and not policies.draws(self):
            raise PadirError(
                f"Refinement.parallel_starts: {self.parallel_starts} greedy hypotheses of one length from "
                f"{type(self.start).__name__} would be equal; use StartWithRandom, or Sampling with a temperature"
            )
        policies.check_acceptance(self)
        policies.check_order(self)
        policies.check_shortcuts(self)
        if self.return_attentions and not self.return_trace:
            raise PadirError("Refinement.return_attentions: attentions are part of the trace; set return_trace, too")
        if self.t5x_compat:
            policies.check_t5x_compat(self)

    @property
    def hypotheses_per_source(self) -> int:
        """Decoder rows that a source takes in the first step."""
        return self.num_hypotheses * self.length_beam * self.parallel_starts

    @property
    def needs_entropy(self) -> bool:
        """Whether a policy asks for the entropy of each position."""
        return self.remask.needs_entropy or self.stop.needs_entropy

    @property
    def may_remask_otherwise(self) -> bool:
        """Whether two steps that read and write the same may leave the next one other tokens to read."""
        accepts_once = self.remask.accepts and self.rewrite_only_remasked
        return self.remask.changes_with_step or self.credit is not None or self.replace.needs_noise or accepts_once

    @functools.cached_property
    def steps_as_data(self) -> tuple[Refinement, tuple[np.int32, ...]]:
        """(configuration without its number of steps, (that number,)), so that one compiled program serves any number.

        A trace has room for a fixed number of steps. Without attentions room is cheap: the configuration then has at
        least as many steps as this one, and steps that did not run are left over. With attentions the number stays
        static: (self, ()).
        """
        if self.return_attentions:
            return self, ()
        room = max(_ROOM, 1 << (self.num_steps - 1).bit_length()) if self.return_trace else 2
        return _same(dataclasses.replace(self, num_steps=room)), (np.int32(self.num_steps),)

    def __hash__(self) -> int:
        return self._hash

    def __getstate__(self) -> dict[str, object]:
        # Hashes of strings differ between processes, so a pickle must not carry one.
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @functools.cached_property
    def _hash(self) -> int:
        # Hashing two dozen fields on every request is slow, so the hash is cached.
        return hash(tuple(getattr(self, field.name) for field in dataclasses.fields(self)))


@functools.cache
def _same(config: Refinement) -> Refinement:
    """One object for all equal ones, so that looking it up compares no fields."""
    return config


def refine(
    logits_fn: LogitsFn,
    initial: Array,
    lengths: Array,
    live: Array,
    config: Refinement,
    num_steps: Array | None = None,
    *,
    keys: Array | None = None,
    hypotheses: int = 1,
    num_pieces: int | None = None,
) -> RefinementState:
    """Rewrites all positions at once, `num_steps` times at most.

    Args:
      logits_fn: tokens [N, L] int32 → `StepOutput`, or just logits [N, L, V]; -inf forbids a token.
      initial: [N, L] int32, the first hypothesis, 0 beyond each length.
      lengths: [N] int32, at most L.
      live: [N] bool, False for rows that only pad the batch: they count as finished from the start.
      config: steps and policies.
      num_steps: [] int32, overrides `config.num_steps`, so that one compiled loop serves any number of steps;
        at most `config.num_steps` where a trace is kept.
      keys: [B], randomness of each source; unused if greedy. A token's random numbers are those of its source, step,
        hypothesis and position: so no translation depends on what else is in the batch.
      hypotheses: rows of each source (K), which lie together: N = B·K.
      num_pieces: ids of pieces lie below it; unused but where tokens are replaced with random ones.

    Returns:
      The final state. A row's `proposal` is what its last step wrote.
    """
    inside = length_mask(lengths, initial.shape[1])
    state = initial_state(initial, live, config, logits_fn)
    random = {"keys": keys, "hypotheses": hypotheses, "num_pieces": num_pieces}
    return go_on(logits_fn, state, initial, inside, config, num_steps, **random)


def go_on(
    logits_fn: LogitsFn,
    state: RefinementState,
    initial: Array,
    inside: Array,
    config: Refinement,
    num_steps: Array | None = None,
    *,
    keys: Array | None = None,
    hypotheses: int = 1,
    num_pieces: int | None = None,
    until: int = 0,
) -> RefinementState:
    """The steps from `state` on, until at most `until` sources are unfinished.

    `inside` [N, L] bool marks positions within each length; the rest is as in `refine`.
    """
    limit = config.num_steps if num_steps is None else num_steps

    def running(state: RefinementState) -> Array:
        return (state.step < limit) & (unfinished(state, hypotheses).sum() > until)

    def step(state: RefinementState) -> RefinementState:
        random = {"keys": keys, "hypotheses": hypotheses, "num_pieces": num_pieces}
        return refinement_step(logits_fn, state, initial, inside, config, limit, **random)[0]

    state = jax.lax.while_loop(running, step, state)
    return _called_back(state, config)


def _called_back(state: RefinementState, config: Refinement) -> RefinementState:
    """The state after its callback, which is not handed the decoder's memory."""
    if config.state_callback is None:
        return state
    return config.state_callback(state.replace(memory=None)).replace(memory=state.memory)


def unfinished(state: RefinementState, hypotheses: int) -> Array:
    """Which sources have a hypothesis that goes on: [B] bool."""
    return ~state.done.reshape(-1, hypotheses).all(-1)


def initial_state(
    initial: Array, live: Array, config: Refinement, logits_fn: LogitsFn | None = None
) -> RefinementState:
    """The state before the first step; `initial` [N, L] int32, `live` [N] bool.

    `logits_fn` is only asked for shapes, and only where the state holds logits or attentions.
    """
    rows, length = initial.shape
    output, some = None, shortcuts.decodes_some(config.active_positions, length)
    if config.replace.needs_logits_sum or config.return_attentions or some:
        output = jax.eval_shape(lambda tokens: as_output(logits_fn(tokens)), initial)
    trace = None
    if config.return_trace:
        trace = Trace.empty(config.num_steps, rows, length, output if config.return_attentions else None)
    remasked = None
    if config.rewrite_only_remasked:
        # All but the last position, whose EOS is known.
        remasked = jnp.pad(initial[:, 1:] != PAD_ID, ((0, 0), (0, 1)))
    return RefinementState(
        step=jnp.zeros((), jnp.int32),
        tokens=initial,
        proposal=initial,
        log_probs=jnp.zeros(initial.shape, jnp.float32),
        done=~live,
        steps_run=jnp.zeros((rows,), jnp.int32),
        trace=trace,
        remasked=remasked,
        logits_sum=jnp.zeros(output.logits.shape, jnp.float32) if config.replace.needs_logits_sum else None,
        read=initial if some else None,
        memory=jax.tree.map(lambda field: jnp.zeros(field.shape, field.dtype), output.memory) if some else None,
        credit=None if config.credit is None else jnp.zeros(initial.shape, jnp.float32),
        ranks=None if config.order is None else initial_ranks(initial != PAD_ID),
    )


def _writable(state: RefinementState, inside: Array, config: Refinement) -> Array | None:
    """The positions that a step may write, [N, L] bool; None for all."""
    if config.order is not None:
        return state.ranks != KNOWN
    # Whatever was remasked, the EOS at the last position stays.
    return None if state.remasked is None else before_last(inside) & state.remasked


def _where_writable(
    state: RefinementState, proposal: Array, log_probs: Array, inside: Array, writable: Array | None
) -> tuple[Array, Array]:
    """What a step wrote, and elsewhere what stood there; None is writable everywhere. All are [N, L]."""
    proposal, log_probs = jnp.where(inside, proposal, PAD_ID), jnp.where(inside, log_probs, 0.0)
    if writable is None:
        return proposal, log_probs
    return jnp.where(writable, proposal, state.proposal), jnp.where(writable, log_probs, state.log_probs)


def refinement_step(
    logits_fn: LogitsFn,
    state: RefinementState,
    initial: Array,
    inside: Array,
    config: Refinement,
    limit: Array | int,
    *,
    first: bool = False,
    keys: Array | None = None,
    hypotheses: int = 1,
    num_pieces: int | None = None,
) -> tuple[RefinementState, StepOutput | None]:
    """One decoder pass over every row, of `limit` ones at most, and what it said; see `refine` and `go_on`.

    Nothing is told of what it said where only some positions may have been decoded. The very first step decodes all.
    """
    state = _called_back(state, config)
    written, output, logits_sum = written_by(
        logits_fn, state, inside, config, limit, first=first, keys=keys, hypotheses=hypotheses
    )
    writable = _writable(state, inside, config)
    proposal, log_probs = _where_writable(state, written.proposal, written.log_probs, inside, writable)
    same = proposal == state.proposal
    seen, credit = with_credit(state, same, log_probs, config)
    rejecter = None if output is None else output.rejecter_logits
    view = StepView(proposal, seen, inside, state.step, limit, rejecter, state.remasked, written.entropy)
    remasked = config.remask(view) if state.clamped is None else config.remask(view) & ~state.clamped
    noise = noise_of_step(keys, state.step, hypotheses, inside, num_pieces) if config.replace.needs_noise else None
    tokens = jnp.where(remasked, config.replace(ReplaceView(initial, written.read, logits_sum, noise)), proposal)

    ranks = None if config.order is None else config.order(view, state.ranks)
    # A position that is known, and that no step predicts, is as certain as can be.
    counted = inside if ranks is None else inside & writable
    stop_by = stop_view(written, tokens, remasked, state.remasked, log_probs, same.all(-1), counted, config)
    if ranks is not None:
        # Under other ranks the next step would observe other words.
        stop_by = stop_by.replace(settled=stop_by.settled & (ranks == state.ranks).all(-1))
    # Finished rows are held: their neighbours' further steps must never change them, or a translation
    # would depend on what else is in the batch.
    held = state.done[:, None]
    new = state.replace(
        step=state.step + 1,
        tokens=jnp.where(held, state.tokens, tokens),
        proposal=jnp.where(held, state.proposal, proposal),
        log_probs=jnp.where(held, state.log_probs, log_probs),
        done=state.done | config.stop(stop_by),
        steps_run=state.steps_run + ~state.done,
        remasked=jnp.where(held, state.remasked, remasked) if config.rewrite_only_remasked else None,
        logits_sum=logits_sum,
        read=None if state.read is None else written.read,
        memory=None if state.read is None else written.memory,
        credit=credit,
        conditioning=None if state.conditioning is None else output.conditioning,
        ranks=None if config.order is None else jnp.where(held, state.ranks, ranks),
    )
    if state.trace is not None:
        trace = state.trace.record(state.step, state.tokens, new.proposal, new.log_probs, output)
        new = new.replace(trace=trace)
    return new, output
