"""The balance condition (2.47), and by how much attention violates it: (2.48) to (2.54).

Attention logits and values are given by ranks: logits [query, key] of all pairs of ranks [R, R], and values [R, m] of
keys. Depths and types as in `DyckLanguage`; types are counted from 0.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np

from padir.brackets.language import DyckLanguage
from padir.errors import PadirError


class Violation(NamedTuple):
    """How far from balance a layer is.

    Attributes:
      beta: [], the mean of the norms of S, each divided by the P of its query.
      sums: [D - 1, D, k, k] norms of S_{d,d',i,j}: what a pair (i, d') adds for the query (j, d - 1).
      scales: [D - 1, k] norms P_{d,j}: the least that tells the two likeliest types apart.
    """

    beta: float
    sums: np.ndarray
    scales: np.ndarray


def queries(language: DyckLanguage) -> np.ndarray:
    """Ranks of closing brackets that leave something open, which balance is about: [D - 1, k], depths 1 to D - 1.

    Raises:
      PadirError: there are none.
    """
    if language.depth < 2:
        raise PadirError("DyckLanguage.depth: 1 leaves no closing bracket behind which another is open; use at least 2")
    return np.array([[language.closing(j, d) for j in range(language.types)] for d in range(1, language.depth)])


def pairs(language: DyckLanguage) -> tuple[np.ndarray, np.ndarray]:
    """Ranks of the brackets of each pair: opening and closing, [D, k] each, of pairs that open at depth 1 to D."""
    kinds, depths = range(language.types), range(1, language.depth + 1)
    opening = np.array([[language.opening(i, d) for i in kinds] for d in depths])
    closing = np.array([[language.closing(i, d - 1) for i in kinds] for d in depths])
    return opening, closing


def gaps(language: DyckLanguage, logits: np.ndarray) -> np.ndarray:
    """What a pair's opening bracket gets more than its closing one, by query: [D - 1, k, D, k]."""
    opening, closing = pairs(language)
    rows = logits[queries(language)]
    return rows[..., opening] - rows[..., closing]


def is_balanced(language: DyckLanguage, logits: np.ndarray, tolerance: float = 1e-9) -> bool:
    """Whether each pair's gap is the same for all queries, as (2.47) asks."""
    by_query = gaps(language, logits).reshape(-1, language.depth, language.types)
    return bool(np.ptp(by_query, axis=0).max() <= tolerance)


def balanced(language: DyckLanguage, logits: np.ndarray, pair_gaps: np.ndarray) -> np.ndarray:
    """Logits [R, R] with these gaps [D, k]: those of closing keys are changed, for the queries that matter."""
    opening, closing = pairs(language)
    rows = queries(language)[..., None, None]
    result = np.array(logits, float)
    result[rows, closing] = result[rows, opening] - pair_gaps
    return result


def random_balanced(
    language: DyckLanguage, generator: np.random.Generator, scale: float
) -> tuple[np.ndarray, np.ndarray]:
    """Balanced logits [R, R] and their gaps [D, k], all of them normal with this standard deviation."""
    logits = scale * generator.standard_normal((language.ranks, language.ranks))
    pair_gaps = scale * generator.standard_normal((language.depth, language.types))
    return balanced(language, logits, pair_gaps), pair_gaps


def perturbed(language: DyckLanguage, logits: np.ndarray, generator: np.random.Generator, epsilon: float) -> np.ndarray:
    """Logits [R, R] with normal noise of standard deviation epsilon in the rows that balance is about."""
    rows = queries(language).ravel()
    result = np.array(logits, float)
    result[rows] += epsilon * generator.standard_normal((len(rows), language.ranks))
    return result


def projected(language: DyckLanguage, logits: np.ndarray) -> np.ndarray:
    """The balanced logits [R, R] nearest to given ones, by the Frobenius norm.

    Each pair's gap becomes its mean over the queries; its two logits share the change.
    """
    opening, closing = pairs(language)
    rows = queries(language)[..., None, None]
    found = gaps(language, logits)
    change = (found.mean(axis=(0, 1)) - found) / 2
    result = np.array(logits, float)
    result[rows, opening] += change
    result[rows, closing] -= change
    return result


def contributions(logits: np.ndarray, values: np.ndarray, swapped: bool = False) -> np.ndarray:
    """u(key; query) of (2.48): P⊥ exp(logit) value, [query, key, m]; each query's largest logit is subtracted first.

    Args:
      logits: [query, key].
      values: [key, m].
      swapped: whether u's arguments are swapped in the exponent, as (2.49) to (2.54) print them.
    """
    logits = logits.T if swapped else logits
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return weights[..., None] * (values - values.mean(axis=1, keepdims=True))


def violation(language: DyckLanguage, logits: np.ndarray, values: np.ndarray, swapped: bool = False) -> Violation:
    """β and its parts, (2.51) to (2.54).

    Args:
      language: the language, of two or more types.
      logits: [R, R], [query, key].
      values: [R, m].
      swapped: see `contributions`.

    Raises:
      PadirError: there is one type only, so that nothing is to be told apart, or depth is 1.
    """
    if language.types < 2:
        raise PadirError("DyckLanguage.types: 1 leaves nothing to tell apart, so β has no scale; use at least 2")
    given = contributions(np.asarray(logits, float), np.asarray(values, float), swapped)
    opening, closing = pairs(language)
    of_query = queries(language)
    # [D - 1, k, D, k, m], then the order of S_{d,d',i,j}.
    sums = given[of_query[..., None, None], opening] + given[of_query[..., None, None], closing]
    norms = np.linalg.norm(sums, axis=-1).transpose(0, 2, 3, 1)
    scales = np.array([[_scale(language, given[rank], d, j) for j, rank in enumerate(row)]
                       for d, row in enumerate(of_query, 2)])  # fmt: skip
    return Violation(float((norms / scales[:, None, None, :]).mean()), norms, scales)


def _scale(language: DyckLanguage, given: np.ndarray, depth: int, kind: int) -> float:
    """P_{d,j} of (2.53), from u [key, m] of the query (j, d - 1)."""
    always = given[language.ranks - 1] + given[language.opening(kind, depth)] + given[language.closing(kind, depth - 1)]
    open_types = list(itertools.product(range(language.types), repeat=depth - 1))
    norms = np.array(
        [
            np.linalg.norm(always + sum(given[language.opening(i, at)] for at, i in enumerate(types, 1)))
            for types in open_types
        ]
    )
    last = np.array([types[-1] for types in open_types])
    return float(norms[last != last[norms.argmin()]].min())
