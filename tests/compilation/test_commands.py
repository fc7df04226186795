"""`padir compile` as a user runs it, in a process of its own."""

import json
import os
import re
import subprocess
import sys

import pytest

from padir.compilation import commands, deviceless
from padir.compilation.commands import compile_train
from padir.compilation.programs import Compiled, Refused, Update
from padir.compilation.topologies import named
from padir.errors import PadirError
from padir.models.autoregressive import AutoregressiveModel
from padir.types import TokenIds

needs_libtpu = pytest.mark.skipif(
    not deviceless.is_installed(), reason="libtpu, the compiler for TPUs, is not installed"
)
needs_cuda = pytest.mark.skipif(
    not deviceless.is_installed("gpu"), reason="the compiler for NVIDIA GPUs is not installed"
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


@pytest.mark.slow
@needs_libtpu
def test_what_does_not_fit_has_status_1_and_says_what_would():
    done = padir("train", "--topology=v5e-1", *TINY, "--batch_size=65536", "--gin.train.buckets=(32,)", status=1)
    assert "does not fit into 16 GiB" in done.stdout and "GiB are missing" in done.stdout
    assert "this fits: " in done.stdout or "no remat, layout or accumulate fits" in done.stdout
    assert "does not fit into the memory of a device of v5e-1" in done.stderr


def everything(value):
    """The names and strings in a JSON value."""
    if isinstance(value, dict):
        return [*value, *(text for each in value.values() for text in everything(each))]
    return [value] if isinstance(value, str) else []


@pytest.mark.slow
@needs_cuda
def test_a_training_run_on_gpus(tmp_path):
    output = tmp_path / "found.json"
    done = padir(
        "train", "--topology=h100-8", *TINY, f"--output={output}", f"--hlo={tmp_path}/hlo", f"--save={tmp_path}/saved"
    )
    credit = "compiled by XLA for GPU, not autotuned; nothing was run, and no time is estimated"
    assert f"h100-8: {credit}" in done.stdout and "at the peak of the matrix units" in done.stdout
    found = json.loads(output.read_text())
    (program,) = found["programs"].values()
    assert credit in found["compiled_by"] and "jax-cuda12-pjrt" in found["facts"]["versions"]
    assert found["topology"]["nodes"] == 1 and found["topology"]["devices"] == 8
    assert program["least_seconds"] == pytest.approx(program["flops"] / 8 / 989.5e12)
    assert 0 < program["peak_bytes"] < program["memory_bytes"] and program["host_transfers"] == 0
    assert not re.search("cycle|estimated_|mfu|hours|run$|per_second|loops", " ".join(everything(program)))
    assert len(list((tmp_path / "hlo").iterdir())) == len(list((tmp_path / "saved").iterdir())) == 1
    assert "cuda drivers" not in done.stderr


@needs_cuda
def test_what_does_not_fit_into_a_gpu_has_status_1():
    done = padir(
        *("benchmark", "latency", "--topology=h100-1", "--gin_file=bench/paper.gin", "--gin_file=bench/fixed_32.gin"),
        "--gin.NetworkConfig.num_encoder_layers=1",
        "--gin.NetworkConfig.num_decoder_layers=1",
        "--gin.benchmark_latency.systems=[@greedy/System()]",
        "--batch_size=3000000",
        status=1,
    )
    assert "does not fit into 79 GiB" in done.stdout and "GiB are missing" in done.stdout
    assert "does not fit into the memory of a device of h100-1" in done.stderr


def test_what_would_fit_is_found_for_gpus_too(monkeypatch):
    monkeypatch.setattr(
        commands,
        "_compiled",
        lambda program, topology: Compiled(None, "", 0.0, 1, 0) if program.remat == "layer" else Refused("no", 1),
    )
    update = Update(AutoregressiveModel(TokenIds(10)), 20, 64, 16)
    assert commands._what_fits(update, named("h100-8")) == "train.remat = 'layer'"


# Words of a command, and what it says.
MISTAKES = {
    "no value for topology; give --topology=NAME": ["train", *TINY],
    "topology: unknown 'v3-31'; choose one of v2-8": ["train", "--topology=v3-31", *TINY],
    "batch_size 30 does not divide evenly over 32 devices": ["train", "--topology=v3-32", *TINY, "--batch_size=30"],
    "nowhere": ["translate", "--topology=v5e-1", "--run_dir=nowhere"],
    "a compiler cannot know how many rounds verified decoding takes": [
        *["translate", "--topology=v5e-1", "--run_dir=a", "--verify_with=b"]
    ],
    "the program under a constraint depends on the terms of each batch": [
        *["translate", "--topology=v5e-1", "--run_dir=a", "--constraint=b"]
    ],
    "num_slices: 2 slices of GPUs do not exist": ["train", "--topology=h100-8", "--num_slices=2", *TINY],
}
# Several commands one after the other, since each alone needs ten seconds to start; behind what each says its status.
SEVERAL = """
import json, sys
from padir.cli.main import main
for words in json.load(sys.stdin):
    print(main(["compile", *words]), end="\\0", file=sys.stderr, flush=True)
"""


@needs_libtpu
def test_bad_input_gets_one_line():
    given = json.dumps(list(MISTAKES.values()))
    done = subprocess.run([sys.executable, "-c", SEVERAL], input=given, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    *all_said, rest = done.stderr.split("\0")
    assert rest == ""
    for message, said in zip(MISTAKES, all_said, strict=True):
        assert message in said and "Traceback" not in said and said.endswith("\n2")
        assert len([line for line in said.splitlines() if line.startswith("padir compile")]) == 1


@pytest.mark.parametrize(
    ("platform", "message"),
    [
        (
            "tpu",
            r"needs libtpu, the compiler for TPUs; pip install '\.\[tpu\]' in a clone of padir, or make install there",
        ),
        ("gpu", r"needs jax-cuda12-pjrt, the compiler for NVIDIA GPUs; pip install '\.\[cuda\]' in a clone of padir"),
        (None, r"needs libtpu.*; or jax-cuda12-pjrt"),
    ],
)
def test_without_a_compiler(platform, message, monkeypatch):
    monkeypatch.setattr(deviceless, "_found", lambda platform: None)
    with pytest.raises(PadirError, match=message):
        deviceless.check(platform)


@pytest.mark.parametrize(("platform", "topology"), [("tpu", "h100-8"), ("gpu", "v3-8")])
def test_only_the_compiler_of_the_topology_is_needed(platform, topology, monkeypatch):
    there = {platform: ("its package", "1.0")}
    monkeypatch.setattr(deviceless, "_found", there.get)
    deviceless.check()
    with pytest.raises(PadirError, match="padir compile needs "):
        commands._Job(named(topology), None, None, None)


def test_a_libtpu_of_another_version(monkeypatch):
    monkeypatch.setattr(deviceless, "_found", lambda platform: ("libtpu", "0.0.99"))
    monkeypatch.setattr(deviceless, "_wanted", lambda platform: "0.0.42.*")
    with pytest.raises(PadirError, match=r"libtpu 0.0.99 is installed, but jax .* is made for libtpu 0.0.42"):
        deviceless.check("tpu")


def test_a_missing_argument_is_named_when_it_is_needed():
    with pytest.raises(PadirError, match="no value for num_steps"):
        compile_train({}, topology="v3-8")
