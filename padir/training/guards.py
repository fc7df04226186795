"""Guards of the training loop against non-finite numbers and stalls, and the clock for timed checkpoints."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from padir.errors import PadirError
from padir.files.atomic import write_text
from padir.files.paths import as_path
from padir.runs.train_state import TrainState
from padir.runtime.distributed import first_decides, is_first
from padir.training.intervals import COMPILE, COMPUTE, DATA, EVALUATE, HOST, SAVE, START, Activity, NonFiniteError

# A message lists at most this many examples; the JSON file in the run directory lists all of them.
_EXAMPLES_NAMED = 8
# What the watchdog prints for each activity of the loop, after "training".
_DOING = {
    START: "is starting: it waits for the storage of the run directory, or for another process of the job",
    DATA: "waits for the next batch: reading the prepared set has stalled; is its storage reachable?",
    COMPUTE: "waits for the devices: one of them, or another process of the job, has stalled",
    COMPILE: "waits for XLA to compile",
    EVALUATE: "evaluates",
    SAVE: "waits for a checkpoint to be written; is the storage of the run directory reachable?",
    HOST: "runs Python code between two updates",
}


@dataclass(frozen=True)
class Guards:
    """How training reacts to non-finite numbers and to stalls.

    Attributes:
      skip_non_finite: if the loss or the gradient of an update is not finite, leave parameters and optimizer
        unchanged, count the update in the metric `skipped`, and continue. Training stops after a hundred skipped
        updates in a row. If False, the first non-finite update stops it.
      stall_seconds: if training makes no progress for this many seconds, each stalled process prints to standard
        error what it is waiting for, and again each time the waiting time has doubled.
    """

    skip_non_finite: bool = False
    stall_seconds: float = 600.0

    def __post_init__(self):
        if not self.stall_seconds > 0.0:
            raise PadirError(f"Guards.stall_seconds: {self.stall_seconds} is not above 0")


class Watchdog:
    """Reports a stalled training loop from a thread of its own. Use it as a context manager around the loop."""

    def __init__(self, activity: Activity, stall_seconds: float):
        """Watches `activity`; see `Guards.stall_seconds`."""
        self._activity, self._stall_seconds = activity, stall_seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> Watchdog:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        reported, limit = None, self._stall_seconds
        while not self._stop.wait(min(self._stall_seconds / 4, 10.0)):
            since, name, step = self._activity.since, self._activity.name, self._activity.step
            if since != reported:
                reported, limit = since, self._stall_seconds
            waited = self._activity.clock() - since
            if waited >= limit:
                limit = 2 * waited
                print(
                    f"process {jax.process_index()}: after step {step}, for {waited:.0f} s by now, training "
                    f"{_DOING[name]}",
                    file=sys.stderr,
                    flush=True,
                )


class SaveClock:
    """Tells when a checkpoint is due by time. All processes of a job get the same answer."""

    def __init__(self, minutes: float, clock: Callable[[], float] = time.monotonic):
        """Starts the clock.

        Args:
          minutes: the time between two checkpoints; 0 means that none is ever due.
          clock: returns the time in seconds.
        """
        self._seconds, self._clock = 60.0 * minutes, clock
        self.restart()

    def restart(self) -> None:
        """Starts the clock again. Call it when a checkpoint was saved."""
        self._began = self._clock()

    def due(self) -> bool:
        """Whether a checkpoint is due. The first process decides, so all must call this after the same step."""
        if not self._seconds:
            return False
        return first_decides(self._clock() - self._began >= self._seconds)


@jax.jit
def _all_finite(leaves: list[jax.Array]) -> jax.Array:
    return jnp.all(jnp.stack([jnp.isfinite(leaf).all() for leaf in leaves]))


def check_state(state: TrainState) -> None:
    """Raises NonFiniteError if a floating-point number of the state is not finite, so that it is not saved."""
    floating = [leaf for leaf in jax.tree.leaves(state) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    if not _all_finite(floating):
        raise NonFiniteError(int(state.step), "its update made parameters that are not finite")


def explained(
    error: NonFiniteError, *, run_dir: str, examples: np.ndarray, split: str, last_good: int | None
) -> PadirError:
    """Returns an error that tells the user what to do, and lists the examples of the batch in a file of the run.

    Args:
      error: the error to explain.
      run_dir: the run directory; `non_finite_step_<step>.json` is written there.
      examples: [B] int, the rows of the split that made up the global batch of that step.
      split: the name of the split.
      last_good: the step of the newest checkpoint; None if there is none.
    """
    path = as_path(run_dir) / f"non_finite_step_{error.step}.json"
    ids = [int(example) for example in examples]
    if is_first():
        described = {"error": str(error), "split": split, "examples": ids, "last_good_checkpoint": last_good}
        write_text(path, json.dumps(described) + "\n")
    more = f", … ({len(ids)} in {path})" if len(ids) > _EXAMPLES_NAMED else ""
    saved = "no checkpoint was saved yet" if last_good is None else f"the last good checkpoint is of step {last_good}"
    skip = "" if error.skipped else ", or set Guards.skip_non_finite = True"
    return PadirError(
        f"{run_dir}: {error}; its batch was examples {', '.join(map(str, ids[:_EXAMPLES_NAMED]))}{more} of split "
        f"{split}; {saved}. Lower OptimizerConfig.peak_learning_rate, lengthen its warm-up{skip}; then run the same "
        "command again: training resumes at the last checkpoint"
    )
