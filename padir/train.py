"""Training: `train` reads top to bottom in the order things happen (layer 8)."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from padir import host_memory, sharding
from padir import remat as rematerialisation
from padir.checkpoints import Checkpointer
from padir.checks import whole
from padir.data.batching import Buckets, rows_of_step, train_batches
from padir.data.manifest import MANIFEST_NAME, PrepareSettings, TaskConfig, difference
from padir.data.prepare_process import prepare_in_process
from padir.data.records import PreparedSet
from padir.describe_training import describe_training, num_pieces
from padir.device_peaks import peak_flops
from padir.distributed import first_process, is_first, say
from padir.errors import PadirError, Preempted
from padir.guards import Guards, SaveClock, Watchdog, check_state, explained
from padir.intervals import (
    EVALUATE,
    SAVE,
    Activity,
    CompiledSteps,
    Devices,
    MetricWindow,
    NonFiniteError,
)
from padir.metrics.writers import MetricWriter
from padir.models import Model
from padir.optimizers import OptimizerConfig
from padir.preemption import Preemption
from padir.progress import progress
from padir.run_directory import METRICS_FOLDER, check_settings, check_shared, save_data, save_model
from padir.sharding import Layout
from padir.train_state import TrainState, create_train_state
from padir.train_step import make_train_step, model_features
from padir.types import TokenIds
from padir.validation import Evaluator
from padir.warm_start import start_from

ModelFactory = Callable[[TokenIds], Model]

# What a run that goes on may have other values of, and what that changes. Batches and their noise stay the same.
MAY_CHANGE = {
    "num_steps": "the learning rate of later steps follows the new schedule",
    "optimizer": "the learning rate of later steps follows the new schedule",
    "accumulate": "dropout is drawn anew",
    "skip_non_finite": "what is done about an update that is not finite",
}


@dataclass(frozen=True)
class Cadence:
    """How often things happen, in steps; 0 never (a run always ends with a checkpoint).

    Attributes:
      log: training metrics are averaged and written.
      evaluate: the validation split is evaluated; unless never, also at the end.
      checkpoint: the state is saved.
      checkpoint_minutes: it is also saved when metrics are next written after so many minutes without; 0 never.
      keep: how many checkpoints stay, the newest.
      keep_best: how many stay besides, those with the lowest loss in evaluation; unless 0, the state is also saved
        whenever it is evaluated.
    """

    log: int = 100
    evaluate: int = 1000
    checkpoint: int = 1000
    checkpoint_minutes: float = 0.0
    keep: int = 3
    keep_best: int = 0

    def __post_init__(self):
        if self.checkpoint_minutes and not self.log:
            raise PadirError("Cadence.checkpoint_minutes: looked at when Cadence.log is due, which must not be 0")
        if self.keep_best and not self.evaluate:
            raise PadirError("Cadence.keep_best: the best are known by evaluation; Cadence.evaluate must not be 0")


def train(
    *,
    run_dir: str,
    data_dir: str,
    model: ModelFactory,
    num_steps: int,
    batch_size: int,
    buckets: Sequence[int],
    accumulate: int = 1,
    optimizer: OptimizerConfig = OptimizerConfig(),
    cadence: Cadence = Cadence(),
    train_split: str = "train",
    eval_split: str = "validation",
    seed: int = 0,
    initialize_from: str | None = None,
    task: TaskConfig | None = None,
    settings: PrepareSettings | None = None,
    layout: Layout = Layout(),
    remat: str = "none",
    describe: bool = False,
    guards: Guards = Guards(),
    peak_teraflops: float | None = None,
) -> TrainState | None:
    """Trains a model, or goes on with the newest checkpoint in `run_dir`.

    A run that goes on must have the seed, batches and data it was started with. `MAY_CHANGE` names what may change,
    which is said and kept in train.json. The cosine stretches over all of `num_steps`: a run of 1000 steps that is
    prolonged to 2000 jumps from the floor to the middle of the longer cosine.

    Args:
      run_dir: where the run lives; made if need be.
      data_dir: a prepared set.
      model: makes the model, given the token ids of the set's vocabulary.
      num_steps: updates in all, those of earlier sessions counted.
      batch_size: examples per update, over all devices.
      buckets: padded lengths, ascending; both sides of a batch share one.
      accumulate: micro-batches that an update is computed in, where a batch does not fit the memory at once.
      optimizer: Adafactor's settings.
      cadence: how often to log, evaluate and save.
      train_split, eval_split: splits of the prepared set.
      seed: of parameters, batch order, corruption and dropout.
      initialize_from: run directory of a trained model of the same width, e.g. the teacher (its newest checkpoint),
        or a T5 from elsewhere: a T5X checkpoint or a folder of Hugging Face. Parameters that both models have start
        from it, the others (positional attention, length head) fresh. The data must have its vocabulary.
      task: prepared into `data_dir`, in a process of its own, if nothing is there yet.
      settings: how to prepare it.
      layout: how the devices share the work; a run may go on under another.
      remat: what the backward pass computes again instead of keeping it, to save memory: 'none', 'dots' (everything
        but products with weights) or 'layer' (everything but the layers' inputs).
      describe: train nothing; print each parameter, its shape and its share on a device.
      guards: what is done about numbers that are not finite, and about a loop that stands still.
      peak_teraflops: 10^12 operations a second that one device has at most, for the metric `mfu`; by default what
        `device_peaks` knows of it (bfloat16), and where it knows nothing there is no such metric.

    Returns:
      The final state; None after `describe`.

    Raises:
      PadirError: anything the user can mend; also a loss that is not finite.
      Preempted: SIGTERM came; the state is saved, and the same call goes on from there.
    """
    rematerialisation.check(remat)
    if describe:
        describe_training(model, data_dir, settings, optimizer.build(num_steps), layout, optimizer.ema_decay)
        return None
    for name, value in (("num_steps", num_steps), ("batch_size", batch_size), ("accumulate", accumulate)):
        whole(f"train.{name}", value)
    sharding.check_batch_size(batch_size, sharding.make_mesh(layout=layout))
    if task is not None and not (Path(data_dir) / MANIFEST_NAME).exists():
        # What is wrong with model or schedule is said before it takes hours to prepare the data.
        optimizer.schedule(num_steps)
        _buckets(buckets, model(TokenIds(num_pieces(data_dir, settings or PrepareSettings()))))
    data = _open_or_prepare(data_dir, task, settings)
    built = model(TokenIds(data.vocabulary().num_pieces))
    splits, bucketed = (train_split, eval_split), _buckets(buckets, built)
    run = _Run(
        run_dir,
        built,
        data,
        splits,
        bucketed,
        batch_size,
        accumulate,
        num_steps,
        optimizer,
        seed,
        layout,
        remat,
        guards,
    )
    return _train(run, cadence, initialize_from, peak_teraflops)


@dataclass(frozen=True)
class _Run:
    """What a run is made of, settled before its first step; arguments of `train`."""

    run_dir: str
    model: Model
    data: PreparedSet
    splits: tuple[str, str]
    buckets: Buckets
    batch_size: int
    accumulate: int
    num_steps: int
    optimizer: OptimizerConfig
    seed: int
    layout: Layout
    remat: str
    guards: Guards

    def settings(self) -> dict[str, Any]:
        """What decides the parameters besides the model, for train.json."""
        examples = self.data.split(self.splits[0])
        return {
            "seed": self.seed,
            "batch_size": self.batch_size,
            "accumulate": self.accumulate,
            "buckets": self.buckets.boundaries,
            # The schedule of batches is a function of this table; other texts hardly have all the same lengths.
            "data": {
                "split": self.splits[0],
                "num_examples": len(examples),
                "lengths_sha256": hashlib.sha256(examples.lengths.tobytes()).hexdigest(),
            },
            "num_steps": self.num_steps,
            "optimizer": dataclasses.asdict(self.optimizer),
            "skip_non_finite": self.guards.skip_non_finite,
        }


def _train(run: _Run, cadence: Cadence, initialize_from: str | None, peak_teraflops: float | None) -> TrainState:
    """Makes the state, from nothing, another run or the newest checkpoint, and trains it."""
    mesh, rules, ema_decay = sharding.make_mesh(layout=run.layout), run.layout.rules, run.optimizer.ema_decay
    if mesh.devices.flat[0].platform == "cpu":
        host_memory.keep_freed()
    vocabulary = run.data.vocabulary()
    updates = run.optimizer.build(run.num_steps)
    save_model(run.run_dir, run.model, vocabulary)
    check_shared(run.run_dir)
    state = create_train_state(run.model, updates, run.seed, mesh, rules, ema=ema_decay is not None)
    with Checkpointer(run.run_dir, keep=cadence.keep, keep_best=cadence.keep_best) as checkpointer:
        restored = checkpointer.restore_newest(state)
        start_step = None if restored is None else int(restored.step)
        finished = restored is not None and start_step >= run.num_steps
        check_settings(run.run_dir, run.settings(), start_step, may_change=MAY_CHANGE, read_only=finished)
        save_data(run.run_dir, run.data.manifest)
        if restored is not None:
            state = restored
            verb = "finished before," if finished else "resuming"
            say(f"{run.run_dir}: {verb} at step {start_step} of {run.num_steps}")
        elif initialize_from is not None:
            begun = start_from(state.params, initialize_from, vocabulary, mesh, network=run.model.network)
            state = state.replace(params=begun, ema=state.ema and jax.tree.map(jnp.copy, begun))
        if finished:
            return state
        schedule = run.optimizer.schedule(run.num_steps)
        options = {"rules": rules, "remat": run.remat, "ema_decay": ema_decay}
        options |= {"skip_non_finite": run.guards.skip_non_finite}
        step_fn = make_train_step(run.model, updates, schedule, run.seed, mesh, run.accumulate, **options)
        devices = _devices(run.model, mesh, peak_teraflops)
        with MetricWriter(Path(run.run_dir) / METRICS_FOLDER, active=is_first(), resume_step=start_step) as writer:
            try:
                return _loop(run, cadence, mesh, state, step_fn, checkpointer, writer, devices)
            except NonFiniteError as error:
                raise _explained(error, run, checkpointer) from None


def _loop(run: _Run, cadence, mesh, state, step_fn, checkpointer, writer, devices) -> TrainState:
    """Update, log, evaluate, save; in that order, until the last step."""
    train_split, eval_split = run.splits
    evaluator = None
    if cadence.evaluate:
        rules = run.layout.rules
        evaluator = Evaluator(run.model, run.data, eval_split, run.buckets, run.batch_size, mesh, rules)
    step = int(state.step)
    share, shares = sharding.row_share(mesh)
    batches = train_batches(
        run.data.split(train_split),
        buckets=run.buckets,
        batch_size=run.batch_size,
        seed=run.seed,
        start_step=step,
        num_steps=run.num_steps - step,
        process_index=share,
        process_count=shares,
    )
    activity, clock = Activity(step), SaveClock(cadence.checkpoint_minutes)
    steps, window = CompiledSteps(step_fn, activity), MetricWindow(activity, devices)
    bar = progress(label="train", unit="steps", total=run.num_steps, initial=step, active=is_first())
    with bar, Preemption() as preemption, Watchdog(activity, run.guards.stall_seconds):
        for batch in activity.each(batches):
            features = sharding.place_batch(model_features(batch), mesh)
            state, metrics = steps(state, features)
            step += 1
            window.add(metrics, features)
            bar.update(1)
            log, evaluate, checkpoint = (
                step == run.num_steps or _due(step, every)
                for every in (cadence.log, cadence.evaluate, cadence.checkpoint)
            )
            evaluate = evaluate and evaluator is not None
            checkpoint = checkpoint or (evaluate and cadence.keep_best > 0) or (log and clock.due())
            if preemption.after_step() and step < run.num_steps:
                # First what the steps since the last interval came to: it says whether they are worth saving.
                writer.write(step, window.finish())
                _save(state, None, checkpointer, activity)
                raise Preempted(f"{run.run_dir}: told to stop; saved at step {step} of {run.num_steps}")
            # An interval ends whenever the loop is about to do something else, so that is never timed as training.
            if log or evaluate or checkpoint:
                written = window.finish()
                bar.set_postfix(loss=f"{written['train/loss']:.3f}")
                if evaluate:
                    with activity.doing(EVALUATE):
                        written |= evaluator(state.params)
                writer.write(step, written)
                if checkpoint:
                    loss = written.get(f"{eval_split}/loss") if cadence.keep_best else None
                    _save(state, loss, checkpointer, activity)
                    clock.restart()
                window.start()
    say(f"trained to step {step}: {_summary(written)}")
    if cadence.keep_best:
        say(f"best checkpoint: step {checkpointer.best_step()}")
    return state


def _save(state: TrainState, loss: float | None, checkpointer: Checkpointer, activity: Activity) -> None:
    """Saves a state that is worth it; raises NonFiniteError for another."""
    with activity.doing(SAVE):
        check_state(state)
        checkpointer.save(state, loss)


def _devices(model: Model, mesh: Mesh, peak_teraflops: float | None) -> Devices:
    """The devices of the mesh and their peak, as given or as known."""
    known = peak_flops(mesh.devices.flat[0].device_kind)
    return Devices(mesh.size, known if peak_teraflops is None else 1e12 * peak_teraflops, model.training_flops)


def _explained(error: NonFiniteError, run: _Run, checkpointer: Checkpointer) -> PadirError:
    """What the user is told: which batch it was, and what can be gone back to."""
    split = run.data.split(run.splits[0])
    order = {"buckets": run.buckets, "batch_size": run.batch_size, "seed": run.seed}
    rows = rows_of_step(split, **order, step=error.step - 1)
    last = checkpointer.latest_step()
    return explained(error, run_dir=run.run_dir, examples=rows, split=split.name, last_good=last)


def _summary(written: dict[str, float]) -> str:
    """The last line of a run: losses of the final interval and of the final evaluation."""
    return ", ".join(f"{name} {value:.3f}" for name, value in written.items() if name.endswith("/loss"))


def _open_or_prepare(data_dir: str, task: TaskConfig | None, settings: PrepareSettings | None) -> PreparedSet:
    """The prepared set; an existing one must be of the task that was asked for, prepared as was asked for."""
    if task is None:
        return PreparedSet.open(data_dir)

    @first_process
    def prepare_missing() -> None:
        if not (Path(data_dir) / MANIFEST_NAME).exists():
            say(f"{data_dir}: nothing prepared there yet; preparing task {task.name}")
            prepare_in_process(task, data_dir, settings)

    prepare_missing()
    data = PreparedSet.open(data_dir)
    if found := difference(data.manifest, task, settings):
        raise PadirError(f"{data_dir}: {found}; choose another data_dir, or delete this one")
    return data


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def _buckets(lengths: Sequence[int], model: Model) -> Buckets:
    """Square buckets up to the model's longest sequences."""
    buckets = Buckets.square(lengths)
    longest = buckets.boundaries[-1][0]
    allowed = min(model.max_source_length, model.max_target_length)
    if longest > allowed:
        raise PadirError(f"train.buckets: {longest} is longer than the model allows ({allowed}); drop that bucket")
    return buckets
