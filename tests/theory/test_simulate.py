import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from padir.theory import chains, ising, simulate
from padir.theory.pseudolikelihood import uniform_law

N = 3
THETA = [0.4, -0.3, 0.1, 0.8, -0.5, 0.3]


@pytest.mark.parametrize("k", [1, 2, "parallel"])
def test_one_step_has_the_transition_matrixs_distribution(k):
    theta, draws, start = jnp.array(THETA), 40_000, 0b010
    log_p = ising.log_probabilities(theta)
    if k == "parallel":
        step, exact = simulate.independent_parallel_step, chains.independent_parallel(theta)
    else:
        step = functools.partial(simulate.k_gibbs_step, n=N, k=k)
        exact = chains.block_dynamics(log_p, uniform_law(N, k))
    keys = jax.random.split(jax.random.key(1), draws)
    model = theta if k == "parallel" else log_p
    found = jax.jit(jax.vmap(lambda key: step(key, model, jnp.asarray(start))))(keys)
    frequencies = np.bincount(found, minlength=8) / draws
    expected = np.asarray(exact)[start]
    # 5 standard errors each.
    assert np.all(np.abs(frequencies - expected) <= 5 * np.sqrt(expected * (1 - expected) / draws))


def test_draws_by_hand():
    weights = jnp.array([0.0, 1.0, 0.0, 2.0, 0.0, 0.0, 5.0, 0.0])
    drawn = [int(simulate.draw(1.0 - share, weights)) for share in (1e-12, 0.12, 0.13, 0.37, 0.38, 1.0)]
    # Sums 1, 3 and 8 of 8: shares 1/8, 3/8 and 1.
    assert drawn == [1, 1, 3, 3, 6, 6]
    assert [int(simulate.draw(u, jnp.array([0.25, 0.75]))) for u in (0.0, 0.7, 0.8)] == [1, 1, 0]


def test_steps_are_counted_from_one_and_given_up_after_the_budget():
    def step(key, model, state):
        return (state + model) % 8

    steps = simulate.steps_to_target(
        jax.random.key(0), step, jnp.array([1, 2, 0, 1]), jnp.array([1, 1, 1, 4]), jnp.arange(8) == 4, 3
    )
    # 1, 2, 3, 4 in three steps; 1, 3, 5, 7 not; standing still not; already there.
    assert steps.tolist() == [3, 4, 4, 0]


def test_simulated_hitting_times_have_the_exact_mean():
    theta = jnp.array(THETA)
    target = jnp.asarray(ising.mode(N, N, 1))
    runs = 2000
    steps = simulate.k_gibbs_steps(
        jax.random.key(0), jnp.tile(theta, (runs, 1)), jnp.zeros(runs, int), target, 2, budget=400
    )
    transition = chains.block_dynamics(ising.log_probabilities(theta), uniform_law(N, 2))
    alive = chains.survival(transition, target, jnp.zeros(8).at[0].set(1.0), 400)
    mean, sd = chains.mean_and_sd_within(alive)
    assert abs(float(steps.mean() - mean)) <= 4 * float(sd) / np.sqrt(runs)
    assert float(mean) == pytest.approx(float(chains.expected_hitting_times(transition, target)[0]), rel=1e-6)
