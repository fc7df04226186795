"""`padir checkpoint`: describes a checkpoint by its step, its size and hashes."""

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
    """Prints a description of a checkpoint as JSON.

    Args:
      path: a run directory, Hugging Face folder or T5X checkpoint.
      step: the checkpoint of a run directory to describe; the newest by default.

    Returns:
      The printed object: 'path', 'step', 'model' (the class of the model), 'parameters' (their number),
      'config_sha256' (hash of the model's configuration) and 'params_sha256' (hash of the parameters).

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
    """Returns hashes that identify a model: 'config_sha256' and 'params_sha256', both in hexadecimal."""
    described = json.dumps(model_to_dict(model), sort_keys=True)
    return {
        "config_sha256": hashlib.sha256(described.encode()).hexdigest(),
        "params_sha256": params_sha256(params),
    }


def params_sha256(params: PyTree) -> str:
    """Returns the SHA-256 of the names, shapes, dtypes and bits of the parameters; their sharding does not matter."""
    digest = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        array = np.asarray(jax.device_get(leaf))
        digest.update(f"{jax.tree_util.keystr(path)} {array.dtype} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
