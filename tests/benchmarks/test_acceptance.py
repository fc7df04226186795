"""`benchmarks/acceptance.py`: its ways to decode, and what it writes of tiny models."""

import dataclasses
import json
import sys

import pytest

from padir.decoding.refinement import Refinement


@pytest.fixture(scope="module")
def script(load_script):
    return load_script("acceptance")


def test_every_way_is_another_and_can_be_decoded(script, tiny):
    import padir

    ways, translator = script.ways(), padir.load(tiny.padir)
    assert script.BASELINE in ways and len(set(ways.values())) == len(ways) == 38
    for way in ways.values():
        decode = dataclasses.replace(way, target_buckets=(32,))
        assert translator.checked(decode) == decode
    # Nothing adaptive takes more passes than the baseline may.
    assert {way.num_steps for name, way in ways.items() if name.startswith(("threshold", "entropy"))} == {10}
    credit = ways["threshold 0.9 with credit"]
    assert dataclasses.replace(credit, credit=None) == ways["threshold 0.9"] != credit


def test_each_way_is_compared_with_the_baseline(script, tiny, tmp_path, monkeypatch, capsys):
    some = {script.BASELINE: Refinement(2), "the same": Refinement(2), "one step": Refinement(1)}
    monkeypatch.setattr(script, "ways", lambda: some)
    output = tmp_path / "acceptance.json"
    options = {"run_dir": tiny.padir, "data_dir": tiny.data, "output": output, "sentences": 20}
    monkeypatch.setattr(sys, "argv", ["acceptance.py", *(f"--{name}={value}" for name, value in options.items())])
    script.main()
    result = json.loads(output.read_text())
    assert result["sentences"] == 20 and list(result["rows"]) == list(some) and result["baseline"] == script.BASELINE
    baseline, same, one = result["rows"].values()
    assert "against_baseline" not in baseline
    test = same.pop("against_baseline")["bleu"]
    assert same == baseline and test["difference"] == 0 and test["p_value"] > 0.9
    assert one["mean_steps_run"] == 1 and 1 <= baseline["mean_steps_run"] <= 2
    assert one["against_baseline"]["bleu"]["difference"] == pytest.approx(one["bleu"] - baseline["bleu"])
    assert f"one step: 1.00 passes, BLEU {one['bleu']:.2f}" in capsys.readouterr().out
