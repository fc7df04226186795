"""The training loop: update, log, evaluate, save."""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from jax.sharding import Mesh

from padir.checks import finite_or_none, whole
from padir.data.batching import Buckets, rows_of_step, train_batches
from padir.data.records import PreparedSet
from padir.errors import PadirError, Preempted
from padir.files.paths import as_path
from padir.metrics.writers import MetricWriter, recorded
from padir.models.base import Batch
from padir.models.kinds import Model
from padir.progress import progress
from padir.runs.checkpoints import Checkpointer
from padir.runs.directory import METRICS_FOLDER
from padir.runs.train_state import TrainState
from padir.runtime import sharding
from padir.runtime.device_peaks import peak_flops
from padir.runtime.distributed import first_decides, first_process, is_first, say
from padir.runtime.preemption import Preemption
from padir.runtime.sharding import Layout
from padir.training.guards import Guards, SaveClock, check_state, explained
from padir.training.intervals import EVALUATE, SAVE, Activity, CompiledSteps, Devices, MetricWindow, NonFiniteError
from padir.training.optimizers import OptimizerConfig
from padir.training.step import model_features
from padir.training.validation import Evaluator

# Names of settings in train.json: which examples an epoch leaves out, and the model with whose parameters a run began.
LEFT_OUT, STARTED_FROM = "left_out", "initialize_from"


@dataclass(frozen=True)
class Cadence:
    """How often the training loop logs, evaluates and saves. Intervals are in steps; 0 means never.

    A run always ends with a checkpoint.

    Attributes:
      log: steps between two records of the training metrics, which are averages since the last record.
      evaluate: steps between two evaluations of the validation split. Unless 0, the last step is evaluated too.
      checkpoint: steps between two checkpoints.
      checkpoint_minutes: save also if this many minutes have passed since the last checkpoint. The time is checked
        whenever metrics are logged. 0 means never.
      keep: the number of newest checkpoints to keep, at least 1.
      keep_best: the number of checkpoints with the lowest validation loss to keep in addition. Unless 0, the state is
        saved at every evaluation.
    """

    log: int = 100
    evaluate: int = 1000
    checkpoint: int = 1000
    checkpoint_minutes: float = 0.0
    keep: int = 3
    keep_best: int = 0

    def __post_init__(self):
        whole("Cadence.keep", self.keep, "the newest checkpoint is the one to resume from")
        for name in ("log", "evaluate", "checkpoint", "checkpoint_minutes", "keep_best"):
            if (value := getattr(self, name)) < 0:
                raise PadirError(f"Cadence.{name}: {value} is below 0")
        if self.checkpoint_minutes and not self.log:
            raise PadirError("Cadence.checkpoint_minutes: is checked when Cadence.log is due, which must not be 0")
        if self.keep_best and not self.evaluate:
            raise PadirError("Cadence.keep_best: needs the losses of evaluation, so Cadence.evaluate must not be 0")


@dataclass(frozen=True)
class Run:
    """The settings of a run, which are fixed before its first step.

    Attributes:
      run_dir: the run directory.
      model: the model's configuration.
      data: the prepared set.
      splits: the names of the training and the validation split.
      buckets: the padded lengths of batches.
      batch_size: the number of examples per update, over all devices.
      accumulate: the number of micro-batches per update.
      num_steps: the number of updates of the whole run.
      optimizer: the optimizer's settings.
      seed: the seed of parameters, batch order, corruption and dropout.
      layout: how the devices share the work.
      remat: what the backward pass recomputes, one of `remat.CHOICES`.
      scan_layers: whether layers are gone through in a loop.
      guards: how training reacts to non-finite numbers and to stalls.
      compute_type: what the factors of products with weights are rounded to; until the run begins, it may be 'auto'.
      drop_longest: whether an epoch leaves out the longest examples, as in a run that an earlier version began; see
        `data.batching.schedule`.
      started_from: the model with whose parameters the run began; None if they were drawn, or it is not known.
    """

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
    scan_layers: bool
    guards: Guards
    compute_type: str | None = None
    drop_longest: bool = False
    started_from: str | None = None

    @property
    def order(self) -> dict[str, Any]:
        """What decides the order of examples, beside their lengths."""
        return {
            "buckets": self.buckets,
            "batch_size": self.batch_size,
            "seed": self.seed,
            "drop_longest": self.drop_longest,
        }

    def settings(self) -> dict[str, Any]:
        """Returns the settings that decide the parameters, apart from the model, as JSON values for train.json."""
        examples = self.data.split(self.splits[0])
        return {
            "seed": self.seed,
            "batch_size": self.batch_size,
            "accumulate": self.accumulate,
            "buckets": self.buckets.boundaries,
            # The order of batches depends on the lengths only, and other data hardly have the same lengths.
            "data": {
                "split": self.splits[0],
                "num_examples": len(examples),
                "lengths_sha256": hashlib.sha256(np.ascontiguousarray(examples.lengths)).hexdigest(),
            },
            "num_steps": self.num_steps,
            "optimizer": dataclasses.asdict(self.optimizer),
            "skip_non_finite": self.guards.skip_non_finite,
            "compute_type": self.compute_type,
            # Earlier versions recorded nothing.
            LEFT_OUT: None if self.drop_longest else "any",
            STARTED_FROM: None if self.started_from is None else str(self.started_from),
        }


