"""Test cases for a function that appends to a list, as a code model writes them: prompts, parser, first error, score.

The prompt shows a demonstration and a short function with a name of three random letters. The model is to write 8 test
cases for it, one in each line, such as `assert knk([1, 3], 2) == [1, 3, 2]` (thesis, section 3.2.2). A model that has
never seen the name has to take what the function does from its body.

The text comes from a model, so nothing in it is executed: values are read by `ast.literal_eval` alone, and whatever it
refuses, or cannot hold, makes the line unparseable. Blank lines are ignored throughout.
"""

from __future__ import annotations

import ast
import enum
import string
import warnings
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from os.path import commonprefix
from typing import Any

import numpy as np

from padir.checks import whole
from padir.errors import PadirError

REQUESTED = 8
# The names whose generations train a verifier, and names that say something else than `append` (thesis, table 3.15).
TRAINING_NAMES = ("ovs", "cyk", "mcl", "heh", "fgu", "knk", "zmf")
OOD_NAMES = ("pop", "add", "sub", "mul", "div", "max", "min", "std", "avg", "exp")
# After a first test case, so many lines that are none end a completion.
_STRAY_LINES = 3
# A longer line is no test case. It also keeps numbers below the length that Python refuses to write out.
_LONGEST_LINE = 2000
_CLOSING = {"(": ")", "[": "]", "{": "}"}


class ErrorKind(enum.StrEnum):
    """What the first error of a completion is."""

    NO_ASSERT = "line without assert"
    WRONG_FUNCTION = "wrong function"
    UNCLOSED_CALL = "unclosed call"
    SYNTAX = "syntax"
    NOT_A_LIST = "first argument is no list"
    ARGUMENTS = "not two arguments"
    NO_EQUALS = "no =="
    UNREADABLE_RESULT = "right side is no value"
    WRONG_RESULT = "wrong right side"
    TOO_FEW = "fewer test cases than requested"
    EXTRA = "text after the last test case"


@dataclass(frozen=True)
class FirstError:
    """Where a completion goes wrong first.

    Attributes:
      kind: what is wrong.
      line: number of its line in the completion, from 1.
      position: index into the completion of the first character that is wrong; its length if the text ends too early.
    """

    kind: ErrorKind
    line: int
    position: int

    @property
    def trains_verifier(self) -> bool:
        """Whether a verifier learns from it: text after the last test case is ignored by the score, so not from it."""
        return self.kind is not ErrorKind.EXTRA


@dataclass(frozen=True)
class Case:
    """One test case that could be read: `assert name(items, item) == result`.

    Attributes:
      key: its list and item as written by `repr`; test cases are distinct if these are.
      expected: what the right side should be, as written by `repr`.
      correct: whether the right side equals it.
    """

    key: str
    expected: str
    correct: bool


@dataclass(frozen=True)
class Completion:
    """What a model wrote for one prompt.

    Attributes:
      name: the function's.
      text: what follows the prompt.
      queries: tokens generated for it, erased ones included (`padir.decoding.queries`).
    """

    name: str
    text: str
    queries: int


@dataclass(frozen=True)
class Score:
    """The metrics of the thesis's tables 3.6 to 3.17.

    Attributes:
      distinct_correct: N, correct test cases with different lists or items, counted for each name over all its
        completions.
      requested: test cases asked for, over all completions.
      queries: C, tokens generated for all completions.
    """

    distinct_correct: int
    requested: int
    queries: int

    @property
    def accuracy(self) -> float:
        """Acc_distinct: N over the test cases asked for."""
        return self.distinct_correct / self.requested


class _FaultError(Exception):
    """A line is no test case: (kind, index of the first wrong character in the line)."""


def random_names(count: int, rng: np.random.Generator) -> list[str]:
    """Different function names of three lower-case letters, none of them in `TRAINING_NAMES` or `OOD_NAMES`.

    Args:
      count: how many.
      rng: randomness.

    Raises:
      PadirError: count is no whole number of at least 1.
    """
    whole("count", count)
    names: list[str] = []
    while len(names) < count:
        name = "".join(rng.choice(list(string.ascii_lowercase), size=3))
        if name not in (*TRAINING_NAMES, *OOD_NAMES, *names) and _is_name(name):
            names.append(name)
    return names


