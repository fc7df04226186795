"""Runs a Seqio task once and writes the result as ArrayRecord files.

This module imports TensorFlow. Import it only in a child process (see `padir.data.prepare_process`), so that TensorFlow
never uses the accelerator of the process that trains. Everything else reads the result with `padir.data.records`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import inspect
import itertools
import json
import multiprocessing
import os
import pkgutil
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from padir.data import manifest as manifest_lib
from padir.data import parts
from padir.data import vocabulary as vocabulary_lib
from padir.data.manifest import MANIFEST_NAME, VOCABULARY_NAME, Manifest, PrepareSettings, SplitManifest, TaskConfig
from padir.data.sources import NextPairs, sample
from padir.data.vocabulary import Vocabulary
from padir.errors import PadirError, StorageError
from padir.files.atomic import copy_file, make_folder, write_text
from padir.files.checksums import file_hash
from padir.files.locks import locked
from padir.files.paths import as_path
from padir.files.reading import stand_in
from padir.progress import announce, progress
from padir.types import EOS_ID


@contextlib.contextmanager
def _silent_stderr() -> Iterator[None]:
    """Suppresses standard error, including output of native code. Python exceptions pass through."""
    sys.stderr.flush()
    saved = os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)


# TensorFlow prints messages about the machine while it loads, whatever its log level.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
with _silent_stderr():
    import tensorflow as tf

    import tasks

LOCK_NAME = ".lock"
# Describes a preparation that has begun; deleted when it is complete.
BEGUN_NAME = "unfinished.json"
_EXAMPLES_PER_READ = 1024


def prepare(task: TaskConfig, output_dir: str | os.PathLike, settings: PrepareSettings) -> Manifest:
    """Prepares a task: writes vocabulary, ArrayRecord shards and length tables, and finally the manifest.

    A folder without a manifest holds an interrupted preparation. If it had the same settings and source files, its
    vocabulary and complete parts are reused; otherwise preparation starts from scratch. A complete set with the same
    settings and source files is left unchanged. If several processes prepare the same folder at the same time, the
    first one does the work and the others wait.

    Args:
      task: the task to prepare.
      output_dir: the folder to write.
      settings: vocabulary, length limits, splits.

    Raises:
      PadirError: the module, an option or a split is unknown; a text is unusable (the message gives file and line);
        or the folder was prepared with other settings (the message gives the first difference).
    """
    directory = as_path(output_dir)
    make_folder(directory)
    # The lock passes on when its holder ends, even if killed.
    with locked(directory / LOCK_NAME):
        if (directory / MANIFEST_NAME).exists():
            manifest = Manifest.load(directory)
            _check_same(directory, manifest, task, settings)
            print(f"{directory}: already prepared with these settings; nothing to do", file=sys.stderr)
            return manifest
        return _write_set(task, directory, settings)


def train_vocabulary(task: TaskConfig, output: str | os.PathLike, settings: PrepareSettings) -> Vocabulary:
    """Trains a SentencePiece model on both sides of a task's train split, as `prepare` does without a vocabulary.

    Args:
      task: the task.
      output: the model file to write.
      settings: the settings of the vocabulary; length limits and splits have no effect.

    Returns:
      The vocabulary.

    Raises:
      PadirError: the file exists already; the settings name an existing vocabulary; the module or an option is unknown;
        a text is unusable; or the text does not support the number of pieces.
    """
    path = as_path(output)
    if path.exists():
        raise PadirError(f"{path}: exists already; choose another output or delete it")
    if settings.vocabulary is not None:
        raise PadirError(
            f"PrepareSettings.vocabulary names an existing vocabulary, {settings.vocabulary!r}; set it to None to "
            "train one"
        )
    make_folder(path.parent)
    seen, used = _train_vocabulary(_register(task, path), path, settings)
    trained = Vocabulary.load(path)
    print(
        f"{path}: {trained.num_pieces} pieces learnt from {used} of {seen} sentences, SHA-256 {trained.hash}",
        file=sys.stderr,
    )
    return trained


def _write_set(task: TaskConfig, directory: Path, settings: PrepareSettings) -> Manifest:
    """Does the work of `prepare` in a folder without a complete set; reuses what it can of an interrupted one."""
    _hide_accelerators()
    recorded = manifest_lib.recorded_settings(settings)
    task = dataclasses.replace(task, options=manifest_lib.plain(task.options))
    # The file that TensorFlow reads once the vocabulary is there.
    local_vocabulary = stand_in(directory / VOCABULARY_NAME)
    registered = _register(task, local_vocabulary)
    chosen = _choose_splits(task, registered, settings.splits)
    source_files = {path: file_hash(path) for path in registered.files}
    begun = {
        "task": dataclasses.asdict(task),
        "settings": manifest_lib.plain(recorded | {"records_per_shard": settings.records_per_shard}),
        "source_files": source_files,
    }
    if not _goes_on(directory, begun):
        _remove_unfinished(directory, registered)
        if settings.vocabulary is None:
            _train_vocabulary(registered, directory / VOCABULARY_NAME, settings)
        elif as_path(settings.vocabulary).resolve() != (directory / VOCABULARY_NAME).resolve():
            copy_file(settings.vocabulary, directory / VOCABULARY_NAME)
        begun["vocabulary_hash"] = Vocabulary.load(directory / VOCABULARY_NAME).hash
        write_text(directory / BEGUN_NAME, json.dumps(begun) + "\n")
    copy_file(directory / VOCABULARY_NAME, local_vocabulary)
    with _workers(settings.processes) as pool:
        splits = {split: _write_split(task, registered, split, directory, settings, pool) for split in chosen}
    model = Vocabulary.load(directory / VOCABULARY_NAME)
    manifest = Manifest(
        task=task,
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
    for split in chosen:
        parts.remove_parts(directory, split)
    (directory / BEGUN_NAME).unlink()
    return manifest


def _hide_accelerators() -> None:
    # RuntimeError: TensorFlow has already initialised its devices.
    with _silent_stderr(), contextlib.suppress(RuntimeError):
        tf.config.set_visible_devices([], "GPU")


def _goes_on(directory: Path, begun: dict[str, Any]) -> bool:
    """Whether the folder holds an interrupted run of the same preparation, with an intact vocabulary."""
    try:
        stored = json.loads((directory / BEGUN_NAME).read_text(encoding="utf-8"))
        vocabulary_hash = stored.pop("vocabulary_hash")
        return stored == begun and Vocabulary.load(directory / VOCABULARY_NAME).hash == vocabulary_hash
    except StorageError:
        # Nothing is known of the folder, so nothing in it may be removed.
        raise
    except (OSError, ValueError, KeyError, AttributeError, PadirError):
        return False


def _remove_unfinished(directory: Path, registered: tasks.TranslationTask) -> None:
    """Deletes the files of another, interrupted preparation; it may have had more files than this one."""
    (directory / BEGUN_NAME).unlink(missing_ok=True)
    for split in registered.pairs:
        parts.remove_parts(directory, split)
        for path in directory.glob(f"{split}-[0-9][0-9][0-9][0-9][0-9].array_record*"):
            path.unlink()


def _check_same(directory: Path, manifest: Manifest, task: TaskConfig, settings: PrepareSettings) -> None:
    remedy = "choose another folder or delete this one"
    if found := manifest_lib.difference(manifest, task, settings):
        raise PadirError(f"{directory}: {found}; {remedy}")
    for path, found in manifest.source_files.items():
        # A prepared set does not need its source files, so they may have been moved or deleted since.
        if as_path(path).is_file() and file_hash(path) != found:
            raise PadirError(f"{directory}: {path} has changed since it was prepared; {remedy}")


def _register(task: TaskConfig, vocabulary_path: Path) -> tasks.TranslationTask:
    try:
        module = importlib.import_module(task.module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{task.module}.".startswith(f"{error.name}."):
            raise  # The module exists but cannot import something it needs; the traceback shows what.
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


def _train_vocabulary(registered: tasks.TranslationTask, path: Path, settings: PrepareSettings) -> tuple[int, int]:
    """Trains and writes the model; returns the number of sentences and how many of them were used."""
    if "train" not in registered.pairs:
        raise PadirError("vocabulary: the task has no train split to learn pieces from; give an existing vocabulary")
    pairs = registered.pairs["train"]
    total = None if pairs.total is None else 2 * pairs.total
    all_pairs = NextPairs(iter(pairs), sys.maxsize)  # Counts them: a source of a user's own may have no total.
    text = itertools.chain.from_iterable(all_pairs)
    with progress(text, label="vocabulary text", unit="sentences", total=total) as counted:
        chosen = sample(counted, settings.vocabulary_sentences, seed=settings.vocabulary_seed)
    announce(f"learning {settings.num_pieces} pieces from {len(chosen)} sentences")
    vocabulary_lib.train(
        chosen,
        path,
        num_pieces=settings.num_pieces,
        model_type=settings.model_type,
        byte_fallback=settings.byte_fallback,
        character_coverage=settings.character_coverage,
    )
    return 2 * all_pairs.read, len(chosen)


def _workers(processes: int) -> contextlib.AbstractContextManager[ProcessPoolExecutor | None]:
    """A pool of spawned workers (TensorFlow does not survive a fork), or None if this process works alone."""
    if processes == 1:
        return contextlib.nullcontext()
    return ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"))


def _write_split(
    task: TaskConfig,
    registered: tasks.TranslationTask,
    split: str,
    directory: Path,
    settings: PrepareSettings,
    pool: ProcessPoolExecutor | None,
) -> SplitManifest:
    """Writes the missing parts of a split and assembles it."""
    if pool is None:
        count, skipped = _write_parts(registered, split, directory, settings, 0, 1)
    else:
        shared = task, split, directory, settings
        found = [pool.submit(_write_parts_of_worker, *shared, worker) for worker in range(settings.processes)]
        # Every worker reads the whole text, so all return the same counts.
        count, skipped = [future.result() for future in found][0]
    manifest = parts.assemble(directory, split, count, skipped=skipped)
    if not manifest.num_examples:
        reasons = f"{manifest.dropped} dropped as too long, {manifest.skipped_empty} skipped as empty"
        raise PadirError(f"split {split} of task {registered.task.name} is empty ({reasons})")
    return manifest


def _write_parts_of_worker(
    task: TaskConfig, split: str, directory: Path, settings: PrepareSettings, worker: int
) -> tuple[int, int]:
    """Runs `_write_parts` in one of several worker processes."""
    threading.Thread(target=parts.end_with, args=(os.getppid(),), daemon=True).start()
    _hide_accelerators()
    local_vocabulary = stand_in(directory / VOCABULARY_NAME)
    copy_file(directory / VOCABULARY_NAME, local_vocabulary)
    registered = _register(task, local_vocabulary)
    return _write_parts(registered, split, directory, settings, worker, settings.processes)


def _write_parts(
    registered: tasks.TranslationTask,
    split: str,
    directory: Path,
    settings: PrepareSettings,
    worker: int,
    workers: int,
) -> tuple[int, int]:
    """Writes every `workers`-th part, starting with number `worker`, unless it exists already. Reads the whole text.

    Returns:
      (number of parts of the split, number of empty pairs that the task skipped).
    """
    source = registered.pairs[split]
    rows = iter(source)
    bar = progress(None, label=f"prepare {split}", unit="pairs", total=source.total, active=worker == 0)
    index, last = 0, False
    with bar:
        while not last:
            following = NextPairs(rows, settings.records_per_shard)
            if index % workers == worker and not parts.part_path(directory, split, index).exists():
                registered.pairs[split] = following
                _write_part(registered, following, split, directory, settings, index, bar)
            else:
                for _ in following:
                    bar.update(1)
            last = following.read < settings.records_per_shard
            index += 1
    registered.pairs[split] = source
    return index, source.skipped


def _write_part(
    registered: tasks.TranslationTask,
    following: NextPairs,
    split: str,
    directory: Path,
    settings: PrepareSettings,
    index: int,
    bar: Any,
) -> None:
    """Writes the next pairs, without those that are left out, as one part."""
    limits = settings.max_source_length, settings.max_target_length
    drops = split == "train" and settings.over_long == "drop"
    dropped = truncated = empty = 0
    writer = parts.PartWriter(directory, split, index)
    for source_ids, target_ids, source_text, target_text in _examples(registered, split):
        bar.update(1)
        if min(len(source_ids), len(target_ids)) == 1:
            # Only EOS: SentencePiece normalises a text such as a zero-width space to nothing.
            empty += 1
            continue
        if len(source_ids) > limits[0] or len(target_ids) > limits[1]:
            if drops:
                dropped += 1
                continue
            truncated += 1
            source_ids, target_ids = _cut(source_ids, limits[0]), _cut(target_ids, limits[1])
        writer.write(source_ids, target_ids, source_text, target_text)
    writer.close(pairs=following.read, dropped=dropped, truncated=truncated, empty=empty)


def _cut(ids: np.ndarray, length: int) -> np.ndarray:
    """Cuts ids to at most `length` tokens, with EOS as the last one."""
    return ids if len(ids) <= length else np.append(ids[: length - 1], EOS_ID)


def _examples(registered: tasks.TranslationTask, split: str) -> Iterator[tuple[np.ndarray, np.ndarray, bytes, bytes]]:
    """Yields (source ids, target ids, source text, target text) of the Seqio task, in the order of its files."""
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
    """Returns the rows of a ragged tensor [n, None] as arrays."""
    return np.split(ragged.values.numpy(), ragged.row_splits.numpy()[1:-1])
