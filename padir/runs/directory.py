"""The files of a run directory, by which a run can be opened without its gin files.

Layout::

    <run_dir>/model.json          kind of model, sizes, token ids, hash of the vocabulary
    <run_dir>/vocabulary.model    the SentencePiece model of the training data
    <run_dir>/train.json          the other settings that decide the parameters: seed, batches, data, optimizer, steps
    <run_dir>/data.json           the task, and whether the data are raw or distilled
    <run_dir>/checkpoints/<step>  parameters and state of the training
    <run_dir>/metrics/            metrics.jsonl and TensorBoard events
    <run_dir>/<command>.gin       operative gin configuration of each command that wrote to this directory
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from padir.data.manifest import Manifest
from padir.data.vocabulary import Vocabulary
from padir.errors import PadirError
from padir.files.atomic import copy_file, make_folder, write_text
from padir.files.paths import as_path
from padir.models.description import model_from_dict, model_to_dict
from padir.models.kinds import Model
from padir.runtime.distributed import first_process

MODEL_FILE = "model.json"
VOCABULARY_FILE = "vocabulary.model"
TRAIN_FILE = "train.json"
DATA_FILE = "data.json"
METRICS_FOLDER = "metrics"


@first_process
def save_model(run_dir: str | os.PathLike, model: Model, vocabulary: Vocabulary) -> None:
    """Writes model.json and the vocabulary to a run directory; only the first process writes.

    If the directory holds a run already, nothing is written, and model and vocabulary must be the same.

    Args:
      run_dir: the run directory; created if it does not exist.
      model: the configuration to store.
      vocabulary: the vocabulary to copy.

    Raises:
      PadirError: the directory holds a run with another model or vocabulary (the message names every difference) or a
        damaged model.json, or it cannot be created.
    """
    directory = as_path(run_dir)
    description = {"model": model_to_dict(model), "vocabulary_hash": vocabulary.hash}
    if (directory / MODEL_FILE).exists():
        # Compared after parsing, so that an option added since then counts with its default value.
        stored_model, stored_hash = _read_model(directory / MODEL_FILE)
        stored = {"model": model_to_dict(stored_model), "vocabulary_hash": stored_hash}
        if changes := differences(stored, description):
            raise PadirError(
                f"{directory}: holds a run with another configuration ({'; '.join(changes)}); "
                "choose another run_dir, or delete this one"
            )
        return
    make_folder(directory)
    copy_file(vocabulary.path, directory / VOCABULARY_FILE)
    write_text(directory / MODEL_FILE, json.dumps(description, indent=2) + "\n")


@first_process
def save_data(run_dir: str | os.PathLike, manifest: Manifest) -> None:
    """Writes data.json, which says what the run is trained on; only the first process writes.

    Args:
      run_dir: the run directory.
      manifest: the manifest of the training data.
    """
    kind = "distilled" if manifest.is_distilled else "raw"
    record = {"task": manifest.original_task.name, "trained_on": kind}
    write_text(as_path(run_dir) / DATA_FILE, json.dumps(record, indent=2) + "\n")


def trained_on(run_dir: str | os.PathLike) -> str | None:
    """Returns 'raw' or 'distilled', or None for an imported checkpoint or a run of an older padir without data.json.

    Raises:
      PadirError: data.json is damaged.
    """
    path = as_path(run_dir) / DATA_FILE
    if not path.exists():
        return None
    record = _read_json(path)
    if not isinstance(record, dict) or record.get("trained_on") not in ("raw", "distilled"):
        raise _damaged(path, "trained_on is neither 'raw' nor 'distilled'")
    return record["trained_on"]


def check_shared(run_dir: str | os.PathLike) -> None:
    """Raises PadirError if this process does not see the run directory that the first process wrote."""
    if not (as_path(run_dir) / MODEL_FILE).exists():
        raise PadirError(
            f"{run_dir}: process 0 wrote to this folder, but this process does not see the files; "
            "choose a folder that all hosts share"
        )


def load_model(run_dir: str | os.PathLike) -> tuple[Model, Vocabulary]:
    """Reads the model's configuration and the vocabulary that `save_model` wrote.

    Raises:
      PadirError: `run_dir` is not a run directory, or its vocabulary is not the one the model was trained with.
    """
    directory = as_path(run_dir)
    model, vocabulary_hash = _read_model(directory / MODEL_FILE)
    vocabulary = Vocabulary.load(directory / VOCABULARY_FILE)
    check_vocabulary(vocabulary, vocabulary_hash, directory)
    return model, vocabulary


def check_vocabulary(vocabulary: Vocabulary, expected_hash: str, run_dir: str | os.PathLike) -> None:
    """Raises PadirError if `vocabulary` is not the one that the model in `run_dir` was trained with.

    Args:
      vocabulary: the vocabulary to check.
      expected_hash: the hash of the vocabulary that the model was trained with.
      run_dir: the model's folder, for the message.
    """
    if vocabulary.hash != expected_hash:
        raise PadirError(
            f"{vocabulary.path}: vocabulary hash {vocabulary.hash[:12]} differs from {expected_hash[:12]}, the hash of "
            f"the vocabulary that the model in {run_dir} was trained with; use the data set or vocabulary file of that "
            "run"
        )


@first_process
def check_settings(
    run_dir: str | os.PathLike,
    settings: dict[str, Any],
    step: int | None,
    *,
    may_change: Mapping[str, str],
    read_only: bool = False,
) -> None:
    """Compares the settings of a training run with those in train.json, and updates train.json.

    The settings are those that decide the parameters, apart from the model's configuration. Changes that are allowed
    are printed and recorded. Only the first process works; the others wait for it.

    Args:
      run_dir: the run directory.
      settings: the settings of this start of the run, JSON values by name.
      step: the step of the checkpoint from which training continues. None means that nothing is trained yet, so
        every setting may change.
      may_change: the settings that may change during a run, each with the consequence of a change as text. After a
        change, the result differs from that of a run with the new value from the start, so train.json records the
        step of the change and the former values.
      read_only: training does not continue. Differences in `may_change` are ignored, and nothing is written.

    Raises:
      PadirError: a setting differs that may not change (the message names every difference), or train.json is
        damaged.
    """
    path = as_path(run_dir) / TRAIN_FILE
    settings = json.loads(json.dumps(settings))
    record: dict[str, Any] = {"settings": settings, "changes": []}
    if step is not None and path.exists():
        record = _read_record(path)
        changes = differences(record["settings"], settings)
        fixed = [change for change in changes if not any(_names([change], name) for name in may_change)]
        if fixed:
            raise PadirError(
                f"{run_dir}: was trained to step {step} with other settings ({'; '.join(fixed)}) and cannot be resumed "
                "with these; give the former settings, or choose another run_dir"
            )
        if changes and not read_only:
            former = {name: record["settings"].get(name) for name in may_change}
            record = {"settings": settings, "changes": [*record["changes"], {"step": step, "was": former}]}
            meaning = "; ".join(dict.fromkeys(text for name, text in may_change.items() if _names(changes, name)))
            print(
                f"{run_dir}: changed from step {step} on: {'; '.join(changes)} ({meaning}): the result will differ "
                "from that of a run with these values from the start",
                file=sys.stderr,
            )
    if not read_only:
        write_text(path, json.dumps(record, indent=2) + "\n")


def recorded_settings(run_dir: str | os.PathLike) -> dict[str, Any]:
    """Returns the settings in train.json; {} if there is none.

    Raises:
      PadirError: train.json is damaged.
    """
    path = as_path(run_dir) / TRAIN_FILE
    return _read_record(path)["settings"] if path.exists() else {}


def differences(stored: Any, given: Any, path: str = "") -> list[str]:
    """Returns the differences between two JSON values, each as 'path: OLD there, NEW now'.

    Args:
      stored: the value read from a file ('there').
      given: the value to compare it with ('now').
      path: the prefix of every path, the names of nested keys joined by dots.
    """
    if isinstance(stored, dict) and isinstance(given, dict):
        keys = sorted(stored.keys() | given.keys())
        return [
            line
            for key in keys
            for line in differences(stored.get(key), given.get(key), f"{path}.{key}" if path else key)
        ]
    return [] if stored == given else [f"{path}: {stored!r} there, {given!r} now"]


def _names(changes: list[str], name: str) -> bool:
    """Whether one of `changes`, as returned by `differences`, concerns the setting `name` or a part of it."""
    return any(re.match(rf"{re.escape(name)}[.:]", change) for change in changes)


def _read_model(path: Path) -> tuple[Model, str]:
    """Returns (model, vocabulary hash) from a model.json."""
    try:
        stored = _read_json(path)
        return model_from_dict(stored["model"]), stored["vocabulary_hash"]
    except (FileNotFoundError, NotADirectoryError):
        raise PadirError(f"{path}: no such file; is this a run directory of `padir train`?") from None
    except (KeyError, TypeError) as error:
        raise _damaged(path, repr(error)) from error


def _read_record(path: Path) -> dict[str, Any]:
    """Returns the contents of a train.json."""
    record = _read_json(path)
    if not isinstance(record, dict) or record.keys() != {"settings", "changes"}:
        raise _damaged(path, "it must hold 'settings' and 'changes'")
    return record


def _read_json(path: Path) -> Any:
    text = path.read_text(encoding="utf-8", errors="replace")
    try:
        return json.loads(text)
    except ValueError as error:
        raise _damaged(path, str(error)) from error


def _damaged(path: Path, what: str) -> PadirError:
    return PadirError(
        f"{path}: damaged, or written by another version of padir ({what}); restore this file, or choose another "
        "run_dir"
    )
