"""Whether pairs that stutter differ from those that do not, by chance or not.

Pairs of one sentence are not independent: a sentence may be hard as a whole, and neighbouring pairs share a position.
So labels never move between sentences, and within one they move together: a permutation rotates the sequence of a
sentence's labels by a random offset, which keeps runs of stutter together. The test is exact if where in its sentence
the stutter stands has nothing to do with the attention there, and attention is alike all along a sentence. Sentences in
which all pairs or none stutter say nothing.

The statistic is the difference of the two means over all pairs. Its mean over all rotations is what sentences
contribute that stutter as a whole; a difference is measured from there ('within sentences'), in both directions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

# Numbers held at a time.
_CHUNK = 4_000_000


@dataclass(frozen=True)
class Comparison:
    """Pairs that stutter against the others, of several statistics.

    Attributes:
      difference: [S] float64, mean over the pairs that stutter less that over the others.
      within: [S] float64, how far it is from its mean over all rotations.
      p_value: [S] float64, two-sided, (1 + rotations at least as far) / (1 + rotations drawn).
      low, high: [S] float64, 95% bootstrap interval of `difference`, sentences drawn anew.
    """

    difference: np.ndarray
    within: np.ndarray
    p_value: np.ndarray
    low: np.ndarray
    high: np.ndarray


def compare(
    values: np.ndarray, stutters: np.ndarray, sentences: np.ndarray, *, permutations: int, seed: int
) -> Comparison:
    """Compares two kinds of pairs.

    Args:
      values: [n, S], S statistics of every pair.
      stutters: [n] bool; some do and some do not.
      sentences: [n] int, whose pairs they are; those of a sentence lie together, from left to right.
      permutations: random rotations, and bootstrap samples.
      seed: of both.
    """
    values = values.astype(np.float64)
    starts = np.flatnonzero(np.concatenate([[True], sentences[1:] != sentences[:-1]]))
    marked = int(stutters.sum())
    # Of the two means' difference only the sum over the pairs that stutter changes under a permutation.
    scale = 1 / marked + 1 / (len(values) - marked)
    observed = values[stutters].sum(0)
    tables = rotated_sums(values, stutters, starts)
    expected = sum((table.mean(0) for table in tables), np.zeros(values.shape[1]))
    generator = np.random.default_rng(seed)
    # Rotations that come to the same labels must come to the same sum, whatever their rounding.
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
    """What a sentence's marked values sum to, for every rotation of its labels.

    Args:
      values: [n, S] float64.
      stutters: [n] bool.
      starts: [sentences] int, where each sentence begins.

    Returns:
      For each sentence with a marked pair [rotations, S]; one rotation where all pairs are marked. The first is
      that of the labels as they are.
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
    """Yields, in pieces [≤ count, S], sums over the sentences with a random rotation of each."""
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
    """The 2.5th and 97.5th percentile of the difference of means over sentences drawn with replacement: [S] each."""
    counted = np.concatenate([values, np.ones((len(values), 1))], axis=1)
    with_, without = (np.add.reduceat(counted * kind[:, None], starts) for kind in (stutters, ~stutters))
    differences = np.empty((count, values.shape[1]))
    piece = max(1, _CHUNK // len(starts))
    for begin in range(0, count, piece):
        size = min(piece, count - begin)
        times = generator.multinomial(len(starts), np.full(len(starts), 1 / len(starts)), size)
        ours, others = times @ with_, times @ without
        with np.errstate(invalid="ignore"):
            # A sample without one of the kinds has no difference.
            differences[begin : begin + size] = ours[:, :-1] / ours[:, -1:] - others[:, :-1] / others[:, -1:]
    defined = differences[np.isfinite(differences).all(1)]
    if not len(defined):
        return np.full(values.shape[1], np.nan), np.full(values.shape[1], np.nan)
    low, high = np.percentile(defined, [2.5, 97.5], axis=0)
    return low, high
