"""Training end to end: metrics, kill and resume, what is refused, and starting from another run."""

import dataclasses
import functools
import gzip
import itertools
import json
import math
import re
import shutil
import time

import jax
import numpy as np
import pytest

import padir
from padir.data import synthetic
from padir.data.batching import Buckets, rows_of_step
from padir.data.manifest import Manifest, PrepareSettings, TaskConfig
from padir.data.records import PreparedSet
from padir.decoding.autoregressive import Autoregressive
from padir.decoding.verified import Verified
from padir.errors import PadirError, Preempted
from padir.files.locks import alone_in
from padir.metrics.writers import read_metrics
from padir.models.causal_mode import causal_params
from padir.models.kinds import default_decode
from padir.models.padir import PadirModel
from padir.nn.layers import rebucketed
from padir.runs.checkpoints import Checkpointer
from padir.runs.directory import load_model, save_model
from padir.runs.train_state import create_train_state
from padir.runtime.preemption import Preemption
from padir.runtime.sharding import make_mesh
from padir.training import loop as training_loop
from padir.training.guards import Guards
from padir.training.optimizers import OptimizerConfig
from padir.training.train import Cadence
from padir.training.validation import Evaluator
from padir.training.warm_start import start_from
from padir.types import TokenIds

QUICK = OptimizerConfig(peak_learning_rate=0.1, warmup_steps=1)
TASK = {"num_train": 600, "num_validation": 32, "num_test": 40, "ambiguity": 0.5}


def digest_of(params):
    """A few numbers that tell parameters apart to the last bit."""
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(jax.device_get(params))]


def test_metrics_of_a_run(tiny):
    lines = read_metrics(tiny.padir / "metrics" / "metrics.jsonl")
    assert [line["step"] for line in lines] == [20, 40, 60, 80, 100, 120]
    first, last = lines[0], lines[-1]
    model_metrics = {
        "loss",
        "loss/length",
        "loss/stage_1",
        "loss/stage_2",
        "token_accuracy/stage_1",
        "token_accuracy/stage_2",
        "length_accuracy",
    }
    loop_metrics = {"gradient_norm", "learning_rate", "tokens_per_second", "tokens_per_second_per_device"}
    loop_metrics |= {f"{name}_seconds" for name in ("step", "data", "compute", "host", "compile")} | {"host_memory_mb"}
    assert set(first) == {"step", *(f"train/{name}" for name in model_metrics | loop_metrics)}
    assert set(last) - set(first) == {f"validation/{name}" for name in model_metrics}
    assert "validation/loss" in lines[2]
    # 400 ids: a uniform guess costs 6 nats.
    assert last["train/loss/stage_1"] < first["train/loss/stage_1"] < 7
    assert last["validation/loss/stage_2"] < math.log(300) - 1
    assert last["train/token_accuracy/stage_1"] > first["train/token_accuracy/stage_1"]
    schedule = OptimizerConfig(peak_learning_rate=0.1, warmup_steps=4).schedule(120)
    for line in lines:
        mean = np.mean([schedule(step) for step in range(line["step"] - 20, line["step"])])
        assert line["train/learning_rate"] == pytest.approx(mean, rel=1e-4)
        assert line["train/tokens_per_second"] == pytest.approx(8 * line["train/tokens_per_second_per_device"])
        parts = sum(line[f"train/{name}_seconds"] for name in ("data", "compute", "host"))
        assert line["train/step_seconds"] == pytest.approx(parts) and line["train/data_seconds"] > 0
    # Both buckets are compiled in the first interval, and never again.
    assert first["train/compile_seconds"] > 0
    assert {line["train/compile_seconds"] for line in lines[1:]} == {0.0}


def test_metrics_of_an_autoregressive_run(tiny):
    last = read_metrics(tiny.ar / "metrics" / "metrics.jsonl")[-1]
    assert last["train/loss"] == last["train/loss/stage_1"]
    assert not [name for name in last if "length" in name or "stage_2" in name]
    assert last["validation/token_accuracy/stage_1"] > 0.2


def test_what_a_run_leaves(tiny):
    files = {path.name for path in tiny.padir.iterdir()}
    assert files == {"model.json", "train.json", "data.json", "vocabulary.model", "checkpoints", "metrics"}
    assert [
        int(path.name) for path in sorted((tiny.padir / "checkpoints").glob("[0-9]*"), key=lambda p: int(p.name))
    ] == [60, 120]
    model, vocabulary = load_model(tiny.padir)
    assert model == tiny.model()(TokenIds(300))
    assert vocabulary.hash == PreparedSet.open(tiny.data).manifest.vocabulary_hash
    assert list((tiny.padir / "metrics").glob("events.out.tfevents.*"))


def test_a_finished_run_returns_at_once(tiny, monkeypatch, capfd):
    monkeypatch.setattr("padir.training.train.make_train_step", lambda *arguments: pytest.fail("trains again"))
    state = tiny.train(tiny.padir, num_steps=120, buckets=(16, 32))
    assert int(state.step) == 120
    with Checkpointer(tiny.padir, read_only=True) as checkpointer:
        saved = checkpointer.restore_params(jax.eval_shape(lambda: state.params), make_mesh())
    assert digest_of(saved) == digest_of(state.params)
    assert f"{tiny.padir}: already finished at step 120 of 120" in capfd.readouterr().err


_TRAIN = """
import hashlib, json, os, signal, sys
import jax, numpy as np
from tiny_runs import Tiny
from padir.training.intervals import MetricWindow
from padir.training.train import Cadence
tiny = Tiny({data!r}, None, None)
add = MetricWindow.add
seen = []
def add_and_be_told(self, *given):
    add(self, *given)
    seen.append(given)
    if len(seen) == 5:
        os.kill(os.getpid(), signal.SIGTERM)
def train(run_dir):
    state = tiny.train(run_dir, "ar", cadence=Cadence(log=2, evaluate=0, checkpoint=4))
    leaves = jax.tree.leaves(jax.device_get(state))
    return hashlib.sha256(b"".join(np.asarray(leaf).tobytes() for leaf in leaves)).hexdigest()
"""


