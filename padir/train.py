"""Training: `train` reads top to bottom in the order things happen (layer 8)."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
from jax.sharding import Mesh

from padir import sharding
from padir.checkpoints import Checkpointer
from padir.data.batching import Buckets, eval_batches, train_batches
from padir.data.manifest import MANIFEST_NAME, PrepareSettings, TaskConfig
from padir.data.prepare_process import prepare_in_process
from padir.data.records import PreparedSet
from padir.data.vocabulary import Vocabulary
from padir.errors import PadirError
from padir.metrics.writers import MetricWriter
from padir.models import Batch, Metrics, Model
from padir.optimizers import OptimizerConfig
from padir.progress import progress
from padir.run_directory import METRICS_FOLDER, check_vocabulary, load_model, save_model
from padir.train_state import TrainState, create_train_state
from padir.train_step import MODEL_FEATURES, make_eval_step, make_train_step, model_features
from padir.types import PyTree, TokenIds

ModelFactory = Callable[[TokenIds], Model]


@dataclass(frozen=True)
class Cadence:
    """How often things happen, in steps; 0 never (a run always ends with a checkpoint).

    Attributes:
      log: training metrics are averaged and written.
      evaluate: the validation split is evaluated; unless never, also at the end.
      checkpoint: the state is saved.
      keep: how many checkpoints stay.
    """

    log: int = 100
    evaluate: int = 1000
    checkpoint: int = 1000
    keep: int = 3


def train(
    *,
    run_dir: str,
    data_dir: str,
    model: ModelFactory,
    num_steps: int,
    batch_size: int,
    buckets: Sequence[int],
    optimizer: OptimizerConfig = OptimizerConfig(),
    cadence: Cadence = Cadence(),
    train_split: str = "train",
    eval_split: str = "validation",
    seed: int = 0,
    initialize_from: str | None = None,
    task: TaskConfig | None = None,
    settings: PrepareSettings | None = None,
) -> TrainState:
    """Trains a model, or goes on with the newest checkpoint in `run_dir`.

    Args:
      run_dir: where the run lives; made if need be.
      data_dir: a prepared set.
      model: makes the model, given the token ids of the set's vocabulary.
      num_steps: updates in all, those of earlier sessions counted.
      batch_size: examples per update, over all devices.
      buckets: padded lengths, ascending; both sides of a batch share one.
      optimizer: Adafactor's settings.
      cadence: how often to log, evaluate and save.
      train_split, eval_split: splits of the prepared set.
      seed: of parameters, batch order, corruption and dropout.
      initialize_from: run directory of a trained model of the same width, e.g. the teacher: parameters that both
        models have start from its newest checkpoint, the others (positional attention, length head) fresh.
      task: prepared into `data_dir`, in a process of its own, if nothing is there yet.
      settings: how to prepare it.

    Returns:
      The final state.

    Raises:
      PadirError: anything the user can mend; also a loss that is not finite.
    """
    data = _open_or_prepare(data_dir, task, settings)
    vocabulary = data.vocabulary()
    built = model(TokenIds(vocabulary.num_pieces))
    bucketed = _buckets(buckets, built)
    mesh = sharding.make_mesh()
    sharding.check_batch_size(batch_size, mesh)
    updates = optimizer.build(num_steps)
    save_model(run_dir, built, vocabulary)

    state = create_train_state(built, updates, seed, mesh)
    with Checkpointer(run_dir, keep=cadence.keep) as checkpointer:
        start_step = checkpointer.latest_step()
        if start_step is not None:
            state = checkpointer.restore(state)
            verb = "resuming" if start_step < num_steps else "finished before,"
            print(f"{run_dir}: {verb} at step {start_step} of {num_steps}", file=sys.stderr)
        elif initialize_from is not None:
            state = state.replace(params=start_from(state.params, initialize_from, vocabulary, mesh))
        if int(state.step) >= num_steps:
            return state
        step_fn = make_train_step(built, updates, optimizer.schedule(num_steps), seed, mesh)
        evaluator = Evaluator(built, data, eval_split, bucketed, batch_size, mesh) if cadence.evaluate else None
        batches = train_batches(
            data.split(train_split),
            buckets=bucketed,
            batch_size=batch_size,
            seed=seed,
            start_step=int(state.step),
            num_steps=num_steps - int(state.step),
            process_index=jax.process_index(),
            process_count=jax.process_count(),
        )
        active = jax.process_index() == 0
        with MetricWriter(Path(run_dir) / METRICS_FOLDER, active=active, resume_step=start_step) as writer:
            return _loop(state, step_fn, batches, evaluator, checkpointer, writer, mesh, num_steps, cadence)


def _loop(state, step_fn, batches, evaluator, checkpointer, writer, mesh, num_steps, cadence) -> TrainState:
    """Update, log, evaluate, save; in that order, until `num_steps`."""
    steps = CompiledSteps(step_fn)
    window = MetricWindow(steps)
    step = int(state.step)
    with progress(label="train", unit="steps", total=num_steps, initial=step) as bar:
        for batch in batches:
            state, metrics = steps(state, sharding.place_batch(model_features(batch), mesh))
            step += 1
            window.add(metrics)
            bar.update(1)
            log, evaluate, checkpoint = (
                step == num_steps or _due(step, every) for every in (cadence.log, cadence.evaluate, cadence.checkpoint)
            )
            # An interval ends whenever the loop is about to do something else, so that is never timed as training.
            if log or evaluate or checkpoint:
                written = window.finish(step)
                bar.set_postfix(loss=f"{written['train/loss']:.3f}")
                if evaluate and evaluator is not None:
                    written |= evaluator(state.params)
                writer.write(step, written)
                if checkpoint:
                    checkpointer.save(state)
                window.start()
    print(f"trained to step {step}: {_summary(written)}", file=sys.stderr)
    return state


def _summary(written: dict[str, float]) -> str:
    """The last line of a run: losses of the final interval and of the final evaluation."""
    return ", ".join(f"{name} {value:.3f}" for name, value in written.items() if name.endswith("/loss"))


def start_from(params: PyTree, run_dir: str, vocabulary: Vocabulary, mesh: Mesh) -> PyTree:
    """Replaces those of `params` that the newest checkpoint in `run_dir` has, too.

    Args:
      params: fresh parameters.
      run_dir: the run to start from.
      vocabulary: of the new run; embeddings mean nothing under another.
      mesh: where parameters live.

    Raises:
      PadirError: another vocabulary, or a shared parameter of another shape.
    """
    model, trained_with = load_model(run_dir)
    check_vocabulary(vocabulary, trained_with.hash, run_dir)
    with Checkpointer(run_dir, read_only=True) as checkpointer:
        trained = checkpointer.restore_params(jax.eval_shape(model.init, 0), mesh)
    given = dict(jax.tree_util.tree_leaves_with_path(trained))
    fresh = []

    def choose(path, leaf):
        if path not in given:
            fresh.append(jax.tree_util.keystr(path, simple=True, separator="/"))
            return leaf
        if given[path].shape != leaf.shape:
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            raise PadirError(f"{run_dir}: {name} has shape {given[path].shape}, this model's has {leaf.shape}")
        return given[path]

    chosen = jax.tree_util.tree_map_with_path(choose, params)
    shown = ", ".join(fresh[:3]) + (", …" if len(fresh) > 3 else "")
    print(f"starting from {run_dir}; {len(fresh)} parameters are fresh ({shown})", file=sys.stderr)
    return chosen


def _open_or_prepare(data_dir: str, task: TaskConfig | None, settings: PrepareSettings | None) -> PreparedSet:
    """The prepared set; an existing one must be of the task that was asked for."""
    if task is not None:
        if not (Path(data_dir) / MANIFEST_NAME).exists():
            print(f"{data_dir}: nothing prepared there yet; preparing task {task.name}", file=sys.stderr)
            prepare_in_process(task, data_dir, settings)
        there = PreparedSet.open(data_dir).manifest.task
        for part in ("module", "name", "options"):
            stored, wanted = getattr(there, part), json.loads(json.dumps(getattr(task, part)))
            if stored != wanted:
                raise PadirError(
                    f"{data_dir}: holds task {part} {stored!r}, but the configuration asks for {wanted!r}; "
                    "choose another data_dir, or delete this one"
                )
    return PreparedSet.open(data_dir)


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


class CompiledSteps:
    """The train step, compiled once per batch shape, with the seconds that took kept apart."""

    def __init__(self, step_fn):
        self._step_fn = step_fn
        self._compiled = {}
        self.compile_seconds = 0.0

    def __call__(self, state: TrainState, features: Batch) -> tuple[TrainState, Metrics]:
        """(state, features) → (state, metrics), as `make_train_step` says."""
        shape = tuple(features[name].shape for name in MODEL_FEATURES)
        if shape not in self._compiled:
            began = time.perf_counter()
            self._compiled[shape] = self._step_fn.lower(state, features).compile()
            self.compile_seconds += time.perf_counter() - began
        return self._compiled[shape](state, features)


class MetricWindow:
    """Averages the metrics of an interval of training, and times it.

    Evaluation and saving are outside an interval, and compilation is taken off it.
    """

    def __init__(self, steps: CompiledSteps):
        self._steps = steps
        self.start()

    def start(self) -> None:
        """Begins an interval."""
        self._metrics: list[Metrics] = []
        self._begin = time.perf_counter()
        self._compiled_before = self._steps.compile_seconds

    def add(self, metrics: Metrics) -> None:
        """Counts one update; its metrics stay on device."""
        self._metrics.append(metrics)

    def finish(self, step: int) -> dict[str, float]:
        """Means over the interval, non-pad tokens per second, and seconds spent compiling.

        Raises:
          PadirError: the mean loss is not finite.
        """
        rows = jax.device_get(self._metrics)
        compile_seconds = self._steps.compile_seconds - self._compiled_before
        seconds = time.perf_counter() - self._begin - compile_seconds
        result = {f"train/{name}": float(np.mean([row[name] for row in rows])) for name in rows[0] if name != "tokens"}
        result["train/tokens_per_second"] = float(sum(int(row["tokens"]) for row in rows)) / seconds
        result["train/compile_seconds"] = compile_seconds
        if not math.isfinite(result["train/loss"] + result["train/gradient_norm"]):
            raise PadirError(
                f"step {step}: the training loss is {result['train/loss']}, the gradient norm "
                f"{result['train/gradient_norm']}; lower OptimizerConfig.peak_learning_rate "
                "or lengthen its warm-up, then train again: it resumes at the last checkpoint"
            )
        return result


class Evaluator:
    """Loss and accuracy on a held-out split, teacher-forced, under a corruption that never changes."""

    def __init__(self, model: Model, data: PreparedSet, split: str, buckets: Buckets, batch_size: int, mesh: Mesh):
        self._split, self._buckets, self._batch_size, self._mesh = data.split(split), buckets, batch_size, mesh
        self._name = split
        self._step = make_eval_step(model, mesh)

    def __call__(self, params: PyTree) -> dict[str, float]:
        """Metrics averaged over the split's sentences, named `<split>/<metric>`."""
        totals: dict[str, float] = {}
        count = 0
        batches = eval_batches(
            self._split,
            buckets=self._buckets,
            batch_size=self._batch_size,
            process_index=jax.process_index(),
            process_count=jax.process_count(),
        )
        for batch in batches:
            metrics = jax.device_get(self._step(params, sharding.place_batch(model_features(batch), self._mesh)))
            rows = int(metrics.pop("rows"))
            count += rows
            for name, value in metrics.items():
                totals[name] = totals.get(name, 0.0) + float(value) * rows
        return {f"{self._name}/{name}": total / count for name, total in totals.items()}
