"""Describes a prepared data set: its task, the settings of its preparation, and its contents (no TensorFlow)."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Mapping
from typing import Any

from padir.data.vocabulary import Vocabulary
from padir.errors import PadirError
from padir.files.atomic import write_text
from padir.files.paths import as_path

FORMAT_VERSION = 1
# The module of the task in the manifest of a set that `padir distill` wrote.
DISTILL_MODULE = "padir.distill"
# The task module for preparing such a set again.
DISTILLED_TASK_MODULE = "tasks.distilled"
MANIFEST_NAME = "manifest.json"
VOCABULARY_NAME = "vocabulary.model"


@dataclasses.dataclass(frozen=True)
class TaskConfig:
    """The Seqio task to prepare.

    Attributes:
      module: dotted name of the Python module that registers the task, e.g. 'tasks.text_files'.
      name: the task's name in Seqio and in reports. It may contain letters, digits, '_', '.' and ':'.
      options: keyword arguments of the module's function `register`, as JSON values.
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

# Settings that have no effect if a vocabulary is given.
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
    """Settings of `padir prepare`, which prepares a data set, and of `padir vocabulary`, which trains a vocabulary.

    Attributes:
      num_pieces: size of the SentencePiece model to train, including pad, EOS and UNK.
      vocabulary: an existing SentencePiece model to use; None trains one on both sides of the train split. If one is
        given, the settings for training it (num_pieces and model_type to vocabulary_seed) have no effect.
      model_type: 'unigram' or 'bpe'; see `padir.data.vocabulary.train`.
      byte_fallback: whether the model spells unknown characters as bytes.
      character_coverage: share of the text's characters for which the model has a piece, 0.98 to 1. None chooses 1
        for fewer than 500,000 sentences and 0.9995 otherwise.
      vocabulary_sentences: the model is trained on a uniform sample of at most this many sentences of both sides.
      vocabulary_seed: random seed of that sample.
      max_source_length: maximum source length in tokens, EOS counted.
      max_target_length: maximum target length in tokens, EOS counted.
      over_long: 'drop' or 'truncate' train pairs that exceed a maximum length. Pairs of validation and test are always
        truncated, never dropped. The manifest records the number of pairs affected.
      splits: the splits to prepare; None prepares all splits of the task.
      records_per_shard: number of pairs read for each file. A file has fewer records if some of these are left out.
      processes: number of parallel processes, each of which writes whole files. The result does not depend on it.
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
            raise PadirError(
                f"num_pieces={self.num_pieces} must be above {NUM_RESERVED_PIECES}, because pad, EOS and UNK take "
                "three pieces"
            )
        if self.character_coverage is not None and not 0.98 <= self.character_coverage <= 1:
            raise PadirError(f"character_coverage={self.character_coverage} must be from 0.98 to 1, or None")
        for name in ("vocabulary_sentences", "records_per_shard", "processes"):
            if getattr(self, name) < 1:
                raise PadirError(f"{name}={getattr(self, name)} must be at least 1")


@dataclasses.dataclass(frozen=True)
class SplitManifest:
    """Describes the contents of one split.

    Attributes:
      shards: (file name, number of records) of each shard, in order.
      num_examples: number of pairs in the shards.
      dropped: pairs left out because a side was too long.
      truncated: pairs with a side cut to the maximum length.
      skipped_empty: pairs left out because a side was empty. The task skips such pairs only if it is told to. Texts
        that SentencePiece normalises to nothing, such as a single zero-width space, count as empty, too.
      max_lengths: longest source and longest target in tokens, EOS counted.
      source_length_histogram: pairs in each bin of 8 token lengths, {upper end of the bin: pairs}; EOS counts.
      target_length_histogram: likewise for targets.
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
    """Describes a prepared data set; stored as manifest.json.

    Attributes:
      task: the task that was run.
      settings: the settings of the preparation; see `recorded_settings`.
      vocabulary_hash: SHA-256 of vocabulary.model.
      num_pieces: size of the SentencePiece model.
      splits: the description of each split, by name: 'train', 'validation', 'test'.
      source_files: SHA-256 of each file that the task read, by path; empty for generated text.
      checker: 'module:function' that tells whether a hypothesis is a valid translation of a source, or None.
      source_language, target_language: language codes; '' if the task does not name them.
      format_version: version of the format of records, length tables and manifest.
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
        """Whether the targets of the train split are translations from `padir distill`."""
        return self.task.module in (DISTILL_MODULE, DISTILLED_TASK_MODULE)

    @property
    def original_task(self) -> TaskConfig:
        """The task that was prepared; for a distilled set, the task of the set that it was distilled from.

        A set can be prepared from a distilled one (`tasks.distilled`). If that distilled set no longer exists, this is
        the task that reads it.
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
        """Writes manifest.json atomically."""
        text = json.dumps(dataclasses.asdict(self), indent=2, ensure_ascii=False) + "\n"
        write_text(as_path(directory) / MANIFEST_NAME, text)

    @classmethod
    def load(cls, directory: str | os.PathLike) -> Manifest:
        """Reads manifest.json.

        Raises:
          PadirError: the file is missing or damaged, or another version of padir wrote it.
        """
        path = as_path(directory) / MANIFEST_NAME
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
        except PadirError:
            raise
        except FileNotFoundError as error:
            raise PadirError(
                f"{directory}: no prepared data set here ({MANIFEST_NAME} is missing); build it with `padir prepare`"
            ) from error
        except ValueError as error:
            raise PadirError(f"{path}: damaged ({error}); delete the folder and run `padir prepare`") from error
        version = stored.get("format_version") if isinstance(stored, dict) else None
        if version != FORMAT_VERSION:
            raise PadirError(
                f"{path}: has format version {version}, but this version of padir reads version {FORMAT_VERSION}; "
                "delete the folder and run `padir prepare` again"
            )
        try:
            stored["task"] = TaskConfig(**stored["task"])
            stored["splits"] = {name: _split_manifest(split) for name, split in stored["splits"].items()}
            return cls(**stored)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise PadirError(f"{path}: damaged ({error}); delete the folder and run `padir prepare`") from error

    def summary(self) -> str:
        """Returns a readable summary with one line per split."""
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
    """Returns the settings that affect the prepared data, in the form in which the manifest records them.

    Raises:
      PadirError: the given vocabulary cannot be read.
    """
    return _recorded(settings, None if settings.vocabulary is None else Vocabulary.load(settings.vocabulary).hash)


