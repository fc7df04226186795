"""Scores with BLEURT-20 in a process of its own (no TensorFlow in the caller's)."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence

from padir.data.bleurt_inputs import BleurtCheckpoint
from padir.errors import PadirError
from padir.runtime.child_process import call_in_process, serve


def check_bleurt(checkpoint: str | os.PathLike) -> BleurtCheckpoint:
    """Opens a checkpoint's description; raises PadirError if its files or TensorFlow are not there."""
    opened = BleurtCheckpoint.open(checkpoint)
    if importlib.util.find_spec("tensorflow") is None:
        raise _needs("tensorflow")
    return opened


def bleurt_scores(
    checkpoint: str | os.PathLike, references: Sequence[str], candidates: Sequence[str], *, batch_size: int = 16
) -> list[float]:
    """BLEURT of each candidate, on the CPU; arguments and errors as for `padir.data.bleurt.score`.

    Raises:
      PadirError: also where the numbers of texts differ, and where the `data` extra, which brings TensorFlow, is not
        installed.
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
    return PadirError(f"BLEURT needs {module}, which is not installed: pip install 'padir[data]'")


if __name__ == "__main__":
    sys.exit(serve(_call))
