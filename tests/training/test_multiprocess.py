"""Processes that train together: the result of one process, resumed and refused alike."""

import functools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest
import quick_compilation
from uploads import upload

from padir.cli import main as cli
from padir.data.records import PreparedSet
from padir.decoding.refinement import Refinement
from padir.errors import PREEMPTED_STATUS
from padir.files.paths import as_path
from padir.metrics.writers import read_metrics
from padir.runs.convert import open_model
from padir.runtime import sharding

ROOT = Path(__file__).resolve().parents[2]

# Two checkpoints, so that a run can lose the second; losses of every step.
RUN = """
include 'models/tiny.gin'
NetworkConfig.embed_dim = 32
NetworkConfig.num_heads = 2
NetworkConfig.head_dim = 16
NetworkConfig.mlp_dim = 64
NetworkConfig.num_encoder_layers = 1
NetworkConfig.num_decoder_layers = 1
NetworkConfig.max_positions = 32
train.num_steps = 20
train.batch_size = 16
train.buckets = (32,)
train.optimizer = @OptimizerConfig()
# Small steps: large ones would blow up the last bits in which sums of another order differ (see test_layouts.py).
OptimizerConfig.peak_learning_rate = 0.005
OptimizerConfig.warmup_steps = 4
train.cadence = @Cadence()
train.layout = @Layout()
Cadence.log = 1
Cadence.evaluate = 20
Cadence.checkpoint = 15
"""

# Everything split: parameters and optimizer state over both processes, layers over the devices of each; and an average.
SPLIT = ["--gin.Layout.preset='fsdp+tensor'", "--gin.Layout.model=2", "--gin.OptimizerConfig.ema_decay=0.9"]
# How long a test waits for what it is about to interrupt, in moments of 0.02 s: two minutes, for a busy machine.
MOMENTS = 6000
# By what the runs below are called. Two devices a process: more of them wait for one another for most of the time. The
# other layouts are in test_layouts.py, on the devices of one process.
LAYOUTS = {"2x2": [], "2x2 split": SPLIT}


@pytest.fixture(scope="module")
def launch(tiny, compilation_cache, tmp_path_factory):
    """Returns launch(run_dir, *arguments) -> CompletedProcess of 2 processes with 2 devices each.

    `meanwhile` is called with the process id of the launcher, whose children they are.
    """
    training = tmp_path_factory.mktemp("gin") / "run.gin"
    training.write_text(RUN)

    def call(run_dir, *arguments, subcommand="train", gin_file=training, meanwhile=lambda pid: None):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        environment = {
            **os.environ,
            **compilation_cache,
            "XLA_FLAGS": quick_compilation.child_flags(devices=2),
            "PYTHONPATH": str(ROOT),
            "PADIR": str(Path(sys.executable).parent / "padir"),
            "PORT": str(port),
            "SUBCOMMAND": subcommand,
        }
        if subcommand != "translate":
            arguments = [f"--data_dir={tiny.data}", *arguments]
        command = [ROOT / "launch" / "local.sh", "2", gin_file, run_dir, "--", *arguments]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        job = subprocess.Popen(command, env=environment, text=True, start_new_session=True, **pipes)
        try:
            meanwhile(job.pid)
            out, err = job.communicate(timeout=300)
        finally:
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGKILL)
        return subprocess.CompletedProcess(command, job.returncode, out, err)

    return call


@pytest.fixture(scope="module")
def trained(launch, tiny, tmp_path_factory):
    """Returns trained(devices) -> run directory: "1", "2" or "8" of one process, or a name of `LAYOUTS`."""
    folder = tmp_path_factory.mktemp("runs")
    make_mesh = sharding.make_mesh

    def by_one_process(devices, run_dir):
        (folder / "run.gin").write_text(RUN)
        arguments = [f"--gin_file={folder / 'run.gin'}", f"--run_dir={run_dir}", f"--data_dir={tiny.data}"]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sharding, "make_mesh", lambda **options: make_mesh(jax.devices()[: int(devices)], **options))
            assert cli.main(["train", *arguments]) == 0

    @functools.cache
    def run_of(devices):
        run_dir = folder / devices
        if devices not in LAYOUTS:
            by_one_process(devices, run_dir)
            return run_dir
        done = launch(run_dir, *LAYOUTS[devices])
        assert done.returncode == 0, done.stderr
        # Both processes train, one speaks.
        assert done.stderr.count("trained to step 20") == 1
        return run_dir

    return run_of


def losses(run_dir, name="train/loss"):
    lines = read_metrics(run_dir / "metrics" / "metrics.jsonl")
    return {line["step"]: line[name] for line in lines if name in line}


def params(run_dir):
    opened = open_model(run_dir, sharding.make_mesh())
    assert opened.step == 20
    return [np.asarray(leaf) for leaf in jax.tree.leaves(opened.params)]


