"""Where the outputs of a generator first go wrong, and a balanced choice of right and wrong prefixes (NumPy).

A prefix is fine if it is a prefix of some valid output. So the first error of an output is its first token with which
no valid output agrees (thesis, section 3.2.1).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np


class Judged(NamedTuple):
    """An output, compared with all valid ones.

    Attributes:
      fine: tokens of its longest prefix that is fine.
      wrong: tokens of its shortest prefix that is not, which ends in the first error; 0 without one.
      is_valid: whether the whole output is a valid one.
    """

    fine: int
    wrong: int
    is_valid: bool


def judged(output: Sequence[int], valid: Collection[Sequence[int]]) -> Judged:
    """Compares an output with the valid ones, all of them token ids, EOS last where they end.

    An output that was cut off before an error is neither valid nor wrong.
    """
    fine = max((_common(output, each) for each in valid), default=0)
    wrong = fine + 1 if fine < len(output) else 0
    return Judged(fine, wrong, any(list(output) == list(each) for each in valid))


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two sequences have in common, from the first on."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


class Prefix(NamedTuple):
    """A labelled prefix of a sampled output.

    Attributes:
      sample: index of the output.
      length: tokens of the prefix.
      is_fine: its label.
    """

    sample: int
    length: int
    is_fine: bool


def balanced(
    outputs: Sequence[Sequence[int]], groups: Sequence[int], verdicts: Sequence[Judged], seed: int
) -> list[Prefix]:
    """As many fine prefixes as wrong ones of every length, so that a length tells nothing about the label.

    The wrong ones are outputs cut behind their first error. To each, a fine prefix of the same length is drawn, of
    whatever output. No prefix is taken twice for the same source; wrong ones for which no fine one is left are left
    out, at random.

    Args:
      outputs: token ids.
      groups: what each output was written for, such as the index of its source.
      verdicts: what `judged` says of each.
      seed: of the draws.

    Returns:
      The prefixes, wrong and fine ones in turns.
    """
    generator = np.random.default_rng(seed)
    order = generator.permutation(len(outputs)).tolist()
    taken: set[tuple[int, ...]] = set()

    def is_new(sample: int, length: int) -> bool:
        key = (groups[sample], *map(int, outputs[sample][:length]))
        new = key not in taken
        taken.add(key)
        return new

    wrong = [(sample, verdicts[sample].wrong) for sample in order if verdicts[sample].wrong]
    wrong = [found for found in wrong if is_new(*found)]
    fine: dict[int, list[int]] = {}
    for length, count in Counter(length for _, length in wrong).items():
        # In an order of their own, so that the same outputs do not serve every length.
        several = generator.permutation(len(outputs)).tolist()
        long_enough = (sample for sample in several if verdicts[sample].fine >= length)
        found = [sample for sample in long_enough if is_new(sample, length)]
        fine[length] = found[:count]
    pairs = []
    for sample, length in wrong:
        if fine[length]:
            pairs += [Prefix(sample, length, False), Prefix(fine[length].pop(), length, True)]
    return pairs
