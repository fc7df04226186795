"""The hypotheses of a batch, and how to go on with some of them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct

from padir.decoding.automaton import Automaton
from padir.decoding.state import Candidates
from padir.nn.decode_plan import DecodePlan
from padir.types import Array


@struct.dataclass
class HypothesisRows:
    """The hypotheses that are being refined, N = B·K of them.

    Attributes:
      start: [N, L] int32, what each began with.
      inside: [N, L] bool, positions within each length.
      plan: what all steps share.
      lengths, length_log_probs: [B, K], of each hypothesis and its log-probability by the length predictor.
      candidates: what each position chooses among, or None for all tokens.
      automaton: of N rows, what each must obey; None without a constraint.
      keys: [B], randomness of each source; None where nothing is drawn.
    """

    start: Array
    inside: Array
    plan: DecodePlan
    lengths: Array
    length_log_probs: Array
    candidates: Candidates | None = None
    automaton: Automaton | None = None
    keys: Array | None = None

    def keep(self, rows: Array) -> HypothesisRows:
        """Some of them: rows [M] int32, as many of each source."""

        def of_sources(field: Array) -> Array:
            return field.reshape(-1)[rows].reshape(field.shape[0], -1)

        return HypothesisRows(
            start=self.start[rows],
            inside=self.inside[rows],
            plan=self.plan.keep(rows),
            lengths=of_sources(self.lengths),
            length_log_probs=of_sources(self.length_log_probs),
            candidates=jax.tree.map(lambda field: field[rows], self.candidates),
            automaton=self._automaton_of(rows),
            keys=self.keys,
        )

    def keep_sources(self, sources: Array) -> tuple[HypothesisRows, Array]:
        """All of some sources, [M] int32, and which rows these are, [M·K] int32."""
        hypotheses = self.lengths.shape[1]
        rows = (sources[:, None] * hypotheses + jnp.arange(hypotheses)).reshape(-1)
        kept = HypothesisRows(
            start=self.start[rows],
            inside=self.inside[rows],
            plan=self.plan.keep_sources(sources, rows),
            lengths=self.lengths[sources],
            length_log_probs=self.length_log_probs[sources],
            candidates=jax.tree.map(lambda field: field[rows], self.candidates),
            automaton=self._automaton_of(rows),
            keys=None if self.keys is None else self.keys[sources],
        )
        return kept, rows

    def _automaton_of(self, rows: Array) -> Automaton | None:
        return None if self.automaton is None else self.automaton.keep(rows)
