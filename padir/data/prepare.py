"""Runs a Seqio task once and writes it as ArrayRecord (layer 6; the only module of padir that imports TensorFlow).

Everything after this reads `padir.data.records`. Import it in a process of its own: TensorFlow then
never meets the accelerator that training holds.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import importlib
import inspect
import itertools
import json
import os
import pkgutil
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from padir.data import vocabulary as vocabulary_lib
from padir.data.manifest import MANIFEST_NAME, VOCABULARY_NAME, Manifest, PrepareSettings, SplitManifest, TaskConfig
from padir.data.records import SplitWriter
from padir.data.sources import sample
from padir.data.vocabulary import EOS_ID, Vocabulary
from padir.errors import PadirError
from padir.progress import progress


@contextlib.contextmanager
def _silent_stderr() -> Iterator[None]:
    """Hides what native code writes to standard error; Python exceptions pass."""
    sys.stderr.flush()
    saved = os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)


# TensorFlow prints a page about the machine while it loads, whatever its log level.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
with _silent_stderr():
    import tensorflow as tf

    import tasks

LOCK_NAME = ".lock"
_EXAMPLES_PER_READ = 1024


def prepare(task: TaskConfig, output_dir: str | os.PathLike, settings: PrepareSettings) -> Manifest:
    """Prepares a task: vocabulary, ArrayRecord shards, length tables, and last of all the manifest.

    A folder without a manifest is a preparation that was cut short, and is done again. A finished one is
    left as it is if it was made with the same settings from the same files. Of several processes that
    prepare one folder at a time, the first does the work and the others wait for it.

    Args:
      task: which task.
      output_dir: folder to write.
      settings: vocabulary, length limits, splits.

    Raises:
      PadirError: unknown module, option or split; unusable text (names file and line); a folder prepared
        with other settings (names the first that differs).
    """
    directory = Path(output_dir)
    directory.mkdir(parents=True, exist_ok=True)
    recorded = _recorded(settings)
    with _locked(directory):
        if (directory / MANIFEST_NAME).exists():
            manifest = Manifest.load(directory)
            _check_same(directory, manifest, task, recorded)
            print(f"{directory}: already prepared with these settings; nothing to do", file=sys.stderr)
            return manifest
        return _write_set(task, directory, settings, recorded)


def _recorded(settings: PrepareSettings) -> dict[str, Any]:
    """What of the settings decides what is written, for the manifest."""
    # A given vocabulary makes the settings of its training irrelevant: None, so that they never differ.
    trains = settings.vocabulary is None
    return {
        "vocabulary": None if trains else Vocabulary.load(settings.vocabulary).hash,
        "num_pieces": settings.num_pieces if trains else None,
        "model_type": settings.model_type if trains else None,
        "byte_fallback": settings.byte_fallback if trains else None,
        "vocabulary_sentences": settings.vocabulary_sentences if trains else None,
        "max_source_length": settings.max_source_length,
        "max_target_length": settings.max_target_length,
        "over_long": settings.over_long,
        "splits": None if settings.splits is None else list(settings.splits),
    }


def _write_set(task: TaskConfig, directory: Path, settings: PrepareSettings, recorded: Mapping[str, Any]) -> Manifest:
    """Does the work of `prepare`, in a folder that holds nothing finished."""
    # RuntimeError: TensorFlow is in use already and has its devices.
    with _silent_stderr(), contextlib.suppress(RuntimeError):
        tf.config.set_visible_devices([], "GPU")
    registered = _register(task, directory / VOCABULARY_NAME)
    chosen = _choose_splits(task, registered, settings.splits)
    source_files = {path: vocabulary_lib.file_hash(path) for path in registered.files}
    _remove_unfinished(directory, registered)
    if settings.vocabulary is None:
        _train_vocabulary(registered, directory, settings)
    elif Path(settings.vocabulary).resolve() != (directory / VOCABULARY_NAME).resolve():
        shutil.copyfile(settings.vocabulary, directory / VOCABULARY_NAME)
    splits = {split: _write_split(registered, split, directory, settings) for split in chosen}
    model = Vocabulary.load(directory / VOCABULARY_NAME)
    manifest = Manifest(
        task=dataclasses.replace(task, options=_plain(task.options)),
        settings=recorded,
        vocabulary_hash=model.hash,
        num_pieces=model.num_pieces,
        splits=splits,
        source_files=source_files,
        checker=registered.checker,
        source_language=registered.source_language,
        target_language=registered.target_language,
    )
    manifest.save(directory)
    return manifest


def _remove_unfinished(directory: Path, registered: tasks.TranslationTask) -> None:
    """Deletes shards of a preparation that was cut short: there may be more of them than this one writes."""
    for split in registered.pairs:
        for path in directory.glob(f"{split}-[0-9][0-9][0-9][0-9][0-9].array_record*"):
            path.unlink()


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Lets one process at a time work in the folder; the lock falls when its holder ends, however it ends."""
    with open(directory / LOCK_NAME, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns options as JSON gives them back: tuples as lists."""
    return json.loads(json.dumps(dict(options)))


def _check_same(directory: Path, manifest: Manifest, task: TaskConfig, settings: Mapping[str, Any]) -> None:
    remedy = "choose another folder or delete this one"
    stored, wanted = _comparable(manifest.task, manifest.settings), _comparable(task, settings)
    for field in stored | wanted:
        before, now = stored.get(field), wanted.get(field)
        if before != now:
            raise PadirError(f"{directory}: prepared with {field}={before!r}, now asked for {now!r}; {remedy}")
    for path, found in manifest.source_files.items():
        # Prepared data outlives its sources: files that are gone or elsewhere are no reason to stop.
        if Path(path).is_file() and vocabulary_lib.file_hash(path) != found:
            raise PadirError(f"{directory}: {path} has changed since it was prepared; {remedy}")


def _comparable(task: TaskConfig, settings: Mapping[str, Any]) -> dict[str, Any]:
    options = {f"task option {name}": value for name, value in _plain(task.options).items()}
    return {"task module": task.module, "task name": task.name, **options, **settings}


def _register(task: TaskConfig, vocabulary_path: Path) -> tasks.TranslationTask:
    try:
        module = importlib.import_module(task.module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{task.module}.".startswith(f"{error.name}."):
            raise  # The module is there; something it imports is not.
        known = ", ".join(f"tasks.{found.name}" for found in pkgutil.iter_modules(tasks.__path__))
        raise PadirError(f"task {task.name}: no module {task.module!r}; padir comes with {known}") from error
    if not hasattr(module, "register"):
        raise PadirError(f"task {task.name}: module {task.module!r} has no function register")
    _, _, *parameters = inspect.signature(module.register).parameters.values()
    allowed = [parameter.name for parameter in parameters]
    for option in task.options:
        if option not in allowed:
            raise PadirError(f"task {task.name}: {task.module} has no option {option!r}; it has {', '.join(allowed)}")
    for parameter in parameters:
        if parameter.default is parameter.empty and parameter.name not in task.options:
            raise PadirError(f"task {task.name}: {task.module} needs option {parameter.name!r}")
    return module.register(task.name, str(vocabulary_path), **task.options)


def _choose_splits(task: TaskConfig, registered: tasks.TranslationTask, splits: Sequence[str] | None) -> list[str]:
    available = list(registered.pairs)
    for split in splits or ():
        if split not in available:
            raise PadirError(f"task {task.name}: no split {split!r}; it has {', '.join(available)}")
    return available if splits is None else list(splits)


def _train_vocabulary(registered: tasks.TranslationTask, directory: Path, settings: PrepareSettings) -> None:
    if "train" not in registered.pairs:
        raise PadirError("vocabulary: the task has no train split to learn pieces from; give an existing vocabulary")
    text = itertools.chain.from_iterable(registered.pairs["train"])
    with progress(text, label="vocabulary text", unit="sentences") as counted:
        chosen = sample(counted, settings.vocabulary_sentences)
    vocabulary_lib.train(
        chosen,
        directory / VOCABULARY_NAME,
        num_pieces=settings.num_pieces,
        model_type=settings.model_type,
        byte_fallback=settings.byte_fallback,
    )


def _write_split(
    registered: tasks.TranslationTask, split: str, directory: Path, settings: PrepareSettings
) -> SplitManifest:
    limits = settings.max_source_length, settings.max_target_length
    drops = split == "train" and settings.over_long == "drop"
    dropped = truncated = 0
    writer = SplitWriter(directory, split, settings.records_per_shard)
    with progress(_examples(registered, split), label=f"prepare {split}", unit="pairs") as examples:
        for source_ids, target_ids, source_text, target_text in examples:
            if len(source_ids) > limits[0] or len(target_ids) > limits[1]:
                if drops:
                    dropped += 1
                    continue
                truncated += 1
                source_ids, target_ids = _cut(source_ids, limits[0]), _cut(target_ids, limits[1])
            writer.write(source_ids, target_ids, source_text, target_text)
    manifest = writer.close(dropped=dropped, truncated=truncated, skipped_empty=registered.pairs[split].skipped)
    if not manifest.num_examples:
        raise PadirError(f"split {split} of task {registered.task.name} is empty ({dropped} dropped as too long)")
    return manifest


def _cut(ids: np.ndarray, length: int) -> np.ndarray:
    """Cuts to `length` tokens of which the last is EOS."""
    return ids if len(ids) <= length else np.append(ids[: length - 1], EOS_ID)


def _examples(registered: tasks.TranslationTask, split: str) -> Iterator[tuple[np.ndarray, np.ndarray, bytes, bytes]]:
    """Yields (source ids, target ids, source text, target text) of the Seqio task, in the order of its source."""
    dataset = registered.task.get_dataset(split=split, sequence_length=None, shuffle=False)
    dataset = dataset.ragged_batch(_EXAMPLES_PER_READ).prefetch(tf.data.AUTOTUNE)
    try:
        for batch in dataset:
            yield from zip(
                _rows(batch["inputs"]),
                _rows(batch["targets"]),
                batch["inputs_pretokenized"].numpy(),
                batch["targets_pretokenized"].numpy(),
                strict=True,
            )
    except tf.errors.OpError:
        if registered.failures:
            raise registered.failures[-1] from None
        raise


def _rows(ragged: tf.RaggedTensor) -> list[np.ndarray]:
    """Returns the rows of a ragged [n, None] as arrays."""
    return np.split(ragged.values.numpy(), ragged.row_splits.numpy()[1:-1])
