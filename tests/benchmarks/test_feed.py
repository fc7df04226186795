"""`benchmarks/feed.py`: its set, its batches, and what it counts."""

import json
import re
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from padir.data.batching import Buckets, rows_of_step
from padir.data.records import PreparedSet
from padir.errors import PadirError
from padir.types import EOS_ID, UNK_ID

PAIRS = 600


@pytest.fixture(scope="module")
def script(load_script):
    return load_script("feed")


@pytest.fixture(scope="module")
def folder(script, tmp_path_factory):
    path = tmp_path_factory.mktemp("feed")
    script.make_set(str(path), PAIRS)
    return path


def pipeline_of(batch, wait=lambda step: None):
    """A pipeline that yields the same batch again and again, after `wait(step)`."""

    def batches(*, start_step, num_steps):
        for step in range(start_step, start_step + num_steps):
            wait(step)
            yield batch

    return batches


def test_the_settings_are_those_of_wmt(script):
    text = (Path(__file__).parents[2] / "gin/runs/wmt_base.gin").read_text(encoding="utf-8")
    assert re.search(r"^train\.buckets = (.+)$", text, re.M)[1] == str(script.BUCKETS)
    assert re.search(r"^train\.batch_size = (.+)$", text, re.M)[1] == str(script.BATCH_SIZE)


def test_lengths_look_like_a_corpus(script):
    lengths = script.draw_lengths(np.random.default_rng(1), 20_000)
    assert lengths.shape == (20_000, 2) and lengths.min() >= 2 and lengths.max() == script.LONGEST
    assert lengths.mean(axis=0) == pytest.approx([28.1, 28.6], abs=0.8)
    assert np.corrcoef(lengths.T)[0, 1] > 0.9


def test_the_set_is_one_that_padir_reads(script, folder):
    split = PreparedSet.open(folder).split("train")
    assert len(split) == PAIRS and sum(split.manifest.source_length_histogram.values()) == PAIRS
    assert split.lengths.min() >= 2 and split.lengths.max() <= script.LONGEST
    assert len({split[i].source_text for i in range(PAIRS)}) > 0.9 * PAIRS
    for (source, target), example in zip(split.lengths, split.read(range(PAIRS)), strict=True):
        sides = (source, example.source_ids, example.source_text), (target, example.target_ids, example.target_text)
        for length, ids, text in sides:
            assert (len(ids), len(text)) == (length, length * script.BYTES_PER_TOKEN)
            assert ids[-1] == EOS_ID and ids[:-1].min() > UNK_ID and ids.max() < script.NUM_PIECES


def test_a_set_is_made_once(script, folder):
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    script.make_set(str(folder), PAIRS)
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before
    with pytest.raises(PadirError, match=f"has {PAIRS} pairs, not 700"):
        script.make_set(str(folder), 700)


def test_pairs_are_written_in_pieces(script, tmp_path, monkeypatch):
    monkeypatch.setattr(script, "_PAIRS_AT_ONCE", 40)
    script.make_set(str(tmp_path), 100)
    assert len(PreparedSet.open(tmp_path).split("train").read(range(100))) == 100


def test_batches_are_those_of_the_first_host(script, folder):
    split = PreparedSet.open(folder).split("train")
    batches = list(script.host_pipeline(split, 64, 4)(start_step=2, num_steps=12))
    assert len(batches) == 12
    order = {"buckets": Buckets.square(script.BUCKETS), "batch_size": 64, "seed": 0}
    for step, batch in enumerate(batches, start=2):
        assert batch["example_index"].tolist() == rows_of_step(split, **order, step=step)[:16].tolist()
        for place, row in enumerate(batch["example_index"]):
            assert np.trim_zeros(batch["decoder_target_tokens"][place]).tolist() == split[row].target_ids.tolist()


def test_rates_by_hand(script):
    """Batches of 2 x (3 + 4) positions, of which 5 hold target tokens, every 20 ms; waiting takes no CPU time."""
    target = np.array([[7, 7, 1, 0], [7, 1, 0, 0]])
    batch = {"encoder_input_tokens": np.ones((2, 3)), "decoder_target_tokens": target}
    found = script.deliver(pipeline_of(batch, lambda step: time.sleep(0.02)), 10)
    assert found["padded_tokens_per_batch"] == 14
    assert 0.02 <= found["seconds_per_batch_median"] <= found["seconds_per_batch_p99"]
    assert 14 / 0.2 < found["padded_tokens_per_second"] <= 14 / 0.02
    assert found["target_tokens_per_second"] == pytest.approx(found["padded_tokens_per_second"] * 5 / 14)
    assert found["padded_tokens_per_core_second"] == pytest.approx(14 / found["cpu_seconds_per_batch"])
    assert found["cpu_seconds_per_batch"] < 0.01
    assert found["seconds_to_first_batch"] >= 0.02


def test_waits_by_hand(script):
    """Batches of 10 positions at 500 per second take 20 ms each; step 7, the fourth after the first, waits 50 ms."""
    batch = {"encoder_input_tokens": np.ones((1, 6)), "decoder_target_tokens": np.ones((1, 4))}
    began = time.perf_counter()
    found = script.pace(pipeline_of(batch, lambda step: time.sleep(0.05 if step in (3, 7) else 0)), 500.0, 3, 10)
    assert time.perf_counter() - began >= 10 * 0.02 + 2 * 0.05
    assert found["wait_seconds_max"] >= 0.05 > found["wait_seconds_median"]
    assert 0.005 <= found["data_seconds"] < found["wait_seconds_p99"] < found["wait_seconds_max"]


def test_the_result_is_consistent(script, folder, tmp_path, monkeypatch, capsys):
    output = tmp_path / "feed.json"
    sizes = {"pairs": PAIRS, "batch_size": 64, "hosts": 4, "batches": 5}
    arguments = [f"--{name}={value}" for name, value in {"output": output, "data": folder, **sizes}.items()]
    monkeypatch.setattr(sys, "argv", [script.__file__, *arguments])
    script.main()
    text = output.read_text(encoding="utf-8")
    assert str(folder) not in text and str(tmp_path) not in text
    found = json.loads(text)
    assert {name: found[name] for name in sizes} == sizes
    assert found["buckets"] == list(script.BUCKETS)
    rate, needed = found["unpaced"], found["needed_padded_tokens_per_second"]
    assert needed == pytest.approx(64 * 128 / found["step"]["seconds"] / 4)
    assert found["step"]["seconds"] == pytest.approx(0.12, abs=0.02)
    assert found["delivered_over_needed"] == pytest.approx(rate["padded_tokens_per_second"] / needed)
    assert found["cores_needed"] == pytest.approx(needed / rate["padded_tokens_per_core_second"])
    assert found["steps_per_epoch"] == PAIRS // 64 and found["wait_seconds_at_end_of_epoch"] > 0
    assert 2 * 16 * 16 <= rate["padded_tokens_per_batch"] <= 2 * 16 * 128
    assert f"{found['delivered_over_needed']:.2f} times what it needs" in capsys.readouterr().out