def translations(run_dir, data):
    """Tokens [16, L] of the best hypotheses for the first sentences of the test split, and their scores [16]."""
    opened = open_model(run_dir, sharding.make_mesh())
    test = PreparedSet.open(data).split("test")
    source = np.zeros((16, 32), np.int32)
    for row, example in zip(source, test.read(range(len(source))), strict=True):
        row[: len(example.source_ids)] = example.source_ids
    found = opened.model.decode(opened.params, source, jax.random.key(0), Refinement(num_steps=2))
    return np.asarray(found.tokens[:, 0]), np.asarray(found.scores[:, 0])


@pytest.mark.parametrize(
    "devices", ["2x2 split", *(pytest.param(name, marks=pytest.mark.slow) for name in ("2", "8", "2x2"))]
)
def test_devices_and_processes_make_no_difference(devices, trained, tiny):
    one, run_dir = trained("1"), trained(devices)
    expected, found = losses(one), losses(run_dir)
    assert list(found) == list(range(1, 21)) and found[20] < found[1]
    np.testing.assert_allclose(list(found.values()), list(expected.values()), rtol=1e-5)
    validation = "validation/loss"
    assert losses(run_dir, validation) == pytest.approx(losses(one, validation), rel=1e-4)
    for leaf, other in zip(params(run_dir), params(one), strict=True):
        # Updates of size 0.1 · RMS are divided by roots of averaged squares, some of which are next to nothing.
        np.testing.assert_allclose(leaf, other, rtol=1e-3, atol=1e-3)
    (tokens, scores), (expected_tokens, expected_scores) = (translations(each, tiny.data) for each in (run_dir, one))
    assert len(np.unique(tokens, axis=0)) >= 3
    np.testing.assert_array_equal(tokens, expected_tokens)
    np.testing.assert_allclose(scores, expected_scores, rtol=1e-3)


