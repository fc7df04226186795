"""`padir train`: trains a model, or resumes from the newest checkpoint."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

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
from padir.files.locks import alone_in
from padir.files.paths import as_path
from padir.metrics.writers import MetricWriter
from padir.models.kinds import Model
from padir.nn.fastest_type import AUTO, resolved_for_training
from padir.nn.weights import check_training_type
from padir.runs.checkpoints import Checkpointer, holds_run
from padir.runs.convert import find_model
from padir.runs.directory import (
    METRICS_FOLDER,
    check_settings,
    check_shared,
    recorded_settings,
    save_data,
    save_model,
)
from padir.runs.train_state import TrainState, abstract_train_state, create_train_state
from padir.runtime import host_memory, sharding
from padir.runtime import remat as rematerialisation
from padir.runtime.distributed import first_decides, first_process, is_first, say
from padir.runtime.platforms import tracing_for
from padir.runtime.preemption import Preemption
from padir.runtime.sharding import Layout
from padir.training.describe import describe_training, num_pieces
from padir.training.guards import Guards, Watchdog
from padir.training.intervals import SAVE, START, Activity
from padir.training.loop import LEFT_OUT, STARTED_FROM, Cadence, Loop, Run, devices_of, lacks_evaluation
from padir.training.optimizers import OptimizerConfig
from padir.training.step import check_micro_batches, make_train_step
from padir.training.warm_start import start_from
from padir.types import TokenIds

ModelFactory = Callable[[TokenIds], Model]

# The settings that may change when a run resumes, and the consequence. Batches and corruption stay the same.
MAY_CHANGE = {
    "num_steps": "the learning rate of later steps follows the new schedule",
    "optimizer": "later updates are made with the new settings of the optimizer",
    "accumulate": "dropout is drawn anew",
    "skip_non_finite": "non-finite updates are treated differently from now on",
    "compute_type": "products are rounded differently from now on",
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
    scan_layers: bool = False,
    compute_type: str | None = None,
    describe: bool = False,
    guards: Guards = Guards(),
    peak_teraflops: float | None = None,
    data_cache: str | None = None,
) -> TrainState | None:
    """Trains a model, or resumes the run in `run_dir` from its newest checkpoint.

    A run must be resumed with the seed, batches and data that it was started with. The settings in `MAY_CHANGE` may
    change; changes are printed and recorded in train.json. The cosine of the learning rate spans all of `num_steps`.
    If a run of 1000 steps is extended to 2000, its learning rate therefore jumps from the floor to the middle of the
    longer cosine.

    Args:
      run_dir: the run directory; created if it does not exist.
      data_dir: the prepared set.
      model: makes the model, given the token ids of the set's vocabulary.
      num_steps: the number of updates of the whole run, including those of earlier sessions.
      batch_size: the number of examples per update, over all devices.
      buckets: the padded lengths, ascending. Source and target of a batch are padded to the same length.
      accumulate: the number of micro-batches per update. Use more than 1 if a batch does not fit into memory.
      optimizer: the settings of Adafactor.
      cadence: how often to log, evaluate and save.
      train_split: the split of the prepared set to train on.
      eval_split: the split of the prepared set to evaluate on.
      seed: the seed of parameters, batch order, corruption and dropout.
      initialize_from: a trained model of the same width to start from, once: a run directory (its newest checkpoint
        is used), e.g. that of the teacher, a T5X checkpoint, or a Hugging Face folder of T5. Parameters that only the
        new model has (positional attention, length head) are initialized randomly. The data must have the vocabulary
        of that model.
      task: the task to prepare into `data_dir`, in a separate process, if no set is there yet.
      settings: how to prepare it.
      layout: how the devices share the work. A run may be resumed with another layout.
      remat: what the backward pass recomputes to save memory: 'none', 'dots' (everything except products with
        weights) or 'layer' (everything except the inputs of the layers).
      scan_layers: whether the program goes through the layers in a loop. It is then smaller and compiles sooner, but an
        update takes longer. Choose `remat='layer'` with it, because a loop is slow in keeping results.
      compute_type: 'bfloat16' rounds the factors of products with weights, forward and in gradients, which is faster on
        some devices; sums, parameters and everything else stay float32. 'auto' does so where it is faster; what it
        stands for is decided when the run begins and recorded, so that the run keeps it wherever it is resumed.
      describe: do not train; print each parameter with its shape and its share on a device.
      guards: how training reacts to non-finite numbers and to stalls.
      peak_teraflops: the peak performance of one device in 10^12 floating-point operations per second, for the metric
        `mfu`. By default it is taken from `device_peaks` (bfloat16); for an unknown device there is no such metric.
      data_cache: a local folder, to which the splits of a prepared set in a bucket are copied before they are read; the
        processes of a host share it. None reads each record from the bucket.

    Returns:
      The final state; None with `describe`.

    Raises:
      PadirError: a setting, the data or the run directory is invalid, another process trains the run, or a loss is
        not finite.
      Preempted: the job received SIGTERM. The state is saved, and the same call resumes from it.
    """
    rematerialisation.check(remat)
    if compute_type != AUTO:
        check_training_type("train.compute_type", compute_type)
    if describe:
        describe_training(model, data_dir, settings, optimizer.build(num_steps), layout, optimizer.ema_decay)
        return None
    _check_sizes(sharding.make_mesh(layout=layout), num_steps=num_steps, batch_size=batch_size, accumulate=accumulate)
    if task is not None and not (as_path(data_dir) / MANIFEST_NAME).exists():
        # Errors in model or schedule must show before the data are prepared, which may take hours.
        optimizer.schedule(num_steps)
        if initialize_from is not None and not holds_run(run_dir):
            find_model(initialize_from)
        _buckets(buckets, model(TokenIds(num_pieces(data_dir, settings or PrepareSettings()))))
    data = _open_or_prepare(data_dir, task, settings, data_cache)
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
        scan_layers,
        guards,
        compute_type,
    )
    return _train(run, cadence, initialize_from, peak_teraflops)


def _check_sizes(mesh: Mesh, **sizes: int) -> None:
    """Raises PadirError unless these are whole numbers, and batches divide evenly over devices and micro-batches."""
    for name, value in sizes.items():
        whole(f"train.{name}", value)
    sharding.check_batch_size(sizes["batch_size"], mesh)
    check_micro_batches(sizes["batch_size"], sizes["accumulate"], mesh)


def _train(run: Run, cadence: Cadence, initialize_from: str | None, peak_teraflops: float | None) -> TrainState:
    """Creates the state (new, from another model, or from the newest checkpoint) and trains it."""
    mesh, rules, ema_decay = sharding.make_mesh(layout=run.layout), run.layout.rules, run.optimizer.ema_decay
    if mesh.devices.flat[0].platform == "cpu":
        host_memory.keep_freed()
    updates, activity = run.optimizer.build(run.num_steps), Activity()
    # `Preemption` is outermost: a SIGTERM during the last save must not end the process before it is written.
    watched = Watchdog(activity, run.guards.stall_seconds)
    with Preemption() as preemption, watched, _checkpointer(run, cadence, activity) as checkpointer:
        with activity.doing(START):
            run, state, start_step = _begin(run, updates, mesh, checkpointer, initialize_from)
        if start_step is not None and start_step > run.num_steps:
            return state
        finished = start_step == run.num_steps
        if finished and not lacks_evaluation(run, cadence):
            return state
        schedule = run.optimizer.schedule(run.num_steps)
        options = {"rules": rules, "remat": run.remat, "scan_layers": run.scan_layers, "ema_decay": ema_decay}
        options |= {"skip_non_finite": run.guards.skip_non_finite, "compute_type": run.compute_type}
        step_fn = make_train_step(run.model, updates, schedule, run.seed, mesh, run.accumulate, **options)
        devices = devices_of(run.model, mesh, peak_teraflops)
        with MetricWriter(as_path(run.run_dir) / METRICS_FOLDER, active=is_first(), resume_step=start_step) as writer:
            loop = Loop(run, cadence, mesh, checkpointer, writer, activity, preemption)
            return loop.finish(state) if finished else loop(state, step_fn, devices)


@contextlib.contextmanager
def _checkpointer(run: Run, cadence: Cadence, activity: Activity) -> Iterator[Checkpointer]:
    """Opens the checkpoints of the run and creates its directory if needed; leaving waits for the last save.

    Another start of the same run would write the same checkpoints, so it is refused until then.
    """
    with contextlib.ExitStack() as held:

        @first_process
        def lock_run() -> None:
            held.enter_context(alone_in(run.run_dir, "training this run"))

        with activity.doing(START):
            save_model(run.run_dir, run.model, run.data.vocabulary())
            check_shared(run.run_dir)
            lock_run()
            checkpointer = Checkpointer(run.run_dir, keep=cadence.keep, keep_best=cadence.keep_best)
        try:
            yield checkpointer
        finally:
            with activity.doing(SAVE):
                checkpointer.close()


def _begin(
    run: Run, updates: optax.GradientTransformation, mesh: Mesh, checkpointer: Checkpointer, initialize_from: str | None
) -> tuple[Run, TrainState, int | None]:
    """Returns the run, with a compute type by name, the state to start from, and its step, None if the run is new."""
    newest, given = checkpointer.latest_step(), run.compute_type
    recorded = recorded_settings(run.run_dir) if first_decides(newest is not None) else None
    run = dataclasses.replace(
        run,
        compute_type=_compute_type(run, mesh, recorded),
        drop_longest=recorded is not None and recorded.get(LEFT_OUT) is None,
        started_from=_started_from(initialize_from, recorded),
    )
    if given == AUTO:
        say(f"train.compute_type: 'auto' is {run.compute_type or 'the type of activations'} in this run")
    # Before anything is restored, for which other settings may be too different. Written when the step is known.
    check_settings(run.run_dir, run.settings(), newest, may_change=MAY_CHANGE, read_only=True)
    fresh = create_train_state(
        run.model, updates, run.seed, mesh, run.layout.rules, ema=run.optimizer.ema_decay is not None
    )
    restored = _restored(run, fresh, mesh, checkpointer)
    start_step = None if restored is None else int(restored.step)
    finished = restored is not None and start_step >= run.num_steps
    check_settings(run.run_dir, run.settings(), start_step, may_change=MAY_CHANGE, read_only=finished)
    save_data(run.run_dir, run.data.manifest)
    if restored is not None:
        verb = "already finished" if finished else "resuming"
        say(f"{run.run_dir}: {verb} at step {start_step} of {run.num_steps}")
        return run, restored, start_step
    if run.model.freeze and initialize_from is None:
        raise PadirError(
            f"{type(run.model).__name__}.freeze: {', '.join(run.model.freeze)} would stay as drawn at random; give the "
            "trained model that has them as --initialize_from, or freeze nothing"
        )
    state = fresh
    if initialize_from is not None:
        vocabulary = run.data.vocabulary()
        begun = start_from(state.params, initialize_from, vocabulary, mesh, network=run.model.network)
        state = state.replace(params=begun, ema=state.ema and jax.tree.map(jnp.copy, begun))
    return run, state, None


def _restored(run: Run, fresh: TrainState, mesh: Mesh, checkpointer: Checkpointer) -> TrainState | None:
    """Returns the state of the newest checkpoint, whose optimizer may have been another; None of a new run.

    `fresh` is the state before the first update.
    """

    def with_other_optimizers() -> list[TrainState]:
        options = {"ema": fresh.ema is not None}
        return [
            abstract_train_state(run.model, other.build(run.num_steps), mesh, run.layout.rules, **options)
            for other in run.optimizer.other_structures()
        ]

    restored = checkpointer.restore_newest(fresh, with_other_optimizers)
    if restored is None:
        return None
    return restored.replace(opt_state=run.optimizer.carried_over(restored.opt_state, fresh.opt_state))


def _started_from(given: str | None, recorded: Mapping[str, Any] | None) -> str | None:
    """Returns with which model the run began; raises PadirError if it began with another one than is given."""
    if recorded is None:
        return given
    began = recorded.get(STARTED_FROM)
    if given is not None and began is not None and str(given) != began:
        raise PadirError(
            f"train.initialize_from: this run began with the parameters of {began}, not {given}; leave the option out, "
            "or choose another run_dir"
        )
    return began


def _compute_type(run: Run, mesh: Mesh, recorded: Mapping[str, Any] | None) -> str | None:
    """Returns what the run's compute type stands for: of 'auto', what is recorded of a run that has begun."""
    if run.compute_type == AUTO and recorded is not None:
        return recorded.get("compute_type")
    with tracing_for(mesh.devices.flat[0].platform):
        return resolved_for_training("train.compute_type", run.compute_type)


def _open_or_prepare(
    data_dir: str, task: TaskConfig | None, settings: PrepareSettings | None, cache: str | None
) -> PreparedSet:
    """Opens the prepared set, or builds it if it does not exist; an existing one must match `task` and `settings`."""
    if task is None:
        return PreparedSet.open(data_dir, cache)

    @first_process
    def prepare_missing() -> None:
        if not (as_path(data_dir) / MANIFEST_NAME).exists():
            say(f"{data_dir}: no prepared data set here yet; preparing task {task.name}")
            prepare_in_process(task, data_dir, settings)

    prepare_missing()
    data = PreparedSet.open(data_dir, cache)
    if found := difference(data.manifest, task, settings):
        raise PadirError(f"{data_dir}: {found}; choose another data_dir, or delete this one")
    return data


def _buckets(lengths: Sequence[int], model: Model) -> Buckets:
    """Returns square buckets; raises PadirError if one is longer than the model allows."""
    buckets = Buckets.square(lengths)
    longest = buckets.boundaries[-1][0]
    allowed = min(model.max_source_length, model.max_target_length)
    if longest > allowed:
        raise PadirError(f"train.buckets: {longest} is longer than the model allows ({allowed}); remove that bucket")
    return buckets
