"""What a run leaves behind so that it can be opened without its gin files (layer 7).

<run_dir>/model.json          kind, sizes, ids, vocabulary hash
<run_dir>/vocabulary.model    the SentencePiece model it was trained with
<run_dir>/checkpoints/<step>  parameters and progress
<run_dir>/metrics/            metrics.jsonl and TensorBoard events
<run_dir>/<command>.gin       operative configuration of each command that wrote here
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from pathlib import Path
from typing import Any

from padir.corruption import CorruptionConfig
from padir.data.vocabulary import Vocabulary
from padir.errors import PadirError
from padir.models import MODELS, LossConfig, Model
from padir.network import NetworkConfig
from padir.types import TokenIds

MODEL_FILE = "model.json"
VOCABULARY_FILE = "vocabulary.model"
METRICS_FOLDER = "metrics"

_PARTS = {"ids": TokenIds, "network": NetworkConfig, "loss": LossConfig, "corruption": CorruptionConfig}


def write_text(path: str | os.PathLike, text: str) -> None:
    """Writes a text file whole or not at all, in UTF-8."""
    temporary = Path(f"{path}.tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def model_to_dict(model: Model) -> dict[str, Any]:
    """A model's configuration as plain JSON values."""
    kind = next(name for name, cls in MODELS.items() if isinstance(model, cls))
    return {"kind": kind, **dataclasses.asdict(model)}


def model_from_dict(stored: dict[str, Any]) -> Model:
    """The model that `model_to_dict` described."""
    fields = dict(stored)
    cls = MODELS[fields.pop("kind")]
    return cls(**{name: _PARTS[name](**value) if name in _PARTS else value for name, value in fields.items()})


def save_model(run_dir: str | os.PathLike, model: Model, vocabulary: Vocabulary) -> None:
    """Writes model.json and the vocabulary; an existing run must be of the same model and vocabulary.

    Raises:
      PadirError: the directory holds a run of another model or vocabulary; names the first difference.
    """
    directory = Path(run_dir)
    description = {"model": model_to_dict(model), "vocabulary_hash": vocabulary.hash}
    if (directory / MODEL_FILE).exists():
        stored = json.loads((directory / MODEL_FILE).read_text(encoding="utf-8"))
        difference = _first_difference(stored, json.loads(json.dumps(description)))
        if difference:
            raise PadirError(
                f"{directory}: holds a run with another configuration ({difference}); "
                "choose another run_dir, or delete this one"
            )
        return
    directory.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(vocabulary.path, directory / VOCABULARY_FILE)
    write_text(directory / MODEL_FILE, json.dumps(description, indent=2) + "\n")


def load_model(run_dir: str | os.PathLike) -> tuple[Model, Vocabulary]:
    """Reads what `save_model` wrote.

    Raises:
      PadirError: not a run directory, or its vocabulary is not the one the model was trained with.
    """
    directory = Path(run_dir)
    path = directory / MODEL_FILE
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        model, vocabulary_hash = model_from_dict(stored["model"]), stored["vocabulary_hash"]
    except FileNotFoundError:
        raise PadirError(f"{path}: no such file; is this a run directory of `padir train`?") from None
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise PadirError(f"{path}: damaged, or written by another version of padir ({error!r})") from error
    vocabulary = Vocabulary.load(directory / VOCABULARY_FILE)
    check_vocabulary(vocabulary, vocabulary_hash, directory)
    return model, vocabulary


def check_vocabulary(vocabulary: Vocabulary, expected_hash: str, run_dir: str | os.PathLike) -> None:
    """Raises PadirError if `vocabulary` is not the one that the run in `run_dir` was trained with."""
    if vocabulary.hash != expected_hash:
        raise PadirError(
            f"{vocabulary.path}: vocabulary hash {vocabulary.hash[:12]} differs from {expected_hash[:12]}, which the "
            f"model in {run_dir} was trained with; use the data set or vocabulary file of that run"
        )


def _first_difference(stored: Any, given: Any, path: str = "") -> str:
    """Where two JSON values differ first, as 'path: stored -> given'; '' if nowhere."""
    if isinstance(stored, dict) and isinstance(given, dict):
        for key in sorted(stored.keys() | given.keys()):
            difference = _first_difference(stored.get(key), given.get(key), f"{path}.{key}" if path else key)
            if difference:
                return difference
        return ""
    return "" if stored == given else f"{path}: {stored!r} there, {given!r} now"
