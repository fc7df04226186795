"""What a prepared set is: the task it came from, how it was prepared, what it holds (no TensorFlow)."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from padir.data.vocabulary import Vocabulary
from padir.errors import PadirError

FORMAT_VERSION = 1
# What the manifest of a set that `padir distill` made names as its task's module.
DISTILL_MODULE = "padir.distill"
# The task that such a set is, to be prepared again.
DISTILLED_TASK_MODULE = "tasks.distilled"
MANIFEST_NAME = "manifest.json"
VOCABULARY_NAME = "vocabulary.model"


@dataclasses.dataclass(frozen=True)
class TaskConfig:
    """Which Seqio task to prepare.

    Attributes:
      module: dotted name of the Python module that registers it, e.g. 'tasks.text_files'.
      name: name under which Seqio registers it and by which reports call it: letters, digits, '_', '.', ':'.
      options: keyword arguments of the module's `register`; anything JSON can hold.
    """

    module: str
    name: str
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        try:
            json.dumps(dict(self.options))
        except TypeError as error:
            raise PadirError(f"task {self.name}: options must be plain JSON values: {error}") from error


OVER_LONG = ("drop", "truncate")
MODEL_TYPES = ("unigram", "bpe")
NUM_RESERVED_PIECES = 3

# Settings that a given vocabulary makes irrelevant.
_VOCABULARY_TRAINING = (
    "num_pieces",
    "model_type",
    "byte_fallback",
    "character_coverage",
    "vocabulary_sentences",
    "vocabulary_seed",
)


@dataclasses.dataclass(frozen=True)
class PrepareSettings:
    """How `padir prepare` turns a task into a set, and `padir vocabulary` its training text into a vocabulary.

    Attributes:
      num_pieces: size of the SentencePiece model to train, pad, EOS and UNK included.
      vocabulary: an existing SentencePiece model to use; None trains one on both sides of the train split. With one
        given, the settings of training (num_pieces and those down to vocabulary_seed) are not looked at.
      model_type: 'unigram' or 'bpe'; see `padir.data.vocabulary.train`.
      byte_fallback: train a model that spells unknown characters as bytes.
      character_coverage: share of the characters that get a piece of their own, 0.98 to 1; None takes 1 for fewer
        than 500,000 sentences and 0.9995 above.
      vocabulary_sentences: train the model on a uniform sample of at most so many sentences, both sides counted.
      vocabulary_seed: of that sample.
      max_source_length: longest source in tokens, EOS counted.
      max_target_length: longest target in tokens, EOS counted.
      over_long: 'drop' or 'truncate' train pairs with a longer side. Validation and test lose no pair so:
        theirs are always truncated. Either way the manifest says how many.
      splits: which to prepare; None takes all the task has.
      records_per_shard: pairs that a file is made of; it has fewer records where some of them are left out.
      processes: how many work side by side, in parts of so many pairs; what is written does not depend on it.
    """

    num_pieces: int = 32_000
    vocabulary: str | None = None
    model_type: str = "unigram"
    byte_fallback: bool = False
    character_coverage: float | None = None
    vocabulary_sentences: int = 4_000_000
    vocabulary_seed: int = 0
    max_source_length: int = 256
    max_target_length: int = 256
    over_long: str = "drop"
    splits: tuple[str, ...] | None = None
    records_per_shard: int = 500_000
    processes: int = 1

    def __post_init__(self):
        if self.model_type not in MODEL_TYPES:
            raise PadirError(f"model_type={self.model_type!r} must be one of {', '.join(MODEL_TYPES)}")
        if self.over_long not in OVER_LONG:
            raise PadirError(f"over_long={self.over_long!r} must be one of {', '.join(OVER_LONG)}")
        if min(self.max_source_length, self.max_target_length) < 2:
            raise PadirError("max_source_length and max_target_length must be at least 2: one token and EOS")
        if self.num_pieces <= NUM_RESERVED_PIECES:
            raise PadirError(f"num_pieces={self.num_pieces} must be above {NUM_RESERVED_PIECES}: pad, EOS and UNK")
        if self.character_coverage is not None and not 0.98 <= self.character_coverage <= 1:
            raise PadirError(f"character_coverage={self.character_coverage} must be from 0.98 to 1, or None")
        for name in ("vocabulary_sentences", "records_per_shard", "processes"):
            if getattr(self, name) < 1:
                raise PadirError(f"{name}={getattr(self, name)} must be at least 1")


@dataclasses.dataclass(frozen=True)
class SplitManifest:
    """What one split holds.

    Attributes:
      shards: (file name, number of records) of each shard, in order.
      num_examples: pairs in the shards.
      dropped: pairs left out because a side was too long.
      truncated: pairs kept with a side cut to the longest length allowed.
      skipped_empty: pairs left out because a side was empty (only where the task was told to skip them) or held
        nothing that SentencePiece keeps, as a lone zero-width space does.
      max_lengths: longest source and target, EOS counted.
      source_length_histogram: {upper end of an 8 token wide bin: pairs}; a length counts its EOS.
      target_length_histogram: likewise.
    """

    shards: tuple[tuple[str, int], ...]
    num_examples: int
    dropped: int
    truncated: int
    skipped_empty: int
    max_lengths: tuple[int, int]
    source_length_histogram: Mapping[str, int]
    target_length_histogram: Mapping[str, int]


@dataclasses.dataclass(frozen=True)
class Manifest:
    """Describes a prepared set; stored as manifest.json.

    Attributes:
      task: the task that was run.
      settings: of the preparation, see `recorded_settings`.
      vocabulary_hash: SHA-256 of vocabulary.model.
      num_pieces: size of the SentencePiece model.
      splits: by name: 'train', 'validation', 'test'.
      source_files: SHA-256 of each file the task read, by path; empty for generated text.
      checker: 'module:function' telling whether a hypothesis is a valid translation of a source, or None.
      source_language, target_language: labels, '' where the task has none.
      format_version: of records, tables and manifest.
    """

    task: TaskConfig
    settings: Mapping[str, Any]
    vocabulary_hash: str
    num_pieces: int
    splits: Mapping[str, SplitManifest]
    source_files: Mapping[str, str] = dataclasses.field(default_factory=dict)
    checker: str | None = None
    source_language: str = ""
    target_language: str = ""
    format_version: int = FORMAT_VERSION

    @property
    def is_distilled(self) -> bool:
        """Whether the targets of the train split are translations that `padir distill` made."""
        return self.task.module in (DISTILL_MODULE, DISTILLED_TASK_MODULE)

    @property
    def original_task(self) -> TaskConfig:
        """The task that was prepared; of a distilled set, that of the set it was made from.

        Of a set prepared from a distilled one (`tasks.distilled`) that is no longer there, the task of that name.
        """
        task = self.task
        with contextlib.suppress(PadirError):
            while task.module in (DISTILL_MODULE, DISTILLED_TASK_MODULE):
                if task.module == DISTILL_MODULE:
                    task = TaskConfig(**task.options["source_task"])
                else:
                    task = Manifest.load(task.options["data_dir"]).task
        return task

    def save(self, directory: str | os.PathLike) -> None:
        """Writes manifest.json, whole or not at all."""
        path = Path(directory, MANIFEST_NAME)
        temporary = path.with_suffix(".json.tmp")
        temporary.write_text(
            json.dumps(dataclasses.asdict(self), indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
        )
        os.replace(temporary, path)

    @classmethod
    def load(cls, directory: str | os.PathLike) -> Manifest:
        """Reads manifest.json.

        Raises:
          PadirError: there is none, it cannot be read, or another version of padir wrote it.
        """
        path = Path(directory, MANIFEST_NAME)
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise PadirError(
                f"{directory}: no prepared data set here ({MANIFEST_NAME} is missing); build it with `padir prepare`"
            ) from error
        except ValueError as error:
            raise PadirError(f"{path}: not readable ({error}); delete the folder and run `padir prepare`") from error
        version = stored.get("format_version") if isinstance(stored, dict) else None
        if version != FORMAT_VERSION:
            raise PadirError(
                f"{path}: format version {version}, this padir reads version {FORMAT_VERSION}; "
                "delete the folder and run `padir prepare` again"
            )
        try:
            stored["task"] = TaskConfig(**stored["task"])
            stored["splits"] = {name: _split_manifest(split) for name, split in stored["splits"].items()}
            return cls(**stored)
        except (KeyError, TypeError) as error:
            raise PadirError(f"{path}: damaged ({error}); delete the folder and run `padir prepare`") from error

    def summary(self) -> str:
        """Returns a line a split, for people."""
        lines = []
        for name, split in self.splits.items():
            left_out = [
                f"{count} {what}"
                for count, what in (
                    (split.dropped, "dropped as too long"),
                    (split.truncated, "truncated"),
                    (split.skipped_empty, "skipped as empty"),
                )
                if count
            ]
            lengths = "longest {} source and {} target tokens".format(*split.max_lengths)
            lines.append(f"{name}: {split.num_examples} pairs, {', '.join([lengths, *left_out])}")
        return "\n".join(lines)


def _split_manifest(stored: dict[str, Any]) -> SplitManifest:
    shards = tuple((name, count) for name, count in stored.pop("shards"))
    return SplitManifest(shards=shards, max_lengths=tuple(stored.pop("max_lengths")), **stored)


def recorded_settings(settings: PrepareSettings) -> dict[str, Any]:
    """Returns what of the settings decides what is written, as the manifest keeps it.

    Raises:
      PadirError: the given vocabulary cannot be read.
    """
    return _recorded(settings, None if settings.vocabulary is None else Vocabulary.load(settings.vocabulary).hash)


def _recorded(settings: PrepareSettings, vocabulary_hash: str | None) -> dict[str, Any]:
    # The vocabulary first: of two sets with different ones, it is the difference to name.
    recorded = {"vocabulary": None} | dataclasses.asdict(settings) | {"vocabulary": vocabulary_hash}
    # How it is cut into files, and by how many, is not what is written.
    del recorded["records_per_shard"], recorded["processes"]
    if settings.splits is not None:
        recorded["splits"] = list(settings.splits)
    if vocabulary_hash is not None:
        # None, so that they never differ.
        recorded.update(dict.fromkeys(_VOCABULARY_TRAINING))
    return recorded


def difference(manifest: Manifest, task: TaskConfig, settings: PrepareSettings | None = None) -> str:
    """Says in what a prepared set is not the one that is asked for.

    Args:
      manifest: of the set that is there.
      task: the task it should hold.
      settings: how it should have been prepared; None does not ask.

    Returns:
      The first difference, e.g. 'prepared with num_pieces=900, now asked for 1000'; '' if there is none.
    """
    stored, wanted = _comparable(manifest.task), _comparable(task)
    if settings is not None:
        vocabulary_hash = manifest.settings.get("vocabulary")
        # A set written before a setting existed was made as the default of that setting has it.
        stored |= _recorded(PrepareSettings(), vocabulary_hash) | manifest.settings
        # A prepared set outlives its sources: a vocabulary file that has gone is no reason to stop.
        if settings.vocabulary is None or Path(settings.vocabulary).exists():
            wanted |= recorded_settings(settings)
        else:
            wanted |= _recorded(settings, vocabulary_hash)
    for field in stored | wanted:
        before, now = stored.get(field), wanted.get(field)
        if before != now:
            return f"prepared with {field}={before!r}, now asked for {now!r}"
    return ""


def _comparable(task: TaskConfig) -> dict[str, Any]:
    options = {f"task option {name}": value for name, value in plain(task.options).items()}
    return {"task module": task.module, "task name": task.name, **options}


def plain(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns options as JSON gives them back: tuples as lists."""
    return json.loads(json.dumps(dict(options)))
