"""Synthetic test cases for the small experiment: lines such as `assert abc([1], 2) == [1, 2]`, some of them wrong.

A text is the function's name, a line break, and a few lines. Characters are tokens, but for 'assert', the comma and
'==' with the spaces around them, which are one each, so that texts are short.
"""

from __future__ import annotations

import string
from collections.abc import Sequence

import numpy as np

from padir.types import EOS_ID, TokenIds

PIECES = ("", "", "", "\n", "assert ", " == ", ", ", "(", ")", "[", "]", *string.digits, *string.ascii_lowercase)
NEWLINE = 3
IDS = TokenIds(num_pieces=len(PIECES), extra_ids=1, rows=48)
LONGEST_LIST = 3
# Tokens of the longest line, of a list of three items that has become one of five, and of a name and its line break.
LONGEST_LINE, PROMPT = 4 * (LONGEST_LIST + 1) + 14, 4
_NUMBER = {piece: number for number, piece in enumerate(PIECES) if piece}


def tokens_of(text: str) -> list[int]:
    """Token ids of a text of this form.

    Raises:
      KeyError: it has other characters.
    """
    found, at = [], 0
    while at < len(text):
        piece = next((each for each in PIECES[4:7] if text.startswith(each, at)), text[at])
        found.append(_NUMBER[piece])
        at += len(piece)
    return found


def pieces_of(tokens: Sequence[int]) -> list[str]:
    """The text of each token, up to EOS, which has none, and that included."""
    found = []
    for token in tokens:
        found.append(PIECES[token] if token < len(PIECES) else "")
        if token == EOS_ID:
            break
    return found


def line(name: str, random: np.random.Generator, wrong: float) -> str:
    """A test case without its line break, wrong with this probability.

    What is wrong: the item is missing, comes first, or stands there twice, or one number of the result is another one.
    """
    items = random.integers(0, 10, random.integers(0, LONGEST_LIST + 1)).tolist()
    item = int(random.integers(0, 10))
    result = [*items, item]
    if random.random() < wrong:
        kind = random.integers(4)
        if kind == 0:
            result = items
        elif kind == 1 and result[::-1] != result:
            result = [item, *items]
        elif kind == 2:
            result = [*items, item, item]
        else:
            at = random.integers(len(result))
            result[at] = (result[at] + int(random.integers(1, 10))) % 10
    return f"assert {name}({items}, {item}) == {result}"


def texts(
    names: Sequence[str], count: int, random: np.random.Generator, *, lines: int, wrong: float
) -> tuple[np.ndarray, int]:
    """Training texts with EOS: ([count, L] int32, 0 behind them; L)."""
    room = room_of(lines)
    found = np.zeros((count, room), np.int32)
    for row in found:
        name = names[random.integers(len(names))]
        ids = tokens_of(prompt(name) + "".join(line(name, random, wrong) + "\n" for _ in range(lines)))
        row[: len(ids) + 1] = [*ids, EOS_ID]
    return found, room


def room_of(lines: int) -> int:
    """Most tokens of a text of so many lines, EOS counted."""
    return PROMPT + lines * LONGEST_LINE + 1


def prompt(name: str) -> str:
    """What a text begins with."""
    return f"{name}\n"
