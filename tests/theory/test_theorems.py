"""The theorems as properties of random models: whatever the parameters and however blocks are chosen."""

import copy
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from padir.theory import chains, theorems
from padir.theory import pseudolikelihood as pl
from padir.theory.ising import log_probabilities

N, PARAMETERS, BLOCKS, STATES = 3, 6, 7, 8
parameters = st.lists(st.floats(-1.5, 1.5), min_size=PARAMETERS, max_size=PARAMETERS)


def logits(size):
    return st.lists(st.floats(-3.0, 3.0), min_size=size, max_size=size)


measure = jax.jit(theorems.law_measures)


def law(values):
    """All blocks of 3 spins, chosen with probabilities by state [7, 8], or [7, 1] whatever it is."""
    log_probs = jax.nn.log_softmax(jnp.asarray(values), axis=0)
    return pl.BlockLaw(jnp.arange(1, 2**N), jnp.broadcast_to(log_probs, (BLOCKS, STATES)))


def draws(seed):
    drawn = theorems.Draws.of(np.random.default_rng(seed), N, 1)
    return jax.tree.map(lambda values: values[0], drawn)


def assert_all_hold(measures):
    assert float(measures["equality"]) <= 1e-8
    assert float(measures["tightness"]) <= float(measures["poincare"]) * (1 + 1e-8)
    assert float(measures["stationarity"]) <= 1e-13
    assert float(measures["reversibility"]) <= 1e-13
    assert float(measures["dirichlet"]) <= 1e-11
    assert float(measures["convexity"]) >= -1e-12
    assert float(measures["chord"]) <= 1e-12


@settings(max_examples=25, deadline=None)
@given(theta=parameters, values=logits(BLOCKS * STATES), seed=st.integers(0, 1000))
def test_adaptive_weights(theta, values, seed):
    assert_all_hold(measure(draws(seed), jnp.array(theta), law(np.reshape(values, (BLOCKS, STATES)))))


@settings(max_examples=25, deadline=None)
@given(theta=parameters, values=logits(BLOCKS), seed=st.integers(0, 1000))
def test_weights(theta, values, seed):
    assert_all_hold(measure(draws(seed), jnp.array(theta), law(np.reshape(values, (BLOCKS, 1)))))


@functools.cache
def by_block_size():
    def one(theta):
        log_p = log_probabilities(theta)
        each = [pl.among_all_blocks(N, pl.uniform_law(N, k)) for k in range(1, N + 1)]
        laws = jax.tree.map(lambda *fields: jnp.stack(fields), *each)
        gammas = jax.vmap(lambda law: pl.asymptotic_covariance(theta, law))(laws)
        orders = jax.vmap(theorems.largest_ratio)(gammas[1:], gammas[:-1])
        gaps = jax.vmap(lambda law: chains.spectral_gap(chains.block_dynamics(log_p, law), jnp.exp(log_p)))(laws)
        return orders, gaps

    return jax.jit(one)


@settings(max_examples=25, deadline=None)
@given(theta=parameters)
def test_larger_blocks_estimate_better_and_mix_faster(theta):
    orders, gaps = by_block_size()(jnp.array(theta))
    assert float(orders.max()) <= 1 + 1e-9
    assert np.all(gaps >= np.arange(1, N + 1) * gaps[0] * (1 - 1e-9))


def test_largest_ratio_by_hand():
    a, b = jnp.diag(jnp.array([3.0, 1.0])), jnp.diag(jnp.array([2.0, 4.0]))
    assert float(theorems.largest_ratio(a, b)) == pytest.approx(1.5)
    turn = jnp.array([[0.6, -0.8], [0.8, 0.6]])
    assert float(theorems.largest_ratio(turn @ a @ turn.T, turn @ b @ turn.T)) == pytest.approx(1.5)


def test_the_chain_on_pairs_never_moves_between_blocks():
    form, variance = theorems.frozen_pairs(jnp.zeros(PARAMETERS), law(np.zeros((BLOCKS, 1))))
    assert abs(float(form)) < 1e-15
    assert float(variance) == pytest.approx(1 / 7 * 6 / 7)


def test_claims_fail_where_the_numbers_contradict_them():
    random = np.random.default_rng(0)
    each = [theorems.model_measures(theorems.Case.of(random, 2, 1.0)) for _ in range(2)]
    data = jax.tree.map(lambda *values: np.stack(values), *each)
    good = {"2": data}
    known = [claim.text for claim in theorems.theorem_claims(good) if not claim.passed]
    assert len(known) == 1 and "that (4.26) prints" in known[0]
    for path, value in (
        (("uniform", "equality"), 1e-6),
        (("weighted", "tightness"), 1e3),
        (("adaptive", "reversibility"), 1e-3),
        (("ordering",), 1.1),
        (("uniform", "convexity"), -0.1),
    ):
        bad = copy.deepcopy(good)
        holder = functools.reduce(lambda node, key: node[key], path[:-1], bad["2"])
        holder[path[-1]].flat[-1] = value
        assert sum(not claim.passed for claim in theorems.theorem_claims(bad)) == 2, path
    data["frozen_form"] += 0.1
    assert all(claim.passed for claim in theorems.theorem_claims(good))