def test_a_run_told_to_stop_ends_as_if_it_never_had_been(tiny, run_python, tmp_path):
    """SIGTERM, then the same command again: bit-identical, TensorFlow-free. (SIGKILL: test_train_killed.py)"""
    prelude = _TRAIN.format(data=str(tiny.data))
    told = run_python(prelude + "MetricWindow.add = add_and_be_told\ntrain(sys.argv[1])", tmp_path / "told")
    assert f"Preempted: {tmp_path / 'told'}: told to stop; saved at step 5 of 12" in told.stderr.decode()
    with Checkpointer(tmp_path / "told", read_only=True) as checkpointer:
        assert checkpointer.latest_step() == 5, "no step may be lost"

    done = run_python(
        prelude
        + "digests = [train(path) for path in sys.argv[1:]]\n"
        + "found = sorted({'tensorflow', 'seqio', 'tensorflow_text', 'clu'} & set(sys.modules))\n"
        + "print(json.dumps([digests, found]))",
        tmp_path / "told",
        tmp_path / "straight",
    )
    assert done.returncode == 0, done.stderr.decode()
    (after_term, straight), tensorflow = json.loads(done.stdout.splitlines()[-1])
    assert after_term == straight
    assert tensorflow == []
    lines = {name: read_metrics(tmp_path / name / "metrics" / "metrics.jsonl") for name in ("told", "straight")}
    losses = {name: [(line["step"], line["train/loss"]) for line in rows] for name, rows in lines.items()}
    assert [step for step, _ in losses["straight"]] == [2, 4, 6, 8, 10, 12]
    # Where SIGTERM came an interval ends, and the next is as much shorter.
    assert [step for step, _ in losses["told"]] == [2, 4, 5, 6, 8, 10, 12]
    both = np.mean([loss for step, loss in losses["told"] if step in (5, 6)])
    assert both == pytest.approx(dict(losses["straight"])[6], rel=1e-6)


def test_a_second_signal_does_not_cut_the_last_save_short(tiny, run_python, tmp_path):
    """As `local.sh` and Slurm send it, while the first one's checkpoint is still being written."""
    told = run_python(
        _TRAIN.format(data=str(tiny.data))
        + "from padir.runs.checkpoints import Checkpointer\n"
        + "close = Checkpointer.close\n"
        + "Checkpointer.close = lambda self: (os.kill(os.getpid(), signal.SIGTERM), close(self))\n"
        + "MetricWindow.add = add_and_be_told\ntrain(sys.argv[1])",
        tmp_path / "run",
    )
    assert "told to stop; saved at step 5 of 12" in told.stderr.decode() and told.returncode == 1
    with Checkpointer(tmp_path / "run", read_only=True) as checkpointer:
        assert checkpointer.steps() == [4, 5]


class TestToldToStopWhereItEvaluates:
    """The save comes first, the evaluation is made up for: the record and the best are those of a run left alone."""

    @staticmethod
    def train(tiny, run_dir):
        # Of three evaluations the second's checkpoint stays only as one of the best.
        tiny.train(run_dir, "ar", cadence=Cadence(log=2, evaluate=4, checkpoint=0, keep=1, keep_best=2))

    @pytest.fixture(scope="class")
    @classmethod
    def straight(cls, tiny, tmp_path_factory):
        run_dir = tmp_path_factory.mktemp("straight") / "run"
        cls.train(tiny, run_dir)
        return run_dir

    @pytest.mark.first(2)
    @pytest.mark.parametrize(
        ("asked", "saved"),
        [(9, 8), (14, 12), (8, 8), (11, 9), (15, 12)],
        ids=["in evaluation", "at the last step", "at the step", "a step later", "in the last evaluation"],
    )
    def test_the_run_ends_as_if_left_alone(self, tiny, straight, tmp_path, monkeypatch, asked, saved):
        """`asked`: how often the loop asks until it is told, besides in the evaluation of step 4."""
        run_dir, count = tmp_path / "run", itertools.count(1)
        in_evaluation = len(PreparedSet.open(tiny.data).split("validation")) // 16
        asked += in_evaluation
        with monkeypatch.context() as patch, pytest.raises(Preempted, match=f"saved at step {saved} of 12"):
            patch.setattr(Preemption, "after_step", lambda self: next(count) == asked)
            self.train(tiny, run_dir)
        self.train(tiny, run_dir)
        found, expected = (validation_losses(path) for path in (run_dir, straight))
        assert list(expected) == [4, 8, 12]
        assert found == expected
        kept = stored_losses(run_dir)
        if saved == 12:
            # Checkpoints are deleted in saving; there is no further one.
            assert kept.pop(4) == found[4]
        assert kept == stored_losses(straight) == {8: found[8], 12: found[12]}

    def test_told_again_while_it_makes_up_for_one(self, tiny, straight, tmp_path, monkeypatch):
        run_dir = tmp_path / "run"
        in_evaluation = len(PreparedSet.open(tiny.data).split("validation")) // 16
        for asked, message in ((8 + in_evaluation, "saved at step 8 of 12"), (1, "still at step 8 of 12")):
            with monkeypatch.context() as patch, pytest.raises(Preempted, match=message):
                answers = itertools.chain(itertools.repeat(False, asked - 1), itertools.repeat(True))
                patch.setattr(Preemption, "after_step", lambda self, answers=answers: next(answers))
                self.train(tiny, run_dir)
        self.train(tiny, run_dir)
        assert validation_losses(run_dir) == validation_losses(straight)
        assert stored_losses(run_dir) == stored_losses(straight)

    def test_keeping_the_best_may_begin_later(self, tiny, straight, tmp_path):
        """What was evaluated before is not evaluated again."""
        cadence = Cadence(log=2, evaluate=4, checkpoint=4)
        tiny.train(tmp_path / "run", "ar", num_steps=8, cadence=cadence)
        before = validation_losses(tmp_path / "run")
        cadence = dataclasses.replace(cadence, keep_best=1)
        tiny.train(tmp_path / "run", "ar", num_steps=9, cadence=cadence)
        assert stored_losses(tmp_path / "run")[8] == before[8]
        lines = read_metrics(tmp_path / "run" / "metrics" / "metrics.jsonl")
        assert [line["step"] for line in lines] == [2, 4, 6, 8, 9]

    def test_a_run_that_ended_unevaluated_is(self, tiny, tmp_path, capfd):
        cadence = Cadence(log=2, evaluate=0, checkpoint=4)
        for evaluate in (0, 4, 4):
            tiny.train(tmp_path / "run", "ar", cadence=dataclasses.replace(cadence, evaluate=evaluate))
        assert list(validation_losses(tmp_path / "run")) == [12]
        assert capfd.readouterr().err.count("validation/loss") == 1
        # One that was not a number was evaluated, too.
        record = tmp_path / "run" / "metrics" / "metrics.jsonl"
        record.write_text(re.sub(r'"validation/loss": [0-9.]+', '"validation/loss": null', record.read_text()))
        tiny.train(tmp_path / "run", "ar", cadence=dataclasses.replace(cadence, evaluate=4))
        tiny.train(tmp_path / "run", "ar", num_steps=16, cadence=dataclasses.replace(cadence, evaluate=4, keep_best=1))
        assert list(validation_losses(tmp_path / "run")) == [12, 16]


