"""Claims of one experiment with several seeds."""

import json
import os
import sys

import pytest

from padir.benchmark.facts import run_facts


def write(folder, seed, measured, *, part="a", text="{} words: share", data=None):
    folder.mkdir(exist_ok=True)
    claims = [
        {"claim": text.format(1000 + seed), "measured": value, "relation": "<=", "limit": 0.5, "passed": value <= 0.5}
        for value in measured
    ]
    facts, settings = run_facts() | {"commit": f"commit{seed}", "command": f"learn {part}"}, {"seed": seed}
    result = {"figure": part, "settings": settings, "claims": claims, "facts": facts, "seconds": 2.0}
    result["data"] = data or {}
    (folder / f"x_{part}.json").write_text(json.dumps(result))


def run(script, monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["verdicts.py", *map(str, arguments)])
    script.main()


def test_claims_are_compared_by_place(load_script, tmp_path, monkeypatch, capsys):
    script, output = load_script("verdicts"), tmp_path / "seeds.json"
    write(tmp_path / "zero", 0, [0.1, 0.4])
    write(tmp_path / "zero", 0, [0.1], part="b")
    write(tmp_path / "one", 1, [0.2, 0.6])
    run(script, monkeypatch, tmp_path / "zero", tmp_path / "one", f"--output={output}")
    found = json.loads(output.read_text())
    assert found["seeds"] == [0, 1] and found["left_out"] == ["b"] and found["seconds"] == [2.0, 2.0]
    zero, one = found["facts"]
    assert found["commits"] == [["commit0"], ["commit1"]] and zero["cpu_count"] == [os.cpu_count()]
    # Of the parts that are compared.
    assert zero["command"] == one["command"] == ["learn a"]
    assert [claim["passed"] for claim in found["parts"]["a"]] == [[True, True], [True, False]]
    assert found["parts"]["a"][1]["measured"] == [0.4, 0.6]
    said = capsys.readouterr().out.splitlines()
    assert said == [
        "1000 words: share: [0.4, 0.6] <= 0.5",
        "1 of 2 claims have one verdict with the seeds [0, 1]",
    ]


def test_pairs_of_all_runs_are_pooled(load_script, tmp_path, monkeypatch):
    """As one run of four pairs: three are higher, and the gains are 0.1, 0.2, -0.1 and 0.2."""
    script, output = load_script("verdicts"), tmp_path / "seeds.json"
    gains = {0: [0.1, 0.2], 1: [-0.1, 0.2]}
    for seed, each in gains.items():
        standard = {"beta": [0.2, 0.2], "long_closing": [0.5, 0.5], "long_every": [0.5, 0.5]}
        longer = [0.5 + gain for gain in each]
        contrastive = {"beta": [0.1, 0.05], "long_closing": longer, "long_every": [0.4, 0.4]}
        data = {"standard": standard, "contrastive": contrastive, "comparison": {}}
        write(tmp_path / str(seed), seed, [0.1], data=data)
    run(script, monkeypatch, tmp_path / "0", tmp_path / "1", f"--output={output}")
    found = json.loads(output.read_text())["pooled"]["a"]
    assert found["pairs"] == 4 and found["beta_ratio"] == pytest.approx(0.375)
    closing = found["closing"]
    assert closing["higher"] == 3 and closing["mean_gain"] == pytest.approx(0.1)
    # Standard deviation 0.1414, and 3.182 is the 97.5% quantile of Student's t of 3 degrees of freedom.
    assert closing["interval"] == pytest.approx([0.1 - 3.182 * 0.1414 / 2, 0.1 + 3.182 * 0.1414 / 2], abs=1e-3)
    assert found["every"]["higher"] == 0


def test_runs_that_cannot_be_compared(load_script, tmp_path, monkeypatch):
    script = load_script("verdicts")
    write(tmp_path / "zero", 0, [0.1])
    write(tmp_path / "again", 0, [0.1])
    write(tmp_path / "other", 1, [0.1], text="{} letters: share")
    (tmp_path / "none").mkdir()
    for other, message in (("again", r"the seeds of the runs are \[0, 0\]"), ("other", "a: the runs have other"),
                           ("none", "no results of an experiment here")):  # fmt: skip
        with pytest.raises(SystemExit, match=message):
            run(script, monkeypatch, tmp_path / "zero", tmp_path / other, "--output=x")
