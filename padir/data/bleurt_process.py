"""Runs BLEURT-20 in a child process, so that the calling process does not import TensorFlow."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence

from padir.data.bleurt_inputs import BleurtCheckpoint
from padir.errors import PadirError, how_to_install
from padir.runtime.child_process import call_in_process, serve


def check_bleurt(checkpoint: str | os.PathLike) -> BleurtCheckpoint:
    """Checks that BLEURT can run, and returns the description of the checkpoint.

    Raises:
      PadirError: a file of the checkpoint is missing or damaged, or TensorFlow is not installed.
    """
    opened = BleurtCheckpoint.open(checkpoint)
    if importlib.util.find_spec("tensorflow") is None:
        raise _needs("tensorflow")
    return opened


def bleurt_scores(
    checkpoint: str | os.PathLike, references: Sequence[str], candidates: Sequence[str], *, batch_size: int = 16
) -> list[float]:
    """Scores each candidate with BLEURT, on the CPU; arguments and result are those of `padir.data.bleurt.score`.

    Raises:
      PadirError: the folder contains no such model, the numbers of texts differ, or the `data` extra, which contains
        TensorFlow, is not installed.
    """
    if len(references) != len(candidates):
        raise PadirError(f"BLEURT: {len(candidates)} hypotheses but {len(references)} references: give one for each")
    request = {
        "checkpoint": str(checkpoint),
        "references": list(references),
        "candidates": list(candidates),
        "batch_size": batch_size,
    }
    return call_in_process(__name__, request, doing=f"scoring with {checkpoint}", subject=str(checkpoint))


def _call(**request) -> list[float]:
    try:
        from padir.data import bleurt
    except ModuleNotFoundError as error:
        raise _needs(error.name) from error
    return bleurt.score(**request)


def _needs(module: str) -> PadirError:
    return PadirError(f"BLEURT needs {module}, which is not installed: {how_to_install('data')}")


if __name__ == "__main__":
    sys.exit(serve(_call))
