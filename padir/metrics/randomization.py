"""Approximate randomisation, a significance test for the difference between two systems.

If two systems were equally good, it would not matter which of them produced which output of a sentence. The test swaps
the two outputs of random sentences and counts how often the corpus scores then differ by at least the observed
difference (Noreen, 1989; Riezler and Maxwell, 2005). The p-value is (that count + 1) / (trials + 1). The observed
outputs count as one trial, so a p-value is never 0.

sacreBLEU also has this test, but counts only trials that differ by *more* than the observed difference. If only a few
sentences differ, as between 4 and 10 steps of one parallel decoder, most trials tie with the observed difference. For
example, if two systems differ in one sentence of a thousand, every trial ties: sacreBLEU reports p = 0.0001 after
10,000 trials, this test p = 1.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from padir.errors import PadirError
from padir.metrics.bootstrap import DEFAULT_SEED, TIE
from padir.metrics.counts import SCORES, SentenceCounts

# Trials computed at once; in float64 their swaps take 24 MB for 3,000 sentences.
_AT_ONCE = 1000


@dataclass(frozen=True)
class RandomizationTest:
    """The comparison of a system with a baseline in one metric.

    Attributes:
      difference: the system's corpus score minus the baseline's.
      p_value: probability of a difference of at least this size, in either direction, if outputs are swapped at random.
      trials: number of random swaps.
      seed: random seed of the swaps.
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
    """Tests whether two systems differ in corpus BLEU and chrF (two-sided).

    Args:
      system, baseline: counts of the two systems' outputs for the same sentences, in the same order.
      trials: number of random swaps.
      seed: random seed of the swaps; the same seed gives the same p-values.

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
            reached[name] += int((np.abs(found) >= np.abs(observed[name]) - TIE).sum())
    return {
        name: RandomizationTest(float(observed[name][0]), (reached[name] + 1) / (trials + 1), trials, seed)
        for name in names
    }


def swapped_differences(
    system: SentenceCounts, baseline: SentenceCounts, swaps: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Differences in corpus BLEU and chrF after outputs have been swapped.

    Args:
      system, baseline: counts of n sentences.
      swaps: [T, n], one row per trial: 1 where the two outputs of a sentence are swapped, else 0.

    Returns:
      (BLEU, chrF), each float64 [T]: the system's score minus the baseline's.
    """
    found = []
    for name, score in SCORES.items():
        ours, theirs = getattr(system, name), getattr(baseline, name)
        # The counts are far below 2^53, so their sums in float64 are exact and equal sums give equal scores.
        moved = swaps.astype(np.float64) @ (theirs - ours).astype(np.float64)
        found.append(score(ours.sum(axis=0) + moved) - score(theirs.sum(axis=0) - moved))
    return tuple(found)


def randomized_mean(
    system: np.ndarray, baseline: np.ndarray, *, trials: int = 10_000, seed: int = DEFAULT_SEED
) -> RandomizationTest:
    """Tests whether two systems differ in the mean of a number that each sentence has, such as its validity.

    Args:
      system, baseline: [n], the numbers of the same sentences.
      trials: number of random swaps.
      seed: random seed of the swaps.

    Returns:
      The two-sided test, as `approximate_randomization` makes it of corpus scores.

    Raises:
      PadirError: the numbers of sentences differ or are 0, or trials is below 1.
    """
    if np.shape(system) != np.shape(baseline) or np.ndim(system) != 1 or not np.size(system):
        raise PadirError(f"{np.shape(system)} numbers of the system, {np.shape(baseline)} of the baseline: give [n]")
    if trials < 1:
        raise PadirError(f"trials must be 1 or more, not {trials}")
    differences = np.asarray(system, np.float64) - np.asarray(baseline, np.float64)
    generator = np.random.default_rng(seed)
    reached = 0
    for start in range(0, trials, _AT_ONCE):
        size = (min(_AT_ONCE, trials - start), differences.size)
        # A swap changes the sign of a sentence's difference.
        signs = 1 - 2 * generator.integers(2, size=size, dtype=np.int8)
        reached += int((np.abs(signs @ differences) >= abs(differences.sum()) - TIE).sum())
    return RandomizationTest(float(differences.mean()), (reached + 1) / (trials + 1), trials, seed)
