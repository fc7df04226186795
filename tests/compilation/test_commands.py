"""`padir compile` as a user runs it, in a process of its own."""

import json
import os
import subprocess
import sys

import pytest

from padir.compilation import deviceless
from padir.compilation.commands import compile_train
from padir.errors import PadirError

needs_libtpu = pytest.mark.skipif(
    not deviceless.is_installed(), reason="libtpu, the compiler for TPUs, is not installed"
)
TINY = [
    "--gin_file=runs/synthetic_padir.gin",
    "--gin.DATA_DIR='nowhere'",
    "--gin.RUN_DIR='nowhere'",
    "--gin.NetworkConfig.num_encoder_layers=1",
    "--gin.NetworkConfig.num_decoder_layers=1",
    "--gin.PadirModel.num_stages=1",
]


def padir(*arguments, status=0):
    environment = {name: value for name, value in os.environ.items() if name != "JAX_DISABLE_MOST_OPTIMIZATIONS"}
    done = subprocess.run(
        [sys.executable, "-m", "padir.cli", "compile", *arguments], capture_output=True, text=True, env=environment
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done


@needs_libtpu
def test_a_training_run(tmp_path):
    output = tmp_path / "estimate.json"
    done = padir(
        "train",
        "--topology=v5litepod-4",
        *TINY,
        f"--output={output}",
        f"--hlo={tmp_path}/hlo",
        f"--save={tmp_path}/saved",
    )
    assert "v5litepod-4: estimated by XLA's compiler" in done.stdout and "fits" in done.stdout
    found = json.loads(output.read_text())
    (program,) = found["programs"].values()
    assert found["topology"]["chips"] == found["topology"]["devices"] == 4
    assert program["estimated_seconds"] == pytest.approx(program["estimated_cycles"] / 1.5e9)
    steps = program["run"]["hours"] * 3600 / program["estimated_seconds"]
    assert program["run"]["chip_hours"] == pytest.approx(4 * program["run"]["hours"])
    assert steps == pytest.approx(round(steps))
    assert len(list((tmp_path / "hlo").iterdir())) == len(list((tmp_path / "saved").iterdir())) == 1
    assert not os.path.exists("nowhere")


@needs_libtpu
def test_what_does_not_fit_has_status_1_and_says_what_would():
    done = padir("train", "--topology=v5e-1", *TINY, "--batch_size=65536", "--gin.train.buckets=(32,)", status=1)
    assert "does not fit into 16 GiB" in done.stdout and "GiB are missing" in done.stdout
    assert "this fits: " in done.stdout or "no remat, layout or accumulate fits" in done.stdout
    assert "does not fit into the memory of a device of v5e-1" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", *TINY], "no value for topology; give --topology=NAME"),
        (["train", "--topology=v3-31", *TINY], "topology: unknown 'v3-31'; choose one of v2-8"),
        (
            ["train", "--topology=v3-32", *TINY, "--batch_size=30"],
            "batch_size 30 does not divide evenly over 32 devices",
        ),
        (["translate", "--topology=v5e-1", "--run_dir=nowhere"], "nowhere"),
    ],
)
@needs_libtpu
def test_bad_input_gets_one_line(arguments, message):
    done = padir(*arguments, status=2)
    assert message in done.stderr and "Traceback" not in done.stderr
    assert len([line for line in done.stderr.splitlines() if line.startswith("padir compile")]) == 1


def test_without_libtpu(monkeypatch):
    monkeypatch.setattr(deviceless, "_version", lambda: None)
    with pytest.raises(PadirError, match="needs libtpu, the compiler for TPUs; install it with"):
        deviceless.check()


def test_a_libtpu_of_another_version(monkeypatch):
    monkeypatch.setattr(deviceless, "_version", lambda: "0.0.99")
    monkeypatch.setattr(deviceless, "_wanted", lambda: "0.0.42.*")
    with pytest.raises(PadirError, match=r"libtpu 0.0.99 is installed, but jax .* is made for libtpu 0.0.42"):
        deviceless.check()


def test_a_missing_argument_is_named_when_it_is_needed():
    with pytest.raises(PadirError, match="no value for num_steps"):
        compile_train({}, topology="v3-8")
