r"""Regular expressions as trees: the part of Python's syntax that describes a finite automaton.

There are literals, `.`, classes (`[a-z]`, `[^…]`, `\d`, `\w`, `\s` and their opposites), groups `(…)` and `(?:…)`,
`|`, `*`, `+`, `?` and `{m,n}`. Which characters a literal or class matches is asked of Python's `re` itself, so that
letters of every script count as they do there. (The packages greenery and interegular, which build automata from
regular expressions, know the ASCII letters only as `\w`.)
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

import numpy as np

from padir.errors import PadirError


@dataclass(frozen=True)
class Character:
    """One character: what `pattern`, a regular expression of Python for one character, matches."""

    pattern: str
    ignore_case: bool = False

    def among(self, alphabet: str) -> np.ndarray:
        """Which characters of `alphabet` match: [len(alphabet)] bool."""
        return _among(self, alphabet)


@dataclass(frozen=True)
class Sequence:
    """One part after the other; without parts the empty text."""

    parts: tuple[Node, ...]


@dataclass(frozen=True)
class Choice:
    """One of several parts."""

    parts: tuple[Node, ...]


@dataclass(frozen=True)
class Repeat:
    """A part `least` to `most` times in a row, without an upper limit if `most` is None."""

    part: Node
    least: int = 0
    most: int | None = None


Node = Character | Sequence | Choice | Repeat

ANY = Character(".")


def optional(part: Node) -> Repeat:
    """The part, or nothing."""
    return Repeat(part, 0, 1)


def literal(text: str, *, ignore_case: bool = False) -> Sequence:
    """A text, character by character."""
    return Sequence(tuple(Character(re.escape(character), ignore_case) for character in text))


@functools.lru_cache(maxsize=10_000)
def _among(character: Character, alphabet: str) -> np.ndarray:
    matches = re.compile(character.pattern, re.IGNORECASE if character.ignore_case else 0).fullmatch
    return np.array([matches(each) is not None for each in alphabet], bool)


# Letters after a backslash that mean themselves or a class in `re`, each for one character.
_CLASSES = "dDwWsS"
_HEXADECIMAL = {"x": 2, "u": 4, "U": 8}
_COUNTS = re.compile(r"\{(\d*)(,?)(\d*)\}")
# Each level of groups takes several levels of Python's recursion, of which there are a thousand.
_MOST_NESTED = 100


def parse(pattern: str, *, ignore_case: bool = False) -> Node:
    """Reads a regular expression, which must match a whole text.

    A lazy repetition (`*?`) matches the same whole texts as a greedy one.

    Raises:
      PadirError: Python does not accept it, or it has what no finite automaton of this module can do, such as a
        look-around or a back-reference. The message names it and its position, from 0.
    """
    try:
        re.compile(pattern)
    except re.error as error:
        where = "" if error.pos is None else f" at position {error.pos}"
        raise PadirError(f"not a regular expression: {error.msg}{where}") from None
    except (RecursionError, OverflowError):
        raise PadirError("not a regular expression: it is nested too deeply or repeats too often") from None
    return _Parser(pattern, ignore_case).whole()


class _Parser:
    """A recursive descent over a pattern that `re` accepts."""

    def __init__(self, pattern: str, ignore_case: bool):
        self._pattern, self._ignore_case, self._at = pattern, ignore_case, 0
        self._depth = 0

    def whole(self) -> Node:
        return self._choice()

    def _peek(self, count: int = 1) -> str:
        return self._pattern[self._at : self._at + count]

    def _refuse(self, what: str, advice: str = "leave it out") -> PadirError:
        return PadirError(f"{what} at position {self._at} of the pattern is not supported; {advice}")

    def _choice(self) -> Node:
        parts = [self._sequence()]
        while self._peek() == "|":
            self._at += 1
            parts.append(self._sequence())
        return parts[0] if len(parts) == 1 else Choice(tuple(parts))

    def _sequence(self) -> Node:
        parts = []
        while self._peek() and self._peek() not in "|)":
            parts.append(self._repeated(self._atom()))
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def _repeated(self, part: Node) -> Node:
        known = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        counts = _COUNTS.match(self._pattern, self._at)
        if self._peek() in known and self._peek():
            bounds, size = known[self._peek()], 1
        elif counts and (counts[1] or counts[3]):
            least = int(counts[1] or 0)
            bounds, size = (least, (int(counts[3]) if counts[3] else None) if counts[2] else least), len(counts[0])
        else:
            return part
        self._at += size
        if self._peek() == "+":
            raise self._refuse("the possessive '+'")
        self._at += self._peek() == "?"
        return Repeat(part, *bounds)

    def _atom(self) -> Node:
        character = self._peek()
        if character == "(":
            return self._group()
        if character == "[":
            return self._class()
        if character == "\\":
            return self._escape()
        if character in "^$":
            raise self._refuse(f"the anchor {character!r}", "the pattern matches the whole text anyway; leave it out")
        if character == "{":
            raise self._refuse("'{' that begins no repetition", r"write \{ for the character itself")
        self._at += 1
        return Character(character if character == "." else re.escape(character), self._ignore_case)

    def _group(self) -> Node:
        if self._peek(2) == "(?" and self._peek(3) != "(?:":
            raise self._refuse(f"the group {self._peek(3)!r}…", "groups are (…) and (?:…)")
        if self._depth == _MOST_NESTED:
            raise self._refuse(f"a group within {_MOST_NESTED} others", "nest fewer groups")
        self._at += 3 if self._peek(2) == "(?" else 1
        self._depth += 1
        inside = self._choice()
        self._depth -= 1
        self._at += 1
        return inside

    def _class(self) -> Node:
        end = self._at + (2 if self._peek(2) == "[^" else 1)
        end += self._pattern[end] == "]"  # A bracket that comes first is one of the characters.
        while self._pattern[end] != "]":
            end += 2 if self._pattern[end] == "\\" else 1
        found = self._pattern[self._at : end + 1]
        self._at = end + 1
        return Character(found, self._ignore_case)

    def _escape(self) -> Node:
        letter = self._pattern[self._at + 1]
        if letter.isalnum() and letter not in _CLASSES and letter not in _HEXADECIMAL:
            raise self._refuse(f"the escape '\\{letter}'")
        size = 2 + _HEXADECIMAL.get(letter, 0)
        found = self._pattern[self._at : self._at + size]
        self._at += size
        return Character(found, self._ignore_case)
