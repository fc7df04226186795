import math

import numpy as np
import pytest

from padir.errors import PadirError
from padir.theory import bounds, clique
from padir.theory.bounds import Clique


def test_constant_of_proposition_4_1_4_by_hand():
    # J_0 = 3 - 1.5 - 0.5 = 1, h_G = 1.5; C(2, 1) / C(5, 4) of the blocks of 4 hold the 3.
    model = Clique(5, 3, 3.0, 0.5, 0.25)
    top = math.exp(2 * 2.5)
    assert model.strongly_ferromagnetic
    assert bounds.mode_reached_per_step(model, 4) == pytest.approx(2 / 5 * top / (top + math.exp(2) + 6))
    assert bounds.mode_reached_per_step(model, 4, form="printed") == pytest.approx(
        2 / 5 * top / (top + math.exp(2) + 4)
    )


def test_steps_to_mode_by_hand():
    # 1 - c = 1/210 for |C| = 4 and k = 4 of 10: log(0.1) / log(209/210) = 482.4.
    assert bounds.steps_to_mode(Clique(10, 4, 80.0, 5.0), 4, 0.1) == 483
    # Everything redrawn, hardly anything missed: one step.
    assert bounds.steps_to_mode(Clique(4, 4, 80.0, 5.0), 4, 0.1) == 1
    # A bound that says next to nothing does not become infinite.
    assert bounds.steps_to_mode(Clique(10, 4, 1.0, 5.0, 5.0), 4, 0.5) > 1e20


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize(("coupling", "field"), [(0.002, 0.0001), (0.5, 0.1), (3.0, 0.4)])
def test_the_proofs_constant_is_a_bound(size, coupling, field):
    model = Clique(size, size, coupling, field)
    exact = clique.mode_probability(size, coupling, field)
    assert bounds.mode_reached_per_step(model, size) <= exact * (1 + 1e-12)


def test_the_printed_constant_is_none():
    # Nearly free spins: P(R_1) is near 1/16, and 1 / (2 + 2 · 4 - 2) = 1/8.
    model = Clique(4, 4, 0.002, 0.0002)
    exact = clique.mode_probability(4, 0.002, 0.0002)
    assert exact == pytest.approx(1 / 16, rel=0.02)
    assert bounds.mode_reached_per_step(model, 4, form="printed") == pytest.approx(1 / 8, rel=0.02)


def test_stuck_by_hand():
    # tanh(J_0) → 1: r = |C| / 2 - 1; 2 r² / |C| = 1/2 for 4 and 9/2 for 16... (2 · 49 / 16).
    assert bounds.stuck_exponent(Clique(4, 4, 60.0, 0.1)) == pytest.approx(0.5)
    assert bounds.stuck_exponent(Clique(16, 16, 60.0, 0.1)) == pytest.approx(2 * 49 / 16)
    assert bounds.steps_stuck(Clique(16, 16, 60.0, 0.1), 0.2) == pytest.approx(0.1 * math.exp(6.125))
    # Weak coupling: Hoeffding's radius is negative.
    assert bounds.steps_stuck(Clique(4, 4, 0.5, 0.1), 0.9) == 0.0


@pytest.mark.parametrize("spare", [0, 1, 3])
def test_the_corollarys_model_meets_its_assumptions(spare):
    delta, steps = 0.1, 1000
    model, k = bounds.separating_model(delta, steps, spare=spare)
    size = model.clique
    assert model.strongly_ferromagnetic
    assert size >= 8 * (1 + math.log(4 * steps / delta)) > size - 1
    assert model.h_clique >= 0.5 * math.log(2 * (4 - delta) / delta) - 1e-12
    assert model.j_0 >= 0.5 * size * math.log(2) - 1e-12
    assert k == model.n - spare
    assert k >= max(size, model.n - delta * (model.n + 1) / ((4 - delta) * size + delta))
    # What its proof derives from them.
    assert 1 - bounds.mode_reached_per_step(model, k) <= delta / 2
    assert math.floor(bounds.steps_stuck(model, delta / 2)) >= steps


def test_what_does_not_apply_is_refused():
    with pytest.raises(PadirError, match="k >= |C|".replace("|", r"\|")):
        bounds.mode_reached_per_step(Clique(5, 3, 1.0, 0.1), 2)
    with pytest.raises(PadirError, match="Clique.clique = 6"):
        Clique(5, 6, 1.0, 0.1)


def test_figure_4_3_does_not_meet_assumption_4_1_5():
    assert not Clique(10, 4, 80.0, 5.0, 5.0).strongly_ferromagnetic
    assert Clique(10, 4, 80.0, 5.0, 5.0).j_0 == 30.0
    assert np.isfinite(bounds.mode_reached_per_step(Clique(10, 4, 80.0, 5.0, 5.0), 4))
