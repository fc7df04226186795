"""A user's constraint as a translator applies it: tables of each batch, and whether an output obeys."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import jax

from padir.data.constraints import Constraint
from padir.data.piece_automata import PieceConstraint, PieceTable
from padir.data.term_automata import MOST_TERMS, TermConstraint, TermTable
from padir.data.vocabulary import Vocabulary
from padir.decoding import constrained
from padir.decoding.automaton import MOST_ENTRIES, Automaton, padded_size
from padir.decoding.beam import BeamSearch
from padir.decoding.guided import Guided
from padir.decoding.refinement import Refinement
from padir.decoding.term_automaton import TermAutomaton
from padir.errors import PadirError
from padir.models.kinds import DecodeConfig, Model

# Most entries of the table of one source, so that a batch holds at least a few.
_MOST_OF_SOURCE = MOST_ENTRIES // 8
# Terms of a source that are states. Every other one doubles their number.
_FEW_TERMS = 3


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
        self._with_bits = TermConstraint(self._compiled)
        self._nothing = PieceTable.without_output(vocabulary.num_pieces)
        # The last automaton of a batch whose rows had the same table: (the table, rows, the automaton).
        self._last: tuple[PieceTable, int, Automaton] | None = None

    def check(self, decode: DecodeConfig) -> None:
        """Raises PadirError if a constraint does not go with this decode configuration."""
        if isinstance(decode, Refinement):
            constrained.check_refinement(decode)
        elif isinstance(decode, BeamSearch):
            constrained.check(decode)
        elif isinstance(decode, Guided):
            constrained.check_guided(decode)

    def tables(self, sources: Sequence[Sequence[int]], decode: DecodeConfig) -> list[PieceTable | TermTable]:
        """What each source's translation must obey; sources are token ids.

        The terms of a source are states of its table while they are few, and for decodes from left to right bits, which
        make up no larger table (`data.term_automata`). A source with too many terms gets a table that no output obeys,
        and a warning is printed: no other source must suffer for it.
        """
        # The likeliest path of a refinement is one through states.
        few = sys.maxsize if isinstance(decode, Refinement) else _FEW_TERMS
        return [self._table(self._vocabulary.decode(source), few) for source in sources]

    def _table(self, source: str, few: int) -> PieceTable | TermTable:
        demanded = self.constraint.demanded(source)
        ways = [self._compiled.table]
        if len(demanded) > few:
            # What else is demanded may leave no place for a term: only states tell where.
            ways = [self._with_bits.table, self._compiled.table]
        for way in ways:
            try:
                table = way(demanded)
                states, classes = padded_size([table])
                if states * classes <= _MOST_OF_SOURCE:
                    return table
                reason = f"{self.constraint.name}: terms: {states} states and {classes} classes are too many"
            except PadirError as error:
                reason = str(error)
        print(f"a source with {len(demanded)} terms gets no translation: {reason}", file=sys.stderr)
        return self._nothing

    def most_rows(self, tables: Sequence[PieceTable | TermTable]) -> int:
        """How many rows a batch can have if all tables are as large as the largest."""
        if all(table is tables[0] for table in tables) and not _terms(tables):
            return sys.maxsize  # It is kept once.
        states, classes = padded_size(tables)
        # Gains take as much as steps do.
        return max(1, MOST_ENTRIES // (states * classes * (2 if _terms(tables) else 1)))

    def room(self, tables: Sequence[PieceTable | TermTable]) -> tuple[int, int, int]:
        """The states, classes and terms that one program needs for all batches of these tables."""
        return *padded_size(tables), _terms(tables)

    def automaton(
        self, tables: Sequence[PieceTable | TermTable], rows: int, room: tuple[int, int, int]
    ) -> Automaton | TermAutomaton:
        """The automaton of a batch of `rows` rows, given the tables of its sources, as arrays.

        `room` is that of all batches, so that one program serves them.
        """
        is_one = all(table is tables[0] for table in tables)
        last = self._last  # Read once: another thread may replace it meanwhile.
        if is_one and last is not None and last[0] is tables[0] and last[1] == rows:
            return last[2]
        sizes = {"vocab_size": self._vocab_size, "longest": self._longest, "room": room[:2]}
        if room[2]:
            return TermAutomaton.of(tables, rows, **sizes, terms=room[2])
        made = Automaton.of(tables, rows, **sizes)
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


def _terms(tables: Sequence[PieceTable | TermTable]) -> int:
    """How many terms are bits, rounded up so that few programs are compiled; 0 if none are."""
    most = max(table.nearest.shape[1] if isinstance(table, TermTable) else 0 for table in tables)
    return 0 if most == 0 else min(8 * -(-most // 8), MOST_TERMS + 1)