def _is_name(name: str) -> bool:
    """Whether Python takes it for the name of a function: `for` is none."""
    return name.isidentifier() and name not in ("and", "def", "del", "for", "not", "try")


def prompt(name: str, rng: np.random.Generator, requested: int = REQUESTED) -> str:
    """The prompt for one function: demonstration, function, request. What follows it begins a line.

    Args:
      name: of the function.
      rng: randomness of the demonstration's numbers, 1 to 9.
      requested: test cases to ask for.

    Raises:
      PadirError: the name is none in Python, or `requested` is no whole number of at least 1.
    """
    whole("requested", requested)
    if not _is_name(name):
        raise PadirError(f"{name!r} cannot be the name of a Python function; take letters, such as 'knk'")
    request = "List {} test cases of the above function {}, one in each line:\n"
    pairs = rng.integers(1, 10, size=(requested, 2))
    return (
        "def f(a, b):\n    return a + b\n\n"
        + request.format(requested, "f")
        + "".join(f"assert f({a}, {b}) == {a + b}\n" for a, b in pairs)
        + f"\ndef {name}(l, item):\n    assert type(l) is list\n    l.append(item)\n    return l\n\n"
        + request.format(requested, name)
    )


def parse(text: str, name: str, requested: int = REQUESTED) -> list[Case]:
    """The test cases of a completion, correct or not: the first `requested`, duplicates included.

    Lines that are none are skipped. After the first test case, the third of them ends the completion.

    Args:
      text: the completion.
      name: of the function; test cases of another are none.
      requested: test cases that count.
    """
    cases: list[Case] = []
    stray = 0
    for line in text.split("\n"):
        if len(cases) == requested or stray == _STRAY_LINES:
            break
        if not line.strip():
            continue
        try:
            cases.append(_read(line, name)[0])
        except _FaultError:
            stray += bool(cases)
    return cases


def first_error(text: str, name: str, requested: int = REQUESTED) -> FirstError | None:
    """Where a completion goes wrong first, by rule; None if it consists of `requested` correct test cases.

    Args:
      text: the completion.
      name: of the function.
      requested: test cases that it should have.
    """
    start = found = 0
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            if found == requested:
                return FirstError(ErrorKind.EXTRA, number, start + len(line) - len(line.lstrip()))
            try:
                case, result = _read(line, name)
                if not case.correct:
                    raise _FaultError(ErrorKind.WRONG_RESULT, _first_difference(line, result, case.expected))
            except _FaultError as fault:
                kind, position = fault.args
                return FirstError(kind, number, start + position)
            found += 1
        start += len(line) + 1
    return FirstError(ErrorKind.TOO_FEW, text.count("\n") + 1, len(text)) if found < requested else None


def token_at(pieces: Sequence[str], position: int) -> int | None:
    """Which token an error is in.

    Args:
      pieces: the text of each token of a completion; "" of the EOS that ends it.
      position: index into their concatenation, see `FirstError.position`.

    Returns:
      Index of the token with that character; of EOS if the text ends before it; None if the text was cut off there.
    """
    start = 0
    for index, piece in enumerate(pieces):
        if position < start + len(piece) or (position == start and not piece):
            return index
        start += len(piece)
    return None


def score(completions: Iterable[Completion], requested: int = REQUESTED) -> Score:
    """Counts distinct correct test cases, and what they cost.

    Args:
      completions: of one setting: every name, every run.
      requested: test cases that each was asked for.

    Raises:
      PadirError: there are no completions.
    """
    completions = list(completions)
    if not completions:
        raise PadirError("no completions: nothing to score")
    correct: dict[str, set[str]] = defaultdict(set)
    for each in completions:
        correct[each.name] |= {case.key for case in parse(each.text, each.name, requested) if case.correct}
    return Score(
        distinct_correct=sum(map(len, correct.values())),
        requested=requested * len(completions),
        queries=sum(each.queries for each in completions),
    )


