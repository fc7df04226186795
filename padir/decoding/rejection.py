"""Samplers that draw again what a verifier objects to, and locally constrained decoding (thesis, section 3.1).

All but the last are the loop of `blocks`. They differ in where a block ends, how many candidates of it are drawn, and
whether the first acceptable one goes on or the best:

    sampler               a block is        goes on
    RejectionSampling     the whole output  first acceptable candidate
    TokenwiseRejection    one token         first acceptable candidate
    BlockRejection        a `Block`         first acceptable candidate
    BestOf                the whole output  best of n
    BlockBestOf           a `Block`         best of n
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import jax
import jax.numpy as jnp
from flax import struct

from padir.checks import whole
from padir.decoding import blocks
from padir.decoding.blocks import Block, BlockPlan
from padir.decoding.children import ByPasses, children
from padir.decoding.generation import (
    Generated,
    PrefixStepFn,
    Rows,
    ValueFunction,
    Verifier,
    cut,
    draw,
    is_complete,
    last_tokens,
    put,
)
from padir.decoding.leaves import with_leaves
from padir.decoding.queries import Queries
from padir.decoding.sampling import Sampling, take
from padir.decoding.verifiers import check_threshold, rejects
from padir.errors import PadirError
from padir.types import Array, PyTree

PLAIN = Sampling(temperature=1.0)


class _BlockSampler:
    """What the samplers that are a loop over blocks have in common."""

    def __post_init__(self):
        owner = type(self).__name__
        for field in fields(self):
            name, value = field.name, getattr(self, field.name)
            if name in ("budget", "candidates", "max_trials") or (name == "max_blocks" and value is not None):
                whole(f"{owner}.{name}", value)
            elif name == "threshold":
                check_threshold(f"{owner}.threshold", value)
            elif name == "block" and not isinstance(value, Block):
                raise PadirError(f"{owner}.block: {value!r} is not a Block(); Block(size=8) has 8 tokens")
        _check_sampling(owner, self.sampling)
        if self.sampling.temperature == 0.0:
            raise PadirError(f"{owner}.sampling: greedy draws are all equal; set a Sampling.temperature")

    def generate(self, step_fn: PrefixStepFn, cache: PyTree, rows: Rows, judge: Verifier, key: Array) -> Generated:
        """Writes block after block until every row is complete or has failed.

        Args:
          step_fn: the generator.
          cache: with the prompts' keys and values, and room for START and L tokens.
          rows: prompts and limits, [N, …].
          judge: the verifier; it is asked, and its calls are counted, at the end of each candidate.
          key: [] randomness.

        Returns:
          The outputs. A row that has failed holds the blocks it has gone on with. Each candidate that is discarded
          counts as one backtrack.
        """
        return blocks.generate(self._plan, step_fn, cache, rows, judge, key)


def _check_sampling(owner: str, sampling: object) -> None:
    if not isinstance(sampling, Sampling):
        raise PadirError(f"{owner}.sampling: {sampling!r} is not a policy; choose one of Sampling()")


@with_leaves()
@dataclass(frozen=True)
class RejectionSampling(_BlockSampler):
    """Draws whole outputs until one is acceptable (Definition 3.1.4); its law is the generator's, given acceptance.

    Attributes:
      budget: queries of a row after which it fails.
      threshold: an output is rejected if its judgement lies below; None as of `Backtracking`.
      sampling: how tokens are drawn.
    """

    budget: int = 10_000
    threshold: float | None = None
    sampling: Sampling = PLAIN

    @property
    def _plan(self) -> BlockPlan:
        return BlockPlan(self.sampling, Block(), None, threshold=self.threshold, budget=self.budget)


@with_leaves()
@dataclass(frozen=True)
class TokenwiseRejection(_BlockSampler):
    """Draws each token until the prefix is acceptable (Definition 3.1.5).

    Attributes:
      max_trials: draws of one token after which the row fails; of a dead end, where nothing is acceptable, all do.
      threshold: a prefix is rejected if its judgement lies below; None as of `Backtracking`.
      sampling: how tokens are drawn.
    """

    max_trials: int = 1000
    threshold: float | None = None
    sampling: Sampling = PLAIN

    @property
    def _plan(self) -> BlockPlan:
        return BlockPlan(self.sampling, Block(size=1), self.max_trials, threshold=self.threshold)


@with_leaves()
@dataclass(frozen=True)
class BlockRejection(_BlockSampler):
    """Draws each block until the prefix at its end is acceptable.

    Attributes:
      block: where blocks end.
      max_trials: candidates for one block.
      keep_last: whether the last of them goes on although it is rejected; otherwise the row fails.
      max_blocks: blocks after which a row is complete; None for no limit.
      threshold: a prefix is rejected if its judgement lies below; None as of `Backtracking`.
      sampling: how tokens are drawn.
    """

    block: Block = Block(size=4)
    max_trials: int = 1000
    keep_last: bool = False
    max_blocks: int | None = None
    threshold: float | None = None
    sampling: Sampling = PLAIN

    @property
    def _plan(self) -> BlockPlan:
        return BlockPlan(
            self.sampling,
            self.block,
            self.max_trials,
            threshold=self.threshold,
            keep_last=self.keep_last,
            max_blocks=self.max_blocks,
        )


@with_leaves()
@dataclass(frozen=True)
class BestOf(_BlockSampler):
    """Draws several outputs and returns the one judged best, the first of equals. It never fails.

    Attributes:
      candidates: outputs drawn for each row.
      sampling: how tokens are drawn.
    """

    candidates: int = 4
    sampling: Sampling = PLAIN

    @property
    def _plan(self) -> BlockPlan:
        return BlockPlan(self.sampling, Block(), self.candidates, best=True)


@with_leaves()
@dataclass(frozen=True)
class BlockBestOf(_BlockSampler):
    """Draws several candidates of each block and goes on with the one judged best, the first of equals.

    Attributes:
      block: where blocks end. In the authors' release a block is a line of at least 3 tokens, `Block(delimiters=…,
        shortest=3)`. A candidate that is cut off by the row's limit takes part like any other; there it is dropped.
      candidates: candidates of each block.
      max_blocks: blocks after which a row is complete; None for no limit.
      sampling: how tokens are drawn.
    """

    block: Block = Block(size=4)
    candidates: int = 4
    max_blocks: int | None = None
    sampling: Sampling = PLAIN

    @property
    def _plan(self) -> BlockPlan:
        return BlockPlan(self.sampling, self.block, self.candidates, best=True, max_blocks=self.max_blocks)


@with_leaves()
@dataclass(frozen=True)
class LocallyConstrained:
    """Draws each token among those after which the prefix is acceptable; each is a query, and none is erased.

    The law is that of `TokenwiseRejection`, unless `sampling` takes some of the likeliest tokens only: they are then
    the likeliest acceptable ones. A row fails where no token is acceptable.

    Attributes:
      threshold: a continuation is rejected if its judgement lies below; None as of `Backtracking`.
      sampling: how tokens are drawn among the acceptable ones.
    """

    threshold: float | None = None
    sampling: Sampling = PLAIN

    def __post_init__(self):
        check_threshold("LocallyConstrained.threshold", self.threshold)
        _check_sampling("LocallyConstrained", self.sampling)

    def generate(
        self, step_fn: PrefixStepFn, cache: PyTree, rows: Rows, judge: ValueFunction | ByPasses, key: Array
    ) -> Generated:
        """Writes token after token until every row is complete or at a dead end.

        Args:
          step_fn: the generator.
          cache: with the prompts' keys and values, and room for START and L tokens.
          rows: prompts and limits, [N, …].
          judge: what judges all continuations of a prefix at once, or `ByPasses`. Each that the generator allows counts
            as a call.
          key: [] randomness.

        Returns:
          The outputs. What a row that has failed holds is acceptable.
        """
        size = len(rows.live)
        first = ConstrainedState(
            tokens=rows.tokens,
            lengths=rows.prompt_lengths,
            score=jnp.zeros((size,), jnp.float32),
            done=~rows.live | is_complete(rows.tokens, rows.prompt_lengths, rows.limits),
            failed=jnp.zeros((size,), bool),
            queries=Queries.none(size),
            batch_steps=jnp.int32(0),
            cache=cache,
        )

        def step(state: ConstrainedState) -> ConstrainedState:
            """One pass: appends an acceptable token to every row that has one."""
            log_probs, features, cache = step_fn(last_tokens(state.tokens, state.lengths), state.lengths, state.cache)
            running, possible = ~state.done, log_probs > -jnp.inf
            prefixes = state.tokens, state.lengths, rows.limits
            judgements, passes, judged = children(judge, step_fn, cache, *prefixes, features, log_probs)
            fine = possible & ~rejects(judgements, self.threshold)
            failed = running & ~fine.any(axis=-1)
            writing = running & ~failed
            account = state.queries
            allowed = jnp.where(fine, log_probs, -jnp.inf)
            token = draw(self.sampling, allowed, key, rows.sample_ids, account.queries)[0]
            tokens, lengths = put(state.tokens, state.lengths, token, writing), state.lengths + writing
            return ConstrainedState(
                tokens=tokens,
                lengths=lengths,
                score=state.score + jnp.where(writing, take(log_probs, token[:, None])[:, 0], 0.0),
                done=state.done | failed | is_complete(tokens, lengths, rows.limits),
                failed=state.failed | failed,
                queries=account.replace(
                    queries=account.queries + writing,
                    verifier_calls=account.verifier_calls + jnp.where(running, judged, 0),
                    decoder_passes=account.decoder_passes + running * (1 + passes),
                ),
                batch_steps=state.batch_steps + 1 + passes,
                cache=cache,
            )

        state = jax.lax.while_loop(lambda state: ~state.done.all(), step, first)
        return Generated(
            cut(state.tokens, state.lengths), state.lengths, state.failed, state.score, state.queries, state.batch_steps
        )


@struct.dataclass
class ConstrainedState:
    """The carry of `LocallyConstrained`: fields of `Generated`, the cache of the generator, and

    Attributes:
      done: [N] bool, rows that are complete or have failed.
    """

    tokens: Array
    lengths: Array
    score: Array
    done: Array
    failed: Array
    queries: Queries
    batch_steps: Array
    cache: PyTree
