"""`benchmarks/generation.py` on a tiny model: what it counts, and what it claims."""

import json
import sys

import numpy as np
import pytest

from padir.data.records import PreparedSet
from padir.data.synthetic import is_valid
from padir.inference.translator import load


@pytest.fixture(scope="module")
def script(load_script):
    return load_script("generation")


@pytest.fixture(scope="module")
def result(script, tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("generation")
    options = {"teacher": tiny.ar, "data": tiny.data, "verifier": folder / "verifier", "output": folder / "found.json"}
    options |= {"sentences": 5, "seeds": 2, "sources": 96, "batch": 8}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["generation.py", *(f"--{name}={value}" for name, value in options.items())])
        script.main()
    assert (folder / "verifier" / "verifier.json").exists()
    return json.loads((folder / "found.json").read_text())


@pytest.mark.slow
def test_under_a_perfect_verifier_everything_is_valid(script, result):
    row = result["rows"][script.PERFECT]
    assert row["valid"] == 100.0 and row["failed"] == [0, 0]
    assert row["queries_per_token"] == 1.0 and row["mean_erased"] == 0.0
    assert result["claims"][0] == {
        "claim": "with a perfect verifier every output is valid",
        "measured": 100.0,
        "holds": True,
    }


@pytest.mark.slow
def test_costs_add_up(script, result):
    rows = result["rows"]
    assert len(rows) == 9
    for name, row in rows.items():
        assert row["mean_queries"] == pytest.approx(row["tokens"] + row["mean_erased"]), name
        assert row["queries_per_token"] == pytest.approx(row["mean_queries"] / row["tokens"]), name
    for name in (script.GREEDY, script.PLAIN):
        assert rows[name]["mean_verifier_calls"] == rows[name]["mean_erased"] == 0.0
    assert rows[script.BLOCKS]["queries_per_token"] > 2.5
    assert rows[script.TRAINED]["mean_backtracks"] <= 4.0 and rows[script.TRAINED]["queries_per_token"] > 1.0
    # A model of 120 steps says nothing right by itself.
    assert rows[script.GREEDY]["valid"] == 0.0 and rows[script.PERFECT]["chrf"] > rows[script.GREEDY]["chrf"] + 20


@pytest.mark.slow
def test_comparisons(script, result):
    against = result["rows"][script.PERFECT][f"against {script.PLAIN}"]
    assert against["valid_difference"] == 100.0
    # Of five sentences, 2 of 32 swaps reach as much.
    assert against["valid_p"] == pytest.approx(2 / 32, abs=0.02) == pytest.approx(against["chrf_p"], abs=0.02)


def test_greedy_outputs_are_the_translators(script, tiny):
    translator = load(tiny.ar)
    examples = PreparedSet.open(tiny.data).split("test").read(range(5))
    bench = script.Bench(translator, examples, 4)
    (found,) = bench.run(script.System(script.Autoregressive()), [0], "greedy")
    expected = translator.translate([each.source_text for each in examples])
    assert found.texts == [each.text for each in expected]
    assert found.lengths.tolist() == [each.predicted_length for each in expected]
    valid = [is_valid(each.source_text, text) for each, text in zip(examples, found.texts, strict=True)]
    np.testing.assert_array_equal(found.valid, valid)


def test_claims_say_what_holds(script):
    better = {"valid": 97.0, "mean_queries": 11.0, f"against {script.PLAIN}": {"valid_p": 0.01}}
    rows = {
        script.PLAIN: {"valid": 90.0, "mean_queries": 10.0},
        script.PERFECT: {"valid": 100.0},
        script.TRAINED: better,
        script.RANDOM: {"valid": 92.0},
        script.BLOCKS: {"mean_queries": 45.0},
    }
    assert [claim["holds"] for claim in script.claims(rows)] == [True] * 6
    worse = rows | {script.TRAINED: better | {"valid": 89.0, "mean_queries": 13.0}, script.PERFECT: {"valid": 99.9}}
    assert [claim["holds"] for claim in script.claims(worse)] == [False] * 5 + [True]
