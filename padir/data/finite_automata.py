"""Deterministic finite automata over characters: made from trees of `patterns`, combined and made smaller."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from padir.data.patterns import Character, Choice, Node, Repeat, Sequence
from padir.errors import PadirError

# More are refused: each costs memory for every piece of the vocabulary.
MOST_STATES = 20_000


@dataclass(frozen=True)
class Automaton:
    """A complete deterministic automaton; it starts in state 0.

    Attributes:
      classes: [A] int, the class of each character of an alphabet: those of one class are never told apart.
      steps: [S, C] int, the next state by state and class.
      accepts: [S] bool, states in which a text may end.
    """

    classes: np.ndarray
    steps: np.ndarray
    accepts: np.ndarray

    @property
    def is_empty(self) -> bool:
        """Whether no text is accepted; of `smallest` automata only."""
        return not self.accepts.any()


def compiled(tree: Node, alphabet: str) -> Automaton:
    """The smallest automaton of the texts over `alphabet` that match the tree as a whole.

    Raises:
      PadirError: it would have more than `MOST_STATES` states.
    """
    places = _Places()
    nullable, first, last = places.add(tree)
    distinct = list(dict.fromkeys(places.characters))
    matches = np.array([each.among(alphabet) for each in distinct], bool).reshape(len(distinct), len(alphabet))
    kinds, classes = np.unique(matches, axis=1, return_inverse=True)
    number = {character: index for index, character in enumerate(distinct)}
    of_character = [0] * len(distinct)
    for place, character in enumerate(places.characters):
        of_character[number[character]] |= 1 << place
    # The places that a character of each class can be read at.
    masks = [sum(of_character[index] for index in np.flatnonzero(kind)) for kind in kinds.T]
    # A state is the set of places, as bits, at which the last character may have been read; the start is none of them.
    start = -1
    known, steps = {start: 0}, []
    for state in _growing(known):
        reach = first if state == start else 0
        for place in _bits(state) if state != start else ():
            reach |= places.follow[place]
        steps.append([known.setdefault(reach & mask, len(known)) for mask in masks])
    accepts = [nullable if state == start else bool(state & last) for state in known]
    return smallest(Automaton(classes.reshape(-1), _table(steps, len(masks)), np.array(accepts)))


def _growing(known: dict, most: int = MOST_STATES) -> Iterator:
    """The keys of a dictionary, those added meanwhile included; raises PadirError once there are more than `most`."""
    done = 0
    while done < len(known):
        # Those that came since the last look, in the order in which they came.
        for key in list(known)[done:]:
            if len(known) > most:
                raise PadirError(f"needs more than {most} states; use fewer phrases or a simpler pattern")
            done += 1
            yield key


def _table(steps: list, classes: int) -> np.ndarray:
    return np.array(steps, np.int64).reshape(-1, classes)


def _bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


class _Places:
    """The places of a tree's characters, and which places may follow each (Glushkov's construction)."""

    def __init__(self):
        self.characters: list[Character] = []
        self.follow: list[int] = []

    def add(self, node: Node) -> tuple[bool, int, int]:
        """Adds a tree: → (whether it matches the empty text, places that it can begin with, that it can end with)."""
        if isinstance(node, Character):
            self.characters.append(node)
            self.follow.append(0)
            if len(self.follow) > MOST_STATES:
                raise PadirError(f"has more than {MOST_STATES} characters; use fewer phrases or smaller repetitions")
            place = 1 << len(self.follow) - 1
            return False, place, place
        if isinstance(node, Choice):
            found = [self.add(part) for part in node.parts]
            first, last = 0, 0
            for _, begins, ends in found:
                first, last = first | begins, last | ends
            return any(nullable for nullable, _, _ in found), first, last
        if isinstance(node, Sequence):
            found = (True, 0, 0)
            for part in node.parts:
                found = self._joined(found, self.add(part))
            return found
        return self._repeated(node)

    def _joined(self, left: tuple[bool, int, int], right: tuple[bool, int, int]) -> tuple[bool, int, int]:
        for place in _bits(left[2]):
            self.follow[place] |= right[1]
        first = left[1] | right[1] if left[0] else left[1]
        last = left[2] | right[2] if right[0] else right[2]
        return left[0] and right[0], first, last

    def _repeated(self, node: Repeat) -> tuple[bool, int, int]:
        found = (True, 0, 0)
        copies = max(node.least, 1) if node.most is None else node.most
        for copy in range(copies):
            nullable, first, last = self.add(node.part)
            if node.most is None and copy == copies - 1:
                self._joined((False, first, last), (False, first, last))
            found = self._joined(found, (nullable or copy >= node.least, first, last))
        return found


def smallest(automaton: Automaton) -> Automaton:
    """The equivalent automaton with the fewest states and classes; states that are never reached are dropped."""
    steps, accepts = _reached(automaton)
    block = accepts.astype(np.int64)
    count = len(np.unique(block))
    while True:
        signature = np.concatenate([block[:, None], block[steps]], axis=1)
        _, finer = np.unique(signature, axis=0, return_inverse=True)
        finer = finer.reshape(-1)
        if finer.max() + 1 == count:
            break
        block, count = finer, finer.max() + 1
    # The start's block comes first; the others follow in the order in which their first states do.
    _, one, of_state = np.unique(finer, return_index=True, return_inverse=True)
    order = np.argsort(one)
    rank = np.argsort(order)
    of_state = rank[of_state.reshape(-1)]
    small = of_state[steps[one[order]]]
    columns, merged = np.unique(small, axis=1, return_inverse=True)
    return Automaton(merged.reshape(-1)[automaton.classes], columns, accepts[one[order]])


def _reached(automaton: Automaton) -> tuple[np.ndarray, np.ndarray]:
    """Steps and accepting states of the states that the start leads to."""
    reached = np.zeros(len(automaton.steps), bool)
    front = np.zeros(1, np.int64)
    while front.size:
        reached[front] = True
        front = np.unique(automaton.steps[front])
        front = front[~reached[front]]
    new = np.cumsum(reached) - 1
    return new[automaton.steps[reached]], automaton.accepts[reached]


def without(automaton: Automaton) -> Automaton:
    """The automaton of all texts that this one does not accept."""
    return Automaton(automaton.classes, automaton.steps, ~automaton.accepts)


def both(left: Automaton, right: Automaton, most: int = MOST_STATES) -> Automaton:
    """The smallest automaton of the texts that both accept.

    Raises:
      PadirError: it would have more than `most` states on the way.
    """
    pairs, classes = np.unique(np.stack([left.classes, right.classes]), axis=1, return_inverse=True)
    known, steps = {(0, 0): 0}, []
    for state in _growing(known, most):
        ahead = zip(left.steps[state[0], pairs[0]].tolist(), right.steps[state[1], pairs[1]].tolist(), strict=True)
        steps.append([known.setdefault(pair, len(known)) for pair in ahead])
    accepts = np.array([left.accepts[a] and right.accepts[b] for a, b in known])
    return smallest(Automaton(classes.reshape(-1), _table(steps, pairs.shape[1]), accepts))


def before_cleaning(automaton: Automaton, alphabet: str) -> Automaton:
    """The texts that are accepted once every run of white space is one space, and none is at either end.

    That is how `Vocabulary.decode` cleans what pieces spell.

    Args:
      automaton: of cleaned texts; the alphabet contains a space.
      alphabet: its characters.
    """
    space = automaton.classes[alphabet.index(" ")]
    is_white = np.array([character.isspace() for character in alphabet])
    kinds, classes = np.unique(np.stack([automaton.classes, is_white]), axis=1, return_inverse=True)
    states = len(automaton.steps)
    alone = np.where(kinds[1], np.arange(states)[:, None], automaton.steps[:, kinds[0]])
    spaced = automaton.steps[:, space]
    # A state is doubled: [0, S) as before, [S, 2S) with a space that counts once another character comes.
    plain = np.where(kinds[1], np.arange(states)[:, None] + states, alone)
    waiting = np.where(kinds[1], np.arange(states)[:, None] + states, automaton.steps[spaced][:, kinds[0]])
    # White space before the first character counts for nothing, so the start is a state of its own.
    start = np.where(kinds[1], 2 * states, alone[0])
    steps = np.concatenate([plain, waiting, start[None]])
    accepts = np.concatenate([automaton.accepts, automaton.accepts, automaton.accepts[:1]])
    order = np.roll(np.arange(2 * states + 1), 1)  # The start comes first.
    new = np.argsort(order)
    return smallest(Automaton(classes.reshape(-1), new[steps[order]], accepts[order]))