def stored_losses(run_dir):
    """What the checkpoints of a run were given as their loss, by step; None where nothing was."""
    files = {int(path.name): path / "metrics" / "metrics" for path in (run_dir / "checkpoints").glob("[0-9]*")}
    return {step: json.loads(path.read_text())["loss"] if path.exists() else None for step, path in files.items()}


def validation_losses(run_dir):
    lines = read_metrics(run_dir / "metrics" / "metrics.jsonl")
    return {line["step"]: line["validation/loss"] for line in lines if "validation/loss" in line}


def test_a_stall_is_reported_wherever_it_comes(tiny, tmp_path, monkeypatch, capfd):
    """In starting, in reading, and in the last save."""
    batches, close, restore = training_loop.train_batches, Checkpointer.close, Checkpointer.restore_newest

    def slow(function):
        def slowly(*arguments, **options):
            time.sleep(1.0)
            return function(*arguments, **options)

        return slowly

    def slow_batches(*arguments, **options):
        for number, batch in enumerate(batches(*arguments, **options)):
            time.sleep(1.0 if number == 1 else 0.0)
            yield batch

    monkeypatch.setattr(training_loop, "train_batches", slow_batches)
    monkeypatch.setattr(Checkpointer, "close", slow(close))
    monkeypatch.setattr(Checkpointer, "restore_newest", slow(restore))
    tiny.train(tmp_path / "run", "ar", guards=Guards(stall_seconds=0.5))
    said = capfd.readouterr().err
    for after, what in ((0, "is starting"), (1, "waits for the next batch"), (12, "waits for a checkpoint")):
        assert re.search(rf"process 0: after step {after}, for \d+ s by now, training {what}", said), said


def test_where_no_bar_is_seen_each_interval_is_a_line(tiny, tmp_path, capfd):
    tiny.train(tmp_path / "run", "ar", cadence=Cadence(log=5, evaluate=0, checkpoint=0))
    lines = [line for line in capfd.readouterr().err.splitlines() if re.match(r"step \d+ of", line)]
    assert len(lines) == 2
    for step, line in zip((5, 10), lines, strict=True):
        assert re.fullmatch(rf"step {step} of 12: train/loss \d\.\d+, [\d,]+ tokens/s, \d:\d\d:\d\d left", line), line


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"keep": 0, "keep_best": 1}, "Cadence.keep: 0 is not a whole number of at least 1; the newest checkpoint is"),
        ({"evaluate": -1}, "Cadence.evaluate: -1 is below 0"),
        ({"checkpoint_minutes": -0.5}, "Cadence.checkpoint_minutes: -0.5 is below 0"),
        ({"log": 0, "checkpoint_minutes": 1.0}, "Cadence.checkpoint_minutes: is checked when Cadence.log is due"),
    ],
)
def test_a_cadence_that_would_leave_nothing_is_refused(changes, message):
    with pytest.raises(PadirError, match=re.escape(message)):
        Cadence(**changes)


def test_what_an_epoch_leaves_out_is_said(tiny, tmp_path, capfd):
    """524 examples in batches of 16."""
    tiny.train(tmp_path / "run", "ar")
    assert "train: each epoch leaves out 12 of 524 examples, different ones every time\n" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_steps": 0}, r"train\.num_steps: 0 is not a whole number of at least 1"),
        ({"batch_size": 12.5}, r"train\.batch_size: 12\.5 is not a whole number of at least 1"),
        ({"batch_size": 12}, "batch_size 12 does not divide evenly over 8 devices"),
        ({"accumulate": 3}, r"train\.accumulate: a batch of 16 does not divide into 3 micro-batches over 8 device"),
        ({"initialize_from": "nowhere"}, "nowhere: no trained model found here; give a run directory"),
        ({"buckets": (64,)}, r"train\.buckets: 64 is longer than the model allows \(32\)"),
        ({"model": lambda ids: PadirModel(ids, num_stages=0)}, r"PadirModel\.num_stages: 0 is not a whole number"),
        ({"optimizer": OptimizerConfig(warmup_steps=12)}, r"OptimizerConfig\.warmup_steps: 12 must be below"),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_what_is_wrong_is_said_before_anything_is_prepared(tiny, tmp_path, monkeypatch, changes, message):
    monkeypatch.setattr("padir.training.train.prepare_in_process", None)
    task = TaskConfig("tasks.synthetic", "synthetic", {"num_train": 10})
    with pytest.raises(PadirError, match=message):
        tiny.train(tmp_path / "run", **{"data_dir": str(tmp_path / "data"), "task": task} | changes)
    assert not list(tmp_path.iterdir())


