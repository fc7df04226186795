"""Neighbouring lengths."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from padir.decoding.length_beam import with_neighbours


@pytest.mark.parametrize(
    ("lengths", "beam", "expected"),
    [
        ([5], 1, [5]),
        ([5], 2, [5, 4]),
        ([5], 3, [5, 4, 6]),
        ([5], 5, [5, 4, 6, 3, 7]),
        # At an edge the other side goes on.
        ([1], 3, [1, 2, 3]),
        ([9], 3, [9, 8, 7]),
        ([8], 5, [8, 7, 9, 6, 5]),
        # Two lengths far apart: each has its neighbours.
        ([2, 7], 3, [2, 7, 1, 6, 3, 8]),
        # Next to each other: what one has, the other need not try again.
        ([5, 4], 3, [5, 4, 3, 6, 2, 7]),
        ([4, 6], 3, [4, 6, 3, 5, 7, 2]),
        # Every length there is.
        ([3, 9, 1], 3, [3, 9, 1, 2, 8, 4, 7, 5, 6]),
    ],
)
def test_by_hand(lengths, beam, expected):
    assert with_neighbours(jnp.array([lengths]), beam, 9).tolist() == [expected]


@settings(deadline=None, max_examples=40)
@given(st.permutations(range(1, 13)), st.sampled_from([(1, 12), (2, 6), (3, 4), (2, 3), (4, 1)]))
def test_always_as_many_different_lengths_the_nearest_ones(order, sizes):
    k, beam = sizes
    found = np.asarray(with_neighbours(jnp.array([order[:k], order[:k]]), beam, 12))
    assert found.shape == (2, k * beam) and (found[0] == found[1]).all()
    assert len(set(found[0].tolist())) == k * beam and found.min() >= 1 and found.max() <= 12
    assert found[0, :k].tolist() == order[:k]
    distance = {length: min(abs(length - given) for given in order[:k]) for length in range(1, 13)}
    assert sorted(distance[length] for length in found[0].tolist()) == sorted(distance.values())[: k * beam]


def test_given_lengths_may_repeat():
    assert with_neighbours(jnp.array([[4, 4]]), 2, 9).tolist() == [[4, 3, 5, 2]]
