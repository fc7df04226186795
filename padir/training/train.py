"""Training: `train` reads top to bottom in the order things happen."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from padir.checks import whole
from padir.data.batching import Buckets
from padir.data.manifest import MANIFEST_NAME, PrepareSettings, TaskConfig, difference
from padir.data.prepare_process import prepare_in_process
from padir.data.records import PreparedSet
from padir.errors import PadirError
from padir.metrics.writers import MetricWriter
from padir.models.kinds import Model
from padir.runs.checkpoints import Checkpointer
from padir.runs.directory import METRICS_FOLDER, check_settings, check_shared, save_data, save_model
from padir.runs.train_state import TrainState, create_train_state
from padir.runtime import host_memory, sharding
from padir.runtime import remat as rematerialisation
from padir.runtime.distributed import first_process, is_first, say
from padir.runtime.preemption import Preemption
from padir.runtime.sharding import Layout
from padir.training.describe import describe_training, num_pieces
from padir.training.guards import Guards, Watchdog
from padir.training.intervals import SAVE, START, Activity
from padir.training.loop import Cadence, Loop, Run, devices_of, lacks_evaluation
from padir.training.optimizers import OptimizerConfig
from padir.training.step import make_train_step
from padir.training.warm_start import start_from
from padir.types import TokenIds

ModelFactory = Callable[[TokenIds], Model]

# What a run that goes on may have other values of, and what that changes. Batches and their noise stay the same.
MAY_CHANGE = {
    "num_steps": "the learning rate of later steps follows the new schedule",
    "optimizer": "the learning rate of later steps follows the new schedule",
    "accumulate": "dropout is drawn anew",
    "skip_non_finite": "what is done about an update that is not finite",
}


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
    run = Run(
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


def _train(run: Run, cadence: Cadence, initialize_from: str | None, peak_teraflops: float | None) -> TrainState:
    """Makes the state, from nothing, another run or the newest checkpoint, and trains it."""
    mesh, rules, ema_decay = sharding.make_mesh(layout=run.layout), run.layout.rules, run.optimizer.ema_decay
    if mesh.devices.flat[0].platform == "cpu":
        host_memory.keep_freed()
    updates, activity = run.optimizer.build(run.num_steps), Activity()
    # Told to stop while the last save is being written, the process must still wait for it.
    watched = Watchdog(activity, run.guards.stall_seconds)
    with Preemption() as preemption, watched, _checkpointer(run, cadence, activity) as checkpointer:
        with activity.doing(START):
            state, start_step = _begin(run, updates, mesh, checkpointer, initialize_from)
        if start_step is not None and start_step > run.num_steps:
            return state
        finished = start_step == run.num_steps
        if finished and not lacks_evaluation(run, cadence):
            return state
        schedule = run.optimizer.schedule(run.num_steps)
        options = {"rules": rules, "remat": run.remat, "ema_decay": ema_decay}
        options |= {"skip_non_finite": run.guards.skip_non_finite}
        step_fn = make_train_step(run.model, updates, schedule, run.seed, mesh, run.accumulate, **options)
        devices = devices_of(run.model, mesh, peak_teraflops)
        with MetricWriter(Path(run.run_dir) / METRICS_FOLDER, active=is_first(), resume_step=start_step) as writer:
            loop = Loop(run, cadence, mesh, checkpointer, writer, activity, preemption)
            return loop.finish(state) if finished else loop(state, step_fn, devices)


@contextlib.contextmanager
def _checkpointer(run: Run, cadence: Cadence, activity: Activity) -> Iterator[Checkpointer]:
    """The run's checkpoints, its directory made if need be; leaving waits for the last save."""
    with activity.doing(START):
        save_model(run.run_dir, run.model, run.data.vocabulary())
        check_shared(run.run_dir)
        checkpointer = Checkpointer(run.run_dir, keep=cadence.keep, keep_best=cadence.keep_best)
    try:
        yield checkpointer
    finally:
        with activity.doing(SAVE):
            checkpointer.close()


def _begin(
    run: Run, updates: optax.GradientTransformation, mesh: Mesh, checkpointer: Checkpointer, initialize_from: str | None
) -> tuple[TrainState, int | None]:
    """The state to go on from, and the step of its checkpoint; None where the run is new."""
    state = create_train_state(
        run.model, updates, run.seed, mesh, run.layout.rules, ema=run.optimizer.ema_decay is not None
    )
    restored = checkpointer.restore_newest(state)
    start_step = None if restored is None else int(restored.step)
    finished = restored is not None and start_step >= run.num_steps
    check_settings(run.run_dir, run.settings(), start_step, may_change=MAY_CHANGE, read_only=finished)
    save_data(run.run_dir, run.data.manifest)
    if restored is not None:
        verb = "finished before," if finished else "resuming"
        say(f"{run.run_dir}: {verb} at step {start_step} of {run.num_steps}")
        return restored, start_step
    if initialize_from is not None:
        vocabulary = run.data.vocabulary()
        begun = start_from(state.params, initialize_from, vocabulary, mesh, network=run.model.network)
        state = state.replace(params=begun, ema=state.ema and jax.tree.map(jnp.copy, begun))
    return state, None


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


def _buckets(lengths: Sequence[int], model: Model) -> Buckets:
    """Square buckets up to the model's longest sequences."""
    buckets = Buckets.square(lengths)
    longest = buckets.boundaries[-1][0]
    allowed = min(model.max_source_length, model.max_target_length)
    if longest > allowed:
        raise PadirError(f"train.buckets: {longest} is longer than the model allows ({allowed}); drop that bucket")
    return buckets
