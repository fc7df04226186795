"""Which translations of a teacher a student does not learn from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from padir.data.records import Example
from padir.errors import PadirError

# Repetition loops of decoders are seldom longer than this many tokens.
_LONGEST_LOOP = 4


@dataclass(frozen=True)
class DistillFilters:
    """Which translations to leave out of a distilled set. Empty and over-long ones are always left out.

    Attributes:
      cut_off: leave out a translation that reached the decoder's length limit before EOS.
      max_length_ratio: leave out a pair if the longer side has more than this many times the tokens of the shorter
        side, EOS included. None sets no limit.
      identical: leave out a translation that equals its source up to white space.
      max_repeats: leave out a translation in which a sequence of 1 to 4 tokens occurs more than this many times in a
        row. None sets no limit.
    """

    cut_off: bool = True
    max_length_ratio: float | None = None
    identical: bool = False
    max_repeats: int | None = None

    def __post_init__(self):
        if self.max_length_ratio is not None and self.max_length_ratio < 1:
            raise PadirError(f"DistillFilters.max_length_ratio: {self.max_length_ratio} is below 1; None sets no limit")
        if self.max_repeats is not None and self.max_repeats < 1:
            raise PadirError(f"DistillFilters.max_repeats: {self.max_repeats} is not at least 1; None sets no limit")

    def reason(self, example: Example, text: str, ids: Sequence[int], *, longest: int, cut_off: bool) -> str | None:
        """Returns why a translation is left out, or None if it is kept.

        Args:
          example: the source.
          text: the translation.
          ids: its token ids, ending in EOS.
          longest: the largest number of tokens that a target may have.
          cut_off: whether the teacher reached its length limit before EOS.

        Returns:
          The first reason that applies of 'empty', 'cut_off', 'over_long', 'length_ratio', 'identical' and
          'repetition', or None.
        """
        shorter, longer = sorted((len(example.source_ids), len(ids)))
        reasons = {
            # The only token of an empty translation is EOS.
            "empty": len(ids) == 1,
            "cut_off": self.cut_off and cut_off,
            "over_long": len(ids) > longest,
            "length_ratio": self.max_length_ratio is not None and longer > self.max_length_ratio * shorter,
            "identical": self.identical and example.source_text.split() == text.split(),
            "repetition": self.max_repeats is not None and most_repeats(ids) > self.max_repeats,
        }
        return next((name for name, applies in reasons.items() if applies), None)


def most_repeats(ids: Sequence[int]) -> int:
    """Returns how often in a row the most repeated sequence of 1 to 4 ids occurs.

    For 5 7 8 7 8 7 8 9 it is 3; without any repetition it is 1.
    """
    most = 1
    for size in range(1, _LONGEST_LOOP + 1):
        run = 0
        for earlier, later in zip(ids, ids[size:], strict=False):
            run = run + 1 if earlier == later else 0
            most = max(most, run // size + 1)
    return most
