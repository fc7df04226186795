"""The core of Theorem 2.2.3: some subset of random weights comes close to any matrix (Lemma 2.2.2, Pensia et al. 2020).

A random network x → W_2 ReLU(W_1 x) has n hidden units for each input and sign. Of W_1 all entries are zeroed but those
of a unit's own input, whatever the target; of W_2 those are kept whose products with W_1 add up to the target's entry.
Units whose weight in W_1 is positive see positive inputs, the others see negative ones, so each needs a subset.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Pruned(NamedTuple):
    """A pruned network.

    Attributes:
      first: [hidden, m] W_1 with zeros.
      second: [m', hidden] W_2 with zeros.
      errors: [m', m], the larger one of both signs' distances from the target's entry.
    """

    first: np.ndarray
    second: np.ndarray
    errors: np.ndarray

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """The network's output: [..., m] → [..., m']."""
        return np.maximum(x @ self.first.T, 0.0) @ self.second.T


def nearest_subset(values: np.ndarray, target: float) -> np.ndarray:
    """Which of the values [n], one or more, have the sum nearest to a target: [n] bool.

    All 2^n subsets are considered. Half the values are combined with the other half, whose sums are sorted.
    """
    half = len(values) // 2
    left, right = _sums(values[:half]), _sums(values[half:])
    order = np.argsort(right)
    ascending = right[order]
    above = np.clip(np.searchsorted(ascending, target - left), 1, len(right) - 1)
    lower_is_nearer = np.abs(left + ascending[above - 1] - target) <= np.abs(left + ascending[above] - target)
    chosen = above - lower_is_nearer
    best = np.abs(left + ascending[chosen] - target).argmin()
    return np.concatenate([_bits(best, half), _bits(order[chosen[best]], len(values) - half)])


def _sums(values: np.ndarray) -> np.ndarray:
    """Sums of all subsets [2^n]; bit i of the index says whether value i is in it."""
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate([sums, sums + value])
    return sums


def _bits(number: int, count: int) -> np.ndarray:
    return (int(number) >> np.arange(count) & 1).astype(bool)


def random_network(
    generator: np.random.Generator, inputs: int, outputs: int, units: int
) -> tuple[np.ndarray, np.ndarray]:
    """W_1 [2 units · m, m] and W_2 [m', 2 units · m], uniform on (-1, 1).

    Rows of W_1 are put in order, so that of each input's units the first half have a positive weight for it. (A larger
    random network has enough of both signs; the order is of no consequence.)
    """
    hidden = 2 * units * inputs
    first = generator.uniform(-1, 1, (hidden, inputs))
    second = generator.uniform(-1, 1, (outputs, hidden))
    own = np.repeat(np.arange(inputs), 2 * units)
    sign = np.tile(np.repeat([1.0, -1.0], units), inputs)
    rows = np.arange(hidden)
    first[rows, own] = sign * np.abs(first[rows, own])
    return first, second


def prune(first: np.ndarray, second: np.ndarray, target: np.ndarray) -> Pruned:
    """Prunes a network of `random_network` towards a target [m', m] with entries in (-1, 1)."""
    outputs, inputs = target.shape
    units = len(first) // (2 * inputs)
    kept_first = np.zeros_like(first)
    rows = np.arange(len(first))
    own = np.repeat(np.arange(inputs), 2 * units)
    kept_first[rows, own] = first[rows, own]
    kept_second, errors = np.zeros_like(second), np.zeros_like(target)
    for i in range(outputs):
        for j in range(inputs):
            for half in range(2):
                begin = (2 * j + half) * units
                block = slice(begin, begin + units)
                # Of x_j's sign, these units add up to Σ W_2 W_1 x_j.
                products = second[i, block] * first[block, j]
                chosen = nearest_subset(products, target[i, j])
                kept_second[i, block] = np.where(chosen, second[i, block], 0.0)
                errors[i, j] = max(errors[i, j], abs(products[chosen].sum() - target[i, j]))
    return Pruned(kept_first, kept_second, errors)
