"""A permutation test for the difference between pairs that stutter and pairs that do not.

The pairs of one sentence are not independent: a whole sentence may be hard to translate, and neighbouring pairs share a
position. Therefore labels ("stutters" or not) never move between sentences. Within a sentence they move together: a
permutation rotates the sequence of its labels by a random offset, so that adjacent labels stay adjacent. The test is
exact if the place of stutter in a sentence is independent of the attention there, and if attention has the same
distribution at all places of the sentence. Sentences in which every pair or no pair stutters contribute nothing.

The statistic is the difference between the two means over all pairs. Its mean over all rotations is the part that comes
from differences between sentences. The test looks at the remaining difference ('within sentences') and is two-sided.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

# Maximum number of array elements held in memory at a time.
_CHUNK = 4_000_000


@dataclass(frozen=True)
class Comparison:
    """The comparison of pairs that stutter with the other pairs, for S statistics.

    Attributes:
      difference: [S] float64, mean over the pairs that stutter minus mean over the others.
      within: [S] float64, `difference` minus its mean over all rotations.
      p_value: [S] float64, two-sided: (1 + rotations whose `within` is at least as large) / (1 + rotations).
      low, high: [S] float64, 95% bootstrap interval of `difference`, with sentences resampled.
    """

    difference: np.ndarray
    within: np.ndarray
    p_value: np.ndarray
    low: np.ndarray
    high: np.ndarray


def compare(
    values: np.ndarray, stutters: np.ndarray, sentences: np.ndarray, *, permutations: int, seed: int
) -> Comparison:
    """Compares pairs that stutter with pairs that do not.

    Args:
      values: [n, S], S statistics of each pair.
      stutters: [n] bool, at least one true and one false.
      sentences: [n] int, the sentence of each pair; the pairs of a sentence follow each other, from left to right.
      permutations: number of random rotations, and of bootstrap samples.
      seed: random seed of both.
    """
    values = values.astype(np.float64)
    starts = np.flatnonzero(np.concatenate([[True], sentences[1:] != sentences[:-1]]))
    marked = int(stutters.sum())
    # Under a permutation only the sum over the pairs that stutter changes, so it is enough to compare these sums.
    scale = 1 / marked + 1 / (len(values) - marked)
    observed = values[stutters].sum(0)
    tables = rotated_sums(values, stutters, starts)
    expected = sum((table.mean(0) for table in tables), np.zeros(values.shape[1]))
    generator = np.random.default_rng(seed)
    # The tolerance makes rotations with the same labels tie, although rounding may make their sums differ.
    distance = np.abs(observed - expected) - 1e-12 * marked * np.abs(values).max(0)
    farther = np.zeros(values.shape[1], np.int64)
    for sums in _random_sums(tables, permutations, generator):
        farther += (np.abs(sums - expected) >= distance).sum(0)
    low, high = _bootstrap(values, stutters, starts, permutations, generator)
    return Comparison(
        difference=observed * scale - values.sum(0) / (len(values) - marked),
        within=(observed - expected) * scale,
        p_value=(1 + farther) / (1 + permutations),
        low=low,
        high=high,
    )


def rotated_sums(values: np.ndarray, stutters: np.ndarray, starts: np.ndarray) -> list[np.ndarray]:
    """The sum of the values of pairs that stutter, in each sentence, for every rotation of its labels.

    Args:
      values: [n, S] float64.
      stutters: [n] bool.
      starts: [sentences] int, index of the first pair of each sentence.

    Returns:
      An array [rotations, S] for each sentence with a pair that stutters, starting with the rotation by 0. If all
      pairs of a sentence stutter, it has only this one.
    """
    tables = []
    for start, end in zip(starts, [*starts[1:], len(values)], strict=True):
        labels = stutters[start:end]
        if not labels.any():
            continue
        size = 1 if labels.all() else len(labels)
        positions = np.arange(len(labels))
        rotated = labels[(positions - np.arange(size)[:, None]) % len(labels)]
        tables.append(rotated @ values[start:end])
    return tables


def _random_sums(tables: list[np.ndarray], count: int, generator: np.random.Generator):
    """Yields sums over all sentences, each with a random rotation: `count` of them, in pieces [≤ count, S]."""
    joined = np.concatenate(tables)
    sizes = np.array([len(table) for table in tables])
    offsets = np.cumsum(sizes) - sizes
    piece = max(1, _CHUNK // (len(tables) * joined.shape[1]))
    for begin in range(0, count, piece):
        rotations = generator.integers(0, sizes, (min(piece, count - begin), len(tables)))
        yield joined[offsets + rotations].sum(1)


def _bootstrap(
    values: np.ndarray, stutters: np.ndarray, starts: np.ndarray, count: int, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """The 2.5th and 97.5th percentile [S] of the difference of means when sentences are drawn with replacement."""
    counted = np.concatenate([values, np.ones((len(values), 1))], axis=1)
    with_, without = (np.add.reduceat(counted * kind[:, None], starts) for kind in (stutters, ~stutters))
    differences = np.empty((count, values.shape[1]))
    piece = max(1, _CHUNK // len(starts))
    for begin in range(0, count, piece):
        size = min(piece, count - begin)
        times = generator.multinomial(len(starts), np.full(len(starts), 1 / len(starts)), size)
        ours, others = times @ with_, times @ without
        with np.errstate(invalid="ignore"):
            # 0 / 0 if a sample contains only pairs of one kind; such a sample is ignored.
            differences[begin : begin + size] = ours[:, :-1] / ours[:, -1:] - others[:, :-1] / others[:, -1:]
    defined = differences[np.isfinite(differences).all(1)]
    if not len(defined):
        return np.full(values.shape[1], np.nan), np.full(values.shape[1], np.nan)
    low, high = np.percentile(defined, [2.5, 97.5], axis=0)
    return low, high
