"""The clock sees what it must, nothing else, in an order drawn from the seed."""

import json
import time

import numpy as np
import pytest

import padir
from padir import benchmark as module
from padir.benchmark import Latency, System, benchmark, latency_table, measure_latency, run_facts
from padir.data.records import PreparedSet
from padir.decoding.refinement import Refinement
from padir.errors import PadirError


class Recorder:
    """A translator that notes who is asked for what, and takes a given time."""

    def __init__(self, name, calls, seconds=0.0):
        self.name, self.calls, self.seconds = name, calls, seconds

    def translate(self, texts, decode):
        self.calls.append((self.name, *texts, decode))
        time.sleep(self.seconds)


def recorded(seed, repeats=3):
    calls = []
    systems = {name: (Recorder(name, calls), f"decode {name}") for name in ("a", "b")}
    latencies = measure_latency(systems, ["x", "y", "z"], repeats=repeats, seed=seed)
    return calls, latencies


def test_every_system_is_asked_every_text_as_often_one_at_a_time():
    calls, latencies = recorded(0)
    warm_up, timed = calls[:6], calls[6:]
    assert warm_up == [(name, text, f"decode {name}") for name in "ab" for text in "xyz"]
    assert sorted(timed) == sorted(warm_up * 3)
    assert {name: len(latency.samples) for name, latency in latencies.items()} == {"a": 9, "b": 9}
    # They take turns on the same text.
    for first, second in zip(timed[::2], timed[1::2], strict=True):
        assert first[1] == second[1] and first[0] != second[0]
    # Each round has every text once.
    assert [sorted(call[1] for call in timed[start : start + 6]) for start in (0, 6, 12)] == [list("xxyyzz")] * 3


def test_the_order_is_random_and_follows_the_seed():
    first, again, other = (recorded(seed, repeats=5)[0] for seed in (1, 1, 2))
    assert first == again != other
    assert {call[0] for call in first[6::2]} == {"a", "b"}, "one system always goes first"


def test_the_clock_sees_a_slow_system_and_leaves_warm_up_out(monkeypatch):
    calls = []
    slow, fast = Recorder("slow", calls, 0.02), Recorder("fast", calls)
    latencies = measure_latency({"slow": (slow, None), "fast": (fast, None)}, ["x", "y"], repeats=4)
    assert latencies["slow"].samples.min() >= 20
    assert np.median(latencies["fast"].samples) < 5
    assert latencies["slow"].warm_up_seconds >= 0.04

    # A first call that takes long, as compilation does, is in no sample.
    translate = Recorder.translate

    def compiling(self, texts, decode):
        if len(self.calls) == 0:
            time.sleep(0.1)
        translate(self, texts, decode)

    monkeypatch.setattr(Recorder, "translate", compiling)
    (latency,) = measure_latency({"a": (Recorder("a", []), None)}, ["x"], repeats=3).values()
    assert latency.warm_up_seconds >= 0.1
    assert latency.samples.max() < 50


def test_a_real_translator_made_slow_is_seen(tiny, monkeypatch):
    translator = padir.load(tiny.padir)
    honest = translator.translate

    def late(texts, decode=None):
        time.sleep(0.02)
        return honest(texts, decode)

    text = PreparedSet.open(tiny.data).split("test")[0].source_text
    (before,) = measure_latency({"system": (translator, Refinement(target_buckets=()))}, [text], repeats=5).values()
    monkeypatch.setattr(translator, "translate", late)
    (after,) = measure_latency({"system": (translator, Refinement(target_buckets=()))}, [text], repeats=5).values()
    assert after.to_dict()["median"] >= 20
    assert after.to_dict()["median"] > before.to_dict()["median"] + 10


def test_summary_by_hand():
    """1 to 100 ms: percentiles interpolate linearly between samples."""
    summary = Latency(np.arange(1.0, 101.0)[::-1], 2.5).to_dict()
    assert summary == {
        "median": 50.5,
        "mean": 50.5,
        "p90": pytest.approx(90.1),
        "p99": pytest.approx(99.01),
        "n": 100,
        "warm_up_seconds": 2.5,
    }


