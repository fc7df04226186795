"""Many phrases of which each must be written: one automaton that reads all of them, and a bit for each that stands.

The product of automata that each wait for one phrase has a state for every set of phrases that may be there already:
twice as many with every phrase. Here the sets are not states. An automaton (Aho and Corasick 1975) reads the text and
says which phrases have just become certain; whoever follows it keeps these as bits. How many tokens it still takes to
write the rest is bounded from above: the exact number would be that of the shortest text with all phrases in it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from padir.data import patterns
from padir.data.constraints import letter
from padir.data.finite_automata import Automaton
from padir.data.piece_automata import (
    DEAD,
    ENDED,
    NEVER,
    UNREACHABLE,
    PieceConstraint,
    PieceTable,
    distances_to,
    useful_states,
)
from padir.data.table_cache import TableCache
from padir.errors import PadirError
from padir.types import EOS_ID

# Terms are bits of an int32 that is never negative.
MOST_TERMS = 31
# States over characters that the phrases of one source may lead to.
_MOST_STATES = 8_000
# Entries that are worked on at a time.
_BLOCK = 1 << 22


@dataclass(frozen=True)
class TermTable:
    """An automaton over token ids, as `PieceTable` is one, that also says which terms have been written.

    Attributes:
      classes: [V] int32, the class of each token id.
      steps: [S, C] int32, the next state by state and class.
      gains: [S, C] int32, bits of the terms that the token makes certain.
      ends: [S] int32, bits of the terms that also stand if the text ends here.
      distances: [S] int32, the fewest tokens, EOS counted, to an end, whatever has been written.
      nearest: [S, T] int32, the fewest tokens that make each term certain.
    """

    classes: np.ndarray
    steps: np.ndarray
    gains: np.ndarray
    ends: np.ndarray
    distances: np.ndarray
    nearest: np.ndarray

    @classmethod
    def of(cls, table: PieceTable) -> TermTable:
        """A table that already knows all terms by its states."""
        nothing = np.zeros_like(table.steps)
        return cls(
            table.classes, table.steps, nothing, nothing[:, 0], table.distances, np.zeros((len(nothing), 0), int)
        )

    @property
    def inside(self) -> np.ndarray:
        """[S] bool, all states but `DEAD` and `ENDED`."""
        return np.arange(len(self.steps)) > ENDED

    def costs(self) -> np.ndarray:
        """The most tokens that each term may take, wherever the text is: [T] int32."""
        return self.nearest[self.inside].max(axis=0, initial=0)

    def last(self) -> int:
        """The most tokens to an end that there may be, EOS counted."""
        inside = self.distances[self.inside]
        return int(inside[inside < UNREACHABLE].max(initial=0))


class _Texts(NamedTuple):
    """An automaton over characters that says which terms have become certain; it starts in state 0.

    Attributes:
      classes: [A], the class of each character of the alphabet.
      steps, gains: [S, C].
      ends: [S], bits of the terms that also stand if the text ends here.
      accepts: [S] bool, where the text may end as far as the rest of the constraint is concerned.
    """

    classes: np.ndarray
    steps: np.ndarray
    gains: np.ndarray
    ends: np.ndarray
    accepts: np.ndarray


class _Phrases:
    """All phrases side by side: a set of places in them, as bits, and how it changes (Baeza-Yates and Gonnet 1992)."""

    def __init__(self, terms: Sequence[Sequence[str]], alphabet: str, *, ignore_case: bool):
        is_letter = re.compile(letter()).match
        self.alphabet, self.letters = alphabet, np.array([is_letter(each) is not None for each in alphabet])
        self.first = self.anywhere = 0
        # The terms of the last place of each phrase: of those that end in a letter, and of others.
        self.open: dict[int, int] = {}
        self.closed: dict[int, int] = {}
        matches, place = [], 0
        for number, targets in enumerate(terms):
            for phrase in targets:
                self.first |= 1 << place
                self.anywhere |= 0 if is_letter(phrase[0]) else 1 << place
                for part in patterns.literal(phrase, ignore_case=ignore_case).parts:
                    matches.append(part.among(alphabet))
                    place += 1
                (self.open if is_letter(phrase[-1]) else self.closed)[1 << place - 1] = 1 << number
        self.matches = np.array(matches)

    def masks(self, characters: Sequence[int]) -> list[int]:
        """The places that each of some characters of the alphabet may be read at."""
        return [sum(1 << int(place) for place in np.flatnonzero(self.matches[:, each])) for each in characters]

    def read(self, places: int, after_letter: bool, mask: int, is_letter: bool) -> tuple[int, int]:
        """One character more: → (places, terms that it makes certain)."""
        begins = self.anywhere if after_letter else self.first
        new = ((places << 1 & ~self.first) | begins) & mask
        certain = 0 if is_letter else _terms(self.open, places)
        return new, certain | _terms(self.closed, new)


def _terms(of_place: dict[int, int], places: int) -> int:
    found = 0
    for place, term in of_place.items():
        if places & place:
            found |= term
    return found


def table_of_terms(
    base: Automaton, terms: Sequence[Sequence[str]], alphabet: str, pieces: np.ndarray, *, ignore_case: bool
) -> TermTable:
    """The table of the outputs that `base` accepts, whose bits say which terms they contain.

    Args:
      base: of cleaned texts over `alphabet`: what else is demanded.
      terms: of each its phrases, one of which must be written.
      alphabet: all characters; a space is among them.
      pieces: [V, P] int32, see `piece_automata.over_pieces`.
      ignore_case: whether upper and lower case are the same.

    Raises:
      PadirError: there are more than `MOST_TERMS`, or too many states; or somewhere a term can no longer be written,
        because of what else is demanded, so that whoever follows the table could be caught.
    """
    if len(terms) > MOST_TERMS:
        raise PadirError(f"{len(terms)} terms are more than {MOST_TERMS}")
    table = _over_pieces(_texts(base, _Phrases(terms, alphabet, ignore_case=ignore_case)), pieces, len(terms))
    if (table.nearest[table.inside] >= UNREACHABLE).any():
        raise PadirError("what else is demanded may leave no place for a term")
    return table


class TermConstraint:
    """A constraint whose terms become bits; it keeps the tables of sources with the same terms."""

    def __init__(self, compiled: PieceConstraint):
        """Takes what is compiled already of the constraint."""
        self._compiled = compiled
        self._tables: TableCache[TermTable] = TableCache()

    def table(self, demanded: tuple[tuple[str, ...], ...]) -> TermTable:
        """The table of all outputs that also contain one phrase of each of `demanded`.

        Raises:
          PadirError: as `table_of_terms`.
        """

        def made() -> TermTable:
            given, ignore_case = self._compiled, self._compiled.constraint.ignore_case
            return table_of_terms(given.every_source, demanded, given.alphabet, given.pieces, ignore_case=ignore_case)

        return self._tables.get(demanded, made)


# Whether nothing has been written, or something, or behind that white space, which counts if more follows.
_EMPTY, _WRITTEN, _SPACED = 0, 1, 2


def _texts(base: Automaton, phrases: _Phrases) -> _Texts:
    """`base` and the phrases together, over texts before their white space is cleaned.

    See `finite_automata.before_cleaning`.
    """
    alphabet = phrases.alphabet
    white = np.array([character.isspace() for character in alphabet])
    seen = np.concatenate([base.classes[None], white[None], phrases.letters[None], phrases.matches])
    _, some, classes = np.unique(seen, axis=1, return_index=True, return_inverse=True)
    kinds = list(zip(base.classes[some].tolist(), phrases.masks(some), phrases.letters[some].tolist(), strict=True))
    is_white = white[some].tolist()
    at_space = alphabet.index(" ")
    space = int(base.classes[at_space]), phrases.masks([at_space])[0], False

    def read(text: tuple, kind: tuple) -> tuple[tuple, int]:
        state, places, after_letter = text
        of_base, mask, is_letter = kind
        places, certain = phrases.read(places, after_letter, mask, is_letter)
        return (int(base.steps[state, of_base]), places, is_letter), certain

    start = (0, 0, False), _EMPTY
    known, steps, gains = {start: 0}, [], []
    queue = [start]
    while len(steps) < len(queue):
        text, mode = queue[len(steps)]
        ahead, won = [], []
        # What a space makes of the text is the same for all that may follow it.
        spaced, of_space = read(text, space) if mode == _SPACED else (text, 0)
        for kind, blank in zip(kinds, is_white, strict=True):
            if blank:
                after, certain = (text, _EMPTY if mode == _EMPTY else _SPACED), 0
            else:
                new, certain = read(spaced, kind)
                after, certain = (new, _WRITTEN), certain | of_space
            if after not in known:
                known[after] = len(known)
                queue.append(after)
                if len(queue) > _MOST_STATES:
                    raise PadirError(f"the terms need more than {_MOST_STATES} states")
            ahead.append(known[after])
            won.append(certain)
        steps.append(ahead)
        gains.append(won)
    ends = np.array([_terms(phrases.open, text[1]) for text, _ in queue], np.int32)
    accepts = np.array([base.accepts[text[0]] for text, _ in queue])
    return _Texts(classes.reshape(-1), np.array(steps), np.array(gains, np.int32), ends, accepts)


def _over_pieces(texts: _Texts, pieces: np.ndarray, terms: int) -> TermTable:
    """The automaton over tokens, of the states that lead from the start to an end."""
    steps, gains, classes = _of_classes(texts, pieces)
    states = len(steps)
    dead, ended = states, states + 1
    ends = np.where(texts.accepts, ended, dead)
    steps = np.concatenate([np.full((states, 1), dead), ends[:, None], steps], axis=1)
    steps = np.concatenate([steps, np.full((2, steps.shape[1]), dead)])
    gains = np.concatenate([np.zeros((states, 1), np.int32), texts.ends[:, None], gains], axis=1)
    gains = np.concatenate([gains, np.zeros((2, gains.shape[1]), np.int32)])
    classes = classes + 2
    classes[pieces[:, 0] == -2] = NEVER
    classes[EOS_ID] = 1
    distances = distances_to(steps, ended)
    lost = distances[steps] == UNREACHABLE
    steps, gains = np.where(lost, dead, steps), np.where(lost, 0, gains)
    order = np.concatenate([[dead, ended], useful_states(steps, distances, ended)])
    new = np.full(len(steps), DEAD)
    new[order] = np.arange(len(order))
    steps, gains, distances = new[steps[order]], gains[order], distances[order]
    ends = np.concatenate([texts.ends, [0, 0]])[order]
    return TermTable(
        classes.astype(np.int32),
        steps.astype(np.int32),
        gains.astype(np.int32),
        ends.astype(np.int32),
        distances.astype(np.int32),
        _nearest(steps, gains, terms),
    )


def _of_classes(texts: _Texts, pieces: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Next states and gains by state and class of piece [S, C], and the class of each piece [V]."""
    letters = np.where(pieces < 0, pieces, texts.classes[pieces])
    spelled, alike = np.unique(letters, axis=0, return_inverse=True)
    lengths = (spelled >= 0).sum(axis=1)
    at_once = max(1, _BLOCK // len(spelled))
    reached_by, gained_by = [], []
    for start in range(0, len(texts.steps), at_once):
        states = np.arange(start, min(start + at_once, len(texts.steps)), dtype=np.int32)
        reached = np.repeat(states[:, None], len(spelled), axis=1)
        gained = np.zeros_like(reached)
        for place in range(spelled.shape[1]):
            longer = lengths > place
            here, read = reached[:, longer], spelled[longer, place]
            gained[:, longer] |= texts.gains[here, read]
            reached[:, longer] = texts.steps[here, read]
        reached_by.append(reached)
        gained_by.append(gained)
    both = np.concatenate([*reached_by, *gained_by])
    columns, classes = np.unique(both, axis=1, return_inverse=True)
    return *np.split(columns, 2), classes.reshape(-1)[alike.reshape(-1)]


def _nearest(steps: np.ndarray, gains: np.ndarray, terms: int) -> np.ndarray:
    """[S, T] int32, the fewest tokens that make each term certain; EOS, which ends the text, is none of them."""
    found = np.full((len(steps), terms), UNREACHABLE, np.int32)
    goes_on = steps > ENDED
    for term in range(terms):
        now = (gains >> term & 1).astype(bool) & goes_on
        nearest = found[:, term]
        while True:
            ahead = np.where(now, 0, nearest[steps])
            nearer = np.minimum(nearest, np.where(goes_on, ahead + 1, UNREACHABLE).min(axis=1))
            if (nearer == nearest).all():
                break
            nearest = nearer
        found[:, term] = np.minimum(nearest, UNREACHABLE)
    return found
