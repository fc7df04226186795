"""The memory of training does not grow: `benchmarks/train_memory.py` with fewer updates than by default."""

import json
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "train_memory.py"


@pytest.fixture(scope="module")
def script(load_script):
    return load_script("train_memory")


def test_growth_by_hand(script):
    """The first quarter does not count; then 1 MB more every 20 updates is 50 MB in 1,000."""
    memory = [500.0, 900.0, 300.0, 301.0, 302.0, 303.0, 304.0, 305.0]
    lines = [{"step": 20 * (i + 1), "train/host_memory_mb": mb} for i, mb in enumerate(memory)]
    found = script.growth(lines)
    assert found.pop("mb_per_1000_steps") == pytest.approx(50.0)
    assert found == {"mb_at_first": 300.0, "mb_at_last": 305.0, "mb_at_most": 305.0}


@pytest.mark.slow
def test_memory_stays(tiny, run_python, tmp_path):
    """If the state (at least 300 kB of parameters) leaked at every update, memory would grow by over 100 MB.

    The slope may come to half of that: memory that malloc gave back at the start and took again later counts as growth.
    """
    code = f"import runpy\nrunpy.run_path({str(SCRIPT)!r}, run_name='__main__')"
    output = tmp_path / "memory.json"
    options = {"output": output, "data_dir": tiny.data, "steps": 480, "every": 5, "buckets": 32}
    done = run_python(code, *(word for name, value in options.items() for word in (f"--{name}", value)))
    assert done.returncode == 0, done.stderr.decode()
    found = json.loads(output.read_text())
    assert found["steps"] == 480
    assert found["mb_at_last"] - found["mb_at_first"] < 30
    assert 0.36 * found["mb_per_1000_steps"] < 50
