"""Training contexts: what is exact, and what is statistics."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from padir.objectives import contexts

KEY = jax.random.key(0)
draw = jax.jit(contexts.draw)


def many(words, rows=20_000, padding=2):
    """Contexts of a target of so many words before EOS, drawn for many rows: [rows, L, L]."""
    target = [*range(5, 5 + words), 1, *[0] * padding]
    return np.asarray(draw(KEY, jnp.tile(jnp.array(target), (rows, 1))))


@pytest.mark.parametrize("words", [1, 2, 5, 9])
def test_sizes_are_uniform_from_nothing_to_all_others(words):
    drawn = many(words)
    for position in range(words):
        sizes = drawn[:, position, :words].sum(-1)
        counts = np.bincount(sizes, minlength=words)
        assert len(counts) == words, "at most all other words"
        assert words == 1 or stats.chisquare(counts).pvalue > 1e-3


def test_subsets_of_a_size_are_uniform():
    drawn = many(5)[:, 2, :5]
    for size in range(5):
        subsets = list(itertools.combinations([0, 1, 3, 4], size))
        found = [tuple(np.flatnonzero(row)) for row in drawn if row.sum() == size]
        counts = [found.count(subset) for subset in subsets]
        assert sum(counts) == len(found), "nothing else is drawn"
        assert size in (0, 4) or stats.chisquare(counts).pvalue > 1e-3


def test_positions_and_rows_are_independent():
    drawn = many(4)
    sizes = drawn[:, :4, :4].sum(-1)
    for one, other in ((sizes[:, 0], sizes[:, 1]), (sizes[:-1, 2], sizes[1:, 2])):
        table = np.zeros((4, 4))
        np.add.at(table, (one, other), 1)
        assert stats.chi2_contingency(table).pvalue > 1e-3


def test_all_observe_eos_and_nobody_itself_or_padding():
    targets = jnp.array([[5, 6, 7, 1, 0], [8, 1, 0, 0, 0], [1, 0, 0, 0, 0], [0, 0, 0, 0, 0]])
    drawn = np.asarray(draw(KEY, targets))
    assert drawn[0, :3, 3].all() and drawn[1, 0].tolist() == [False, True, False, False, False]
    assert not drawn[:, np.arange(5), np.arange(5)].any()
    assert not drawn[np.broadcast_to(np.asarray(targets == 0)[:, None], drawn.shape)].any()
    assert contexts.predicted(targets).sum(-1).tolist() == [3, 1, 0, 0]
    np.testing.assert_array_equal(drawn, draw(KEY, targets))
    assert (drawn != np.asarray(draw(jax.random.key(1), targets))).any()