def _read(line: str, name: str) -> tuple[Case, int]:
    """A line → (its test case, where its right side begins); `_FaultError` if it is none."""
    start = f"assert {name}("
    common = len(commonprefix([line, start]))
    if common < len(start):
        raise _FaultError(ErrorKind.WRONG_FUNCTION if common >= len("assert ") else ErrorKind.NO_ASSERT, common)
    if len(line) > _LONGEST_LINE:
        raise _FaultError(ErrorKind.SYNTAX, _LONGEST_LINE)
    spans, end = _arguments(line, len(start))
    items, item = _list_and_item(line, spans)
    equals = _skip_blanks(line, end + 1)
    if not line.startswith("==", equals):
        raise _FaultError(ErrorKind.NO_EQUALS, equals + len(commonprefix([line[equals:], "=="])))
    result = _skip_blanks(line, equals + 2)
    expected = repr([*items, item])
    try:
        correct = _value(line[result:]) == [*items, item]
    except ValueError:
        raise _FaultError(ErrorKind.UNREADABLE_RESULT, _first_difference(line, result, expected)) from None
    return Case(repr((items, item)), expected, correct), result


def _arguments(line: str, start: int) -> tuple[list[tuple[int, int]], int]:
    """Splits a call at its commas: index after its parenthesis → ([begin, end) of each argument, where it closes)."""
    spans, begin, closing, quote = [], start, [")"], ""
    position = start
    while position < len(line):
        character = line[position]
        if quote:
            position += character == "\\"  # The next character, whatever it is, ends no string.
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        elif character in _CLOSING:
            closing.append(_CLOSING[character])
        elif character in ")]}" and character != closing.pop():
            raise _FaultError(ErrorKind.SYNTAX, position)
        if not closing or (character == "," and len(closing) == 1 and not quote):
            spans.append((begin, position))
            begin = position + 1
        if not closing:
            return spans, position
        position += 1
    raise _FaultError(ErrorKind.UNCLOSED_CALL, len(line))


def _list_and_item(line: str, spans: list[tuple[int, int]]) -> tuple[list[Any], Any]:
    """The two arguments of the call, of which `_arguments` says where they are."""
    begins = [_skip_blanks(line, begin) for begin, _ in spans]
    if not line.startswith("[", begins[0]):
        empty = len(spans) == 1 and begins[0] >= spans[0][1]
        raise _FaultError(ErrorKind.ARGUMENTS if empty else ErrorKind.NOT_A_LIST, begins[0])
    values = []
    for begin, (_, stop) in list(zip(begins, spans, strict=True))[:2]:
        try:
            values.append(_value(line[begin:stop]))
        except ValueError:
            raise _FaultError(ErrorKind.SYNTAX, begin) from None
    if len(spans) != 2:
        # The parenthesis after a single argument, or the comma after the second one.
        raise _FaultError(ErrorKind.ARGUMENTS, spans[len(values) - 1][1])
    return values[0], values[1]


def _value(text: str) -> Any:
    """The value that a literal stands for; ValueError if it is none, or one that Python cannot hold."""
    try:
        with warnings.catch_warnings():
            # Python warns of odd spellings, such as an unknown escape in a string.
            warnings.simplefilter("ignore")
            return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError) as error:
        raise ValueError("no literal") from error


def _first_difference(line: str, start: int, expected: str) -> int:
    """Where a right side that begins at `start` departs from the expected one, spaces and kinds of quotes aside."""
    wanted = [character for character in expected.replace('"', "'") if character != " "]
    present = [index for index in range(start, len(line)) if not line[index].isspace()]
    for index, character in zip_longest(present, wanted):
        if index is None or line[index].replace('"', "'") != character:
            return len(line) if index is None else index
    return len(line)


def _skip_blanks(line: str, position: int) -> int:
    """The first index from `position` on that holds no blank."""
    return position + len(line[position:]) - len(line[position:].lstrip())
