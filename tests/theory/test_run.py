import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from padir.errors import PadirError
from padir.theory import estimation, hitting
from padir.theory.claims import Claim
from padir.theory.hitting_claims import hitting_claims
from padir.theory.run import theory


def test_a_claim_is_decided_by_its_numbers():
    assert Claim("x", 1.0, "<=", 1.0).passed
    assert not Claim("x", 1.0, "<", 1.0).passed
    assert not Claim("x", float("nan"), ">=", 0.0).passed
    assert Claim("the gap", 0.5, ">=", 1.0).line() == "FAIL  the gap: 0.5 >= 1"


def test_figure_4_1_end_to_end(tmp_path, capsys):
    result = theory(str(tmp_path), quick=True, figures=("figure_4_1",))["figure_4_1"]
    stored = json.loads((tmp_path / "theory_figure_4_1.json").read_text())
    assert stored == json.loads(json.dumps(result))
    assert (tmp_path / "theory_figure_4_1.png").read_bytes()[:4] == b"\x89PNG"
    assert all(claim["passed"] for claim in stored["claims"])
    assert f"{len(stored['claims'])} of {len(stored['claims'])} claims passed" in capsys.readouterr().out
    # Near four fair coins, whose variances are 28, 15.2, 11.3 and 10.
    traces = [model["trace"] for model in stored["data"]["by_k"].values()]
    np.testing.assert_allclose(traces, [28.0, 15.2, 34 / 3, 10.0], rtol=0.02)
    assert not jax.config.jax_enable_x64 or jnp.ones(()).dtype == jnp.float64


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
            budget=200, repetitions=10,
        )
    )  # fmt: skip


def test_hitting_data(small):
    # J is so large that only whole-clique blocks help: C(2, 0) / C(4, 2) = 1/6 of the blocks of 2.
    assert small["exact"]["k = 2"]["expected"] == pytest.approx([6.0, 6.0], rel=0.02)
    assert small["exact"]["k = 4"]["expected"] == pytest.approx([1.0, 1.0], rel=0.02)
    assert small["bounds"]["clique's fields"]["k = 2"][1] == pytest.approx(6.0, rel=0.02)
    assert np.array(small["simulated"]["k = 4"]["steps"]).max() <= 2
    failed = {claim.text for claim in hitting_claims(small) if not claim.passed}
    assert not failed


def test_hitting_claims_fail_on_other_numbers(small):
    runs = {**small["simulated"], "independent parallel": {"steps": [[5] * 10] * 2, "reached": [10, 10]}}
    failed = [claim.text for claim in hitting_claims({**small, "simulated": runs}) if not claim.passed]
    assert [text.split(" ")[0] for text in failed] == ["independent", "simulated"]
    tails = [{**small["tails"][0], "missed": 0.9}]
    assert sum(not claim.passed for claim in hitting_claims({**small, "tails": tails})) == 1


def test_an_unknown_figure_is_named(tmp_path):
    with pytest.raises(PadirError, match="figure_9; there are figure_4_1"):
        theory(str(tmp_path), figures=("figure_9",))