def one_bit(path):
    """Changes one."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut_off(path):
    """As a checkpoint of before there were checksums: only reading tells."""
    path.write_bytes(path.read_bytes()[:7])
    (path.parents[3] / "SHA256SUMS").unlink(missing_ok=True)


@pytest.mark.parametrize("damage", [one_bit, pytest.param(cut_off, marks=pytest.mark.slow)])
def test_a_damaged_checkpoint_is_set_aside_by_all_and_the_run_ends_as_if_whole(launch, trained, tmp_path, damage):
    """Sharded over both processes; it is the arrays that the second of them would read."""
    run_dir = tmp_path / "run"
    shutil.copytree(trained("2x2 split"), run_dir)
    damaged = list((run_dir / "checkpoints" / "20" / "params").glob("ocdbt.process_1/d/*"))
    assert damaged
    for path in damaged:
        damage(path)
    done = launch(run_dir, *SPLIT)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("checkpoints/20: cannot be restored; it is damaged") == 1
    assert ("has changed since it was saved); it is set aside" in done.stderr) == (damage is one_bit)
    assert "it is set aside as damaged_20" in done.stderr and "resuming at step 15 of 20" in done.stderr
    for leaf, other in zip(params(run_dir), params(trained("2x2 split")), strict=True):
        np.testing.assert_array_equal(leaf, other)


def test_all_stop_after_the_same_step_when_one_is_told_to(launch, tmp_path):
    """SIGTERM for the second process alone; every step that was taken is in the checkpoint, and is evaluated later."""
    run_dir = tmp_path / "run"

    def tell_the_second(launcher):
        for _ in range(MOMENTS):
            if (run_dir / "metrics" / "metrics.jsonl").exists() and losses(run_dir):
                children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
                os.kill(int(children[1]), signal.SIGTERM)
                return
            time.sleep(0.02)
        raise AssertionError("no step in two minutes")

    often = ["--gin.Cadence.evaluate=1", "--gin.Cadence.keep_best=1"]
    done = launch(run_dir, *often, "--gin.train.num_steps=100000", meanwhile=tell_the_second)
    assert done.returncode == PREEMPTED_STATUS, done.stderr
    last = max(losses(run_dir))
    assert done.stderr.count(f"told to stop; saved at step {last} of 100000") == 2
    assert (run_dir / "checkpoints" / str(last)).is_dir() and last not in losses(run_dir, "validation/loss")
    done = launch(run_dir, *often, f"--gin.train.num_steps={last + 5}")
    assert done.returncode == 0, done.stderr
    assert f"resuming at step {last} of {last + 5}" in done.stderr
    assert list(losses(run_dir, "validation/loss")) == list(range(1, last + 6))
    assert list(losses(run_dir)) == list(range(1, last + 6))
    # It goes on after a step that has been evaluated, whose loss only the first process has read.
    done = launch(run_dir, *often, f"--gin.train.num_steps={last + 7}")
    assert done.returncode == 0, done.stderr
    assert list(losses(run_dir, "validation/loss")) == list(range(1, last + 8))


def test_what_the_first_process_refuses_ends_them_all(launch, trained):
    done = launch(trained("2x2 split"), *SPLIT, "--gin.NetworkConfig.mlp_dim=128")
    assert done.returncode == 2
    assert done.stderr.count("holds a run with another configuration (model.network.mlp_dim: 64 there, 128 now)") == 1
    assert "padir train: save_model failed in process 0; see the message of that process" in done.stderr


DECODE = """
translate.decode = @Refinement()
Refinement.num_steps = 2
Refinement.target_buckets = (16,)
"""


@pytest.fixture(scope="module")
def corpus(tiny, tmp_path_factory):
    """120 lines of two files, three of which cannot be translated; and a gin file that says how the others are."""
    folder = tmp_path_factory.mktemp("corpus")
    test = PreparedSet.open(tiny.data).split("test")
    texts = [example.source_text for example in test.read(range(len(test)))] * 3
    texts = [text if len(text.split()) < 12 else "the dog" for text in texts]
    texts[5] = texts[50] = texts[119] = ""
    (folder / "a.txt").write_text("".join(f"{text}\n" for text in texts[:70]), encoding="utf-8")
    (folder / "b.txt").write_text("\n".join(texts[70:]) + "\n", encoding="utf-8")
    (folder / "decode.gin").write_text(DECODE)
    return folder


@pytest.mark.parametrize("killed", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["killed", "at once"])
def test_two_processes_translate_together(launch, corpus, tiny, bucket, tmp_path, killed):
    """Each on its own devices; one checks and speaks; together what one stream of one process writes.

    Where they are killed, model, texts and output lie in a bucket.
    """
    options = {"subcommand": "translate", "gin_file": corpus / "decode.gin"}
    inputs = [corpus / "a.txt", corpus / "b.txt"]
    one = [f"--gin_file={corpus / 'decode.gin'}", f"--run_dir={tiny.padir}", "--inputs", *map(str, inputs)]
    assert cli.main(["translate", *one, f"--output={tmp_path / 'one'}", "--batch_size=8"]) == 0
    model, output = tiny.padir, as_path(bucket) / "out" if killed else tmp_path / "out"
    if killed:
        inputs = [upload(corpus, f"{bucket}/in") / path.name for path in inputs]
        model = upload(tiny.padir, f"{bucket}/padir")
    command = [model, "--inputs", *inputs, f"--output={output}", "--shards=40", "--batch_size=8"]

    def kill_all_but_what_is_done(launcher):
        for _ in range(MOMENTS // 10):
            if list(output.glob("shard-?????-of-00040.txt")):
                os.killpg(launcher, signal.SIGKILL)
                return
            # Seldom, since it is this process that serves the bucket.
            time.sleep(0.2)
        raise AssertionError("no shard in two minutes")

    if killed:
        assert launch(*command, **options, meanwhile=kill_all_but_what_is_done).returncode == -signal.SIGKILL
        assert not (output / "rejects.jsonl").exists()
    done = launch(*command, **options)
    assert done.returncode == 0, done.stderr
    counts = "read 120 lines: 117 translated, 3 rejected; rejects in "
    assert [line for line in done.stderr.splitlines() if "lines" in line] == [f"{counts}{output}/rejects.jsonl"]
    assert ("resuming; " in done.stderr and " are done" in done.stderr) == killed
    for host in range(2):
        report = json.loads((output / "work" / f"host-{host:05d}.json").read_text())
        assert (report["hosts"], report["shards"]) == (2, 20)
        assert killed or (report["shards_done"] == 20 and report["read"] > 20)
    paths = sorted(output.glob("shard-*"))
    assert len(paths) == 40
    shards = "".join(path.read_text(encoding="utf-8") for path in paths)
    assert shards == (tmp_path / "one").read_text(encoding="utf-8") and len(set(shards.splitlines())) > 20
    rejects = [json.loads(line) for line in (output / "rejects.jsonl").read_text().splitlines()]
    places = [(Path(record["file"]).name, record["line"]) for record in rejects]
    assert places == [("a.txt", 6), ("a.txt", 51), ("b.txt", 50)]


def test_two_processes_distil_together(launch, tiny, bucket, tmp_path):
    """In a bucket, the same set as of one process on disk; a chunk is decoded by one of them."""
    options = ["--limit=48", "--chunk_size=8", "--batch_size=8"]
    gin_file = "decode/ar_greedy.gin"
    places = [f"--data_dir={upload(tiny.data, f'{bucket}/data')}", f"--output_dir={bucket}/two"]
    teacher = upload(tiny.ar, f"{bucket}/ar")
    done = launch(teacher, *options, *places, subcommand="distill", gin_file=gin_file)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("distill: kept ") == 1
    one = [f"--gin_file={gin_file}", f"--run_dir={teacher}", f"--data_dir={tiny.data}", *options]
    assert cli.main(["distill", *one, f"--output_dir={tmp_path / 'one'}"]) == 0
    folders = as_path(bucket) / "two", tmp_path / "one"
    sets = [PreparedSet.open(folder) for folder in folders]
    assert sets[0].manifest == sets[1].manifest and sets[0].manifest.splits["train"].num_examples > 20
    texts = [
        [json.loads(line) for line in (folder / "train.jsonl").read_text(encoding="utf-8").splitlines()]
        for folder in folders
    ]
    for two, single in zip(*texts, strict=True):
        assert (two["source"], two["target"]) == (single["source"], single["target"])
        assert two["score"] == pytest.approx(single["score"], abs=1e-4)
