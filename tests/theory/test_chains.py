import math

import jax.numpy as jnp
import numpy as np
import pytest

from padir.theory import chains, ising
from padir.theory import pseudolikelihood as pl


def test_one_spin_gibbs_on_two_spins_by_hand():
    h1, h2, coupling = 0.3, -0.2, 0.7
    log_p = ising.log_probabilities(jnp.array([h1, h2, coupling]))
    transition = np.asarray(chains.block_dynamics(log_p, pl.uniform_law(2, 1)))

    def plus(field, other):
        return 1 / (1 + math.exp(-2 * (field + coupling * other)))

    # From (-1, -1), state 0b00: each spin is drawn half of the time.
    up1, up2 = plus(h1, -1), plus(h2, -1)
    np.testing.assert_allclose(transition[0], [(2 - up1 - up2) / 2, up1 / 2, up2 / 2, 0.0], rtol=1e-13)


def test_whole_blocks_draw_from_the_model_at_once():
    log_p = ising.log_probabilities(jnp.asarray(np.random.default_rng(0).normal(size=6)))
    transition = chains.block_dynamics(log_p, pl.uniform_law(3, 3))
    np.testing.assert_allclose(transition, np.tile(np.exp(log_p), (8, 1)), rtol=1e-12)
    assert float(chains.spectral_gap(transition, jnp.exp(log_p))) == pytest.approx(1.0)


@pytest.mark.parametrize(("n", "k"), [(3, 1), (3, 2), (4, 3)])
def test_free_spins_have_gap_k_over_n(n, k):
    # The slowest function is one spin, which stays unless it is in the block.
    log_p = ising.log_probabilities(jnp.asarray(np.r_[np.linspace(-1, 1, n), np.zeros(n * (n - 1) // 2)]))
    transition = chains.block_dynamics(log_p, pl.uniform_law(n, k))
    assert float(chains.spectral_gap(transition, jnp.exp(log_p))) == pytest.approx(k / n)


def test_independent_parallel_by_hand_and_its_stationary_distribution():
    h1, h2, coupling = 0.3, -0.2, 0.7
    theta = jnp.array([h1, h2, coupling])
    transition = chains.independent_parallel(theta)

    def chance(field, other, to):
        return 1 / (1 + math.exp(-2 * to * (field + coupling * other)))

    # From (+1, -1), 0b01, to (-1, +1), 0b10.
    assert float(transition[0b01, 0b10]) == pytest.approx(chance(h1, -1, -1) * chance(h2, 1, 1), rel=1e-13)
    stationary = chains.independent_parallel_stationary(theta)
    np.testing.assert_allclose(np.linalg.matrix_power(np.asarray(transition), 4096)[0], stationary, rtol=1e-9)
    assert np.abs(stationary - np.exp(ising.log_probabilities(theta))).max() > 0.05


def test_two_state_chain():
    transition = jnp.array([[0.9, 0.1], [0.3, 0.7]])
    stationary = jnp.array([0.75, 0.25])
    assert float(chains.spectral_gap(transition, stationary)) == pytest.approx(0.4)
    # Both orders flow 0.075, (f(0) - f(1)) (g(0) - g(1)) = 2 · 3.
    f, g = jnp.array([1.0, 3.0]), jnp.array([5.0, 8.0])
    assert float(chains.dirichlet_form(transition, stationary, f, g)) == pytest.approx(0.075 * 6)


def test_hitting_times_by_hand():
    # A fair walk on 0..3 that stays put at 0 half of the time: t_0 = 2 + t_1, and so on: 12, 10, 6, 0.
    walk = jnp.array([[0.5, 0.5, 0, 0], [0.5, 0, 0.5, 0], [0, 0.5, 0, 0.5], [0, 0, 0, 1.0]])
    np.testing.assert_allclose(chains.expected_hitting_times(walk, jnp.arange(4) == 3), [12, 10, 6, 0])


def test_hitting_times_of_a_target_in_the_middle_are_those_of_linear_algebra():
    matrix = np.random.default_rng(3).dirichlet(np.full(9, 0.3), size=9)
    target = np.isin(np.arange(9), (2, 5))
    rest = matrix[~target][:, ~target]
    times = np.zeros(9)
    times[~target] = np.linalg.solve(np.eye(7) - rest, np.ones(7))
    np.testing.assert_allclose(
        chains.expected_hitting_times(jnp.asarray(matrix), jnp.asarray(target)), times, rtol=1e-10
    )


def test_huge_hitting_times_keep_their_digits():
    # 0 → 1 has probability a, 1 → 2 b, 1 → 0 the rest: t_0 = 1/a + t_1, t_1 = 1 + (1 - b) t_0.
    a, b = 1e-120, 1e-90
    chain = jnp.array([[1.0 - a, a, 0.0], [1.0 - b, 0.0, b], [0.0, 0.0, 1.0]])
    times = chains.expected_hitting_times(chain, jnp.arange(3) == 2)
    assert float(times[0]) == pytest.approx(1e210, rel=1e-12)


def test_survival_and_its_moments_are_those_of_a_geometric_time():
    chance, budget = 0.2, 400
    chain = jnp.array([[1 - chance, chance], [0.0, 1.0]])
    alive = chains.survival(chain, jnp.array([False, True]), jnp.array([1.0, 0.0]), budget)
    np.testing.assert_allclose(alive, 0.8 ** np.arange(budget + 1), rtol=1e-12)
    mean, sd = chains.mean_and_sd_within(alive)
    assert float(mean) == pytest.approx(5.0)
    assert float(sd) == pytest.approx(math.sqrt(0.8) / 0.2)
    # A budget of 1 step: min(T, 1) is 1 whatever happens.
    assert [float(value) for value in chains.mean_and_sd_within(alive[:2])] == [1.0, 0.0]
