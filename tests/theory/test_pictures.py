"""The figures hold the numbers they are drawn from."""

import numpy as np
import pytest

from padir.theory import pictures


@pytest.fixture
def drawn(monkeypatch):
    """Figures in the order they are saved."""
    figures = []
    monkeypatch.setattr(pictures, "save", lambda figure, path: figures.append(figure))
    return figures


def lines(axes):
    """By label, what lines hold; labels that begin with _ are matplotlib's own."""
    return {line.get_label(): np.asarray(line.get_ydata()) for line in axes.lines}


def test_estimation(drawn):
    points = [{"n": n, "predicted": 28.0 / n, "squared_errors": [20.0 / n, 30.0 / n]} for n in (100, 400)]
    data = {"settings": {"spins": 4, "coupling": 0.05, "repetitions": 2}, "by_k": {"1": {"points": points}}}
    pictures.draw_estimation("x", data)
    (axes,) = drawn[0].axes
    np.testing.assert_allclose(axes.lines[0].get_ydata(), [0.28, 0.07])
    (bars,) = axes.containers
    np.testing.assert_allclose(bars.lines[0].get_ydata(), [0.25, 0.0625])
    # ± 0.5 sd of 0.2 and 0.3: 0.0354 on either side.
    low, high = (segment[1] for segment in bars.lines[2][0].get_segments()[0])
    np.testing.assert_allclose([low, high], 0.25 + np.array([-0.5, 0.5]) * np.std([0.2, 0.3], ddof=1))


def test_theorems(drawn):
    measures = {name: {"tightness": [[2.0, 1.0]], "poincare": [[4.0, 1.0]]} for name in ("uniform", "weighted")}
    data = {"by_spins": {"2": {"trace": [[6.0, 3.0]], **measures, "adaptive": {"tightness": [3.0], "poincare": [5.0]}}}}
    pictures.draw_theorems("x", data)
    efficiency, bound, gaps = drawn[0].axes
    np.testing.assert_allclose(efficiency.lines[0].get_ydata(), [0.5, 1.0])
    # C falls from 4 to 1: the gap grows fourfold, twice what k = 2 promises.
    np.testing.assert_allclose(gaps.lines[0].get_ydata(), [1.0, 2.0])
    np.testing.assert_allclose(bound.lines[0].get_xydata(), [[4.0, 2.0], [1.0, 1.0]])


def test_hitting(drawn):
    parallel = {"mean_within_budget": [1000.0, 1000.0]}
    data = {
        "settings": {
            "couplings": [4.0, 5.0], "wide_couplings": [2.0, 4.5, 9.0], "budget": 1000, "spins": 10, "clique": 4,
            "field": 5.0, "repetitions": 2,
        },
        "simulated": {"k = 4": {"steps": [[3, 5], [8, 12]]}, "independent parallel": {"steps": [[1000] * 2] * 2}},
        "exact": {"k = 4": {"mean_within_budget": [4.5, 9.5]}, "independent parallel": parallel},
        "wide": {"k = 4": [2.0, 6.0, 210.0], "independent parallel": [1.0, 1e5, 1e30]},
        "bounds": {form: {"k = 4": [400.0, 300.0, 210.0]} for form in ("all fields", "clique's fields")},
    }  # fmt: skip
    case = {"expected_steps_to_mode": 1e6, "n_gibbs_expected_steps": 1.1, "by_delta": [{"delta": 0.5, "steps": 2.0}]}
    separation = {
        "settings": {"deltas": (0.5,), "corollary_steps": (1000,), "j_0": 0.75, "h_clique": 1.0},
        "stuck": [{"clique": 4, **case}],
        "corollary": [{"clique": 80, "steps": 1000}],
    }
    pictures.draw_hitting("x", {"hitting": data, "separation": separation})
    narrow, wide, stuck = drawn[0].axes
    np.testing.assert_allclose(narrow.lines[0].get_ydata(), [4.5, 9.5])
    np.testing.assert_allclose(narrow.containers[0].lines[0].get_ydata(), [4.0, 10.0])
    assert any(np.array_equal(line.get_ydata(), [400.0, 300.0, 210.0]) for line in narrow.lines)
    np.testing.assert_allclose(lines(wide)["k = 4"], [2.0, 6.0, 210.0])
    assert lines(stuck)["Prop. 4.1.5: T for δ = 0.5"].tolist() == [2.0]
    assert any(line.get_xydata().tolist() == [[80.0, 1000.0]] for line in stuck.lines)


def test_learned(drawn):
    entry = {"chain": [0.5, 0.1], "ideal": [0.5, 0.0], "k_gibbs": [0.5, 0.0], "loop": [0.52]}
    data = {
        "settings": {"steps": [1, 8], "loop_steps": 1, "runs": 10, "spins": 4},
        "by_coupling": {"0.3": {"1": entry, "4": {**entry, "chain": [0.5, 0.4]}}},
    }
    pictures.draw_learned("x", data)
    panel, ends = drawn[0].axes
    assert lines(panel)["learnt, k = 1"].tolist() == [0.5, 0.1]
    assert any(line.get_xydata().tolist() == [[1.0, 0.52]] for line in panel.lines)
    assert lines(ends)["J = 0.3"].tolist() == [0.1, 0.4]
    assert ends.get_title() == "after 8 steps (loop: 1)"