class Loop:
    """Trains a run from a given state to its last step, or until the job is told to stop."""

    def __init__(
        self,
        run: Run,
        cadence: Cadence,
        mesh: Mesh,
        checkpointer: Checkpointer,
        writer: MetricWriter,
        activity: Activity,
        preemption: Preemption,
    ):
        """Reads and computes nothing yet.

        Args:
          run: the settings of the run.
          cadence: how often to log, evaluate and save.
          mesh: the devices.
          checkpointer: saves the states; stays open.
          writer: writes the metrics; stays open.
          activity: where the loop records what it is doing.
          preemption: tells whether the job must stop.
        """
        self._run, self._cadence, self._mesh = run, cadence, mesh
        self._checkpointer, self._writer, self._activity = checkpointer, writer, activity
        self._preemption = preemption
        self._evaluator = None
        if cadence.evaluate:
            rules = run.layout.rules
            self._evaluator = Evaluator(run.model, run.data, run.splits[1], run.buckets, run.batch_size, mesh, rules)
        self._loss = _loss_name(run)

    def __call__(self, state: TrainState, step_fn: Callable, devices: Devices) -> TrainState:
        """Trains from `state` and returns the final state.

        Args:
          state: where to start.
          step_fn: a result of `make_train_step`.
          devices: the devices and their peak performance.

        Raises:
          PadirError: a loss, gradient or parameter is not finite; the message names the step and its batch.
          Preempted: the job was told to stop; the state is saved.
        """
        try:
            return self._train(state, step_fn, devices)
        except NonFiniteError as error:
            raise self._explained(error) from None

    def _train(self, state: TrainState, step_fn: Callable, devices: Devices) -> TrainState:
        run, cadence = self._run, self._cadence
        self._activity.step = step = int(state.step)
        if step and self._evaluator is not None and _due(step, cadence.evaluate):
            self._make_up_for_evaluation(state, step)
        clock, batches = SaveClock(cadence.checkpoint_minutes), self._batches(step)
        steps, window = CompiledSteps(step_fn, self._activity), MetricWindow(self._activity, devices)
        bar = progress(label="train", unit="steps", total=run.num_steps, initial=step, active=is_first(), lines=False)
        with bar:
            for batch in self._activity.each(batches):
                features = sharding.place_batch(model_features(batch), self._mesh)
                state, metrics = steps(state, features)
                step += 1
                window.add(metrics, features)
                bar.update(1)
                log, evaluate, checkpoint = (
                    step == run.num_steps or _due(step, every)
                    for every in (cadence.log, cadence.evaluate, cadence.checkpoint)
                )
                evaluate = evaluate and self._evaluator is not None
                checkpoint = checkpoint or (evaluate and cadence.keep_best > 0) or (log and clock.due())
                if self._preemption.after_step() and (step < run.num_steps or evaluate):
                    # `finish` comes first: it raises if a step since the last interval was not finite.
                    self._stop(state, step, window.finish())
                # An interval ends before evaluation and saving, so that their time does not count as training.
                if log or evaluate or checkpoint:
                    written = window.finish()
                    bar.set_postfix(loss=f"{written.get('train/loss', math.nan):.3f}")
                    if evaluate:
                        if (measured := self._evaluated(state)) is None:
                            self._stop(state, step, written)
                        written |= measured
                    self._writer.write(step, written)
                    if log and bar.disable and step < run.num_steps:
                        self._say_how_far(step, written)
                    if checkpoint:
                        self._save(state, written.get(self._loss) if cadence.keep_best else None)
                        clock.restart()
                    window.start()
        self._say_the_end(step, written)
        return state

    def finish(self, state: TrainState) -> TrainState:
        """Evaluates the final state of a run, if that has not been done yet, and returns it.

        Raises:
          Preempted: the job was told to stop during the evaluation; the checkpoint is unchanged.
        """
        self._activity.step = step = int(state.step)
        self._say_the_end(step, self._make_up_for_evaluation(state, step))
        return state

    def _say_how_far(self, step: int, written: dict[str, float]) -> None:
        """A line for the log of a job, in place of the bar."""
        left = datetime.timedelta(seconds=round((self._run.num_steps - step) * written["train/step_seconds"]))
        rate = f"{written['train/tokens_per_second']:,.0f} tokens/s"
        say(f"step {step} of {self._run.num_steps}: {_summary(written)}, {rate}, {left} left")

    def _say_the_end(self, step: int, written: dict[str, float]) -> None:
        say(f"trained to step {step}: {_summary(written)}")
        if self._cadence.keep_best:
            say(f"best checkpoint: step {self._checkpointer.best_step()}")

    def _batches(self, step: int) -> Iterator[Batch]:
        """Returns the batches from `step` on; prints how many examples each epoch leaves out."""
        run = self._run
        examples = run.data.split(run.splits[0])
        if left := len(examples) % run.batch_size:
            which = "always of the longest" if run.drop_longest else "different ones every time"
            say(f"{examples.name}: each epoch leaves out {left} of {len(examples)} examples, {which}")
        return train_batches(
            examples,
            **run.order,
            start_step=step,
            num_steps=run.num_steps - step,
            share=sharding.row_share(self._mesh),
        )

    def _evaluated(self, state: TrainState) -> dict[str, float] | None:
        """Returns the metrics of the validation split, or None if the job was told to stop during the evaluation."""
        with self._activity.doing(EVALUATE):
            return self._evaluator(state.params, self._preemption.after_step)

    def _make_up_for_evaluation(self, state: TrainState, step: int) -> dict[str, float]:
        """Evaluates a restored state if no evaluation of its step is recorded; returns the new metrics.

        It may be missing because the job was stopped before it, or because the run had another `Cadence` then.
        """
        measured: dict[str, float] | None = {}
        known, loss = _recorded_loss(self._run, step)
        if not known:
            measured = self._evaluated(state)
            if measured is None:
                raise Preempted(f"{self._run.run_dir}: told to stop; still at step {step} of {self._run.num_steps}")
            loss = measured[self._loss]
        if self._cadence.keep_best:
            self._checkpointer.add_loss(loss)
        if measured:
            self._writer.write(step, measured)
        return measured

    def _save(self, state: TrainState, loss: float | None) -> None:
        """Saves a state; raises NonFiniteError if it is not finite."""
        with self._activity.doing(SAVE):
            check_state(state)
            # What TensorBoard shows up to here would not be written again after a kill.
            self._writer.flush()
            self._checkpointer.save(state, finite_or_none(loss))

    def _stop(self, state: TrainState, step: int, written: dict[str, float]) -> NoReturn:
        """Writes the metrics, saves the state, and raises Preempted."""
        self._writer.write(step, written)
        self._save(state, None)
        raise Preempted(f"{self._run.run_dir}: told to stop; saved at step {step} of {self._run.num_steps}")

    def _explained(self, error: NonFiniteError) -> PadirError:
        """Returns the error for the user, which names the batch and the last good checkpoint."""
        run = self._run
        split = run.data.split(run.splits[0])
        rows = rows_of_step(split, **run.order, step=error.step - 1)
        last = self._checkpointer.latest_step()
        return explained(error, run_dir=run.run_dir, examples=rows, split=split.name, last_good=last)


