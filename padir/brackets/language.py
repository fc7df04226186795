"""Bounded Dyck languages: their distribution (2.39), enumeration and parsing.

Tokens: 0 is the start token; type i = 1..k has 2i - 1, which opens, and 2i, which closes. The depth of a token is the
number of brackets that are open after it. So a pair is a token 2i - 1 of depth d and a token 2i of depth d - 1.

`padir.data.dyck` has chapter 3's grammar: words of one length, two types, and probabilities that know how much of the
word is left. Here every prefix has a probability, and k and D are free.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from padir.checks import whole
from padir.errors import PadirError

START = 0
_BRACKETS = "[](){}<>"


class Parsed(NamedTuple):
    """What a stack knows after each token: [N, L + 1], the start token first.

    Attributes:
      depths: int, brackets that are open.
      ranks: int, r(t, d) of (2.60), counted from 0; that of the start token is the last.
      tops: int, position of the last unmatched opening bracket; 0 where none is open.
      top_types: int, its type, counted from 0; -1 where none is open.
      valid: bool, whether all is well up to here. Behind an error the other fields mean nothing.
    """

    depths: np.ndarray
    ranks: np.ndarray
    tops: np.ndarray
    top_types: np.ndarray
    valid: np.ndarray


@dataclass(frozen=True)
class DyckLanguage:
    """Dyck_{k,D} with the distribution (2.39) of prefixes.

    Attributes:
      types: k, kinds of brackets.
      depth: D, most brackets open at once.
      open_probability: q, probability of an opening bracket at depths 1 to D - 1.
    """

    types: int = 2
    depth: int = 4
    open_probability: float = 0.5

    def __post_init__(self):
        whole("DyckLanguage.types", self.types)
        whole("DyckLanguage.depth", self.depth)
        if not 0.0 < self.open_probability < 1.0:
            raise PadirError(f"DyckLanguage.open_probability: {self.open_probability} is not between 0 and 1")

    @property
    def tokens(self) -> int:
        """2k + 1, with the start token."""
        return 2 * self.types + 1

    @property
    def ranks(self) -> int:
        """2kD + 1: pairs of a token and a depth that exist, and the start token."""
        return 2 * self.types * self.depth + 1

    def rank(self, token: np.ndarray | int, depth: np.ndarray | int) -> np.ndarray | int:
        """r(t, d) of (2.60), counted from 0: lexicographic among the depths that a token can have."""
        return np.where(token == START, self.ranks - 1, (token - 1) * self.depth + depth - token % 2)

    def opening(self, kind: int, depth: int) -> int:
        """The rank of an opening bracket: type from 0, depth 1..D."""
        return 2 * kind * self.depth + depth - 1

    def closing(self, kind: int, depth: int) -> int:
        """The rank of a closing bracket: type from 0, depth 0..D-1."""
        return (2 * kind + 1) * self.depth + depth

    def up_probabilities(self) -> np.ndarray:
        """Probability of an opening bracket at each depth 0..D: [D + 1]."""
        return np.array([1.0, *[self.open_probability] * (self.depth - 1), 0.0])

    def up_table(self, length: int) -> np.ndarray:
        """The same for words that end at depth 0: [length + 1, D + 1], by the tokens that are left, this one included.

        That is, (2.39) conditioned on depth 0 after the last token. 0 where no word can be.
        """
        up = self.up_probabilities()
        ends = np.zeros((length + 1, self.depth + 1))
        ends[0, 0] = 1.0
        table = np.zeros_like(ends)
        for left in range(1, length + 1):
            rise = up * np.append(ends[left - 1, 1:], 0.0)
            fall = (1.0 - up) * np.append(0.0, ends[left - 1, :-1])
            ends[left] = rise + fall
            np.divide(rise, ends[left], out=table[left], where=ends[left] > 0)
        return table

    def next_probabilities(self, depths: np.ndarray, top_types: np.ndarray) -> np.ndarray:
        """Probability of each bracket 1..2k after prefixes: [...] int, [...] int → [..., 2k] float64."""
        up = self.up_probabilities()[depths][..., None]
        kinds = np.arange(self.types)
        opening = np.broadcast_to(up / self.types, (*np.shape(depths), self.types))
        closing = (1.0 - up) * (np.asarray(top_types)[..., None] == kinds)
        return np.stack([opening, closing], axis=-1).reshape(*np.shape(depths), 2 * self.types)

    def parse(self, tokens: np.ndarray) -> Parsed:
        """Reads prefixes [N, L] int, without the start token."""
        tokens = np.asarray(tokens)
        rows, length = tokens.shape
        parsed = Parsed(*(np.zeros((rows, length + 1), int) for _ in range(4)), np.ones((rows, length + 1), bool))
        parsed.ranks[:, 0], parsed.top_types[:, 0] = self.ranks - 1, -1
        # One more than D, so that a bracket that is too deep has room.
        positions, kinds = np.zeros((rows, self.depth + 2), int), np.full((rows, self.depth + 2), -1)
        depth, every = np.zeros(rows, int), np.arange(rows)
        for at, token in enumerate(tokens.T, 1):
            opens, kind = token % 2 == 1, (token - 1) // 2
            matches = (depth > 0) & (kinds[every, depth] == kind)
            fine = (token > 0) & (token < self.tokens) & np.where(opens, depth < self.depth, matches)
            parsed.valid[:, at] = parsed.valid[:, at - 1] & fine
            depth = np.clip(depth + np.where(opens, 1, -1), 0, self.depth + 1)
            pushed = np.flatnonzero(opens)
            positions[pushed, depth[pushed]], kinds[pushed, depth[pushed]] = at, kind[pushed]
            parsed.depths[:, at], parsed.ranks[:, at] = depth, self.rank(token, depth)
            parsed.tops[:, at], parsed.top_types[:, at] = positions[every, depth], kinds[every, depth]
        return parsed

    def probabilities(self, tokens: np.ndarray) -> np.ndarray:
        """P(w) of (2.39) for prefixes [N, L] int: [N] float64, 0 for those that are not in the language."""
        tokens = np.asarray(tokens)
        parsed = self.parse(tokens)
        depth = np.minimum(parsed.depths[:, :-1], self.depth)
        each = self.next_probabilities(depth, parsed.top_types[:, :-1])
        chosen = np.take_along_axis(each, np.clip(tokens - 1, 0, 2 * self.types - 1)[..., None], -1)[..., 0]
        return np.where(parsed.valid[:, -1], chosen.prod(axis=1), 0.0)

    def prefixes(self, length: int) -> np.ndarray:
        """All prefixes of a length, in the order of their tokens: [n, length] int."""
        found = [((), ())]
        for _ in range(length):
            found = [(*self._longer(text, stack, token),) for text, stack in found for token in self._next(stack)]
        return np.array([text for text, _ in found], int).reshape(len(found), length)

    def _next(self, stack: tuple[int, ...]) -> list[int]:
        openings = [2 * kind + 1 for kind in range(self.types)] if len(stack) < self.depth else []
        return sorted(openings + ([2 * stack[-1] + 2] if stack else []))

    @staticmethod
    def _longer(text: tuple[int, ...], stack: tuple[int, ...], token: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return (*text, token), (*stack, (token - 1) // 2) if token % 2 else stack[:-1]

    def sample(self, generator: np.random.Generator, rows: int, length: int) -> np.ndarray:
        """Draws prefixes from (2.39): [rows, length] int."""
        up = self.up_probabilities()
        depth, stack = np.zeros(rows, int), np.zeros((rows, self.depth + 1), int)
        tokens, every = np.zeros((rows, length), int), np.arange(rows)
        for at in range(length):
            opens = generator.random(rows) < up[depth]
            kind = np.where(opens, generator.integers(self.types, size=rows), stack[every, depth])
            tokens[:, at] = 2 * kind + 2 - opens
            depth = depth + np.where(opens, 1, -1)
            stack[every[opens], depth[opens]] = kind[opens]
        return tokens


def tokens_of(text: str) -> list[int]:
    """The tokens of brackets of up to four types: '[()]' → [1, 3, 4, 2].

    Raises:
      PadirError: it has other characters.
    """
    if unknown := sorted(set(text) - set(_BRACKETS)):
        raise PadirError(f"tokens_of: {unknown[0]!r} is no bracket; use {' '.join(_BRACKETS)}")
    return [_BRACKETS.index(character) + 1 for character in text]


def text_of(tokens: Sequence[int]) -> str:
    """Brackets of tokens 1 to 8: [1, 3, 4, 2] → '[()]'."""
    return "".join(_BRACKETS[token - 1] for token in map(int, tokens))