def test_the_command_prepares_a_missing_set_in_a_process_of_its_own(run_python, tmp_path):
    """`padir train` on line-aligned files, one of them compressed; the training process never loads TensorFlow."""
    for split, count in (("train", 300), ("validation", 20)):
        pairs = list(synthetic.generate(count, seed=split, ambiguity=0.0))
        (tmp_path / f"{split}.en").write_text("".join(f"{source}\n" for source, _ in pairs), encoding="utf-8")
        text = "".join(f"{target}\n" for _, target in pairs).encode()
        (tmp_path / f"{split}.de.gz").write_bytes(gzip.compress(text))
    (tmp_path / "run.gin").write_text(
        "# Text files.\n"
        "include 'models/tiny.gin'\n"
        "include 'runs/base.gin'\n"
        "TaskConfig.module = 'tasks.text_files'\n"
        "TaskConfig.name = 'mine'\n"
        f"TaskConfig.options = {{'folder': '{tmp_path}', 'train': ('train.en', 'train.de.gz'),"
        " 'validation': ('validation.en', 'validation.de.gz')}\n"
        "PrepareSettings.num_pieces = 200\n"
        "MAX_LENGTH = 24\n"
        "NetworkConfig.embed_dim = 16\n"
        "NetworkConfig.num_encoder_layers = 1\n"
        "NetworkConfig.num_decoder_layers = 1\n"
        "OptimizerConfig.warmup_steps = 1\n"
        "train.num_steps = 2\n"
        "train.batch_size = 4\n"
        "train.buckets = (24,)\n"
    )
    code = (
        "import sys\nfrom padir.cli import main as cli\n"
        "status = cli.main(['train', '--gin_file=run.gin', '--gin.DATA_DIR=\"data\"', '--run_dir=run'])\n"
        "assert not {'tensorflow', 'seqio'} & set(sys.modules)\n"
        "sys.exit(status)"
    )
    done = run_python(code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr.decode()
    assert "data: no prepared data set here yet; preparing task mine" in done.stderr.decode()
    manifest = Manifest.load(tmp_path / "data")
    assert (manifest.task.module, manifest.task.name, manifest.num_pieces) == ("tasks.text_files", "mine", 200)
    train = manifest.splits["train"]
    assert train.num_examples + train.dropped == 300
    assert train.num_examples > 30 and train.dropped > 30
    (line,) = read_metrics(tmp_path / "run" / "metrics" / "metrics.jsonl")
    assert line["step"] == 2 and line["validation/loss"] > 0
    operative = (tmp_path / "run" / "train.gin").read_text()
    assert re.search(r"^train\.num_steps = 2$", operative, re.MULTILINE)
    assert re.search(r"^NetworkConfig\.embed_dim = 16$", operative, re.MULTILINE)


def test_a_set_of_another_task(tiny, tmp_path):
    def train(task):
        with pytest.raises(PadirError) as raised:
            tiny.train(tmp_path / "run", task=task, settings=PrepareSettings(num_pieces=300))
        assert not (tmp_path / "run").exists()
        return str(raised.value).removeprefix(f"{tiny.data}: ")

    remedy = "; choose another data_dir, or delete this one"
    assert train(TaskConfig("tasks.synthetic", "other", TASK)) == (
        f"prepared with task name='tiny', now asked for 'other'{remedy}"
    )
    assert train(TaskConfig("tasks.text_files", "tiny", TASK)) == (
        f"prepared with task module='tasks.synthetic', now asked for 'tasks.text_files'{remedy}"
    )
    assert "task option ambiguity=0.5, now asked for 0.25" in train(
        TaskConfig("tasks.synthetic", "tiny", TASK | {"ambiguity": 0.25})
    )
    # The same task, prepared in another way.
    assert train(TaskConfig("tasks.synthetic", "tiny", TASK)) == (
        f"prepared with max_source_length=32, now asked for 256{remedy}"
    )


def test_no_set_and_no_task(tiny, tmp_path):
    with pytest.raises(PadirError, match="no prepared data set here .* build it with `padir prepare`"):
        tiny.train(tmp_path / "run", data_dir=str(tmp_path / "nothing"))


def test_a_bucket_longer_than_the_model(tiny, tmp_path):
    message = r"train\.buckets: 40 is longer than the model allows \(32\); remove that bucket"
    with pytest.raises(PadirError, match=message):
        tiny.train(tmp_path / "run", buckets=(16, 40))


def test_validation_that_is_too_long_for_the_buckets_is_said_before_the_first_update(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr("padir.training.loop.CompiledSteps", None)
    shutil.copytree(tiny.data, tmp_path / "data")
    lengths = tmp_path / "data" / "validation.lengths.npy"
    pairs = np.load(lengths)
    pairs[3] = 17, 40
    np.save(lengths, pairs)
    message = r"^split validation: buckets: 1 of 32 examples are longer than the largest bucket \(32, 32\)"
    with pytest.raises(PadirError, match=message):
        tiny.train(tmp_path / "run", "ar", data_dir=str(tmp_path / "data"), cadence=Cadence(evaluate=9))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"clip_global_norm": 1.0}),
        ({"momentum": 0.9}, {"clip_global_norm": 1.0}),
        ({"clip_global_norm": 1.0}, {"momentum": 0.9}),
        ({"momentum": 0.9, "clip_global_norm": 1.0}, {"momentum": 0.8, "ema_decay": 0.9}),
    ],
    ids=lambda changes: ", ".join(changes) or "plain",
)
def test_a_run_goes_on_with_another_optimizer(tiny, tmp_path, before, after):
    """As how-tos advise after a loss that is not finite. Moments stay, momentum begins at 0, or goes on."""

    def optimizer(**changes):
        return OptimizerConfig(peak_learning_rate=0.1, warmup_steps=2, **changes)

    def moments(state, config):
        return state.opt_state if config.clip_global_norm is None else state.opt_state[1]

    run = tmp_path / "run"
    first = tiny.train(run, "ar", num_steps=4, optimizer=optimizer(**before))
    old, new = optimizer(**before), optimizer(**after)
    mesh, model = make_mesh(), load_model(run)[0]
    fresh = create_train_state(model, new.build(4), 0, mesh)
    carried = new.carried_over(first.opt_state, fresh.opt_state)
    assert jax.tree.structure(carried) == jax.tree.structure(fresh.opt_state)
    theirs, ours = (
        moments(first.replace(opt_state=state), config) for state, config in ((first.opt_state, old), (carried, new))
    )
    assert digest_of(ours[:4]) == digest_of(theirs[:4]) and int(ours[2].count) == 4
    if new.momentum is not None:
        size = max(float(abs(leaf).max()) for leaf in jax.tree.leaves(ours[4].ema))
        assert (size > 0) == (old.momentum is not None)
    # Killed before it could save: train.json then tells of an optimizer that no checkpoint has.
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("padir.training.train.make_train_step", interrupted)
        tiny.train(run, "ar", num_steps=8, optimizer=new)
    last = tiny.train(run, "ar", num_steps=8, optimizer=new)
    assert int(last.step) == 8 and jax.tree.structure(last.opt_state) == jax.tree.structure(fresh.opt_state)
    assert int(moments(last, new)[2].count) == 8


