"""Tokenwise rejection sampling with backtracking (thesis, Algorithm 1).

Each drawn token is checked. If the verifier objects, the last tokens are erased and written anew, greedily: errors come
from unlikely prefixes, and greedy tokens make the prefix likely again. This happens a limited number of times; then the
rest is drawn without checks. So a row's queries are at most its room plus quota · stride.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import struct

from padir.checks import whole
from padir.decoding.generation import Generated, PrefixStepFn, Rows, Verifier, cut, draw, is_complete, last_tokens, put
from padir.decoding.leaves import with_leaves
from padir.decoding.queries import Queries
from padir.decoding.sampling import Sampling, argmax, take
from padir.decoding.verifiers import check_threshold, rejects
from padir.errors import PadirError
from padir.types import Array, PyTree

# Of `Backtracking.rewrite`.
ERASED, STRIDE, EARLY = "erased", "stride", "early"


@with_leaves("quota", "stride", "threshold", "sampling", "erasable_prompt")
@dataclass(frozen=True)
class Backtracking:
    """The settings of sampling with backtracking; hashable, and a pytree whose numbers are leaves.

    Where the printed algorithm leaves a choice open, or the authors' released program differs from it, there is an
    option; defaults are what we consider right.

    Attributes:
      quota: how often a row may backtrack (Q); 0 is plain sampling.
      stride: tokens erased each time (B), the one just drawn included, or fewer where there are no more.
      threshold: a prefix is rejected if its judgement lies below; None takes the verifier's own, 0.5 if it has none.
      sampling: how tokens are drawn.
      erasable_prompt: how many of the prompt's last tokens may be erased, too. Printed: 0. Release: a setting.
      rewrite_greedily: whether what was erased is rewritten by the likeliest tokens, as printed; False has it drawn and
        checked like any other text (the thesis's ablation).
      rewrite: how many tokens are rewritten greedily after a backtrack. "erased": as many as were erased. "stride":
        always `stride`, also where the text was shorter (printed). "early": those among the first stride · backtracks
        so far of the generated text, counted from the prompt's end (release); after a late backtrack these are none.
      check_rewritten: whether rewritten tokens are checked and may be erased again, as in the release. Printed: no.
      end_in_rewrite: whether an EOS among rewritten tokens ends a row. Printed: no, rewriting goes on behind it, and
        the row ends if the last of them is EOS. Release: for code only. The row's limit always ends it.
      check_last: whether the last token, EOS or the one at the limit, is checked (printed). Release: no.
    """

    quota: int = 4
    stride: int = 4
    threshold: float | None = None
    sampling: Sampling = Sampling(temperature=1.0)
    erasable_prompt: int = 0
    rewrite_greedily: bool = True
    rewrite: str = ERASED
    check_rewritten: bool = False
    end_in_rewrite: bool = True
    check_last: bool = True

    def __post_init__(self):
        for name in ("quota", "erasable_prompt"):
            if getattr(self, name) != 0:
                whole(f"Backtracking.{name}", getattr(self, name), "or 0")
        whole("Backtracking.stride", self.stride)
        check_threshold("Backtracking.threshold", self.threshold)
        if not isinstance(self.sampling, Sampling):
            raise PadirError(f"Backtracking.sampling: {self.sampling!r} is not a policy; choose one of Sampling()")
        if self.rewrite not in (ERASED, STRIDE, EARLY):
            raise PadirError(f"Backtracking.rewrite: {self.rewrite!r} is not {ERASED!r}, {STRIDE!r} or {EARLY!r}")
        of_rewriting = self.rewrite, self.check_rewritten, self.end_in_rewrite
        if not self.rewrite_greedily and of_rewriting != (ERASED, False, True):
            raise PadirError(
                "Backtracking: rewrite, check_rewritten and end_in_rewrite say how text is rewritten greedily; leave "
                "them alone if rewrite_greedily is False"
            )

    def most_passes(self, room: int) -> int:
        """Decoder passes that a row takes at most if it may generate `room` tokens.

        Each token that is kept takes one, so does each that is erased, and each rejection. Erased prompt tokens count
        among the erased. The last pass lets the last token be checked.
        """
        return room + self.quota * (self.stride + 1) + 1

    def generate(self, step_fn: PrefixStepFn, cache: PyTree, rows: Rows, judge: Verifier, key: Array) -> Generated:
        """Writes token after token, and backtracks where the verifier objects, until every row is complete.

        Args:
          step_fn: the generator.
          cache: with the prompts' keys and values, and room for START and L tokens.
          rows: prompts and limits, [N, …].
          judge: the verifier. Its calls are counted where its judgement matters: while a row may still backtrack.
          key: [] randomness.

        Returns:
          The outputs; none has failed. Where erased prompt tokens were rewritten, `lengths` may be less than the
          prompt's, and the score includes the rewritten tokens.
        """
        size = len(rows.live)
        first = BacktrackingState(
            tokens=rows.tokens,
            lengths=rows.prompt_lengths,
            quota=jnp.full((size,), self.quota, jnp.int32),
            rewrite_left=jnp.zeros((size,), jnp.int32),
            unchecked=jnp.zeros((size,), bool),
            done=~rows.live | is_complete(rows.tokens, rows.prompt_lengths, rows.limits),
            scores=jnp.zeros(rows.tokens.shape, jnp.float32),
            queries=Queries.none(size),
            batch_steps=jnp.int32(0),
            cache=cache,
        )

        def step(state: BacktrackingState) -> BacktrackingState:
            """One pass: judges the last token of every row, then appends a token or erases some."""
            last = last_tokens(state.tokens, state.lengths)
            log_probs, features, cache = step_fn(last, state.lengths, state.cache)
            checked = ~state.done & state.unchecked & (state.quota > 0)
            rejected = checked & rejects(judge(state.tokens, state.lengths, features), self.threshold)
            account = state.queries
            account = account.replace(
                verifier_calls=account.verifier_calls + checked,
                decoder_passes=account.decoder_passes + ~state.done,
            )
            state = state.replace(cache=cache, queries=account, batch_steps=state.batch_steps + 1)
            # A rejected row writes nothing now: these are the log-probabilities behind what it erases.
            return self._erase(self._write(state, rows, log_probs, ~rejected, key), rows, rejected)

        state = jax.lax.while_loop(lambda state: ~state.done.all(), step, first)
        return Generated(
            tokens=cut(state.tokens, state.lengths),
            lengths=state.lengths,
            failed=jnp.zeros((size,), bool),
            score=cut(state.scores, state.lengths).sum(axis=-1),
            queries=state.queries,
            batch_steps=state.batch_steps,
        )

    def _is_complete(self, state: BacktrackingState, rows: Rows) -> Array:
        """Rows that end here, unless their last token is rejected: [N] bool."""
        complete = is_complete(state.tokens, state.lengths, rows.limits)
        if self.end_in_rewrite:
            return complete
        return complete & ((state.rewrite_left == 0) | (state.lengths >= rows.limits))

    def _write(
        self, state: BacktrackingState, rows: Rows, log_probs: Array, accepted: Array, key: Array
    ) -> BacktrackingState:
        """Appends a token to the `accepted` rows that are not complete, of log_probs [N, V]."""
        writing = ~state.done & accepted & ~self._is_complete(state, rows)
        rewriting = state.rewrite_left > 0
        # Each query has its own random numbers, used or not.
        drawn = draw(self.sampling, log_probs, key, rows.sample_ids, state.queries.queries)[0]
        token = jnp.where(rewriting, argmax(log_probs), drawn)
        score = take(log_probs, token[:, None])[:, 0]
        unchecked = writing & (self.check_rewritten | ~rewriting)
        state = state.replace(
            tokens=put(state.tokens, state.lengths, token, writing),
            scores=put(state.scores, state.lengths, score, writing),
            lengths=state.lengths + writing,
            rewrite_left=jnp.where(writing & rewriting, state.rewrite_left - 1, state.rewrite_left),
            queries=state.queries.replace(queries=state.queries.queries + writing),
        )
        complete = self._is_complete(state, rows)
        if not self.check_last:
            unchecked &= ~complete
        # What is not checked now is not checked later, so that a row ends once nothing can object to its last token.
        ends = accepted & complete & ~(unchecked & (state.quota > 0))
        return state.replace(unchecked=unchecked, done=state.done | ends)

    def _erase(self, state: BacktrackingState, rows: Rows, rejected: Array) -> BacktrackingState:
        """Takes the last tokens of `rejected` rows [N] away."""
        erasable = state.lengths - jnp.maximum(rows.prompt_lengths - self.erasable_prompt, 0)
        erased = jnp.where(rejected, jnp.minimum(self.stride, erasable), 0)
        lengths, quota = state.lengths - erased, state.quota - rejected
        if not self.rewrite_greedily:
            rewritten = jnp.zeros_like(erased)
        elif self.rewrite == ERASED:
            rewritten = erased
        elif self.rewrite == STRIDE:
            rewritten = jnp.full_like(erased, self.stride)
        else:
            rewritten = jnp.maximum(self.stride * (self.quota - quota) - (lengths - rows.prompt_lengths), 0)
        account = state.queries
        return state.replace(
            lengths=lengths,
            quota=quota,
            rewrite_left=jnp.where(rejected, rewritten, state.rewrite_left),
            queries=account.replace(backtracks=account.backtracks + rejected, erased=account.erased + erased),
        )


@struct.dataclass
class BacktrackingState:
    """The carry of the loop.

    Attributes:
      tokens: [N, L] int32; beyond a row's length stands what was erased.
      lengths: [N] int32, tokens of prompt and text so far.
      quota: [N] int32, backtracks left.
      rewrite_left: [N] int32, tokens still to be written greedily.
      unchecked: [N] bool, whether the verifier shall judge the last token.
      done: [N] bool, rows that are complete.
      scores: [N, L] float32, log-probability of each generated token.
      queries: what it has cost.
      batch_steps: [] int32, decoder passes of the whole batch.
      cache: of the generator.
    """

    tokens: Array
    lengths: Array
    quota: Array
    rewrite_left: Array
    unchecked: Array
    done: Array
    scores: Array
    queries: Queries
    batch_steps: Array
    cache: PyTree
