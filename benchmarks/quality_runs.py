"""What the scripts that train and compare models read off the folders of models."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors import safe_open

from padir.interop.huggingface import CONFIG_FILE, WEIGHTS_FILE
from padir.runs.checkpoints import Checkpointer


def has_model(folder: str) -> bool:
    """Whether a folder holds a model: a run directory with a whole checkpoint, or an export.

    Of a run directory without a checkpoint, which an interruption left, the rest is removed.
    """
    if not Path(folder).exists():
        return False
    if Path(folder, CONFIG_FILE).exists():
        return True
    with Checkpointer(folder, read_only=True) as checkpointer:
        if checkpointer.steps():
            return True
    shutil.rmtree(folder)
    return False


def stored_type(folder: str) -> str:
    """The type of a model's matrices in its folder: 'F32' in a run directory, 'F32', 'BF16' or 'I8' in an export."""
    if not Path(folder, CONFIG_FILE).exists():
        return "F32"
    with safe_open(Path(folder, WEIGHTS_FILE), framework="numpy") as file:
        slices = map(file.get_slice, file.keys())
        return next(each.get_dtype() for each in slices if len(each.get_shape()) > 1)


def seconds_of_updates(records: Sequence[dict[str, Any]]) -> float:
    """The time that the updates of a run took, by its metrics: each record has their mean since the one before."""
    total, last = 0.0, 0
    for record in records:
        if "train/step_seconds" in record:
            total += record["train/step_seconds"] * (record["step"] - last)
            last = record["step"]
    return total