@pytest.fixture(scope="module")
def measured(tiny, tmp_path_factory):
    path = tmp_path_factory.mktemp("benchmark") / "latency.json"
    systems = [
        System("AR", str(tiny.ar)),
        System("1 step", str(tiny.padir), Refinement(num_steps=1, target_buckets=())),
        System("2 steps", str(tiny.padir), Refinement(num_steps=2, target_buckets=())),
    ]
    result = benchmark(systems=systems, data_dir=str(tiny.data), output=str(path), num_sentences=3, repeats=2)
    return path, result


def test_what_is_written(tiny, measured):
    path, result = measured
    stored = json.loads(path.read_text(encoding="utf-8"))
    assert stored == result
    assert list(stored["systems"]) == ["AR", "1 step", "2 steps"]
    assert (stored["data_dir"], stored["split"], stored["batch_size"]) == (str(tiny.data), "test", 1)
    first = stored["systems"]["AR"]["latency_ms"]["median"]
    for system in stored["systems"].values():
        latency = system["latency_ms"]
        assert latency["n"] == 6
        assert 0 < latency["median"] <= latency["p90"] <= latency["p99"]
        assert system["speed_up"] == pytest.approx(first / latency["median"])
        # Compiling takes seconds, a sentence milliseconds; 1 and 2 steps share what the first of them compiles.
        if latency is not stored["systems"]["2 steps"]["latency_ms"]:
            assert latency["warm_up_seconds"] > 10 * latency["median"] / 1000
    assert stored["systems"]["1 step"]["decode"] == repr(Refinement(num_steps=1, target_buckets=()))
    assert stored["systems"]["AR"]["decode"].startswith("Autoregressive(")


def test_facts_of_the_run(measured):
    facts = measured[1]["facts"]
    assert facts["device"] == "cpu" and facts["device_count"] == 8 and facts["cpu_count"] >= 1
    assert len(facts["load_average"]) == 3
    assert {"jax", "jaxlib", "flax", "optax"} <= facts["versions"].keys()
    assert facts["python"].startswith("3.")
    assert facts.keys() == run_facts().keys()


def test_the_commit_says_whether_the_checkout_differs(monkeypatch, tmp_path):
    import subprocess

    def git(*arguments):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        command = ["git", "-C", str(tmp_path), *identity, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    (tmp_path / "padir").mkdir()
    monkeypatch.setattr(module, "__file__", str(tmp_path / "padir" / "benchmark.py"))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert module._commit() == ""
    git("init", "-q")
    (tmp_path / "file").write_text("one")
    git("add", ".")
    git("commit", "-qm", "one")
    assert module._commit() == git("rev-parse", "HEAD")
    (tmp_path / "file").write_text("two")
    assert module._commit() == git("rev-parse", "HEAD") + "+changes"


def test_table():
    latency = {"median": 12.345, "p99": 20.0, "n": 6, "warm_up_seconds": 1.25}
    table = latency_table({"systems": {"AR": {"latency_ms": latency, "speed_up": 1.0}}})
    assert table.splitlines() == [
        "| system | median ms | p99 ms | n | speed-up | warm-up s |",
        "|---|---:|---:|---:|---:|---:|",
        "| AR | 12.35 | 20.00 | 6 | 1.00 | 1.2 |",
    ]


def test_systems_that_cannot_be_compared(tiny, tmp_path):
    common = {"data_dir": str(tiny.data), "output": str(tmp_path / "x.json")}
    with pytest.raises(PadirError, match="benchmark.systems: name at least one system"):
        benchmark(systems=[], **common)
    with pytest.raises(PadirError, match="benchmark.systems: two systems have the same name"):
        benchmark(systems=[System("a", str(tiny.ar)), System("a", str(tiny.padir))], **common)
    with pytest.raises(PadirError, match="Refinement does not fit a AutoregressiveModel"):
        benchmark(systems=[System("a", str(tiny.ar), Refinement())], num_sentences=1, **common)
    with pytest.raises(PadirError, match="num_sentences 0 and repeats 3 must be at least 1"):
        benchmark(systems=[System("a", str(tiny.ar))], num_sentences=0, **common)
    assert not (tmp_path / "x.json").exists()