def _loss_name(run: Run) -> str:
    """Returns the name of the validation loss in metrics.jsonl."""
    return f"{run.splits[1]}/loss"


def _recorded_loss(run: Run, step: int) -> tuple[bool, float]:
    """Returns whether a step was evaluated and, in the first process, its loss.

    Every process must call it.
    """
    loss = None

    @first_process
    def read_the_record() -> None:
        nonlocal loss
        loss = recorded(as_path(run.run_dir) / METRICS_FOLDER, _loss_name(run), step)

    read_the_record()
    return first_decides(loss is not None), math.nan if loss is None else loss


def lacks_evaluation(run: Run, cadence: Cadence) -> bool:
    """Whether the last step of a finished run has not been evaluated yet. Every process must call it."""
    return cadence.evaluate > 0 and not _recorded_loss(run, run.num_steps)[0]


def devices_of(model: Model, mesh: Mesh, peak_teraflops: float | None) -> Devices:
    """Returns the devices of the mesh and their peak performance.

    Args:
      model: the model, for its number of floating-point operations.
      mesh: the devices.
      peak_teraflops: the peak of one device in 10^12 floating-point operations per second. None takes it from
        `runtime.device_peaks`.
    """
    known = peak_flops(mesh.devices.flat[0].device_kind)
    return Devices(mesh.size, known if peak_teraflops is None else 1e12 * peak_teraflops, model.training_flops)


def _summary(written: dict[str, float]) -> str:
    """Returns the losses of the last interval and of the last evaluation as text."""
    return ", ".join(f"{name} {value:.3f}" for name, value in written.items() if name.endswith("/loss"))


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
