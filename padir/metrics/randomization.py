"""Is one system better than another? Approximate randomisation of their paired outputs.

If the two were equally good, it would not matter which of the two outputs of a sentence is whose. The test swaps them
at random, sentence by sentence, and counts how often the corpus scores then differ by at least as much as they do
(Noreen, 1989; Riezler and Maxwell, 2005). The p-value is (that count + 1) / (trials + 1): the outputs as they are count
as a trial, so a p-value is never 0.

sacreBLEU has the test, too, but counts only trials that differ by *more*. Where few sentences differ, as between 4 and
10 steps of one parallel decoder, most trials tie with the real difference: two systems that differ in one sentence of a
thousand, for which every trial ties, come out of it at p = 0.0001, and of this one at p = 1.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from padir.errors import PadirError
from padir.metrics.counts import SCORES, SentenceCounts
from padir.metrics.quality import DEFAULT_SEED

# Trials shuffled at once: 24 MB for 3,000 sentences.
_AT_ONCE = 1000
# Scores of equal sums differ by less, scores of different sums by more.
_TIE = 1e-9


@dataclass(frozen=True)
class RandomizationTest:
    """A system against a baseline in one metric.

    Attributes:
      difference: the system's corpus score less the baseline's.
      p_value: how likely a difference of at least this size (either sign) is if outputs are swapped at random.
      trials: how many random swaps were tried.
      seed: of the swaps.
    """

    difference: float
    p_value: float
    trials: int
    seed: int

    def to_dict(self) -> dict[str, Any]:
        """Returns the test under its attribute names, ready for JSON."""
        return dataclasses.asdict(self)


def approximate_randomization(
    system: SentenceCounts, baseline: SentenceCounts, *, trials: int = 10_000, seed: int = DEFAULT_SEED
) -> dict[str, RandomizationTest]:
    """Tests the difference of two systems' corpus BLEU and chrF; two-sided.

    Args:
      system, baseline: counts of both systems' outputs for the same sentences, in the same order.
      trials: how many random swaps.
      seed: of them; the same seed gives the same p-values.

    Returns:
      {'bleu': test, 'chrf': test}.

    Raises:
      PadirError: the numbers of sentences differ or are 0, or trials is below 1.
    """
    if len(system) != len(baseline) or not len(system):
        raise PadirError(f"{len(system)} sentences of the system, {len(baseline)} of the baseline: give one for each")
    if trials < 1:
        raise PadirError(f"trials must be 1 or more, not {trials}")
    generator = np.random.default_rng(seed)
    names = list(SCORES)
    observed = dict(zip(names, swapped_differences(system, baseline, np.zeros((1, len(system)))), strict=True))
    reached = dict.fromkeys(names, 0)
    for start in range(0, trials, _AT_ONCE):
        swaps = generator.integers(2, size=(min(_AT_ONCE, trials - start), len(system)), dtype=np.int8)
        for name, found in zip(names, swapped_differences(system, baseline, swaps), strict=True):
            reached[name] += int((np.abs(found) >= np.abs(observed[name]) - _TIE).sum())
    return {
        name: RandomizationTest(float(observed[name][0]), (reached[name] + 1) / (trials + 1), trials, seed)
        for name in names
    }


def swapped_differences(
    system: SentenceCounts, baseline: SentenceCounts, swaps: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Differences of corpus BLEU and of chrF after outputs have been swapped.

    Args:
      system, baseline: counts of n sentences.
      swaps: [T, n], 1 where the two outputs of a sentence change places, else 0.

    Returns:
      (BLEU, chrF), each float64 [T]: score of the system less that of the baseline.
    """
    found = []
    for name, score in SCORES.items():
        ours, theirs = getattr(system, name), getattr(baseline, name)
        # Whole numbers far below 2^53: sums in float64 are exact, and equal sums give equal scores.
        moved = swaps.astype(np.float64) @ (theirs - ours).astype(np.float64)
        found.append(score(ours.sum(axis=0) + moved) - score(theirs.sum(axis=0) - moved))
    return tuple(found)
