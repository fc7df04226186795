"""What a run leaves behind so that it can be opened without its gin files.

<run_dir>/model.json          kind, sizes, ids, vocabulary hash
<run_dir>/vocabulary.model    the SentencePiece model it was trained with
<run_dir>/train.json          what else decides its parameters: seed, batches, data, optimizer, number of steps
<run_dir>/data.json           what it was trained on: task, raw or distilled
<run_dir>/checkpoints/<step>  parameters and progress
<run_dir>/metrics/            metrics.jsonl and TensorBoard events
<run_dir>/<command>.gin       operative configuration of each command that wrote here
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from padir.data.manifest import Manifest
from padir.data.vocabulary import Vocabulary
from padir.errors import PadirError
from padir.files.atomic import write_text
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
    """Writes model.json and the vocabulary, in the first process; an existing run must be of the same ones.

    Raises:
      PadirError: the directory holds a run of another model or vocabulary (names every difference), or a
        damaged model.json.
    """
    directory = Path(run_dir)
    description = {"model": model_to_dict(model), "vocabulary_hash": vocabulary.hash}
    if (directory / MODEL_FILE).exists():
        # Read as a model first: an option that was new since then has its default, which is no difference.
        stored_model, stored_hash = _read_model(directory / MODEL_FILE)
        stored = {"model": model_to_dict(stored_model), "vocabulary_hash": stored_hash}
        if changes := differences(stored, description):
            raise PadirError(
                f"{directory}: holds a run with another configuration ({'; '.join(changes)}); "
                "choose another run_dir, or delete this one"
            )
        return
    directory.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(vocabulary.path, directory / VOCABULARY_FILE)
    write_text(directory / MODEL_FILE, json.dumps(description, indent=2) + "\n")


@first_process
def save_data(run_dir: str | os.PathLike, manifest: Manifest) -> None:
    """Writes data.json, in the first process: what the run is trained on, for `trained_on`."""
    kind = "distilled" if manifest.is_distilled else "raw"
    record = {"task": manifest.original_task.name, "trained_on": kind}
    write_text(Path(run_dir) / DATA_FILE, json.dumps(record, indent=2) + "\n")


def trained_on(run_dir: str | os.PathLike) -> str | None:
    """'raw' or 'distilled'; None where that is not known: an imported checkpoint, or a run of an older padir.

    Raises:
      PadirError: data.json is damaged.
    """
    path = Path(run_dir) / DATA_FILE
    if not path.exists():
        return None
    record = _read_json(path)
    if not isinstance(record, dict) or record.get("trained_on") not in ("raw", "distilled"):
        raise _damaged(path, "it does not say raw or distilled")
    return record["trained_on"]


def check_shared(run_dir: str | os.PathLike) -> None:
    """Raises PadirError if this process does not see the run directory that the first wrote."""
    if not (Path(run_dir) / MODEL_FILE).exists():
        raise PadirError(f"{run_dir}: not the folder that process 0 has of that name; choose one that all hosts share")


def load_model(run_dir: str | os.PathLike) -> tuple[Model, Vocabulary]:
    """Reads what `save_model` wrote.

    Raises:
      PadirError: not a run directory, or its vocabulary is not the one the model was trained with.
    """
    directory = Path(run_dir)
    model, vocabulary_hash = _read_model(directory / MODEL_FILE)
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


@first_process
def check_settings(
    run_dir: str | os.PathLike,
    settings: dict[str, Any],
    step: int | None,
    *,
    may_change: Mapping[str, str],
    read_only: bool = False,
) -> None:
    """Keeps train.json true: what decides a run's parameters besides its model. Prints what changes.

    In the first process; the others wait.

    Args:
      run_dir: the run directory.
      settings: JSON values by name; those of this start of the run.
      step: of the checkpoint that training goes on from. None: nothing is trained yet, so anything may change.
      may_change: names whose values may differ from those the run was started with, and what that means. The run
        then ends with parameters that no uninterrupted one has; train.json keeps the former values and the step.
      read_only: training does not go on: differences of `may_change` mean nothing, and nothing is written.

    Raises:
      PadirError: something else differs (names every difference), or train.json is damaged.
    """
    path = Path(run_dir) / TRAIN_FILE
    settings = json.loads(json.dumps(settings))
    record: dict[str, Any] = {"settings": settings, "changes": []}
    if step is not None and path.exists():
        record = _read_json(path)
        if not isinstance(record, dict) or record.keys() != {"settings", "changes"}:
            raise _damaged(path, "it has no settings")
        changes = differences(record["settings"], settings)
        fixed = [change for change in changes if not any(_names([change], name) for name in may_change)]
        if fixed:
            raise PadirError(
                f"{run_dir}: was trained to step {step} with other settings ({'; '.join(fixed)}) and cannot go on as "
                "the same run; give those settings, or choose another run_dir"
            )
        if changes and not read_only:
            former = {name: record["settings"].get(name) for name in may_change}
            record = {"settings": settings, "changes": [*record["changes"], {"step": step, "was": former}]}
            meaning = "; ".join(dict.fromkeys(text for name, text in may_change.items() if _names(changes, name)))
            print(
                f"{run_dir}: changed from step {step} on: {'; '.join(changes)} ({meaning}): the result is not that of "
                "a run which had these values from the start",
                file=sys.stderr,
            )
    if not read_only:
        write_text(path, json.dumps(record, indent=2) + "\n")


def differences(stored: Any, given: Any, path: str = "") -> list[str]:
    """Where two JSON values differ, each as 'path: stored there, given now'."""
    if isinstance(stored, dict) and isinstance(given, dict):
        keys = sorted(stored.keys() | given.keys())
        return [
            line
            for key in keys
            for line in differences(stored.get(key), given.get(key), f"{path}.{key}" if path else key)
        ]
    return [] if stored == given else [f"{path}: {stored!r} there, {given!r} now"]


def _names(changes: list[str], name: str) -> bool:
    """Whether one of the `differences` is of the setting `name` or of a part of it."""
    return any(re.match(rf"{re.escape(name)}[.:]", change) for change in changes)


def _read_model(path: Path) -> tuple[Model, str]:
    """(model, vocabulary hash) of a model.json."""
    try:
        stored = _read_json(path)
        return model_from_dict(stored["model"]), stored["vocabulary_hash"]
    except FileNotFoundError:
        raise PadirError(f"{path}: no such file; is this a run directory of `padir train`?") from None
    except (KeyError, TypeError) as error:
        raise _damaged(path, repr(error)) from error


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise _damaged(path, str(error)) from error


def _damaged(path: Path, what: str) -> PadirError:
    return PadirError(
        f"{path}: damaged, or written by another version of padir ({what}); restore it, or choose another run_dir"
    )
