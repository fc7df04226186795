"""How much of a reference a hypothesis has."""

from __future__ import annotations

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from padir.objectives.overlap import ngram_f1


def by_counting(hypothesis, reference, longest):
    """The same with Python's counters."""
    found = []
    for n in range(1, longest + 1):
        counts = [
            Counter(tuple(tokens[at : at + n]) for at in range(len(tokens) - n + 1))
            for tokens in (hypothesis, reference)
        ]
        if there := sum(counts[0].values()) + sum(counts[1].values()):
            found.append(2 * sum((counts[0] & counts[1]).values()) / there)
    return sum(found) / max(len(found), 1)


@pytest.mark.parametrize(
    ("hypothesis", "reference", "expected"),
    [
        ([5, 6, 7, 8], [5, 6, 7, 8], 1.0),
        ([5, 6], [7, 8], 0.0),
        # Of the 1-grams one matches of 2 and 2; of the 2-grams none.
        ([5, 6], [5, 7], (1 / 2 + 0) / 2),
        # A token said three times counts as often as the reference has it.
        ([5, 5, 5], [5, 6, 6], (1 / 3 + 0 + 0) / 3),
        ([5], [5], 1.0),
        ([], [5, 6], 0.0),
        ([], [], 0.0),
    ],
)
@pytest.mark.parametrize("room", [0, 3])
def test_of_a_pair(hypothesis, reference, expected, room):
    """However little room there is for longer n-grams."""
    rows = (jnp.asarray([tokens + [0] * max(room, len(tokens) == 0)], jnp.int32) for tokens in (hypothesis, reference))
    assert float(ngram_f1(*rows)[0]) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("longest", [1, 2, 4])
def test_it_is_what_counting_finds(longest):
    """Of random rows of few tokens, so that n-grams occur again and again; padded differently."""
    draw = np.random.default_rng(0)
    pairs = [[draw.integers(2, 5, draw.integers(0, 9)).tolist() for _ in range(2)] for _ in range(200)]
    rows = [np.zeros((200, width), np.int32) for width in (8, 11)]
    for at, pair in enumerate(pairs):
        for row, tokens in zip(rows, pair, strict=True):
            row[at, : len(tokens)] = tokens
    found = jax.jit(ngram_f1, static_argnums=2)(*rows, longest)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, [by_counting(*pair, longest) for pair in pairs], atol=1e-6)
