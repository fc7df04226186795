"""What training does where something goes wrong: numbers that are not finite, a loop that stands still."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from padir.errors import PadirError
from padir.files.atomic import write_text
from padir.runs.train_state import TrainState
from padir.runtime.distributed import first_decides, is_first
from padir.training.intervals import COMPILE, COMPUTE, DATA, EVALUATE, HOST, SAVE, START, Activity, NonFiniteError

# How many examples a message names; the file beside the run names them all.
_EXAMPLES_NAMED = 8
# How the watchdog says what the loop does.
_DOING = {
    START: "is starting: it waits for the storage of the run directory, or for another process of the job",
    DATA: "waits for the next batch: reading the prepared set has stalled; is its storage reachable?",
    COMPUTE: "waits for the devices: one of them, or another process of the job, has stalled",
    COMPILE: "waits for XLA to compile",
    EVALUATE: "evaluates",
    SAVE: "waits for a checkpoint to be written; is the storage of the run directory reachable?",
    HOST: "is in Python, between two updates",
}


@dataclass(frozen=True)
class Guards:
    """What is done where something goes wrong.

    Attributes:
      skip_non_finite: leave parameters and optimizer as they are where the loss or the gradient of an update is not
        finite, and count it in the metric `skipped`; without it, and where a hundred in a row were, training stops.
      stall_seconds: say so on standard error, in every process that it befalls, when the loop has done one thing
        (waited for a batch, for the devices, for a checkpoint, …) for so long, and again each time that has doubled.
    """

    skip_non_finite: bool = False
    stall_seconds: float = 600.0

    def __post_init__(self):
        if not self.stall_seconds > 0.0:
            raise PadirError(f"Guards.stall_seconds: {self.stall_seconds} is not above 0")


class Watchdog:
    """Reports a loop that stands still; a context manager around it, with a thread of its own."""

    def __init__(self, activity: Activity, stall_seconds: float):
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
    """Says when so many minutes have gone by without a checkpoint, to all processes of a job alike."""

    def __init__(self, minutes: float, clock: Callable[[], float] = time.monotonic):
        """`minutes` 0 is never."""
        self._seconds, self._clock = 60.0 * minutes, clock
        self.restart()

    def restart(self) -> None:
        """A checkpoint was saved."""
        self._began = self._clock()

    def due(self) -> bool:
        """Whether it is time; every process must ask, after the same step: the first one's clock decides."""
        if not self._seconds:
            return False
        return first_decides(self._clock() - self._began >= self._seconds)


@jax.jit
def _all_finite(leaves: list[jax.Array]) -> jax.Array:
    return jnp.all(jnp.stack([jnp.isfinite(leaf).all() for leaf in leaves]))


def check_state(state: TrainState) -> None:
    """Raises NonFiniteError unless all of a state's numbers are finite: only such states are worth saving."""
    floating = [leaf for leaf in jax.tree.leaves(state) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    if not _all_finite(floating):
        raise NonFiniteError(int(state.step), "its update has made parameters that are not finite")


def explained(
    error: NonFiniteError, *, run_dir: str, examples: np.ndarray, split: str, last_good: int | None
) -> PadirError:
    """What the user is told of a NonFiniteError; which examples there were is written beside the run.

    Args:
      error: what happened.
      run_dir: the run directory.
      examples: [B] int, rows of the split in the whole batch of that step.
      split: their split.
      last_good: step of the newest checkpoint; None if there is none.
    """
    path = Path(run_dir) / f"non_finite_step_{error.step}.json"
    ids = [int(example) for example in examples]
    if is_first():
        described = {"error": str(error), "split": split, "examples": ids, "last_good_checkpoint": last_good}
        write_text(path, json.dumps(described) + "\n")
    more = f", … ({len(ids)} in {path})" if len(ids) > _EXAMPLES_NAMED else ""
    saved = "no checkpoint was saved yet" if last_good is None else f"the last good checkpoint is of step {last_good}"
    skip = "" if error.skipped else ", or set Guards.skip_non_finite = True"
    return PadirError(
        f"{run_dir}: {error}; its batch was examples {', '.join(map(str, ids[:_EXAMPLES_NAMED]))}{more} of split "
        f"{split}; {saved}. Lower OptimizerConfig.peak_learning_rate, lengthen its warm-up{skip}; then train again: "
        "it resumes at the last checkpoint"
    )
