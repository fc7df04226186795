"""What the writer leaves on disk: JSON lines and event files are read back and compared."""

import json
import math
import struct

import jax.numpy as jnp
import numpy as np
import pytest
from tensorboardX.proto import event_pb2

from padir.errors import PadirError
from padir.metrics.writers import MetricWriter, read_metrics, recorded


def lines(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def events(folder):
    """Reads every event file: records of length (8 bytes), its checksum (4), data, its checksum (4)."""
    found = []
    for path in sorted(folder.glob("events.out.tfevents.*")):
        data = path.read_bytes()
        while data:
            (size,) = struct.unpack("<Q", data[:8])
            found.append(event_pb2.Event.FromString(data[12 : 12 + size]))
            data = data[16 + size :]
    return found


def scalars(folder):
    return [(event.step, value.tag, value.simple_value) for event in events(folder) for value in event.summary.value]


def test_values_in_both_files(tmp_path):
    with MetricWriter(tmp_path / "deep" / "logs") as writer:
        writer.write(1, {"loss": 2.5, "tokens": 7})
        writer.write(np.int64(2), {"loss/stage_1": np.float32(0.5), "accuracy": jnp.asarray(0.75)})
    folder = tmp_path / "deep" / "logs"
    assert lines(folder) == [{"step": 1, "loss": 2.5, "tokens": 7}, {"step": 2, "loss/stage_1": 0.5, "accuracy": 0.75}]
    assert scalars(folder) == [(1, "loss", 2.5), (1, "tokens", 7.0), (2, "loss/stage_1", 0.5), (2, "accuracy", 0.75)]


def test_lines_are_there_without_close(tmp_path):
    writer = MetricWriter(tmp_path)
    writer.write(1, {"loss": 1.0})
    assert lines(tmp_path) == [{"step": 1, "loss": 1.0}]
    writer.close()
    writer.close()


def test_non_finite_values_stay_valid_json(tmp_path):
    with MetricWriter(tmp_path) as writer:
        writer.write(3, {"a": math.nan, "b": jnp.inf, "c": np.float32(-np.inf), "d": 1.0})
    text = (tmp_path / "metrics.jsonl").read_text(encoding="utf-8")
    assert json.loads(text, parse_constant=pytest.fail) == {
        "step": 3,
        "a": None,
        "b": None,
        "c": None,
        "d": 1.0,
        "non_finite": {"a": "nan", "b": "inf", "c": "-inf"},
    }
    values = {tag: value for _, tag, value in scalars(tmp_path)}
    assert math.isnan(values["a"])
    assert (values["b"], values["c"], values["d"]) == (math.inf, -math.inf, 1.0)


def test_resume_writes_each_step_once(tmp_path):
    with MetricWriter(tmp_path) as writer:
        for step in (10, 20, 30, 40):
            writer.write(step, {"loss": float(step)})
    with MetricWriter(tmp_path, resume_step=25) as writer:
        assert writer.last_step == 20
        for step in (30, 40, 50):
            writer.write(step, {"loss": -float(step)})
    written = [(line["step"], line["loss"]) for line in lines(tmp_path)]
    assert written == [(10, 10), (20, 20), (30, -30), (40, -40), (50, -50)]
    # TensorBoard hides what it read before from the step of a session start onwards.
    starts = [event.step for event in events(tmp_path) if event.HasField("session_log")]
    assert starts == [0, 26]


def test_resume_keeps_the_line_of_its_own_step_and_non_finite_values(tmp_path):
    with MetricWriter(tmp_path) as writer:
        writer.write(10, {"loss": math.nan})
        writer.write(20, {"loss": 1.0})
    before = (tmp_path / "metrics.jsonl").read_bytes()
    MetricWriter(tmp_path, resume_step=20).close()
    assert (tmp_path / "metrics.jsonl").read_bytes() == before


def test_resume_drops_a_line_cut_off_by_a_kill(tmp_path):
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1, "loss": 2.0}\n{"step": 2, "lo')
    with MetricWriter(tmp_path, resume_step=5) as writer:
        writer.write(2, {"loss": 1.5})
    assert lines(tmp_path) == [{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.5}]


def test_a_run_from_nothing_starts_an_empty_file(tmp_path):
    with MetricWriter(tmp_path) as writer:
        writer.write(7, {"loss": 1.0})
    with MetricWriter(tmp_path) as writer:
        assert writer.last_step is None
        writer.write(1, {"loss": 2.0})
    assert lines(tmp_path) == [{"step": 1, "loss": 2.0}]


def test_damaged_line_is_named(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\nrubbish\n{"step": 3}\n', encoding="utf-8")
    with pytest.raises(PadirError, match="metrics.jsonl, line 2"):
        MetricWriter(tmp_path, resume_step=3)
    with pytest.raises(PadirError, match="no such file"):
        read_metrics(tmp_path / "absent.jsonl")


def test_other_processes_touch_nothing(tmp_path):
    with MetricWriter(tmp_path / "logs", active=False, resume_step=3) as writer:
        writer.write(1, {"loss": 1.0})
        writer.flush()
        assert writer.last_step is None
    assert not (tmp_path / "logs").exists()


def test_a_session_adds_what_the_one_before_left_out(tmp_path):
    with MetricWriter(tmp_path) as writer:
        writer.write(5, {"train/loss": 1.0})
    with MetricWriter(tmp_path, resume_step=5) as writer:
        with pytest.raises(ValueError, match="step 5 come after those of step 5"):
            writer.write(5, {"train/loss": 2.0, "validation/loss": 3.0})
        writer.write(5, {"validation/loss": 3.0})
        with pytest.raises(ValueError, match="step 5 come after those of step 5"):
            writer.write(5, {"accuracy": 1.0})
        writer.write(6, {"train/loss": 0.5})
        writer.write(7, {"validation/loss": math.inf})
    assert lines(tmp_path)[:3] == [
        {"step": 5, "train/loss": 1.0},
        {"step": 5, "validation/loss": 3.0},
        {"step": 6, "train/loss": 0.5},
    ]
    assert math.isnan(recorded(tmp_path, "validation/loss", 7))
    assert [recorded(tmp_path, "validation/loss", step) for step in (4, 5, 6)] == [None, 3.0, None]
    assert recorded(tmp_path / "none", "validation/loss", 5) is None


def test_misuse_is_refused_and_leaves_no_line(tmp_path):
    writer = MetricWriter(tmp_path)
    writer.write(5, {"loss": 1.0})
    with pytest.raises(ValueError, match="step 5 come after those of step 5"):
        writer.write(5, {"accuracy": 1.0})
    with pytest.raises(ValueError, match="a metric cannot be called 'step'"):
        writer.write(6, {"step": 1.0})
    with pytest.raises(ValueError, match="size"):
        writer.write(6, {"loss": np.zeros(2)})
    writer.close()
    with pytest.raises(ValueError, match="closed"):
        writer.write(6, {"loss": 1.0})
    assert lines(tmp_path) == [{"step": 5, "loss": 1.0}]
