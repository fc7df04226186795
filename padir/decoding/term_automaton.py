"""Decoding under many terms at once: an automaton that reads, and bits for the terms that have been written.

It offers what `automaton.Automaton` offers to decodes from left to right. A row's state is a pair (state of the table,
bits of the terms that are certain). What it says of the fewest tokens still to write is an upper bound; following the
way that it counts makes it smaller with every token, so that no row runs into a dead end.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from flax import struct

from padir.data.piece_automata import ENDED, START, UNREACHABLE, PieceTable
from padir.data.term_automata import TermTable
from padir.decoding.automaton import Automaton
from padir.types import Array


@struct.dataclass
class TermAutomaton:
    """The tables of a batch, padded to common sizes: A tables, S states, C classes of tokens, T terms, N rows.

    Attributes:
      reading: what reads; its `distances` are those to an end, whatever has been written.
      gains: [A, S, C] int32, bits of the terms that a token makes certain.
      ends: [A, S] int32, bits of the terms that also stand if the text ends there.
      nearest: [A, S, T] int32, the fewest tokens that make each term certain.
      costs: [A, T] int32, the most tokens that each may take from anywhere; 0 where there are fewer terms.
      last: [A] int32, the most tokens to an end from anywhere.
      every: [A] int32, the bits of all terms.
    """

    reading: Automaton
    gains: Array
    ends: Array
    nearest: Array
    costs: Array
    last: Array
    every: Array

    @classmethod
    def of(
        cls,
        tables: Sequence[TermTable | PieceTable],
        rows: int,
        *,
        vocab_size: int,
        longest: int,
        room: tuple[int, int] = (0, 0),
        terms: int = 0,
    ) -> TermAutomaton:
        """Puts the tables of a batch beside each other, as numpy arrays; see `Automaton.of`.

        Args:
          tables: one per source.
          rows, vocab_size, longest, room: as there.
          terms: least T, so that one program serves other batches too.

        Raises:
          PadirError: they are too large to hold.
        """
        tables = [table if isinstance(table, TermTable) else TermTable.of(table) for table in tables]
        # One for each row, in any case: the bits of rows differ, even where they share a table.
        tables = [*tables, *[tables[0]] * (rows - len(tables))]
        plain = [PieceTable(table.classes, table.steps, table.distances) for table in tables]
        reading = Automaton.of(plain, rows, vocab_size=vocab_size, longest=0, room=room)
        count, states, classes = reading.steps.shape
        tables = tables[:count]
        terms = max(terms, 1, *(table.nearest.shape[1] for table in tables))
        made = cls(
            reading=reading,
            gains=np.zeros((count, states, classes), np.int32),
            ends=np.zeros((count, states), np.int32),
            nearest=np.full((count, states, terms), UNREACHABLE, np.int32),
            costs=np.zeros((count, terms), np.int32),
            last=np.array([table.last() for table in tables], np.int32),
            every=np.array([(1 << table.nearest.shape[1]) - 1 for table in tables], np.int32),
        )
        for number, table in enumerate(tables):
            size, width = table.gains.shape
            made.gains[number, :size, :width] = table.gains
            made.ends[number, :size] = table.ends
            made.nearest[number, :size, : table.nearest.shape[1]] = table.nearest
            made.costs[number, : table.nearest.shape[1]] = table.costs()
        return made

    @property
    def rows(self) -> int:
        """N."""
        return self.reading.rows

    def keep(self, rows: Array) -> TermAutomaton:
        """The automata of some rows, [M] int32; a row may be kept several times."""
        return self.replace(reading=self.reading.keep(rows))

    def repeat(self, count: int) -> TermAutomaton:
        """Each row `count` times, side by side."""
        return self.replace(reading=self.reading.repeat(count))

    def starts(self) -> Array:
        """The state of each row before its first token: [N, 2] int32."""
        return jnp.tile(jnp.array([START, 0], jnp.int32), (self.rows, 1))

    def after(self, states: Array, tokens: Array) -> Array:
        """The states that tokens lead to: [N, 2], [N] → [N, 2] int32."""
        which = self.reading.which
        gained = self.gains[which, states[:, 0], self.reading.classes[which, tokens]]
        return jnp.stack([self.reading.after(states[:, 0], tokens), states[:, 1] | gained], axis=1)

    def distances_after(self, states: Array) -> Array:
        """At most how many tokens are still to write after each token: states [N, 2] → [N, V] int32; 0 after EOS."""
        which = self.reading.which
        of_class = self._distances(
            self.reading.steps[which, states[:, 0]], states[:, 1, None] | self.gains[which, states[:, 0]]
        )
        return jnp.take_along_axis(of_class, self.reading.classes[which], axis=1)

    def fewest(self) -> Array:
        """At most how many tokens the shortest output has, EOS counted: [N] int32; `UNREACHABLE` or more if none."""
        starts = self.starts()
        return self._distances(starts[:, :1], starts[:, 1:])[:, 0]

    def _distances(self, states: Array, bits: Array) -> Array:
        """At most how many tokens are still to write: states of the table, bits [N, k] → [N, k] int32.

        The nearest of the terms that are left comes first; each other may then take what it takes from anywhere.
        """
        which = self.reading.which[:, None]
        left = self.every[which] & ~bits
        to_end = self.reading.distances[which, states]
        of_term = (left[..., None] >> jnp.arange(self.costs.shape[1])) & 1 > 0
        costs = self.costs[which]
        rest = jnp.where(of_term, costs, 0).sum(axis=-1)
        nearest = jnp.where(of_term, self.nearest[which, states] - costs, UNREACHABLE).min(axis=-1)
        with_terms = jnp.minimum(rest + nearest + self.last[which], UNREACHABLE)
        # A phrase at the very end stands, although one letter more would undo it.
        can_end = (to_end == 1) & (left & ~self.ends[which, states] == 0)
        with_terms = jnp.where(can_end, 1, jnp.where(states == ENDED, UNREACHABLE, with_terms))
        return jnp.where(left == 0, to_end, with_terms)
