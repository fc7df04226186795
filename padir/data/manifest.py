"""What a prepared set is: the task it came from, how it was prepared, what it holds (layer 6; no TensorFlow)."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from padir.errors import PadirError

FORMAT_VERSION = 1
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


@dataclasses.dataclass(frozen=True)
class PrepareSettings:
    """How `padir prepare` turns a task into a set.

    Attributes:
      num_pieces: size of the SentencePiece model to train; not looked at when `vocabulary` is given.
      vocabulary: an existing SentencePiece model to use; None trains one on both sides of the train split.
      model_type: 'unigram' or 'bpe'; see `padir.data.vocabulary.train`.
      byte_fallback: train a model that spells unknown characters as bytes.
      vocabulary_sentences: train the model on a uniform sample of at most so many sentences.
      max_source_length: longest source in tokens, EOS counted.
      max_target_length: longest target in tokens, EOS counted.
      over_long: 'drop' or 'truncate' train pairs with a longer side. Validation and test lose no pair:
        theirs are always truncated. Either way the manifest says how many.
      splits: which to prepare; None takes all the task has.
      records_per_shard: examples in a file.
    """

    num_pieces: int = 32_000
    vocabulary: str | None = None
    model_type: str = "unigram"
    byte_fallback: bool = False
    vocabulary_sentences: int = 4_000_000
    max_source_length: int = 256
    max_target_length: int = 256
    over_long: str = "drop"
    splits: tuple[str, ...] | None = None
    records_per_shard: int = 500_000

    def __post_init__(self):
        if self.model_type not in MODEL_TYPES:
            raise PadirError(f"model_type={self.model_type!r} must be one of {', '.join(MODEL_TYPES)}")
        if self.over_long not in OVER_LONG:
            raise PadirError(f"over_long={self.over_long!r} must be one of {', '.join(OVER_LONG)}")
        if min(self.max_source_length, self.max_target_length) < 2:
            raise PadirError("max_source_length and max_target_length must be at least 2: one token and EOS")


@dataclasses.dataclass(frozen=True)
class SplitManifest:
    """What one split holds.

    Attributes:
      shards: (file name, number of records) of each shard, in order.
      num_examples: pairs in the shards.
      dropped: pairs left out because a side was too long.
      truncated: pairs kept with a side cut to the longest length allowed.
      skipped_empty: pairs left out because a side was empty (only where the task was told to skip them).
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
      settings: the arguments of `prepare` that change what is written.
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
