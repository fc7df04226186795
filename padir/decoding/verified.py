"""Verified decoding: a parallel model drafts, an autoregressive model reads the draft in one pass and corrects it.

Each round, the verifier computes the distributions of a window of positions at once, given the draft on their left. The
longest run of tokens that it accepts is kept, its own token replaces the next one, and what follows is drafted again
given what is kept. With `AcceptGreedy` the output is that of the verifier's greedy decoding, whatever the draft: a bad
draft costs rounds, never quality (Stern et al. 2018; Xia et al. 2023).

The loop takes functions, never models, so it can be tested with tables.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import struct

from padir import rng
from padir.checks import finite, whole
from padir.decoding import acceptance, initial, policies
from padir.decoding.acceptance import DRAW, AcceptGreedy, AcceptPolicy
from padir.decoding.autoregressive import START_ID, TargetRoom
from padir.decoding.initial import StartPolicy, StartWithMask
from padir.decoding.policies import check_buckets
from padir.decoding.sampling import take
from padir.errors import PadirError
from padir.nn import cache as kv_cache
from padir.nn.cache import DecoderCache
from padir.nn.masks import length_mask
from padir.types import EOS_ID, PAD_ID, Array

# lengths [N] int32 → what the drafter reads at first [N, R] int32, 0 beyond each length
StartFn = Callable[[Array], Array]
# (tokens [N, R] int32, a `DecoderCache.position`, W) → the drafter's logits of W positions there [N, W, V]
DraftFn = Callable[[Array, Array, int], Array]
# (inputs [N, W] int32, cache whose `position` says where they are) → (log-probabilities [N, W, V], cache)
VerifyFn = Callable[[Array, DecoderCache], tuple[Array, DecoderCache]]


@dataclass(frozen=True)
class Verified(TargetRoom):
    """Everything static about verified decoding; hashable, so `jit` takes it whole.

    Attributes:
      max_length_ratio, max_length_offset: see `TargetRoom`; as for greedy decoding by the verifier.
      num_hypotheses: drafts of the first round, unless lengths are given; they have the likeliest lengths. The verifier
        reads all of them, and the one of which it accepts the most tokens goes on.
      length_beam: drafts of every later round; their lengths lie around that of the draft that went on.
      draft_steps: decoder passes of the drafter in the first round.
      redraft_steps: decoder passes of the drafter in every later round.
      window: positions that a later round drafts and verifies. The first round takes all.
      start: what the drafter reads at first, and in later rounds behind what is final; see `Refinement`.
      accept: which drafted tokens stand.
      alpha: scores are the verifier's summed log-probability over length^alpha.
      target_buckets: padded lengths of drafts; see `Refinement`.
    """

    num_hypotheses: int = 1
    length_beam: int = 1
    draft_steps: int = 1
    redraft_steps: int = 1
    window: int = 8
    start: StartPolicy = StartWithMask()
    accept: AcceptPolicy = AcceptGreedy()
    alpha: float = 1.0
    target_buckets: tuple[int, ...] = (8, 16, 24, 32, 48, 64, 96, 128)

    def __post_init__(self):
        super().__post_init__()
        object.__setattr__(self, "target_buckets", tuple(self.target_buckets))
        finite("Verified.alpha", self.alpha)
        for name in ("num_hypotheses", "length_beam", "draft_steps", "redraft_steps", "window"):
            whole(f"Verified.{name}", getattr(self, name))
        check_buckets("Verified", self.target_buckets)
        policies.check_one("Verified.start", self.start, initial.POLICIES)
        policies.check_one("Verified.accept", self.accept, acceptance.POLICIES)
        for name in ("num_hypotheses", "length_beam"):
            if self.accept.needs_draft_logits and getattr(self, name) > 1:
                raise PadirError(
                    f"Verified.{name}: to go on with the best of several drafts would change the law of "
                    f"{type(self.accept).__name__}; set it to 1"
                )

    @property
    def rows_per_source(self) -> int:
        """Decoder rows that a source takes at most."""
        return max(self.num_hypotheses, self.length_beam)


@struct.dataclass
class VerifiedState:
    """The carry of the loop, of B sources, or of all drafts N = B·K in the middle of a round.

    Attributes:
      tokens: [B, R] int32, R the most tokens that a target may have: `accepted` final ones, then the draft if any, else
        0.
      accepted: [B] int32, how many tokens are final.
      lengths: [B] int32, tokens that final ones and draft make together, EOS counted.
      score: [B] float32, summed log-probability of final tokens by the verifier.
      done: [B] bool, rows that are complete.
      rounds: [B] int32, passes of the verifier that each row took part in.
      drafts: [B] int32, passes of the drafter likewise.
      batch_steps: [] int32, passes of both that the batch ran.
      cache: the verifier's keys and values; its position is not kept.
    """

    tokens: Array
    accepted: Array
    lengths: Array
    score: Array
    done: Array
    rounds: Array
    drafts: Array
    batch_steps: Array
    cache: DecoderCache


def initial_state(live: Array, cache: DecoderCache, room: int) -> VerifiedState:
    """The state before the first round.

    Args:
      live: [B] bool, False for rows that only pad the batch: they count as complete from the start.
      cache: the verifier's, empty, with room for R tokens in each of B rows.
      room: R.
    """
    nothing = jnp.zeros(len(live), jnp.int32)
    return VerifiedState(
        tokens=jnp.full((len(live), room), PAD_ID, jnp.int32),
        accepted=nothing,
        lengths=nothing,
        score=jnp.zeros(len(live), jnp.float32),
        done=~live,
        rounds=nothing,
        drafts=nothing,
        batch_steps=jnp.zeros((), jnp.int32),
        cache=cache,
    )


@dataclass(frozen=True)
class Job:
    """What does not change from round to round.

    Attributes:
      start_fn, draft_fn, verify_fn: what the two models do.
      config: steps and policies.
      limits: [B] int32, most tokens that each row may have, EOS counted; at most R.
      keys: [B], randomness of each row; unused by policies that are not random.
    """

    start_fn: StartFn
    draft_fn: DraftFn
    verify_fn: VerifyFn
    config: Verified
    limits: Array
    keys: Array | None = None


def rounds(job: Job, state: VerifiedState, lengths: Array, longest: Array, width: int) -> VerifiedState:
    """Drafts and verifies until every row is complete or has outgrown its draft.

    Args:
      job: models and settings.
      state: `initial_state`.
      lengths: [B, num_hypotheses] int32, tokens of the first drafts, EOS counted.
      longest: [B] int32, most tokens that each row's draft may have. It depends on the row alone, so that what becomes
        of a row does not depend on its neighbours.
      width: the largest of these, static.

    Returns:
      A state for `finish`.
    """
    config = job.config
    beam = config.length_beam
    offsets = jnp.array(sorted(range(-(beam // 2), (beam - 1) // 2 + 1), key=abs))

    def held(state: VerifiedState) -> Array:
        return state.done | (state.accepted >= longest)

    def running(carry: tuple[VerifiedState, Array]) -> Array:
        return ~held(carry[0]).all()

    def go_on(carry: tuple[VerifiedState, Array]) -> tuple[VerifiedState, Array]:
        state, number = carry
        # There is at least a token to come, if only EOS.
        least = jnp.minimum(state.accepted + 1, longest)[:, None]
        around = jnp.clip(jnp.maximum(state.lengths[:, None], least) + offsets, least, longest[:, None])
        return _round(job, state, around, longest, held(state), config.redraft_steps, window, number), number + 1

    window = min(config.window, width)
    state = _round(job, state, lengths, longest, state.done, config.draft_steps, width, 0, first=True)
    return jax.lax.while_loop(running, go_on, (state, jnp.ones((), jnp.int32)))[0]


def finish(job: Job, state: VerifiedState) -> VerifiedState:
    """Completes rows that have outgrown their drafts token by token, as the verifier does alone; see `rounds`."""

    def step(carry: tuple[VerifiedState, Array]) -> tuple[VerifiedState, Array]:
        state, number = carry
        state = state.replace(lengths=state.accepted)
        held, keys = state.done, _of_round(job.keys, number)
        return _verified(job, state, _window(state, 1), 1, job.limits, job.limits, held, None, keys), number + 1

    first = (state, jnp.zeros((), jnp.int32))
    return jax.lax.while_loop(lambda carry: ~carry[0].done.all(), step, first)[0]


def _of_round(keys: Array | None, number: Array | int) -> Array | None:
    return None if keys is None else rng.folded(keys, number)


def _round(
    job: Job,
    state: VerifiedState,
    lengths: Array,
    longest: Array,
    held: Array,
    passes: int,
    size: int,
    number: Array | int,
    *,
    first: bool = False,
) -> VerifiedState:
    """Drafts K targets of `lengths` [B, K], verifies `size` positions of each, goes on with the best of each source.

    They are the positions behind what is final, which in the `first` round is nothing. Rows that are `held` stay as
    they are. `number` is that of the round, for its random numbers.
    """
    drafts, keys = lengths.shape[1], _of_round(job.keys, number)
    wide = _repeated(state, drafts).replace(lengths=lengths.reshape(-1))
    limits, longest, held = (jnp.repeat(field, drafts) for field in (job.limits, longest, held))
    # Where the positions lie in one piece, fields are read and written as such.
    position = jnp.zeros((), jnp.int32) if first else _window(wide, size)
    places = wide.accepted[:, None] + jnp.arange(size)

    start = job.start_fn(wide.lengths)
    tokens, logits = jnp.where(length_mask(wide.accepted, start.shape[1]), wide.tokens, start), None
    for step in range(passes):
        logits = job.draft_fn(tokens, position, size)
        of_pass = None if keys is None else rng.folded(rng.folded(keys, DRAW), step)
        drawn, _ = job.config.accept.sampling(logits, of_pass)
        drawn = jnp.where(places < wide.lengths[:, None], drawn, kv_cache.read(tokens, position, size))
        tokens = kv_cache.write(tokens, drawn, position)
    wide = wide.replace(
        tokens=tokens,
        drafts=wide.drafts + jnp.where(held, 0, passes),
        batch_steps=wide.batch_steps + passes,
    )
    logits = logits if job.config.accept.needs_draft_logits else None
    wide = _verified(job, wide, position, size, limits, longest, held, logits, keys)
    if drafts == 1:
        return wide
    best = wide.accepted.reshape(-1, drafts).argmax(axis=1) + jnp.arange(len(state.done)) * drafts
    return _rows(wide, lambda field: field[best])


def _repeated(state: VerifiedState, drafts: int) -> VerifiedState:
    return state if drafts == 1 else _rows(state, lambda field: jnp.repeat(field, drafts, axis=0))


def _rows(state: VerifiedState, change: Callable[[Array], Array]) -> VerifiedState:
    """The state with every field [rows, …] changed."""
    return jax.tree.map(lambda field: change(field) if field.ndim else field, state)


def _window(state: VerifiedState, size: int) -> Array:
    """The first `size` positions that are not final: [N, size] int32. Those beyond the room all are its last one."""
    return jnp.minimum(state.accepted[:, None] + jnp.arange(size), state.tokens.shape[1] - 1)


def _verified(
    job: Job,
    state: VerifiedState,
    position: Array,
    size: int,
    limits: Array,
    longest: Array,
    held: Array,
    draft_logits: Array | None,
    keys: Array | None,
) -> VerifiedState:
    """One pass of the verifier over `size` positions behind what is final, at `position`, of all rows but `held` ones.

    No token becomes final from position `longest` [N] on.
    """
    room = state.tokens.shape[1]
    left = jnp.pad(state.tokens[:, :-1], ((0, 0), (1, 0)), constant_values=START_ID)
    inputs = kv_cache.read(left, position, size)
    log_probs, cache = job.verify_fn(inputs, state.cache.replace(position=position))
    places = state.accepted[:, None] + jnp.arange(size)
    drafted = (places < state.lengths[:, None]) & (places < room)
    old = kv_cache.read(state.tokens, position, size)
    draft = jnp.where(drafted, old, PAD_ID)
    accepted, replacement = job.config.accept(log_probs, draft, draft_logits, keys)

    # Final are the tokens before the first rejected one and its replacement, but nothing behind EOS or the limit.
    run = jnp.cumprod(accepted & drafted, axis=1).astype(bool)
    kept = jnp.where(run, draft, replacement)
    ends = kept == EOS_ID
    reached = jnp.pad(run & ~ends, ((0, 0), (1, 0)), constant_values=True)[:, :-1]
    end = jnp.minimum(limits, longest)
    final = jnp.cumprod(reached, axis=1).astype(bool) & (places < end[:, None]) & ~held[:, None]
    said = take(log_probs, kept[..., None])[..., 0]
    total = state.accepted + final.sum(axis=1)
    tokens = kv_cache.write(state.tokens, jnp.where(final, kept, old), position)
    return state.replace(
        tokens=jnp.where(length_mask(total, room), tokens, PAD_ID),
        accepted=total,
        score=state.score + jnp.where(final, said, 0.0).sum(axis=1),
        done=state.done | (final & ends).any(axis=1) | (total >= limits),
        rounds=state.rounds + ~held,
        batch_steps=state.batch_steps + 1,
        cache=cache.replace(position=state.cache.position),
    )
