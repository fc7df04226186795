import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from padir.errors import PadirError
from padir.theory import ising


def test_two_spins_by_hand():
    h1, h2, coupling = 0.3, -0.2, 0.7
    weights = {
        (x1, x2): math.exp(h1 * x1 + h2 * x2 + coupling * x1 * x2) for x1, x2 in itertools.product((-1, 1), repeat=2)
    }
    p = np.exp(ising.log_probabilities(jnp.array([h1, h2, coupling])))
    for state, (x1, x2) in enumerate(ising.spins(2)):
        assert p[state] == pytest.approx(weights[x1, x2] / sum(weights.values()), rel=1e-14)


def test_probabilities_are_those_of_a_plain_loop_over_unordered_pairs():
    theta = np.random.default_rng(0).normal(size=10)
    fields, couplings = theta[:4], dict(zip(itertools.combinations(range(4), 2), theta[4:], strict=True))
    weights = [
        math.exp(sum(fields * x) + sum(value * x[i] * x[j] for (i, j), value in couplings.items()))
        for x in ising.spins(4)
    ]
    np.testing.assert_allclose(
        np.exp(ising.log_probabilities(jnp.asarray(theta))), np.array(weights) / sum(weights), rtol=1e-13
    )


def test_one_spins_log_odds_count_every_pair_once():
    # Of 4.3.7: 2 h_j + 2 J Σ_{i≠j} x_i. With ordered pairs the second term would be twice that.
    n, clique, coupling, field = 5, 3, 0.8, 0.25
    theta = jnp.asarray(ising.clique_parameters(n, clique, coupling, field))
    conditional = ising.log_conditional(ising.log_probabilities(theta), 0b00010)
    for state, x in enumerate(ising.spins(n)):
        if x[1] > 0:
            log_odds = float(conditional[state] - conditional[state & ~0b00010])
            assert log_odds == pytest.approx(2 * field + 2 * coupling * (x[0] + x[2]), rel=1e-12)


def test_conditionals_sum_to_one_over_the_block_and_divide_the_joint():
    log_p = ising.log_probabilities(jnp.asarray(np.random.default_rng(1).normal(size=10)))
    for block in (0b0001, 0b0110, 0b1111):
        conditional = np.exp(ising.log_conditional(log_p, block))
        for rest in {state & ~block for state in range(16)}:
            group = [state for state in range(16) if state & ~block == rest]
            total = sum(float(jnp.exp(log_p[state])) for state in group)
            np.testing.assert_allclose(conditional[group], np.exp(log_p)[group] / total, rtol=1e-13)


def test_knowing_which_block_was_chosen_matters_as_in_lemma_4_3_1():
    # Position 0 is the chapter's first digit; states 00, 10, 01, 11 in our order, the last impossible.
    p = jnp.array([1 / 2, 1 / 6, 1 / 3, 0.0])
    # p_K({0} | x): 1/2 for 00, 1/3 for 01, 1/4 for 10. The chapter's {0} is what stays fixed: x_1 is drawn.
    chosen = jnp.array([1 / 2, 1 / 4, 1 / 3, 1.0])
    redrawn = 0b10
    assert jnp.exp(ising.log_conditional(jnp.log(p), redrawn))[0] == pytest.approx(3 / 5)
    with_choice = jnp.exp(ising.log_conditional(jnp.log(p) + jnp.log(chosen), redrawn))
    assert with_choice[0] == pytest.approx(9 / 13)
    assert with_choice[3] == 0.0


def test_impossible_states_leave_gradients_finite():
    law = jnp.array([0.0, 0.0, 0.0, -jnp.inf])
    gradient = jax.grad(lambda theta: jnp.sum(ising.log_conditional(ising.log_probabilities(theta) + law, 0b11)[:3]))(
        jnp.array([0.1, 0.2, 0.3])
    )
    assert np.isfinite(gradient).all()


def test_far_apart_weights_do_not_underflow():
    theta = jnp.asarray(ising.clique_parameters(4, 4, 200.0, 1.0))
    conditional = ising.log_conditional(ising.log_probabilities(theta), 0b0001)
    # State 0b0010 against 0b0011: one more spin at +1, others -1, -1, +1: 2h + 2J(-1).
    assert float(conditional[0b0011] - conditional[0b0010]) == pytest.approx(2.0 - 400.0)


def test_blocks_and_modes_by_hand():
    assert ising.blocks_of_size(3, 2).tolist() == [0b011, 0b101, 0b110]
    assert np.flatnonzero(ising.mode(3, 2, 1)).tolist() == [0b011, 0b111]
    assert np.flatnonzero(ising.mode(3, 2, -1)).tolist() == [0b000, 0b100]


def test_fields_and_couplings_by_hand():
    fields, couplings = ising.fields_and_couplings(jnp.arange(1.0, 7.0))
    assert fields.tolist() == [1.0, 2.0, 3.0]
    assert couplings.tolist() == [[0.0, 4.0, 5.0], [4.0, 0.0, 6.0], [5.0, 6.0, 0.0]]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ising.spins(40), "40 spins"),
        (lambda: ising.log_probabilities(jnp.zeros(5)), "5 parameters"),
        (lambda: ising.clique_parameters(4, 5, 1.0, 0.0), "a clique of 5 among 4"),
        (lambda: ising.blocks_of_size(3, 4), "blocks of 4 among 3"),
    ],
)
def test_bad_sizes_are_named(call, message):
    with pytest.raises(PadirError, match=message):
        call()


def test_float32_is_refused():
    with jax.enable_x64(False), pytest.raises(PadirError, match="enable_x64"):
        ising.log_probabilities(jnp.zeros(3))
