"""Intervals of training: what the loop waits for, how fast it is, and the means of its metrics."""

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

# What the loop may be doing.
START, HOST, DATA, COMPUTE = "start", "host", "data", "compute"
COMPILE, EVALUATE, SAVE = "compile", "evaluate", "save"

# So many updates in a row that were skipped end training.
MOST_SKIPPED = 100


class NonFiniteError(PadirError):
    """Training has come to a number that is not finite.

    Attributes:
      step: the update that did, counted from 1.
      skipped: whether it was left out, as all of the last `MOST_SKIPPED`.
    """

    def __init__(self, step: int, what: str, *, skipped: bool = False):
        super().__init__(f"step {step}: {what}")
        self.step, self.skipped = step, skipped


class Activity:
    """What the training loop is doing at the moment, and for how long it has done what.

    Attributes:
      name: one of the constants above; `HOST` where it is nothing else.
      since: when that began, by `clock`.
      step: updates done.
      seconds: by name, summed up since they were last cleared.
    """

    def __init__(self, step: int = 0, clock: Callable[[], float] = time.perf_counter):
        self.step, self.clock = step, clock
        self.name, self.since = HOST, clock()
        self.seconds: Counter[str] = Counter()

    @contextlib.contextmanager
    def doing(self, name: str) -> Iterator[None]:
        """Notes that what is done inside is `name`."""
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
        """The same items; waiting for each is `DATA`."""
        iterator = iter(batches)
        while True:
            with self.doing(DATA):
                item = next(iterator, None)
            if item is None:
                return
            yield item


class CompiledSteps:
    """The train step, compiled once per batch shape, with the time that takes kept apart as `COMPILE`."""

    def __init__(self, step_fn, activity: Activity):
        self._step_fn, self._activity = step_fn, activity
        self._compiled = {}

    def __call__(self, state: TrainState, features: Batch) -> tuple[TrainState, Metrics]:
        """(state, features) → (state, metrics), as `make_train_step` says."""
        shape = tuple(features[name].shape for name in MODEL_FEATURES)
        if shape not in self._compiled:
            with self._activity.doing(COMPILE):
                self._compiled[shape] = self._step_fn.lower(state, features).compile()
        return self._compiled[shape](state, features)


@dataclass(frozen=True)
class Devices:
    """What the operations of an interval are held against.

    Attributes:
      count: devices of the mesh.
      peak_flops: operations a second of one of them; None if nobody knows: there is no utilisation then.
      training_flops: (rows, source tokens, target tokens) → operations of an update.
    """

    count: int
    peak_flops: float | None
    training_flops: Callable[[int, int, int], int]


class MetricWindow:
    """Averages the metrics of an interval of training, and times it.

    Evaluation and saving are outside an interval, and compilation is taken off it.
    """

    def __init__(self, activity: Activity, devices: Devices):
        self._activity, self._devices = activity, devices
        self._skipped_in_a_row = 0
        self.start()

    def start(self) -> None:
        """Begins an interval."""
        self._metrics: list[Metrics] = []
        self._flops = 0
        self._begin = self._activity.clock()
        self._activity.seconds.clear()

    def add(self, metrics: Metrics, features: Batch) -> None:
        """Counts one update on features [B, L]; its metrics stay on device.

        Waits until the update before is done. So one update runs while the next is made ready, which keeps the devices
        busy; and batches that are ahead of them cannot pile up.
        """
        if self._metrics:
            with self._activity.doing(COMPUTE):
                jax.block_until_ready(self._metrics[-1])
        self._metrics.append(metrics)
        (rows, source), (_, target) = (features[name].shape for name in MODEL_FEATURES)
        self._flops += self._devices.training_flops(rows, source, target)
        self._activity.step += 1

    def finish(self) -> dict[str, float]:
        """Ends an interval.

        Returns:
          Named `train/<metric>`: means of the step's metrics, of updates that were not skipped; `tokens_per_second`
          (not pad, source and target), also `_per_device`; seconds of an update, all in all `step_seconds`, and of
          these `data_seconds` waiting for batches, `compute_seconds` waiting for the devices, `host_seconds` neither;
          `compile_seconds` in all; `mfu`, operations of the model (padding included) a second over the devices' peak,
          if that is known; `host_memory_mb` of this process now; `skipped` updates in all, where they may be. Where
          all were, there is no mean.

        Raises:
          NonFiniteError: a loss or a gradient is not finite, and its update was not skipped; or `MOST_SKIPPED` in a
            row were, of this interval and those before.
        """
        activity = self._activity
        with activity.doing(COMPUTE):
            rows = jax.device_get(self._metrics)
        seconds = activity.clock() - self._begin - activity.seconds[COMPILE]
        first = activity.step - len(rows) + 1
        used = self._used(rows, first)
        names = [name for name in rows[0] if used and name != "tokens"]
        result = {f"train/{name}": float(np.mean([row[name] for row in used])) for name in names}
        if "skipped" in rows[0]:
            result["train/skipped"] = float(sum(row["skipped"] for row in rows))
        tokens = float(sum(int(row["tokens"]) for row in rows))
        waits = {"data": activity.seconds[DATA], "compute": activity.seconds[COMPUTE]}
        result |= {
            "train/tokens_per_second": tokens / seconds,
            "train/tokens_per_second_per_device": tokens / seconds / self._devices.count,
            "train/step_seconds": seconds / len(rows),
            **{f"train/{name}_seconds": spent / len(rows) for name, spent in waits.items()},
            "train/host_seconds": (seconds - sum(waits.values())) / len(rows),
            "train/compile_seconds": activity.seconds[COMPILE],
            "train/host_memory_mb": allocated_bytes() / 1e6,
        }
        if self._devices.peak_flops is not None:
            result["train/mfu"] = self._flops / seconds / (self._devices.count * self._devices.peak_flops)
        return result

    def _used(self, rows: list[dict], first: int) -> list[dict]:
        """The metrics of those updates, numbered from `first`, that were not skipped; raises as `finish` says."""
        used = []
        for step, row in enumerate(rows, start=first):
            if row.get("skipped", 0.0):
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
            used.append(row)
        return used