def _recorded(settings: PrepareSettings, vocabulary_hash: str | None) -> dict[str, Any]:
    # The vocabulary comes first, so that `difference` reports it before the settings that depend on it.
    recorded = {"vocabulary": None} | dataclasses.asdict(settings) | {"vocabulary": vocabulary_hash}
    # The number of files and of processes does not affect the data.
    del recorded["records_per_shard"], recorded["processes"]
    if settings.splits is not None:
        recorded["splits"] = list(settings.splits)
    if vocabulary_hash is not None:
        # They have no effect with a given vocabulary, so they must not count as a difference.
        recorded.update(dict.fromkeys(_VOCABULARY_TRAINING))
    return recorded


def difference(manifest: Manifest, task: TaskConfig, settings: PrepareSettings | None = None) -> str:
    """Compares an existing prepared set with a requested one.

    Args:
      manifest: the manifest of the existing set.
      task: the requested task.
      settings: the requested settings; None does not compare settings.

    Returns:
      The first difference, e.g. 'prepared with num_pieces=900, now asked for 1000'; '' if there is none.
    """
    stored, wanted = _comparable(manifest.task), _comparable(task)
    if settings is not None:
        vocabulary_hash = manifest.settings.get("vocabulary")
        # A manifest of an older version lacks newer settings; their defaults describe what that version did.
        stored |= _recorded(PrepareSettings(), vocabulary_hash) | manifest.settings
        # A prepared set contains its vocabulary, so the original file may have been deleted since.
        if settings.vocabulary is None or as_path(settings.vocabulary).exists():
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
    """Returns options as they are after a round trip through JSON, with tuples as lists."""
    return json.loads(json.dumps(dict(options)))
