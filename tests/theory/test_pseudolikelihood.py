import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from padir.errors import PadirError
from padir.theory import chains, ising
from padir.theory import pseudolikelihood as pl


def random_theta(n, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(scale=0.6, size=n * (n + 1) // 2))


def test_loss_is_that_of_a_plain_loop():
    theta, law = random_theta(3), pl.uniform_law(3, 2)
    p = np.exp(ising.log_probabilities(theta))
    frequencies = np.random.default_rng(1).dirichlet(np.ones(24)).reshape(3, 8)
    total = 0.0
    for row, block in enumerate((0b011, 0b101, 0b110)):
        for x in range(8):
            group = [y for y in range(8) if y & ~block == x & ~block]
            total -= frequencies[row, x] * math.log(p[x] / sum(p[y] for y in group))
    assert float(pl.loss(theta, law, jnp.asarray(frequencies))) == pytest.approx(total, rel=1e-13)


@pytest.mark.parametrize(("k", "trace"), [(1, 28.0), (2, 15.2), (3, 4 * 4 / 3 + 6), (4, 10.0)])
def test_asymptotic_variance_of_four_fair_coins_by_hand(k, trace):
    # A field is informed on when its spin is in the block, k / 4; a coupling when either of its spins is:
    # 1 - C(2, k) / C(4, k) = 1/2, 5/6, 1, 1. All statistics are uncorrelated and of variance 1.
    gamma = pl.asymptotic_covariance(jnp.zeros(10), pl.uniform_law(4, k))
    assert float(jnp.trace(gamma)) == pytest.approx(trace)
    np.testing.assert_allclose(gamma, np.diag(np.diag(gamma)), atol=1e-12)


@pytest.mark.parametrize("make", [lambda law: pl.among_all_blocks(3, law), lambda law: pl.with_blocks(law, 5)])
def test_blocks_of_probability_0_change_nothing(make):
    theta, law = random_theta(3), pl.uniform_law(3, 2)
    more = make(law)
    assert len(more.blocks) > len(law.blocks)
    np.testing.assert_allclose(jnp.exp(more.log_probs).sum(axis=0), np.ones(8))
    np.testing.assert_allclose(
        pl.asymptotic_covariance(theta, more), pl.asymptotic_covariance(theta, law), rtol=1e-9, atol=1e-11
    )
    log_p = ising.log_probabilities(theta)
    np.testing.assert_allclose(chains.block_dynamics(log_p, more), chains.block_dynamics(log_p, law), atol=1e-15)
    tables = pl.sample(np.random.default_rng(0), theta, law, 2000)
    padded = np.zeros((1, len(more.blocks), 8))
    padded[:, [more.blocks.tolist().index(block) for block in law.blocks.tolist()]] = tables
    np.testing.assert_allclose(
        pl.gradient_descent(more, padded).theta, pl.gradient_descent(law, tables).theta, atol=1e-7
    )


def test_whole_blocks_are_maximum_likelihood():
    theta = random_theta(3)
    gamma = pl.asymptotic_covariance(theta, pl.uniform_law(3, 3))
    np.testing.assert_allclose(gamma @ pl.fisher_information(theta), np.eye(6), atol=1e-10)


def test_fisher_information_of_one_spin_by_hand():
    assert float(pl.fisher_information(jnp.array([0.7]))[0, 0]) == pytest.approx(1 - math.tanh(0.7) ** 2)


def test_gradient_descent_finds_the_closed_form_of_a_saturated_model():
    # Two spins have 3 parameters for 4 frequencies: the fit reproduces these, and theta is a signed mean of their logs.
    frequencies = np.array([0.1, 0.2, 0.3, 0.4])
    fit = pl.gradient_descent(pl.uniform_law(2, 2), jnp.asarray(frequencies)[None, None])
    signs = np.array([[-1, 1, -1, 1], [-1, -1, 1, 1], [1, -1, -1, 1]])
    np.testing.assert_allclose(fit.theta[0], signs @ np.log(frequencies) / 4, atol=1e-8)
    assert float(fit.gradient_norm[0]) <= 1e-9


def test_derivatives_of_the_fits_are_those_of_the_loss():
    # Of an adaptive law with an impossible pair: state 5 never has the last block.
    random = np.random.default_rng(2)
    log_probs = jax.nn.log_softmax(jnp.asarray(random.normal(size=(7, 8))).at[6, 5].set(-jnp.inf), axis=0)
    law, theta = pl.BlockLaw(jnp.arange(1, 8), log_probs), random_theta(3)
    table = pl.sample(random, theta, law, 500)
    assert table[0, 6, 5] == 0.0
    fitted = pl._Fitted.of(law, table)
    gradient = jax.jit(jax.grad(pl.loss))(theta, law, table[0])
    np.testing.assert_allclose(fitted.gradient(theta[None])[0], gradient, atol=1e-13)
    np.testing.assert_allclose(fitted.hessian(theta[None])[0], pl.hessian(theta, law, table[0]), atol=1e-12)


def test_fits_side_by_side_are_those_one_by_one_and_newtons():
    law, theta = pl.uniform_law(3, 2), random_theta(3)
    tables = pl.sample(np.random.default_rng(0), theta, law, 3000, 2)
    fits = pl.gradient_descent(law, tables)
    alone = pl.gradient_descent(law, tables[1:])
    # Both stop at a gradient of 1e-9, not after as many steps.
    np.testing.assert_allclose(fits.theta[1], alone.theta[0], atol=1e-7)
    np.testing.assert_allclose(fits.theta, pl.newton(law, tables, fits.theta).theta, atol=1e-7)
    # The estimate is near: 5 standard errors of the whole vector.
    error = float(jnp.sum((alone.theta[0] - theta) ** 2))
    assert error < 25 * float(jnp.trace(pl.asymptotic_covariance(theta, law))) / 3000


def test_separable_data_are_not_passed_off_as_converged():
    fit = pl.gradient_descent(pl.uniform_law(1, 1), jnp.array([[[0.0, 1.0]]]), max_steps=100)
    assert int(fit.steps) == 100
    assert float(fit.gradient_norm[0]) > 1e-9


@pytest.mark.parametrize("k", [1, 2, 3])
def test_smoothness_bounds_the_hessian_of_any_data(k):
    law = pl.uniform_law(3, k)
    frequencies = jnp.asarray(np.random.default_rng(k).dirichlet(np.full(law.log_probs.size, 0.1)))
    hessian = pl.hessian(jnp.zeros(6), law, frequencies.reshape(law.log_probs.shape))
    assert float(jnp.linalg.eigvalsh(hessian)[-1]) <= float(pl.smoothness(law, 3))
    # k = 1: a field and its two couplings; k = 2: two and all three; k = 3: everything.
    assert float(pl.smoothness(law, 3)) == {1: 3, 2: 5, 3: 6}[k]


def test_samples_are_counts_of_the_population():
    theta, law = random_theta(2), pl.uniform_law(2, 1)
    table = pl.sample(np.random.default_rng(0), theta, law, 40_000)[0]
    assert table.sum() == pytest.approx(1.0)
    np.testing.assert_allclose(table * 40_000, np.round(table * 40_000), atol=1e-6)
    np.testing.assert_allclose(table, pl.population(theta, law), atol=5 * 0.5 / math.sqrt(40_000))


def test_a_spin_in_no_block_is_refused():
    with pytest.raises(PadirError, match="do not cover all 3 spins"):
        pl.alike_law(3, np.array([0b001, 0b010]))
