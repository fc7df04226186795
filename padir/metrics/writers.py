"""Writes the metrics of a training run as TensorBoard event files and as JSON lines.

TensorBoard files are written with tensorboardX, which does not import TensorFlow. `metrics.jsonl` is the authoritative
record. Its steps increase, and it holds each value once, however often the job was killed and resumed. Normally a step
has one line. It has a second one if a job was told to stop at that step before it evaluated the model: the resumed job
then adds the evaluation.

    {"step": 100, "loss": 3.25, "learning_rate": 0.001}
    {"step": 200, "loss": null, "learning_rate": 0.001, "non_finite": {"loss": "nan"}}

In a bucket each step's line is an object of its own, until they are merged (`padir.files.segments`), and TensorBoard
files are sent whole whenever they are flushed.

JSON has no NaN or infinity. Such a value is written as null, and `non_finite` holds the original.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboardX import SummaryWriter

from padir.errors import PadirError
from padir.files.atomic import make_folder
from padir.files.mirror import MirroredFolder
from padir.files.paths import as_path
from padir.files.segments import AppendedText, appended_exists, read_appended, replace_appended

FILE_NAME = "metrics.jsonl"
# How often TensorBoard files are sent to a bucket.
_SEND_SECONDS = 60.0
_RESERVED = ("step", "non_finite")


class MetricWriter:
    """Writes scalars by step into `log_dir`, for TensorBoard and as JSON lines.

    Use it as a context manager or call `close`. In a multi-host job, only one process writes. Pass active=False on
    all others: the writer then accepts every call and touches no file.
    """

    def __init__(self, log_dir: str | os.PathLike[str], *, active: bool = True, resume_step: int | None = None):
        """Opens the files, and creates the folder if it does not exist.

        Args:
          log_dir: the folder for event files and `metrics.jsonl`.
          active: whether this process writes; pass `jax.process_index() == 0`.
          resume_step: the step of the checkpoint that the run resumes from. Lines of later steps are deleted, and
            TensorBoard is told to hide them, because the run will write them again. None for a run that starts from
            scratch: all lines of an earlier attempt are deleted.

        Raises:
          PadirError: a line of `metrics.jsonl` is not valid. A last line that was cut off by a kill is ignored.
        """
        self._last_step: int | None = None
        self._names_before: set[str] = set()
        self._lines: AppendedText | None = None
        self._board: SummaryWriter | None = None
        if not active:
            return
        folder = as_path(log_dir)
        make_folder(folder)
        path = folder / FILE_NAME
        last = _drop_later_lines(path, resume_step)
        if last is not None:
            self._last_step, self._names_before = last["step"], set(last)
        self._lines = AppendedText(path)
        self._events, self._flushed = MirroredFolder(folder), time.monotonic()
        self._board = SummaryWriter(
            str(self._events.local),
            purge_step=0 if resume_step is None else resume_step + 1,
            # tensorboardX names its files by the second: a restart within the same second would overwrite the file.
            filename_suffix=f".{time.time_ns()}",
        )

    @property
    def last_step(self) -> int | None:
        """The last step in `metrics.jsonl`; None if it has no line, or if this process does not write."""
        return self._last_step

    def write(self, step: int, scalars: Mapping[str, Any]) -> None:
        """Writes the values of one step. The JSON line is handed to the operating system before this returns.

        Args:
          step: the step that the values belong to. It must be higher than the last one written, or equal to the last
            step of an earlier session that wrote none of these values.
          scalars: Python, NumPy or JAX scalars (size 1) by name. Write all values of a step in one call.

        Raises:
          ValueError: the step, or one of its values, was written before; a name is reserved; or the writer is closed.
        """
        if self._lines is None or self._board is None:
            return
        if self._lines.closed:
            raise ValueError("the metric writer is closed")
        step = int(step)
        late = step == self._last_step and self._names_before and not self._names_before & set(scalars)
        if self._last_step is not None and step <= self._last_step and not late:
            raise ValueError(
                f"metrics of step {step} come after those of step {self._last_step}; write each step once, in order"
            )
        line: dict[str, Any] = {"step": step}
        non_finite: dict[str, str] = {}
        for name, value in scalars.items():
            if name in _RESERVED:
                raise ValueError(f"a metric cannot be called {name!r}, which is a reserved name; choose another name")
            number = value.item() if hasattr(value, "item") else value
            if not math.isfinite(number):
                non_finite[name] = str(float(number))
            line[name] = number if math.isfinite(number) else None
        if non_finite:
            line["non_finite"] = non_finite
        self._lines.write(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n")
        for name in scalars:
            number = float(non_finite[name]) if name in non_finite else line[name]
            self._board.add_scalar(name, number, step)
        if self._events.mirrored and time.monotonic() - self._flushed > _SEND_SECONDS:
            self._flushed = time.monotonic()
            self.flush()
        self._last_step, self._names_before = step, set()

    def flush(self) -> None:
        """Hands buffered TensorBoard events to the operating system. JSON lines are never buffered."""
        if self._board is not None:
            self._board.flush()
            self._events.send()

    def close(self) -> None:
        """Flushes and closes the files; a second call does nothing."""
        if self._lines is not None and self._board is not None and not self._lines.closed:
            self._lines.close()
            self._board.close()
            self._events.send()
            self._events.close()

    def __enter__(self) -> MetricWriter:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def read_metrics(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Reads a `metrics.jsonl` file.

    A last line that was cut off when the job was killed is ignored.

    Args:
      path: the file.

    Returns:
      One dictionary per line, in the order of the file, in the format that this module describes.

    Raises:
      PadirError: the file is missing, or a line is damaged; the message names the line.
    """
    try:
        lines = read_appended(path).splitlines()
    except FileNotFoundError as error:
        raise PadirError(f"{path}: no such file") from error
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            record["step"] = int(record["step"])
        except (ValueError, KeyError, TypeError) as error:
            if number == len(lines):
                break
            raise PadirError(
                f"{path}, line {number}: not valid JSON with a step; remove the line or the file"
            ) from error
        records.append(record)
    return records


def recorded(log_dir: str | os.PathLike[str], name: str, step: int) -> float | None:
    """Looks up one value in the `metrics.jsonl` of a folder.

    Args:
      log_dir: the folder.
      name: the metric's name.
      step: the step.

    Returns:
      The value; NaN if it was not finite; None if the value or the file does not exist.
    """
    path = as_path(log_dir) / FILE_NAME
    lines = read_metrics(path) if appended_exists(path) else []
    values = [line[name] for line in lines if line["step"] == step and name in line]
    return None if not values else math.nan if values[0] is None else values[0]


def _drop_later_lines(path: Path, resume_step: int | None) -> dict[str, Any] | None:
    """Deletes the lines after `resume_step`, or all lines if it is None. Returns the last line kept, or None."""
    kept = []
    if resume_step is not None and appended_exists(path):
        kept = [record for record in read_metrics(path) if record["step"] <= resume_step]
    text = "".join(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n" for record in kept)
    replace_appended(path, text.encode("utf-8"))
    return kept[-1] if kept else None
