"""How much attention differs between networks, and whether it looks like a stack."""

from __future__ import annotations

import numpy as np


def variation(patterns: np.ndarray) -> float:
    """Attention variation: the mean over all pairs of ‖A_1 - A_2‖_F².

    Args:
      patterns: [S, L, L], of S networks on one sequence.

    Raises:
      ValueError: there is one pattern only.
    """
    count = len(patterns)
    if count < 2:
        raise ValueError("one pattern varies from nothing")
    # Over ordered pairs, Σ ‖A_i - A_j‖² = 2 S Σ ‖A_i‖² - 2 ‖Σ A_i‖². From the first, for the sake of rounding.
    centred = patterns - patterns[:1]
    total = count * (centred**2).sum() - (centred.sum(axis=0) ** 2).sum()
    return float(total / (count * (count - 1) / 2))


def dirichlet_baseline(positions: int) -> float:
    """The expected variation of causal patterns whose rows are uniform on the simplex: 2 (2 (H_{N+1} - 1) - H_N)."""
    harmonic = np.cumsum(1.0 / np.arange(1, positions + 2))
    return float(2 * (2 * (harmonic[positions] - 1) - harmonic[positions - 1]))


def random_patterns(generator: np.random.Generator, count: int, positions: int) -> np.ndarray:
    """Causal patterns with rows uniform on the simplex: [count, N, N], [query, key]."""
    drawn = generator.exponential(size=(count, positions, positions)) * np.tri(positions)
    return drawn / drawn.sum(axis=-1, keepdims=True)


def stack_shares(patterns: np.ndarray, tops: np.ndarray) -> tuple[float, float]:
    """How much like a stack attention is.

    Args:
      patterns: [..., L, L], [query, key].
      tops: [L] int, the position of the last unmatched opening bracket after each token; 0 where none is open.

    Returns:
      The attention that it gets, and the share of queries that attend to it most; means over the queries behind which
      something is open.
    """
    open_ = np.flatnonzero(tops > 0)
    rows = patterns[..., open_, :]
    mass = np.take_along_axis(rows, np.broadcast_to(tops[open_, None], (*rows.shape[:-1], 1)), axis=-1)
    return float(mass.mean()), float((rows.argmax(axis=-1) == tops[open_]).mean())
