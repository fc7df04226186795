"""Runs `padir.data.prepare` in a child process, so that the calling process does not import TensorFlow.

TensorFlow would otherwise take memory, and on some machines the accelerator, from the process that trains.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from typing import Any

from padir.data.manifest import Manifest, PrepareSettings, TaskConfig
from padir.data.vocabulary import Vocabulary
from padir.errors import PadirError, how_to_install
from padir.runtime.child_process import call_in_process, serve


def prepare_in_process(
    task: TaskConfig, output_dir: str | os.PathLike, settings: PrepareSettings | None = None
) -> Manifest:
    """Prepares a task in a child process, as `padir.data.prepare.prepare` does in this one.

    Prints the size of each split and how many pairs were left out or truncated.

    Args:
      task: the text, and how long its sources and targets may be.
      output_dir: the folder of the prepared set; created if it does not exist.
      settings: how to prepare it; `PrepareSettings()` if None.

    Returns:
      The manifest of the prepared set.

    Raises:
      PadirError: as for `padir.data.prepare.prepare`, or the `data` extra is not installed.
    """
    _run("prepare", task, output_dir, settings)
    manifest = Manifest.load(output_dir)
    print(manifest.summary(), file=sys.stderr)
    return manifest


def train_vocabulary_in_process(
    task: TaskConfig, output: str | os.PathLike, settings: PrepareSettings | None = None
) -> Vocabulary:
    """Trains a vocabulary in a child process, as `padir.data.prepare.train_vocabulary` does in this one.

    Args:
      task: the text to train on.
      output: the SentencePiece file to write.
      settings: the size of the vocabulary and the seed; `PrepareSettings()` if None.

    Returns:
      The vocabulary.

    Raises:
      PadirError: as for `padir.data.prepare.train_vocabulary`, or the `data` extra is not installed.
    """
    _run("train_vocabulary", task, output, settings)
    return Vocabulary.load(output)


def _run(function: str, task: TaskConfig, output: str | os.PathLike, settings: PrepareSettings | None) -> None:
    """Calls a function of `padir.data.prepare` in a child process and raises its error in this one."""
    request = {
        "function": function,
        "task": {**dataclasses.asdict(task), "options": dict(task.options)},
        "output": str(output),
        "settings": dataclasses.asdict(settings or PrepareSettings()),
    }
    call_in_process(__name__, request, doing=f"preparing {output}", subject=str(output))


def _call(function: str, task: dict[str, Any], output: str, settings: dict[str, Any]) -> None:
    try:
        from padir.data import prepare
    except ModuleNotFoundError as error:
        raise PadirError(
            f"preparing data needs {error.name}, which is not installed: {how_to_install('data')}"
        ) from error
    getattr(prepare, function)(TaskConfig(**task), output, PrepareSettings(**settings))


if __name__ == "__main__":
    sys.exit(serve(_call))
