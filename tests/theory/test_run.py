import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from padir.errors import PadirError
from padir.theory import estimation, hitting, learned, separation, theorems
from padir.theory import hitting_claims as hitting_claims_module
from padir.theory.claims import Claim
from padir.theory.experiment import plain
from padir.theory.hitting_claims import hitting_claims
from padir.theory.run import FIGURES, theory


def test_a_claim_is_decided_by_its_numbers():
    assert Claim("x", 1.0, "<=", 1.0).passed
    assert not Claim("x", 1.0, "<", 1.0).passed
    assert not Claim("x", float("nan"), ">=", 0.0).passed
    assert Claim("the gap", 0.5, ">=", 1.0).line() == "FAIL  the gap: 0.5 >= 1"


def test_figures_4_1_and_4_2_end_to_end(tmp_path, capsys):
    """In another process, as the command makes them."""
    results = theory(str(tmp_path), quick=True, figures=("figure_4_2", "figure_4_1"))
    assert list(results) == ["figure_4_2", "figure_4_1"]
    out = capsys.readouterr().out
    for name, result in results.items():
        assert json.loads((tmp_path / f"theory_{name}.json").read_text()) == result
        assert (tmp_path / f"theory_{name}.png").read_bytes()[:4] == b"\x89PNG"
        failed = [claim for claim in result["claims"] if not claim["passed"]]
        assert [claim["claim"].split(",")[0] for claim in failed] == ["section 4.1.2"]
        assert "Markov" in failed[0]["reason"] and failed[0]["reason"] in failed[0]["line"]
        assert all(claim["line"] in out for claim in result["claims"])
    total = sum(len(result["claims"]) for result in results.values())
    assert f"{total - 2} of {total} claims passed" in out
    # Near four fair coins, whose variances are 28, 15.2, 11.3 and 10; and J = 0.3, which is harder.
    traces = {name: [model["trace"] for model in result["data"]["by_k"].values()] for name, result in results.items()}
    np.testing.assert_allclose(traces["figure_4_1"], [28.0, 15.2, 34 / 3, 10.0], rtol=0.02)
    assert np.all(np.array(traces["figure_4_2"]) > traces["figure_4_1"])


def test_the_theorems_and_figure_4_3_end_to_end(tmp_path):
    """What fails is what does not hold as the chapter prints it, and says why."""
    results = theory(str(tmp_path), quick=True, figures=("theorems", "figure_4_3"), processes=1)
    as_printed = {
        "theorems": ["Theorem 4.1.3 with the chain on pairs (x, K) that (4.26) prints"],
        "figure_4_3": [
            "Figure 4.3's models meet Assumption 4.1.5",
            "independent parallel never reaches R_1 for any J",
            "Proposition 4.1.5 covers at least one step for |C| = 4",
            "Proposition 4.1.4 with 2|C| - 2, as (4.49) prints it",
        ],
    }
    for name, result in results.items():
        assert json.loads((tmp_path / f"theory_{name}.json").read_text()) == result
        assert (tmp_path / f"theory_{name}.png").read_bytes()[:4] == b"\x89PNG"
        failed = [claim for claim in result["claims"] if not claim["passed"]]
        assert len(result["claims"]) >= 13 and len(failed) == len(as_printed[name])
        for claim, begins in zip(failed, as_printed[name], strict=True):
            assert claim["claim"].startswith(begins) and claim["reason"]


def test_the_figures_of_chapter_3_end_to_end(tmp_path, capsys):
    names = ("value_guided", "error_amplification")
    results = theory(str(tmp_path), quick=True, figures=names, processes=1)
    for name, result in results.items():
        assert json.loads((tmp_path / f"theory_{name}.json").read_text()) == result
        assert (tmp_path / f"theory_{name}.png").read_bytes()[:4] == b"\x89PNG"
    assert [claim["passed"] for claim in results["value_guided"]["claims"]].count(False) == 2
    assert all(claim["passed"] for claim in results["error_amplification"]["claims"])
    assert "total variation" in capsys.readouterr().out


def test_float64_is_the_figures_alone(tmp_path, monkeypatch):
    def compute(quick):
        data = {"bits": jnp.ones(()).dtype.itemsize * 8, "cheap": jax.config.read("jax_disable_most_optimizations")}
        return data, [Claim("x", np.float64(1.0), "<=", 2)]

    before = jax.config.read("jax_disable_most_optimizations")
    monkeypatch.setitem(FIGURES, "learned", (compute, lambda path, data: None))
    with jax.enable_x64(False):
        result = theory(str(tmp_path), quick=True, figures=("learned",))["learned"]
        assert jnp.ones(()).dtype == jnp.float32
    assert result["data"] == {"bits": 64, "cheap": True} and result["claims"][0]["passed"] is True
    assert jax.config.read("jax_disable_most_optimizations") == before


