"""Timing and metrics of training intervals: mean metrics, throughput, and what the loop spends its time on."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import jax
import numpy as np

from padir.errors import PadirError
from padir.models.base import Batch, Metrics
from padir.runs.train_state import TrainState
from padir.runtime.host_memory import allocated_bytes
from padir.training.step import MODEL_FEATURES

# The activities of the training loop.
START, HOST, DATA, COMPUTE = "start", "host", "data", "compute"
COMPILE, EVALUATE, SAVE = "compile", "evaluate", "save"

# Training stops after this many skipped updates in a row.
MOST_SKIPPED = 100
# Metrics leave the devices after this many updates: an interval of any length needs little memory, and a number that is
# not finite is noticed soon. To fetch those of every update would make the devices wait.
FETCHED_AT_ONCE = 100


class NonFiniteError(PadirError):
    """A loss, gradient or parameter is not finite (infinite or NaN).

    Attributes:
      step: the update in which it occurred, counted from 1.
      skipped: True if non-finite updates are skipped and `MOST_SKIPPED` of them came in a row.
    """

    def __init__(self, step: int, what: str, *, skipped: bool = False):
        """`what` says which number is not finite."""
        super().__init__(f"step {step}: {what}")
        self.step, self.skipped = step, skipped


class Activity:
    """The current activity of the training loop, and the time spent on each activity.

    Attributes:
      name: the current activity, one of this module's constants such as `DATA`; `HOST` if none other applies.
      since: the time at which it began, in seconds of `clock`.
      step: the number of updates done.
      seconds: the seconds spent on each activity, summed up since the counter was last cleared.
    """

    def __init__(self, step: int = 0, clock: Callable[[], float] = time.perf_counter):
        """`clock` returns the time in seconds."""
        self.step, self.clock = step, clock
        self.name, self.since = HOST, clock()
        self.seconds: Counter[str] = Counter()

    @contextlib.contextmanager
    def doing(self, name: str) -> Iterator[None]:
        """Context manager: what happens inside counts as the activity `name`."""
        before = self.name
        self._turn_to(name)
        try:
            yield
        finally:
            self._turn_to(before)

    def _turn_to(self, name: str) -> None:
        now = self.clock()
        self.seconds[self.name] += now - self.since
        self.name, self.since = name, now

    def each(self, batches: Iterable) -> Iterator:
        """Yields the same items; the time spent waiting for them counts as `DATA`."""
        iterator = iter(batches)
        while True:
            with self.doing(DATA):
                item = next(iterator, None)
            if item is None:
                return
            yield item


class CompiledSteps:
    """The train step, compiled once per batch shape. The time of compilation counts as `COMPILE`."""

    def __init__(self, step_fn, activity: Activity):
        """`step_fn` is a result of `make_train_step`."""
        self._step_fn, self._activity = step_fn, activity
        self._compiled = {}

    def __call__(self, state: TrainState, features: Batch) -> tuple[TrainState, Metrics]:
        """Does one update: (state, features) → (state, metrics); see `make_train_step`."""
        shape = tuple(features[name].shape for name in MODEL_FEATURES)
        if shape not in self._compiled:
            with self._activity.doing(COMPILE):
                self._compiled[shape] = self._step_fn.lower(state, features).compile()
        return self._compiled[shape](state, features)


@dataclass(frozen=True)
class Devices:
    """The devices of a run and their peak performance, by which utilisation is computed.

    Attributes:
      count: the number of devices of the mesh.
      peak_flops: the floating-point operations per second of one device; None if unknown, then no utilisation is
        reported.
      training_flops: (rows, source length, target length) → floating-point operations of one update.
    """

    count: int
    peak_flops: float | None
    training_flops: Callable[[int, int, int], int]


class MetricWindow:
    """Averages the metrics of an interval of training, and measures its time.

    Evaluation and saving happen between intervals. The time of compilation is subtracted from an interval.
    """

    def __init__(self, activity: Activity, devices: Devices):
        """Begins the first interval."""
        self._activity, self._devices = activity, devices
        self._skipped_in_a_row = 0
        self.start()

    def start(self) -> None:
        """Begins an interval."""
        self._on_device: list[Metrics] = []
        self._sums: Counter[str] = Counter()
        self._updates = self._used = self._skipped = self._tokens = self._flops = 0
        self._skips = False
        self._begin = self._activity.clock()
        self._activity.seconds.clear()

    def add(self, metrics: Metrics, features: Batch) -> None:
        """Adds one update to the interval, and waits until the update before it is done.

        While the devices compute an update, the host prepares the next one, which keeps the devices busy. The host is
        never further ahead than that, so batches cannot pile up in memory.

        Args:
          metrics: the metrics of the update, on the device.
          features: its batch, arrays [B, L].

        Raises:
          NonFiniteError: as `finish`, of an earlier update.
        """
        if len(self._on_device) >= FETCHED_AT_ONCE:
            self._fetch()
        elif self._on_device:
            with self._activity.doing(COMPUTE):
                jax.block_until_ready(self._on_device[-1])
        self._on_device.append(metrics)
        self._updates += 1
        (rows, source), (_, target) = (features[name].shape for name in MODEL_FEATURES)
        self._flops += self._devices.training_flops(rows, source, target)
        self._activity.step += 1

    def finish(self) -> dict[str, float]:
        """Ends an interval and returns its metrics, each named `train/<metric>`.

        Returns:
          - the metrics of the step, averaged over the updates that were not skipped; absent if all were skipped;
          - `tokens_per_second`, source and target tokens without padding, and `tokens_per_second_per_device`;
          - `step_seconds`, the mean time of an update, and its parts: `data_seconds` waiting for batches,
            `compute_seconds` waiting for the devices, and `host_seconds` for the rest;
          - `compile_seconds`, the total time of compilation;
          - `mfu`, the model's floating-point operations per second (padding included) divided by the peak of the
            devices; absent if that is unknown;
          - `host_memory_mb`, the memory that this process has allocated now, in 10^6 bytes;
          - `skipped`, the number of skipped updates, if `Guards.skip_non_finite` is set.

        Raises:
          NonFiniteError: a loss or gradient is not finite and its update was not skipped, or `MOST_SKIPPED` updates
            in a row were skipped, counting those of earlier intervals.
        """
        self._fetch()
        activity, updates = self._activity, self._updates
        seconds = activity.clock() - self._begin - activity.seconds[COMPILE]
        result = {f"train/{name}": total / self._used for name, total in self._sums.items()}
        if self._skips:
            result["train/skipped"] = float(self._skipped)
        waits = {"data": activity.seconds[DATA], "compute": activity.seconds[COMPUTE]}
        result |= {
            "train/tokens_per_second": self._tokens / seconds,
            "train/tokens_per_second_per_device": self._tokens / seconds / self._devices.count,
            "train/step_seconds": seconds / updates,
            **{f"train/{name}_seconds": spent / updates for name, spent in waits.items()},
            "train/host_seconds": (seconds - sum(waits.values())) / updates,
            "train/compile_seconds": activity.seconds[COMPILE],
            "train/host_memory_mb": allocated_bytes() / 1e6,
        }
        if self._devices.peak_flops is not None:
            result["train/mfu"] = self._flops / seconds / (self._devices.count * self._devices.peak_flops)
        return result

    def _fetch(self) -> None:
        """Adds up the metrics that are on the device; raises NonFiniteError as `finish` does."""
        with self._activity.doing(COMPUTE):
            rows = jax.device_get(self._on_device)
        self._on_device = []
        for step, row in enumerate(rows, start=self._activity.step - len(rows) + 1):
            self._tokens += int(row.pop("tokens"))
            self._skips = "skipped" in row
            if row.get("skipped", 0.0):
                self._skipped += 1
                self._skipped_in_a_row += 1
                if self._skipped_in_a_row == MOST_SKIPPED:
                    since = step - MOST_SKIPPED + 1
                    raise NonFiniteError(
                        step, f"no update since step {since} had a finite loss and gradient", skipped=True
                    )
                continue
            self._skipped_in_a_row = 0
            if not np.isfinite(row["loss"] + row["gradient_norm"]):
                what = f"the training loss is {row['loss']}, the gradient norm {row['gradient_norm']}"
                raise NonFiniteError(step, what)
            self._used += 1
            self._sums.update({name: float(value) for name, value in row.items()})
