"""`benchmarks/batches.py`: a picture of results at several batch sizes."""

import json
import sys

import pytest


@pytest.fixture
def script(load_script):
    return load_script("batches")


def result(size, device="a GPU", **medians):
    systems = {name: {"latency_ms": {"median": median}} for name, median in medians.items()}
    return {"batch_size": size, "facts": {"device": device}, "systems": systems}


def test_rates_by_hand(script):
    found = script.rates([result(8, greedy=4.0, padir=2.0), result(1, greedy=2.0, padir=0.5)])
    assert found == {"greedy": {1: 500.0, 8: 2000.0}, "padir": {1: 2000.0, 8: 4000.0}}
    assert list(found["greedy"]) == [1, 8]


@pytest.mark.parametrize("other", [result(8, greedy=4.0), result(8, "a CPU", greedy=4.0, padir=2.0)])
def test_results_that_do_not_belong_together_are_refused(script, tmp_path, monkeypatch, other):
    paths = [tmp_path / "1.json", tmp_path / "8.json"]
    for path, found in zip(paths, (result(1, greedy=2.0, padir=0.5), other), strict=True):
        path.write_text(json.dumps(found))
    monkeypatch.setattr(sys, "argv", ["batches.py", *map(str, paths), f"--output={tmp_path / 'x.png'}"])
    with pytest.raises(SystemExit, match="8.json: has other systems or another device than .*1.json"):
        script.main()
    assert not (tmp_path / "x.png").exists()


def test_the_picture_is_drawn(script, tmp_path, monkeypatch):
    (tmp_path / "1.json").write_text(json.dumps(result(1, greedy=2.0, padir=0.5)))
    monkeypatch.setattr(sys, "argv", ["batches.py", str(tmp_path / "1.json"), f"--output={tmp_path / 'x.png'}"])
    script.main()
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
