"""Constraints over the pieces of a vocabulary: what may be written next, and how many tokens it still takes.

Any spelling of a text in pieces counts. Pieces that are single bytes, and the unknown piece, spell no character on
their own, so that no constrained output contains them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from padir.data import finite_automata
from padir.data.constraints import Constraint
from padir.data.finite_automata import Automaton
from padir.data.patterns import ANY, Node, Repeat, parse
from padir.data.table_cache import TableCache
from padir.errors import PadirError
from padir.types import EOS_ID

# States and classes of tokens that every table begins with.
DEAD, ENDED, START = 0, 1, 2
NEVER = 0
# The distance from where no output can be completed.
UNREACHABLE = 1 << 20
# Entries that are worked on at a time.
_BLOCK = 1 << 23
# States that the terms of one source may lead to, or this many times those of what holds for every source.
_MOST_OF_TERMS = 5_000
_TIMES_OF_EVERY = 4


@dataclass(frozen=True)
class PieceTable:
    """An automaton over token ids; it starts in state `START`.

    Attributes:
      classes: [V] int32, the class of each token id; `NEVER` of those that are never written.
      steps: [S, C] int32, the next state by state and class; `DEAD` where an output could not be completed any more,
        `ENDED` after EOS.
      distances: [S] int32, the fewest tokens, EOS counted, that complete an output; `UNREACHABLE` from `DEAD`.
    """

    classes: np.ndarray
    steps: np.ndarray
    distances: np.ndarray

    def lengths(self, longest: int) -> np.ndarray:
        """For each number of tokens from 0 to `longest` the next one with an output of exactly that many.

        EOS is counted. Where no longer output exists it is the longest shorter one, and 0 if there is none at all.

        Returns:
          [longest + 1] int32.
        """
        can_end = np.arange(len(self.steps)) == ENDED
        has = np.zeros(longest + 1, bool)
        for count in range(1, longest + 1):
            # An ended output has no next token; the steps of `ENDED` lead to `DEAD`.
            can_end = can_end[self.steps].any(axis=1)
            has[count] = can_end[START]
        there = np.flatnonzero(has)
        if not there.size:
            return np.zeros(longest + 1, np.int32)
        after = np.searchsorted(there, np.arange(longest + 1))
        return there[np.minimum(after, there.size - 1)].astype(np.int32)

    @classmethod
    def without_output(cls, vocab_size: int) -> PieceTable:
        """A table that no output obeys."""
        distances = np.full(START + 1, UNREACHABLE, np.int32)
        distances[ENDED] = 0
        return cls(np.full(vocab_size, NEVER, np.int32), np.full((START + 1, 1), DEAD, np.int32), distances)


class PieceConstraint:
    """A constraint made ready for a vocabulary."""

    def __init__(self, constraint: Constraint, spellings: Sequence[str | None], longest: int):
        """Compiles what holds for every source.

        Args:
          constraint: what is demanded.
          spellings: of each token id the characters that it spells, or None for ids that no text contains.
          longest: most tokens, EOS counted, that an output may have.

        Raises:
          PadirError: a phrase has a character that no piece spells, no output obeys, or none of `longest` tokens.
        """
        self.constraint = constraint
        self._spellings = list(spellings)
        self._alphabet = "".join(sorted({" "}.union(*(text for text in spellings if text))))
        self._tables: TableCache[PieceTable] = TableCache()
        self._containing: dict[tuple[str, ...], Automaton] = {}
        self._check_characters()
        self._base = self._for_every_source()
        shortest = int(self.table(()).distances[START])
        if shortest > longest:
            none = shortest == UNREACHABLE
            reason = "no output obeys it" if none else f"it takes {shortest} tokens, and the model writes {longest}"
            raise PadirError(f"{constraint.name}: impossible with this vocabulary: {reason}")
        for source, targets in constraint.terms:
            if self._language((targets,)).is_empty:
                raise PadirError(
                    f"{constraint.name}: terms: no output contains what {source!r} must become and obeys the rest"
                )

    def of_source(self, source: str) -> PieceTable:
        """The table of what may be written for a source text.

        Raises:
          PadirError: its terms together need too many states.
        """
        return self.table(self.constraint.demanded(source))

    def table(self, demanded: tuple[tuple[str, ...], ...]) -> PieceTable:
        """The table of all outputs that also contain one phrase of each of `demanded`.

        Raises:
          PadirError: as `of_source`.
        """

        def made() -> PieceTable:
            spelled = finite_automata.before_cleaning(self._language(demanded), self._alphabet)
            return over_pieces(spelled, self._pieces)

        return self._tables.get(demanded, made)

    @property
    def every_source(self) -> Automaton:
        """The cleaned texts that obey what holds for every source."""
        return self._base

    @property
    def alphabet(self) -> str:
        """The characters of all pieces, and a space."""
        return self._alphabet

    @property
    def pieces(self) -> np.ndarray:
        """[V, longest piece] int32, the characters of each piece; see `over_pieces`."""
        return self._pieces

    def _language(self, demanded: tuple[tuple[str, ...], ...]) -> Automaton:
        """The cleaned texts that obey."""
        found = self._base
        most = min(max(_MOST_OF_TERMS, _TIMES_OF_EVERY * len(found.steps)), finite_automata.MOST_STATES)
        for targets in demanded:
            if targets not in self._containing:
                self._containing[targets] = self._compiled("terms", self.constraint.containing(targets))
            found = self._combined("terms", found, self._containing[targets], most)
        return found

    def _for_every_source(self) -> Automaton:
        constraint = self.constraint
        found = finite_automata.compiled(Repeat(ANY), self._alphabet)
        if constraint.pattern is not None:
            found = self._compiled("pattern", parse(constraint.pattern, ignore_case=constraint.ignore_case))
        for phrase in constraint.required:
            found = self._combined("required", found, self._compiled("required", constraint.containing((phrase,))))
        if constraint.forbidden:
            wrong = self._compiled("forbidden", constraint.containing(constraint.forbidden))
            found = self._combined("forbidden", found, finite_automata.without(wrong))
        return found

    def _compiled(self, key: str, tree: Node) -> Automaton:
        try:
            return finite_automata.compiled(tree, self._alphabet)
        except PadirError as error:
            raise PadirError(f"{self.constraint.name}: {key}: {error}") from None

    def _combined(
        self, key: str, left: Automaton, right: Automaton, most: int = finite_automata.MOST_STATES
    ) -> Automaton:
        try:
            return finite_automata.both(left, right, most)
        except PadirError as error:
            raise PadirError(f"{self.constraint.name}: {key}: together with the rest it {error}") from None

    def _check_characters(self) -> None:
        def missing(phrase: str) -> str:
            needed = (character for character in phrase if not self._spelled(character))
            return "".join(dict.fromkeys(needed))

        name = self.constraint.name
        for phrase in self.constraint.required:
            if found := missing(phrase):
                raise PadirError(f"{name}: required: no piece of the vocabulary has {found!r} of {phrase!r}")
        for source, targets in self.constraint.terms:
            if all(missing(target) for target in targets):
                raise PadirError(
                    f"{name}: terms: no piece of the vocabulary has {missing(targets[0])!r} of {targets[0]!r}, "
                    f"which {source!r} must become"
                )

    def _spelled(self, character: str) -> bool:
        same = {character, character.lower(), character.upper()} if self.constraint.ignore_case else {character}
        return any(each in self._alphabet for each in same)

    @cached_property
    def _pieces(self) -> np.ndarray:
        """[V, longest piece] int32, the characters of each piece as indices into the alphabet, -1 behind them.

        A token id that spells nothing has -2.
        """
        index = {character: place for place, character in enumerate(self._alphabet)}
        width = max(len(text or "") for text in self._spellings)
        pieces = np.full((len(self._spellings), max(width, 1)), -1, np.int32)
        for number, text in enumerate(self._spellings):
            pieces[number, : len(text or " ")] = [index[character] for character in text] if text else -2
        return pieces


def over_pieces(automaton: Automaton, pieces: np.ndarray) -> PieceTable:
    """Turns an automaton over characters into one over tokens.

    Args:
      automaton: of what pieces spell together.
      pieces: [V, P] int32, the characters of each piece, -1 behind them; -2 in place of the first if it spells nothing.
    """
    states = len(automaton.steps)
    steps, classes = _steps_of_classes(automaton, pieces)
    # Behind the states of the automaton come one that is dead and one that has ended.
    dead, ended = states, states + 1
    ends = np.where(automaton.accepts, ended, dead)
    steps = np.concatenate([np.full((states, 1), dead), ends[:, None], steps], axis=1)
    steps = np.concatenate([steps, np.full((2, steps.shape[1]), dead)])
    classes = classes + 2
    classes[pieces[:, 0] == -2] = NEVER
    classes[EOS_ID] = 1
    distances = distances_to(steps, ended)
    steps = np.where(distances[steps] == UNREACHABLE, dead, steps)
    kept = useful_states(steps, distances, ended)
    order = np.concatenate([[dead, ended], kept])
    new = np.full(len(steps), DEAD)
    new[order] = np.arange(len(order))
    steps, distances = new[steps[order]], distances[order]
    columns, merged = np.unique(steps, axis=1, return_inverse=True)
    # No state that is left can tell the tokens of a class apart; those that lead nowhere are never written.
    merged = merged.reshape(-1)
    number = np.where((columns == DEAD).all(axis=0), 0, 1 + np.cumsum((columns != DEAD).any(axis=0)) - 1)
    table = np.full((len(steps), number.max() + 1), DEAD)
    table[:, number] = columns
    return PieceTable(number[merged][classes].astype(np.int32), table.astype(np.int32), distances.astype(np.int32))


def _steps_of_classes(automaton: Automaton, pieces: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Next states by state and class of piece [S, C], and the class of each piece [V]."""
    letters = np.where(pieces < 0, pieces, automaton.classes[pieces])
    # Pieces that are spelled alike, as far as the automaton can see, are one.
    spelled, alike = np.unique(letters, axis=0, return_inverse=True)
    lengths = (spelled >= 0).sum(axis=1)
    states = len(automaton.steps)
    at_once = max(1, _BLOCK // len(spelled))
    blocks = []
    for start in range(0, states, at_once):
        reached = np.repeat(np.arange(start, min(start + at_once, states), dtype=np.int32)[:, None], len(spelled), 1)
        for place in range(spelled.shape[1]):
            longer = lengths > place
            reached[:, longer] = automaton.steps[reached[:, longer], spelled[longer, place]]
        blocks.append(reached)
    columns, classes = np.unique(np.concatenate(blocks), axis=1, return_inverse=True)
    return columns, classes.reshape(-1)[alike.reshape(-1)]


def distances_to(steps: np.ndarray, ended: int) -> np.ndarray:
    """The fewest tokens from each state to `ended`."""
    distances = np.full(len(steps), UNREACHABLE)
    distances[ended] = 0
    while True:
        nearer = np.minimum(distances, np.minimum(distances[steps].min(axis=1) + 1, UNREACHABLE))
        if (nearer == distances).all():
            return distances
        distances = nearer


def useful_states(steps: np.ndarray, distances: np.ndarray, ended: int) -> np.ndarray:
    """The states that tokens lead to from the start, which is state 0 and comes first, and on to the end."""
    seen = np.zeros(len(steps), bool)
    front = np.zeros(1, np.int64)
    while front.size:
        seen[front] = True
        front = np.unique(steps[front])
        front = front[~seen[front]]
    seen &= distances < UNREACHABLE
    seen[0], seen[ended] = True, False
    return np.flatnonzero(seen)
