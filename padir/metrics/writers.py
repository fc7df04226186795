"""The record of a run: TensorBoard event files and one JSON line a step.

TensorBoard files go through tensorboardX, which does not import TensorFlow. `metrics.jsonl` is the record of
truth: steps increase, each value stands there once however often the job was killed and resumed. A step that a job
was told to stop at, before its evaluation, has a second line with that.

    {"step": 100, "loss": 3.25, "learning_rate": 0.001}
    {"step": 200, "loss": null, "learning_rate": 0.001, "non_finite": {"loss": "nan"}}

JSON has no NaN or infinity: such a value is null, and `non_finite` says which it was.
"""

from __future__ import annotations

import json
import math
import os
import pathlib
import time
from collections.abc import Mapping
from typing import Any

from tensorboardX import SummaryWriter

from padir.errors import PadirError

FILE_NAME = "metrics.jsonl"
_RESERVED = ("step", "non_finite")


class MetricWriter:
    """Writes scalars by step into `log_dir`, for TensorBoard and as JSON lines.

    Use it as a context manager or call `close`. On every process but one of a multi-host job, make it with
    active=False: it then accepts every call and touches no file.
    """

    def __init__(self, log_dir: str | os.PathLike[str], *, active: bool = True, resume_step: int | None = None):
        """Opens the folder, which is made if need be.

        Args:
          log_dir: where event files and `metrics.jsonl` go.
          active: whether this process writes; pass `jax.process_index() == 0`.
          resume_step: the step of the checkpoint that the run goes on from. Lines of later steps are dropped and
            TensorBoard is told to hide them: the run will write them again. None for a run that starts from
            nothing: whatever an earlier attempt wrote is dropped.

        Raises:
          PadirError: a line of `metrics.jsonl`, other than a last one cut off by a kill, is not one of ours.
        """
        self._last_step: int | None = None
        self._names_before: set[str] = set()
        self._lines = None
        self._board = None
        if not active:
            return
        folder = pathlib.Path(log_dir)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / FILE_NAME
        last = _drop_later_lines(path, resume_step)
        if last is not None:
            self._last_step, self._names_before = last["step"], set(last)
        self._lines = path.open("a", encoding="utf-8")
        self._board = SummaryWriter(
            str(folder),
            purge_step=0 if resume_step is None else resume_step + 1,
            # tensorboardX names its files by the second: a restart within one would overwrite the last file.
            filename_suffix=f".{time.time_ns()}",
        )

    @property
    def last_step(self) -> int | None:
        """The last step in the file; None if there is none, or if this process does not write."""
        return self._last_step

    def write(self, step: int, scalars: Mapping[str, Any]) -> None:
        """Writes one step's values; the JSON line is handed to the operating system before this returns.

        Args:
          step: the step the values belong to; higher than that of the line before, or the one that an earlier
            session ended at, for values that it left out.
          scalars: name to Python, NumPy or JAX scalar (size 1). Everything known about a step goes in one call.

        Raises:
          ValueError: a step, or value of one, for the second time; a name is reserved, or the writer is closed.
        """
        if self._lines is None or self._board is None:
            return
        if self._lines.closed:
            raise ValueError("the metric writer is closed")
        step = int(step)
        late = step == self._last_step and self._names_before and not self._names_before & set(scalars)
        if self._last_step is not None and step <= self._last_step and not late:
            raise ValueError(f"metrics of step {step} after those of step {self._last_step}: write each step once")
        line: dict[str, Any] = {"step": step}
        non_finite: dict[str, str] = {}
        for name, value in scalars.items():
            if name in _RESERVED:
                raise ValueError(f"{name!r} is a name this file uses itself; call the metric something else")
            number = value.item() if hasattr(value, "item") else value
            if not math.isfinite(number):
                non_finite[name] = str(float(number))
            line[name] = number if math.isfinite(number) else None
        if non_finite:
            line["non_finite"] = non_finite
        self._lines.write(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n")
        self._lines.flush()
        for name in scalars:
            number = float(non_finite[name]) if name in non_finite else line[name]
            self._board.add_scalar(name, number, step)
        self._last_step, self._names_before = step, set()

    def flush(self) -> None:
        """Sends what is buffered for TensorBoard on its way to the disk. JSON lines are never buffered."""
        if self._board is not None:
            self._board.flush()

    def close(self) -> None:
        """Writes everything out and closes the files; a second call does nothing."""
        if self._lines is not None and self._board is not None and not self._lines.closed:
            self._lines.close()
            self._board.close()

    def __enter__(self) -> MetricWriter:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def read_metrics(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Reads the lines of a `metrics.jsonl`, in order of their steps.

    A last line that a kill cut off is left out.

    Args:
      path: the file.

    Returns:
      One dictionary a line, as the module describes it.

    Raises:
      PadirError: the file is missing, or a line is damaged; the message names it.
    """
    path = pathlib.Path(path)
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError as error:
        raise PadirError(f"{path}: there is no such file") from error
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            record["step"] = int(record["step"])
        except (ValueError, KeyError, TypeError) as error:
            if number == len(lines):
                break
            raise PadirError(f"{path}, line {number}: not a line of metrics; remove it or the file") from error
        records.append(record)
    return records


def recorded(log_dir: str | os.PathLike[str], name: str, step: int) -> float | None:
    """The value of a step in the folder's `metrics.jsonl`; None where there is none, or not even the file.

    One that was not finite is NaN.
    """
    path = pathlib.Path(log_dir) / FILE_NAME
    lines = read_metrics(path) if path.exists() else []
    values = [line[name] for line in lines if line["step"] == step and name in line]
    return None if not values else math.nan if values[0] is None else values[0]


def _drop_later_lines(path: pathlib.Path, resume_step: int | None) -> dict[str, Any] | None:
    """Rewrites the file without what comes after `resume_step`; returns the last line kept, None if none is."""
    kept = []
    if resume_step is not None and path.exists():
        kept = [record for record in read_metrics(path) if record["step"] <= resume_step]
    partial = path.with_name(path.name + ".tmp")
    text = "".join(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n" for record in kept)
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)
    return kept[-1] if kept else None