def interrupted(*arguments, **options):
    raise KeyboardInterrupt


def test_what_a_run_began_with_is_kept(tiny, tmp_path):
    run = tmp_path / "run"
    tiny.train(run, num_steps=2, initialize_from=str(tiny.padir), buckets=(16, 32), optimizer=QUICK)
    assert json.loads((run / "train.json").read_text())["settings"]["initialize_from"] == str(tiny.padir)
    message = rf"train\.initialize_from: this run began with the parameters of {tiny.padir}, not {tiny.ar}; leave"
    with pytest.raises(PadirError, match=message):
        tiny.train(run, num_steps=3, initialize_from=str(tiny.ar), buckets=(16, 32), optimizer=QUICK)
    tiny.train(run, num_steps=3, buckets=(16, 32), optimizer=QUICK)
    record = json.loads((run / "train.json").read_text())
    assert record["settings"]["initialize_from"] == str(tiny.padir)


def test_nothing_that_was_drawn_is_frozen(tiny, tmp_path):
    message = r"PadirModel\.freeze: encoder would stay as drawn at random; give the trained model .* --initialize_from"
    with pytest.raises(PadirError, match=message):
        tiny.train(tmp_path / "run", model=lambda ids: dataclasses.replace(tiny.model()(ids), freeze=("encoder",)))


def test_buckets_too_short_for_the_data(tiny, tmp_path):
    with pytest.raises(PadirError, match=r"longer than the largest bucket \(16, 16\); the longest source has"):
        tiny.train(tmp_path / "run", buckets=(8, 16))


def test_a_batch_that_devices_cannot_share(tiny, tmp_path):
    with pytest.raises(PadirError, match="batch_size 12 does not divide evenly over 8 devices; choose a multiple of 8"):
        tiny.train(tmp_path / "run", batch_size=12)
    assert not (tmp_path / "run").exists()


def test_a_run_of_another_configuration(tiny):
    with pytest.raises(PadirError, match=r"another configuration \(model\.network\.mlp_dim: 64 there, 48 now\)"):
        tiny.train(tiny.padir, model=tiny.model(mlp_dim=48))


OTHER_SETTINGS = {
    "seed": ({"seed": 1}, "seed: 0 there, 1 now"),
    "batch size": ({"batch_size": 32}, "batch_size: 16 there, 32 now"),
    "buckets": ({"buckets": (32,)}, "buckets: [[16, 16], [32, 32]] there, [[32, 32]] now"),
    "data": ({"train_split": "test"}, "data.split: 'train' there, 'test' now"),
}


@pytest.mark.parametrize("changes, difference", OTHER_SETTINGS.values(), ids=OTHER_SETTINGS)
def test_what_would_break_a_run_in_two_is_refused(tiny, changes, difference):
    """Also where the run is finished: its parameters are not those that were asked for."""
    before = (tiny.padir / "train.json").read_bytes()
    for num_steps in (120, 200):
        with pytest.raises(PadirError) as raised:
            tiny.train(tiny.padir, **{"num_steps": num_steps, "buckets": (16, 32)} | changes)
        message = str(raised.value)
        assert message.startswith(f"{tiny.padir}: was trained to step 120 with other settings (")
        assert difference in message and "num_steps" not in message
    assert (tiny.padir / "train.json").read_bytes() == before


def test_a_prolonged_run_says_so_and_keeps_it(tiny, tmp_path, capfd):
    tiny.train(tmp_path / "run", "ar", num_steps=6)
    slower = OptimizerConfig(peak_learning_rate=0.05, warmup_steps=4)
    assert int(tiny.train(tmp_path / "run", "ar", num_steps=8, optimizer=slower).step) == 8
    said = "num_steps: 6 there, 8 now; optimizer.peak_learning_rate: 0.1 there, 0.05 now"
    meaning = (
        "(the learning rate of later steps follows the new schedule; later updates are made with the new settings of "
        "the optimizer): the result will differ from that of a run "
    )
    assert f"{tmp_path / 'run'}: changed from step 6 on: {said} {meaning}" in capfd.readouterr().err
    record = json.loads((tmp_path / "run" / "train.json").read_text())
    assert (record["settings"]["num_steps"], record["settings"]["optimizer"]["peak_learning_rate"]) == (8, 0.05)
    (change,) = record["changes"]
    assert (change["step"], change["was"]["num_steps"]) == (6, 6)
    assert change["was"]["optimizer"]["peak_learning_rate"] == 0.1
    # The learning rates are the new schedule's.
    last = read_metrics(tmp_path / "run" / "metrics" / "metrics.jsonl")[-1]
    expected = np.mean([slower.schedule(8)(step) for step in (6, 7)])
    assert last["train/learning_rate"] == pytest.approx(expected, rel=1e-4)
    # Asked for fewer steps than it has, it is not trained, and stays what it is.
    tiny.train(tmp_path / "run", "ar", num_steps=7)
    assert json.loads((tmp_path / "run" / "train.json").read_text()) == record
    assert "changed from" not in capfd.readouterr().err


