"""A user's constraint as a translator applies it: tables of each batch, and whether an output obeys."""

from __future__ import annotations

from collections.abc import Sequence

from padir.data.constraints import Constraint
from padir.data.piece_automata import PieceConstraint, PieceTable
from padir.data.vocabulary import Vocabulary
from padir.decoding import constrained
from padir.decoding.automaton import Automaton
from padir.decoding.autoregressive import Autoregressive
from padir.decoding.beam import BeamSearch
from padir.decoding.refinement import Refinement
from padir.errors import PadirError
from padir.models.kinds import DecodeConfig, Model


class SourceConstraint:
    """What each source's translation must obey.

    Attributes:
      constraint: as the user gave it.
    """

    def __init__(self, constraint: Constraint, vocabulary: Vocabulary, model: Model):
        """Compiles a constraint; raises PadirError if no output of the model can obey (see `PieceConstraint`)."""
        self.constraint = constraint
        self._vocabulary = vocabulary
        self._vocab_size = model.ids.vocab_size
        self._longest = model.max_target_length
        self._compiled = PieceConstraint(constraint, vocabulary.spellings(), self._longest)
        # All tables are padded to the largest so far, so that few programs are compiled.
        self._room = (0, 0)

    def check(self, decode: DecodeConfig) -> None:
        """Raises PadirError if a constraint does not go with this decode configuration."""
        if isinstance(decode, Refinement):
            constrained.check_refinement(decode)
        elif isinstance(decode, Autoregressive | BeamSearch):
            constrained.check(decode)
        else:
            raise PadirError(
                f"constraint: does not go with {type(decode).__name__}; use Autoregressive, BeamSearch or Refinement"
            )

    def tables(self, sources: Sequence[Sequence[int]]) -> list[PieceTable]:
        """What each source's translation must obey; sources are token ids."""
        found = [self._compiled.of_source(self._vocabulary.decode(source)) for source in sources]
        sizes = [self._room, *(table.steps.shape for table in found)]
        self._room = max(states for states, _ in sizes), max(classes for _, classes in sizes)
        return found

    def automaton(self, tables: Sequence[PieceTable], rows: int) -> Automaton:
        """The automaton of a batch of `rows` rows, given the tables of its sources; as numpy arrays."""
        return Automaton.of(tables, rows, vocab_size=self._vocab_size, longest=self._longest, room=self._room)

    def met(self, source: Sequence[int], text: str) -> bool:
        """Whether a translation of a source (token ids) obeys."""
        return self.constraint.met(self._vocabulary.decode(source), text)
