"""`padir checkpoint`: what a checkpoint holds, in numbers that can be compared."""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any

import jax
import numpy as np

from padir.models.description import model_to_dict
from padir.models.kinds import Model
from padir.runs.convert import open_model
from padir.runtime import sharding
from padir.types import PyTree


def describe_checkpoint(*, path: str, step: int | None = None) -> dict[str, Any]:
    """Prints what a checkpoint holds, as JSON.

    Args:
      path: run directory, folder of Hugging Face or T5X checkpoint.
      step: which checkpoint of a run directory; the newest by default.

    Returns:
      What was printed: 'step', 'model' (its kind), 'parameters' (how many), 'config_sha256' (of the model's
      configuration) and 'params_sha256'.

    Raises:
      PadirError: `path` cannot be opened.
    """
    opened = open_model(path, sharding.make_mesh(), step=step)
    found = {
        "path": os.fspath(path),
        "step": opened.step,
        "model": type(opened.model).__name__,
        "parameters": opened.model.parameter_count(),
        **hashes(opened.model, opened.params),
    }
    print(json.dumps(found, indent=2))
    return found


def hashes(model: Model, params: PyTree) -> dict[str, str]:
    """What tells one model from another: 'config_sha256' and 'params_sha256'."""
    described = json.dumps(model_to_dict(model), sort_keys=True)
    return {
        "config_sha256": hashlib.sha256(described.encode()).hexdigest(),
        "params_sha256": params_sha256(params),
    }


def params_sha256(params: PyTree) -> str:
    """A hash of names, shapes, types and every bit of the parameters, on whatever devices they lie."""
    digest = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        array = np.asarray(jax.device_get(leaf))
        digest.update(f"{jax.tree_util.keystr(path)} {array.dtype} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