def test_a_run_that_another_process_trains(tiny, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    with (
        alone_in(run, "training this run"),
        pytest.raises(PadirError, match="run: another process is training this run"),
    ):
        tiny.train(str(run), "ar")
    assert not (run / "checkpoints").exists() and not (run / "metrics").exists()


def test_a_missing_split(tiny, tmp_path):
    with pytest.raises(PadirError, match="no split 'dev'; it has train, validation, test"):
        tiny.train(tmp_path / "run", eval_split="dev", cadence=Cadence(log=4, evaluate=4, checkpoint=0))


def test_a_loss_that_is_not_finite_stops_the_run(tiny, tmp_path):
    """The second update has an absurd learning rate, so the third has no gradient; its batch is named."""
    reckless = OptimizerConfig(peak_learning_rate=1e30, warmup_steps=1)
    train = PreparedSet.open(tiny.data).split("train")
    rows = rows_of_step(train, buckets=Buckets.square((32,)), batch_size=16, seed=0, step=2).tolist()
    for every, last_good in ((0, None), (2, 2)):
        run = tmp_path / f"run_{every}"
        with pytest.raises(PadirError) as raised:
            tiny.train(run, "ar", optimizer=reckless, cadence=Cadence(log=4, evaluate=0, checkpoint=every))
        message = str(raised.value)
        assert re.match(
            rf"{run}: step 3: the training loss is \S+, the gradient norm (nan|inf); its batch was ", message
        )
        named = f"examples {', '.join(map(str, rows[:8]))}, … (16 in {run}/non_finite_step_3.json) of split train; "
        saved = f"the last good checkpoint is of step {last_good}" if every else "no checkpoint was saved yet"
        assert f"{named}{saved}. Lower OptimizerConfig.peak_learning_rate, lengthen its warm-up, or " in message
        written = json.loads((run / "non_finite_step_3.json").read_text())
        assert written["examples"] == rows and written["last_good_checkpoint"] == last_good
        with Checkpointer(run, read_only=True) as checkpointer:
            assert checkpointer.latest_step() == last_good


def test_updates_that_are_not_finite_can_be_skipped(tiny, tmp_path, monkeypatch):
    """Two of the first four are; of the next four all, and so on, which is the end of it at last."""
    monkeypatch.setattr("padir.training.intervals.MOST_SKIPPED", 5)
    reckless = OptimizerConfig(peak_learning_rate=1e30, warmup_steps=1)
    with pytest.raises(PadirError, match="step 7: no update since step 3 had a finite loss and gr.* warm-up; then"):
        tiny.train(tmp_path / "run", "ar", optimizer=reckless, guards=Guards(skip_non_finite=True))
    (line,) = read_metrics(tmp_path / "run" / "metrics" / "metrics.jsonl")
    assert (line["step"], line["train/skipped"]) == (4, 2.0)
    assert math.isfinite(line["train/loss"])
    assert json.loads((tmp_path / "run" / "train.json").read_text())["settings"]["skip_non_finite"] is True


def test_utilisation_of_a_given_peak(tiny, tmp_path):
    """By hand: operations of an update of 16 x 32 x 32 tokens, over its seconds and 8 devices of 2 GFLOP/s."""
    tiny.train(tmp_path / "run", "ar", num_steps=6, cadence=Cadence(2, 0, 0), peak_teraflops=0.002)
    flops = tiny.model("ar")(TokenIds(300)).training_flops(16, 32, 32)
    for line in read_metrics(tmp_path / "run" / "metrics" / "metrics.jsonl"):
        assert line["train/mfu"] == pytest.approx(flops / line["train/step_seconds"] / (8 * 2e9))


def evaluator(tiny, batch_size, model=None):
    data = PreparedSet.open(tiny.data)
    built = (model or tiny.model("ar"))(TokenIds(300))
    return Evaluator(built, data, "validation", Buckets.square((16, 32)), batch_size, make_mesh())


@pytest.mark.parametrize(
    ("of_tokens", "of_rows"),
    [
        (("loss", "token_accuracy/stage_1"), ("loss/length", "length_accuracy")),
        # A ranker alone is trained.
        ((), ("loss", "loss/ranker", "ranker_f1", "ranker_f1/best")),
    ],
)
def test_validation_metrics_are_weighted_by_what_they_are_means_of(tiny, monkeypatch, of_tokens, of_rows):
    """By hand: a metric of tokens by target tokens, one of lengths or of a ranker by sentences."""
    seen = []

    def step(params, batch):
        targets = np.asarray(batch["decoder_target_tokens"])
        seen.append((targets.shape[1], int((targets != 0).sum()), int((targets[:, 0] != 0).sum())))
        value = np.float32(targets.shape[1])
        return dict.fromkeys(of_tokens + of_rows, value) | {"rows": np.int32(seen[-1][2])}

    monkeypatch.setattr("padir.training.validation.make_eval_step", lambda *_: step)
    found = evaluator(tiny, 8)({})
    assert {length for length, _, _ in seen} == {16, 32} and len(seen) == 4
    by_tokens = sum(length * tokens for length, tokens, _ in seen) / sum(tokens for _, tokens, _ in seen)
    by_rows = sum(length * rows for length, _, rows in seen) / 32
    expected = {f"validation/{name}": pytest.approx(by_tokens) for name in of_tokens}
    assert found == expected | {f"validation/{name}": pytest.approx(by_rows) for name in of_rows}
    assert abs(by_tokens - by_rows) > 0.1


def test_validation_metrics_do_not_depend_on_the_batch_size(tiny):
    params = tiny.model("ar")(TokenIds(300)).init(3)
    small, large = (evaluator(tiny, batch_size)(params) for batch_size in (8, 32))
    assert small == {name: pytest.approx(value, rel=1e-5) for name, value in large.items()}


@pytest.fixture
def vocabulary(tiny):
    return PreparedSet.open(tiny.data).vocabulary()


@pytest.fixture
def parallel(tiny):
    """The network of a parallel model that fits the teacher."""
    return tiny.model()(TokenIds(300)).network


def test_starting_from_a_teacher(tiny, vocabulary, parallel, capfd):
    """What both have is the teacher's, bit for bit; positional attention and the length head stay fresh.

    Only the decoder's table of relative positions goes into other buckets.
    """
    fresh = tiny.model()(TokenIds(300)).init(1)
    mesh = make_mesh()
    begun = start_from(fresh, str(tiny.ar), vocabulary, mesh, network=parallel)
    started = dict(jax.tree_util.tree_leaves_with_path(begun))
    with Checkpointer(tiny.ar, read_only=True) as checkpointer:
        abstract = jax.eval_shape(tiny.model("ar")(TokenIds(300)).init, 0)
        teacher = dict(jax.tree_util.tree_leaves_with_path(checkpointer.restore_params(abstract, mesh)))
    own = set()
    for path, leaf in jax.tree_util.tree_leaves_with_path(fresh):
        expected = teacher.get(path, leaf)
        if "decoder/relpos_bias" in jax.tree_util.keystr(path, simple=True, separator="/"):
            expected = rebucketed(expected, bidirectional=True)
        np.testing.assert_array_equal(started[path], expected)
        if path not in teacher:
            own.add(jax.tree_util.keystr(path, simple=True, separator="/"))
    assert own == {
        "length_predictor/length_embed/embedding",
        "network/decoder/abs_pos_embed/embedding",
        "network/decoder/layers/0/pre_positional_attention_layer_norm/scale",
        *(f"network/decoder/layers/0/positional_attention/{name}/weight" for name in ("query", "key", "value", "out")),
    }
    assert teacher.keys() <= started.keys()
    assert f"starting from {tiny.ar}; 7 parameters are initialized randomly (" in capfd.readouterr().err


def test_a_causal_mode_starts_as_the_teacher_itself(tiny, vocabulary, parallel):
    """Its own table of relative positions is the teacher's, too."""
    joint, mesh = dataclasses.replace(tiny.model()(TokenIds(300)), causal_stage=True), make_mesh()
    begun = start_from(joint.init(1), str(tiny.ar), vocabulary, mesh, network=parallel)
    with Checkpointer(tiny.ar, read_only=True) as checkpointer:
        abstract = jax.eval_shape(tiny.model("ar")(TokenIds(300)).init, 0)
        teacher = checkpointer.restore_params(abstract, mesh)
    assert jax.tree.structure(causal_params(begun)) == jax.tree.structure(teacher)
    jax.tree.map(np.testing.assert_array_equal, causal_params(begun), teacher)


def test_a_joint_run_from_training_to_text(tiny, vocabulary, tmp_path):
    """Its run directory tells of the causal mode, which decodes, verifies, and starts autoregressive models."""
    run = tmp_path / "joint"
    tiny.train(run, model=lambda ids: dataclasses.replace(tiny.model()(ids), causal_stage=True), num_steps=8)
    assert "train/loss/causal" in read_metrics(run / "metrics" / "metrics.jsonl")[-1]
    joint, texts = (
        padir.load(run),
        [example.source_text for example in PreparedSet.open(tiny.data).split("test").read([0, 1, 2])],
    )
    greedy, verified = (joint.translate(texts, decode) for decode in (Autoregressive(), Verified()))
    assert [each.text for each in verified] == [each.text for each in greedy]
    assert [each.cut_off for each in verified] == [each.cut_off for each in greedy]
    assert [each.rounds for each in greedy] == [None] * 3 and all(each.rounds for each in verified)

    model = tiny.model("ar")(TokenIds(300))
    begun = start_from(model.init(1), str(run), vocabulary, make_mesh(), network=model.network)
    jax.tree.map(np.testing.assert_array_equal, begun, causal_params(joint.params))


@pytest.mark.slow
def test_a_disco_run_from_a_teacher_to_text(tiny, vocabulary, tmp_path):
    """It starts from the teacher's parameters, learns words from words, and decodes easy-first by default."""

    def model(ids):
        plain = tiny.model()(ids)
        network = dataclasses.replace(plain.network, disentangled_context=True)
        return dataclasses.replace(plain, network=network, num_stages=1)

    fresh, mesh = model(TokenIds(300)).init(1), make_mesh()
    begun = start_from(fresh, str(tiny.ar), vocabulary, mesh, network=model(TokenIds(300)).network)
    plainly = start_from(fresh, str(tiny.ar), vocabulary, mesh, network=tiny.model()(TokenIds(300)).network)
    jax.tree.map(np.testing.assert_array_equal, begun, plainly)

    run = tmp_path / "disco"
    cadence = Cadence(log=20, evaluate=120, checkpoint=0)
    tiny.train(run, model=model, num_steps=120, buckets=(16, 32), cadence=cadence, initialize_from=str(tiny.ar))
    lines = read_metrics(run / "metrics" / "metrics.jsonl")
    # Of 300 pieces; EOS, which is easy, does not count.
    assert lines[-1]["validation/token_accuracy/stage_1"] > 0.2
    assert lines[-1]["train/loss/stage_1"] < lines[0]["train/loss/stage_1"] - 0.5
    disco = padir.load(run)
    examples = PreparedSet.open(tiny.data).split("test").read(range(8))
    nothing, everything = (_loss_where_observed(disco, examples, observed) for observed in (False, True))
    assert everything < nothing - 0.1, "words that are observed help"
    texts = [example.source_text for example in examples[:3]]
    found = disco.translate(texts)
    assert found == disco.translate(texts, default_decode(disco.model))
    alone = [disco.translate([text])[0] for text in texts]
    assert [each.text for each in found] == [each.text for each in alone] and len({each.text for each in found}) > 1
    assert all(1 < each.steps_run <= 4 for each in found)


def _loss_where_observed(translator, examples, observed):
    """Nats a word where each position observes all other words, or none."""

    def padded(rows):
        return np.array([np.pad(row, (0, 32 - len(row))) for row in rows], np.int32)

    targets = padded([each.target_ids for each in examples])
    batch = {"encoder_input_tokens": padded([each.source_ids for each in examples]), "decoder_target_tokens": targets}
    features = translator.model.features(batch, jax.random.key(0))
    contexts = np.broadcast_to(((targets > 1) & observed | (targets == 1))[:, None], (len(targets), 32, 32))
    features["decoder_contexts"] = contexts
    share = functools.partial(translator.model.loss_share, train=False, totals=translator.model.totals(features))
    return float(jax.jit(share)(translator.params, features, None)[1]["loss/stage_1"])


def test_train_starts_from_another_run_only_once(tiny, tmp_path):
    """With a learning rate of nothing the result is the start; resumed, the run does not start over."""
    still = OptimizerConfig(peak_learning_rate=1e-30, floor_learning_rate=1e-30, warmup_steps=1)
    state = tiny.train(tmp_path / "run", "ar", num_steps=2, optimizer=still, initialize_from=str(tiny.ar))
    with Checkpointer(tiny.ar, read_only=True) as checkpointer:
        teacher = checkpointer.restore_params(jax.eval_shape(lambda: state.params), make_mesh())
    assert digest_of(state.params) == digest_of(teacher)
    again = tiny.train(tmp_path / "run", "ar", num_steps=2, optimizer=still, initialize_from=str(tiny.ar))
    assert digest_of(again.params) == digest_of(teacher)


def test_starting_from_what_does_not_fit(tiny, vocabulary, parallel, tmp_path):
    mesh = make_mesh()
    wide = tiny.model(mlp_dim=48)(TokenIds(300)).init(1)
    with pytest.raises(PadirError, match=r"network/.*mlp/.* has shape \(64, 32\), this model's has \(48, 32\)"):
        start_from(wide, str(tiny.ar), vocabulary, mesh, network=parallel)
    gated = dataclasses.replace(parallel, mlp_activation="gated-gelu")
    with pytest.raises(PadirError, match=r"feed-forward layers use relu, this model's gated-gelu; set NetworkConfig\."):
        start_from(wide, str(tiny.ar), vocabulary, mesh, network=gated)
    other = dataclasses.replace(PreparedSet.open(tiny.data).manifest, vocabulary_hash="0" * 64)
    with pytest.raises(PadirError, match="no trained model found here; give a run directory of `padir train`"):
        start_from(wide, str(tmp_path), vocabulary, mesh, network=parallel)
    assert other.vocabulary_hash != vocabulary.hash


def test_starting_under_another_vocabulary(tiny, vocabulary, parallel, tmp_path):
    from padir.data import vocabulary as vocabulary_lib

    vocabulary_lib.train(["ab"] * 20, tmp_path / "other.model", num_pieces=6)
    other = vocabulary_lib.Vocabulary.load(tmp_path / "other.model")
    with pytest.raises(PadirError, match=f"vocabulary hash {other.hash[:12]} differs from {vocabulary.hash[:12]}"):
        start_from({}, str(tiny.ar), other, make_mesh(), network=parallel)


def test_a_run_without_a_checkpoint_cannot_be_started_from(tiny, vocabulary, parallel, tmp_path):
    save_model(tmp_path, tiny.model("ar")(TokenIds(300)), vocabulary)
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(PadirError, match="no checkpoint was saved yet"):
        start_from({}, str(tmp_path), vocabulary, make_mesh(), network=parallel)


def test_cadence_decides_what_is_written(tiny, tmp_path):
    """Log every 3, evaluate never, keep one checkpoint of those every 4."""
    cadence = Cadence(log=3, evaluate=0, checkpoint=4, keep=1)
    tiny.train(tmp_path / "run", "ar", num_steps=10, cadence=cadence)
    lines = read_metrics(tmp_path / "run" / "metrics" / "metrics.jsonl")
    assert [line["step"] for line in lines] == [3, 4, 6, 8, 9, 10]
    assert [line["step"] for line in lines if "validation/loss" in line] == []
    assert [path.name for path in (tmp_path / "run" / "checkpoints").glob("[0-9]*")] == ["10"]


def kept(run_dir):
    return sorted(int(path.name) for path in (run_dir / "checkpoints").glob("[0-9]*"))


def test_the_best_checkpoints_stay_beside_the_last(tiny, tmp_path, capfd):
    """Every evaluated state is saved; of those the two with the lowest loss stay, and the last of all."""
    cadence = Cadence(log=4, evaluate=2, checkpoint=5, keep=1, keep_best=2)
    # A learning rate that soon is too high: the last states are not the best.
    wild = OptimizerConfig(peak_learning_rate=3.0, warmup_steps=9)
    tiny.train(tmp_path / "run", "ar", num_steps=10, cadence=cadence, optimizer=wild)
    lines = read_metrics(tmp_path / "run" / "metrics" / "metrics.jsonl")
    losses = {line["step"]: line["validation/loss"] for line in lines if "validation/loss" in line}
    assert sorted(losses) == [2, 4, 6, 8, 10]
    best = sorted(losses, key=losses.get)[:2]
    assert 10 not in best
    assert kept(tmp_path / "run") == sorted([*best, 10])
    assert f"best checkpoint: step {best[0]}" in capfd.readouterr().err
    with Checkpointer(tmp_path / "run", keep_best=2) as checkpointer:
        assert checkpointer.best_step() == best[0] and checkpointer.latest_step() == 10


def test_checkpoints_by_the_clock(tiny, tmp_path):
    """No time at all between them: whenever metrics are written; none between is due by steps."""
    cadence = Cadence(log=3, evaluate=0, checkpoint=0, checkpoint_minutes=1e-9, keep=9)
    tiny.train(tmp_path / "run", "ar", num_steps=8, cadence=cadence)
    assert kept(tmp_path / "run") == [3, 6, 8]


def test_a_cadence_that_cannot_be():
    with pytest.raises(PadirError, match=r"Cadence\.checkpoint_minutes: .* Cadence\.log is due, which must not be 0"):
        Cadence(log=0, checkpoint_minutes=5)
    with pytest.raises(PadirError, match=r"Cadence\.keep_best: .* Cadence\.evaluate must not be 0"):
        Cadence(evaluate=0, keep_best=1)
