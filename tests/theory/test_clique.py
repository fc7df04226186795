import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from padir.errors import PadirError
from padir.theory import chains, clique, ising
from padir.theory.pseudolikelihood import uniform_law

SPINS, SIZE, COUPLING, FIELD = 5, 3, 0.9, 0.4


def enumerated_theta():
    theta = ising.clique_parameters(SPINS, SIZE, COUPLING, FIELD)
    theta[SIZE:SPINS] = [1.3, -0.7]  # Outside the clique anything goes.
    return jnp.asarray(theta)


def counted(transition):
    """The enumerated chain's probabilities of the next count, from every state: [2^N, |C| + 1]."""
    counts = (ising.spins(SPINS)[:, :SIZE] > 0).sum(axis=1)
    return np.stack([np.asarray(transition)[:, counts == m].sum(axis=1) for m in range(SIZE + 1)], axis=1), counts


@pytest.mark.parametrize("k", [1, 2, 4, 5])
def test_k_gibbs_counts_are_those_of_the_enumerated_chain(k):
    whole, counts = counted(chains.block_dynamics(ising.log_probabilities(enumerated_theta()), uniform_law(SPINS, k)))
    matrix = clique.k_gibbs(SPINS, SIZE, k, COUPLING, FIELD)
    np.testing.assert_allclose(whole, np.asarray(matrix)[counts], rtol=1e-12)


def test_independent_parallel_counts_are_those_of_the_enumerated_chain():
    whole, counts = counted(chains.independent_parallel(enumerated_theta()))
    np.testing.assert_allclose(
        whole, np.asarray(clique.independent_parallel(SIZE, COUPLING, FIELD))[counts], rtol=1e-12
    )


def test_overlaps_by_enumerating_blocks():
    found = np.zeros(4)
    for block in itertools.combinations(range(7), 4):
        found[len(set(block) & {0, 1, 2})] += 1 / 35
    np.testing.assert_allclose(clique.block_overlaps(7, 3, 4), found)
    assert clique.block_overlaps(10, 4, 4)[-1] == pytest.approx(1 / 210)
    assert clique.block_overlaps(10, 4, 2).tolist()[3:] == [0.0, 0.0]


def test_mode_probability_is_the_models():
    p = np.exp(ising.log_probabilities(enumerated_theta()))
    assert float(clique.mode_probability(SIZE, COUPLING, FIELD)) == pytest.approx(p[ising.mode(SPINS, SIZE, 1)].sum())


def test_large_cliques_have_rows_that_sum_to_one():
    for matrix in (clique.k_gibbs(70, 60, 65, 2.0, 0.1), clique.independent_parallel(60, 2.0, 0.1)):
        np.testing.assert_allclose(jnp.sum(matrix, axis=1), np.ones(61), rtol=1e-11)


def test_blocks_larger_than_the_model_are_refused():
    with pytest.raises(PadirError, match="blocks of 8 and a clique of 3 among 7"):
        clique.block_overlaps(7, 3, 8)


def test_float32_is_refused():
    with jax.enable_x64(False), pytest.raises(PadirError, match="enable_x64"):
        clique.log_weights(3, 1.0, 0.0)
