"""A user's constraint as a translator applies it: tables of each batch, and whether an output obeys."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import jax

from padir.data.constraints import Constraint
from padir.data.piece_automata import PieceConstraint, PieceTable
from padir.data.vocabulary import Vocabulary
from padir.decoding import constrained
from padir.decoding.automaton import MOST_ENTRIES, Automaton, padded_size
from padir.decoding.beam import BeamSearch
from padir.decoding.refinement import Refinement
from padir.errors import PadirError
from padir.models.kinds import DecodeConfig, Model

# Most entries of the table of one source, so that a batch holds at least a few.
_MOST_OF_SOURCE = MOST_ENTRIES // 8


class SourceConstraint:
    """What each source's translation must obey.

    Attributes:
      constraint: as the user gave it.
    """

    def __init__(self, constraint: Constraint, vocabulary: Vocabulary, model: Model):
        """Compiles a constraint.

        Raises:
          PadirError: no output of the model can obey (see `PieceConstraint`), or the vocabulary changes a term so that
            it would be found in no source.
        """
        self.constraint = constraint
        self._vocabulary = vocabulary
        self._vocab_size = model.ids.vocab_size
        self._longest = model.max_target_length
        self._compiled = PieceConstraint(constraint, vocabulary.spellings(), self._longest)
        self._check_sources()
        self._nothing = PieceTable.without_output(vocabulary.num_pieces)
        # The last automaton of a batch whose rows had the same table: (the table, rows, the automaton).
        self._last: tuple[PieceTable, int, Automaton] | None = None

    def check(self, decode: DecodeConfig) -> None:
        """Raises PadirError if a constraint does not go with this decode configuration."""
        if isinstance(decode, Refinement):
            constrained.check_refinement(decode)
        elif isinstance(decode, BeamSearch):
            constrained.check(decode)

    def tables(self, sources: Sequence[Sequence[int]]) -> list[PieceTable]:
        """What each source's translation must obey; sources are token ids.

        A source with too many terms gets a table that no output obeys, and a warning is printed: no other source must
        suffer for it.
        """
        return [self._table(self._vocabulary.decode(source)) for source in sources]

    def _table(self, source: str) -> PieceTable:
        try:
            table = self._compiled.of_source(source)
            states, classes = padded_size([table])
            if states * classes > _MOST_OF_SOURCE:
                raise PadirError(f"{self.constraint.name}: terms: {states} states and {classes} classes are too many")
        except PadirError as error:
            count = len(self.constraint.demanded(source))
            print(f"a source with {count} terms gets no translation: {error}", file=sys.stderr)
            return self._nothing
        return table

    def most_rows(self, tables: Sequence[PieceTable]) -> int:
        """How many rows a batch can have if all tables are as large as the largest."""
        if all(table is tables[0] for table in tables):
            return sys.maxsize  # It is kept once.
        states, classes = padded_size(tables)
        return max(1, MOST_ENTRIES // (states * classes))

    def automaton(self, tables: Sequence[PieceTable], rows: int, room: tuple[int, int]) -> Automaton:
        """The automaton of a batch of `rows` rows, given the tables of its sources, as arrays.

        `room` is the `padded_size` of the tables of all batches, so that one program serves them.
        """
        is_one = all(table is tables[0] for table in tables)
        if is_one and self._last is not None and self._last[0] is tables[0] and self._last[1] == rows:
            return self._last[2]
        made = Automaton.of(tables, rows, vocab_size=self._vocab_size, longest=self._longest, room=room)
        if is_one:
            # A pattern or forbidden phrases are the same in the next batch: they are brought to the device once.
            made = jax.device_put(made)
            self._last = tables[0], rows, made
        return made

    def met(self, source: Sequence[int], text: str) -> bool:
        """Whether a translation of a source (token ids) obeys."""
        return self.constraint.met(self._vocabulary.decode(source), text)

    def _check_sources(self) -> None:
        for source, _ in self.constraint.terms:
            # Terms are looked for in what the model reads.
            read = self._vocabulary.decode(self._vocabulary.encode(source))
            if not self.constraint.stands_in(source, read):
                raise PadirError(
                    f"{self.constraint.name}: terms: {source!r} becomes {read!r} in this model's vocabulary, so that "
                    "no source would have the term; leave it out, or write it as the vocabulary does"
                )