def test_estimation_claims_fail_on_other_numbers():
    settings = estimation.EstimationSettings(0.05, spins=2, sample_sizes=(2000,), repetitions=4, check_repetitions=40)
    data, _ = estimation.estimation(settings)
    by_k = data["by_k"]
    good = [{"count": 1, "gradient_norm": 1e-10, "from_newton": 1e-9}]
    far = [{"count": 1, "gradient_norm": 1e-3, "from_newton": 1e-2}]

    def failures(by_k, fits):
        return {claim.text.split(":")[0] for claim in estimation.estimation_claims(by_k, fits) if not claim.passed}

    assert len(failures(by_k, far) - failures(by_k, good)) == 2
    turned = {"1": by_k["2"], "2": by_k["1"]}
    assert "Theorem 4.1.1, exactly" in failures(turned, good)


@pytest.fixture(scope="module")
def small():
    return hitting.hitting(
        hitting.HittingSettings(
            spins=4, clique=2, field=1.0, couplings=(6.0, 8.0), block_sizes=(2, 4), wide_couplings=(6.0, 30.0),
            budget=200, repetitions=10, enumerated_spins=4,
        )
    )  # fmt: skip


def failed(data):
    return [claim.text for claim in hitting_claims(data) if not claim.passed]


def test_hitting_data(small):
    # J is so large that only whole-clique blocks help: C(2, 0) / C(4, 2) = 1/6 of the blocks of 2.
    assert small["exact"]["k = 2"]["expected"] == pytest.approx([6.0, 6.0], rel=0.02)
    assert small["exact"]["k = 4"]["expected"] == pytest.approx([1.0, 1.0], rel=0.02)
    assert small["bounds"]["clique's fields"]["k = 2"][1] == pytest.approx(6.0, rel=0.02)
    assert np.array(small["simulated"]["k = 4"]["steps"]).max() <= 2
    assert all(claim.reason for claim in hitting_claims(small) if not claim.passed)
    # Fields of 1 for two spins in the clique and two outside: 2 is not more than 2.
    assert failed(small)[0].startswith("Figure 4.3's models meet Assumption 4.1.5")


def test_hitting_claims_fail_on_other_numbers(small):
    known = set(failed(small))
    runs = {**small["simulated"], "independent parallel": {"steps": [[5] * 10] * 2, "reached": [10, 10]}}
    new = [text.split(" ")[0] for text in failed({**small, "simulated": runs}) if text not in known]
    assert new == ["independent", "simulated"]
    tails = [{**small["tails"][0], "missed": 0.9}]
    assert len(set(failed({**small, "tails": tails})) - known) == 1


@pytest.mark.parametrize(("reached", "start"), [([1.0, 0.5, 0.0], 3.0), ([0.0, 0.0, 0.0], 1.0), ([1.0] * 3, np.inf)])
def test_from_which_coupling_on_independent_parallel_is_stuck(reached, start):
    data = {"settings": {"wide_couplings": [1.0, 2.0, 3.0]}, "parallel_reached": reached}
    assert hitting_claims_module._stuck_from(data) == start


def test_an_unknown_figure_is_named(tmp_path):
    with pytest.raises(PadirError, match="figure_9; there are figure_4_1"):
        theory(str(tmp_path), figures=("figure_9",))


def test_no_figure_and_no_folder_are_named(tmp_path):
    with pytest.raises(PadirError, match="theory.processes: 0 must be at least 1"):
        theory(str(tmp_path), processes=0)
    with pytest.raises(PadirError, match=r"theory.figures: \(\) names no figure; give some of figure_4_1"):
        theory(str(tmp_path), figures=())
    (tmp_path / "taken").write_text("")
    with pytest.raises(PadirError, match=r"taken: this folder cannot be created \(File exists\)"):
        theory(str(tmp_path / "taken"))
    with pytest.raises(PadirError, match=r"deeper: this folder cannot be created \(Not a directory\)"):
        theory(str(tmp_path / "taken" / "deeper"))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: estimation.EstimationSettings(0.1, spins=9), "EstimationSettings.spins = 9: must be from 2 to 6"),
        (lambda: hitting.HittingSettings(clique=11), "HittingSettings.clique = 11: must be from 2 to 10"),
        (lambda: hitting.HittingSettings(block_sizes=(2, 11)), "each from 1 to 10"),
        (lambda: hitting.HittingSettings(enumerated_spins=3), "enumerated_spins = 3: must be from 4 to 12"),
        (lambda: hitting.HittingSettings(couplings=(2.0, 1.0)), "must be ascending numbers"),
        (lambda: theorems.TheoremSettings(spins=()), "must be one or more numbers, each from 2 to 6"),
        (lambda: separation.SeparationSettings(deltas=(0.5, 1.0)), "SeparationSettings.deltas"),
        (lambda: learned.LearnedSettings(block_sizes=(0, 2)), "LearnedSettings.block_sizes"),
    ],
)
def test_settings_that_make_no_sense_are_refused(make, message):
    with pytest.raises(PadirError, match=message):
        make()


def test_what_json_cannot_hold_becomes_null():
    value = {"a": (np.float64(0.5), np.inf), "b": np.array([1, 2]), 3: [float("nan"), np.bool_(True)]}
    assert plain(value) == {"a": [0.5, None], "b": [1, 2], "3": [None, True]}
