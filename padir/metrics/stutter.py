"""Stutter: adjacent repetitions in the output that the reference does not have.

Parallel decoders choose the tokens of neighbouring positions independently, so they sometimes write a word twice.
N-gram overlap hardly changes, but a reader notices (paper, section 4.2.3: "how often consecutive words are repeated in
the model output but not in the reference"). The paper gives no formula. We use this definition:

* A repeat of the item w is a position that holds w and whose left neighbour holds w, too.
  "so so so good" has two repeats of "so".
* A repeat of w in the reference matches one repeat of w in the output, wherever the two are in the sentence.
  The output's repeats without a match are the excess of the sentence.
* The rate of a corpus is 100 x (sum of the excess) / (sum of the output's items). It is a ratio of sums, so long
  sentences count for more. An output with no items at all has rate 0.

Example: the output is "he had had had a a car" and the reference is "he had had a car". The output repeats "had" twice
and "a" once. The reference matches one repeat of "had". The excess is 1 + 1 = 2 of 7 words, or 28.57 per 100 words.

`StutterRates` also gives all repeats of the output and all repeats of the reference, each per 100 of its own items.
They separate what the language itself repeats ("had had", "sehr sehr") from what the model adds.

Words are separated by white space and compared exactly: "So so" and "so, so" have no repeat. In scripts without spaces
between words, each character counts as a word.
"""

from __future__ import annotations

import collections
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from padir.errors import PadirError
from padir.types import EOS_ID, PAD_ID


@dataclass(frozen=True)
class StutterRates:
    """Repeats of a corpus, per 100 items (words or tokens).

    Attributes:
      output: all adjacent repeats of the output, per 100 items of the output.
      reference: all adjacent repeats of the reference, per 100 items of the reference.
      excess: repeats of the output that the reference does not match, per 100 items of the output: "stutter".
    """

    output: float
    reference: float
    excess: float


def excess_repeats(output: Sequence[Hashable], reference: Sequence[Hashable]) -> int:
    """Counts the adjacent repeats of one sentence that its reference does not match.

    Args:
      output: the items (words or ids) of the hypothesis.
      reference: the items of the reference.

    Returns:
      The sum over items w of max(0, repeats of w in output - repeats of w in reference).
    """
    # Counter subtraction keeps positive counts only, which is the max(0, ...) of the definition.
    return (_repeats(output) - _repeats(reference)).total()


def stuttering_positions(output: Sequence[Hashable], reference: Sequence[Hashable]) -> list[int]:
    """Positions of the repeats in a sentence that the reference does not match.

    If the reference matches only some repeats of an item, it matches the first ones.

    Args:
      output: the items (words or ids) of the hypothesis.
      reference: the items of the reference.

    Returns:
      Positions in `output`, counted from 0, in ascending order. There are as many as `excess_repeats` counts.
    """
    unused = _repeats(reference)
    positions = []
    for position, (previous, item) in enumerate(zip(output, output[1:], strict=False), start=1):
        if item != previous:
            continue
        if unused[item]:
            unused[item] -= 1
        else:
            positions.append(position)
    return positions


def stutter_rates(outputs: Sequence[Sequence[Hashable]], references: Sequence[Sequence[Hashable]]) -> StutterRates:
    """Rates of a corpus of items, which may be words or token ids.

    Args:
      outputs: the items of each hypothesis; token ids without EOS and padding.
      references: the items of each reference, likewise.

    Raises:
      PadirError: the numbers of hypotheses and references differ.
    """
    if len(outputs) != len(references):
        raise PadirError(
            f"stutter: {len(outputs)} hypotheses but {len(references)} references; give one reference per hypothesis"
        )
    excess = sum(excess_repeats(output, reference) for output, reference in zip(outputs, references, strict=True))
    return StutterRates(
        output=_per_100(sum(_repeats(output).total() for output in outputs), outputs),
        reference=_per_100(sum(_repeats(reference).total() for reference in references), references),
        excess=_per_100(excess, outputs),
    )


def words(text: str, tokenize: str = "13a") -> list[str]:
    """The words of a text for word-level stutter.

    Args:
      text: one sentence.
      tokenize: sacreBLEU's tokeniser for the language.

    Returns:
      The words between white space; the characters if the language is `unspaced`.
    """
    return [character for character in text if not character.isspace()] if unspaced(tokenize) else text.split()


def unspaced(tokenize: str) -> bool:
    """Whether this sacreBLEU tokeniser is for a language without spaces between words.

    Signatures put MeCab's version behind its name: 'ja-mecab-0.996-IPA'.
    """
    return tokenize in ("zh", "char") or tokenize.startswith("ja-mecab")


def word_stutter(hypotheses: Sequence[str], references: Sequence[str], tokenize: str = "13a") -> StutterRates:
    """Word-level rates of a corpus; arguments and errors as for `stutter_per_100_words`."""
    outputs, others = ([words(text, tokenize) for text in texts] for texts in (hypotheses, references))
    return stutter_rates(outputs, others)


def token_stutter(hypotheses: Iterable[Iterable[int]], references: Iterable[Iterable[int]]) -> StutterRates:
    """Token-level rates of a corpus; arguments and errors as for `stutter_per_100_tokens`."""
    return stutter_rates([content(row) for row in hypotheses], [content(row) for row in references])


def stutter_per_100_words(hypotheses: Sequence[str], references: Sequence[str], tokenize: str = "13a") -> float:
    """Returns the word-level stutter rate of a corpus, as this module defines it.

    Args:
      hypotheses: the system's sentences; empty ones are allowed.
      references: one reference for each.
      tokenize: sacreBLEU's tokeniser for the language, which decides what a word is; see `words`.

    Returns:
      Excess repeats per 100 words of output, 0.0 to less than 100.0.

    Raises:
      PadirError: the two sequences differ in length.
    """
    return word_stutter(hypotheses, references, tokenize).excess


def stutter_per_100_tokens(hypotheses: Iterable[Iterable[int]], references: Iterable[Iterable[int]]) -> float:
    """Returns the token-level stutter rate of a corpus, as this module defines it.

    Args:
      hypotheses: token ids of each hypothesis: a [B, L] integer array or ragged lists. A row ends before its
        first EOS (id 1), and padding (id 0) is ignored.
      references: token ids of each reference, in the same form.

    Returns:
      Excess repeats per 100 tokens of output (EOS not counted), 0.0 to less than 100.0.

    Raises:
      PadirError: the two differ in their number of rows.
    """
    return token_stutter(hypotheses, references).excess


def _repeats(items: Sequence[Hashable]) -> collections.Counter:
    return collections.Counter(item for previous, item in zip(items, items[1:], strict=False) if item == previous)


def content(row: Iterable[int]) -> list[int]:
    """The ids of a row before its first EOS, without padding."""
    ids = [int(token) for token in row]
    if EOS_ID in ids:
        ids = ids[: ids.index(EOS_ID)]
    return [token for token in ids if token != PAD_ID]


def _per_100(count: int, rows: Sequence[Sequence[Hashable]]) -> float:
    items = sum(len(row) for row in rows)
    return 100.0 * count / items if items else 0.0
