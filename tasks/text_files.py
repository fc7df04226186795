"""A task over bilingual text files. Its options choose the format: line-aligned, TSV or JSONL, plain or .gz.

For example, TaskConfig("tasks.text_files", "tatoeba_de_en", {"folder": "/data/tatoeba_de_en",
"train": ("train.de.gz", "train.en.gz"), "validation": ("valid.de.gz", "valid.en.gz")}).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from padir.data.sources import FORMATS, TextPairs
from padir.errors import PadirError
from padir.files.paths import joined
from tasks import TranslationTask, translation_task

_DEFAULT_FIELDS = {"lines": (0, 1), "tsv": (0, 1), "jsonl": ("source", "target")}


def register(
    name: str,
    vocabulary_path: str,
    *,
    train: str | Sequence[str],
    validation: str | Sequence[str] | None = None,
    test: str | Sequence[str] | None = None,
    folder: str = "",
    format: str = "lines",
    fields: Sequence[int] | Sequence[str] | None = None,
    skip_empty: bool = False,
    limit_train: int | None = None,
    limit_validation: int | None = None,
    limit_test: int | None = None,
    source_language: str = "",
    target_language: str = "",
) -> TranslationTask:
    """Registers a task over text files.

    Args:
      name: name of the Seqio task.
      vocabulary_path: SentencePiece model.
      train: files of the train split. For format 'lines', two files (source, target) in which lines of the same number
        translate each other; for 'tsv' and 'jsonl', one file. Files ending in .gz are decompressed while reading.
      validation, test: files of these splits, in the same form. None leaves a split out.
      folder: folder of relative file names; '' is the working directory.
      format: 'lines', 'tsv' or 'jsonl'.
      fields: the fields of source and target. For 'tsv', two column numbers counted from 0 (default 0, 1) or two
        column names of the first row; for 'jsonl', two keys (default 'source', 'target').
      skip_empty: whether to leave out and count pairs with an empty side. Otherwise such a pair is an error.
      limit_train, limit_validation, limit_test: largest number of pairs to read, from the first on; None reads all.
      source_language, target_language: labels for reports, such as 'de' and 'en'.

    Raises:
      PadirError: an option has an invalid value, or a file is missing.
    """
    if format not in FORMATS:
        raise PadirError(f"task {name}: option format={format!r} must be one of {', '.join(FORMATS)}")
    chosen = _check_fields(name, format, _DEFAULT_FIELDS[format] if fields is None else tuple(fields))
    pairs = {}
    for split, files, limit in (
        ("train", train, limit_train),
        ("validation", validation, limit_validation),
        ("test", test, limit_test),
    ):
        if files is None:
            continue
        if limit is not None and limit < 1:
            raise PadirError(f"task {name}: option limit_{split}={limit} must be at least 1, or None for all")
        pairs[split] = TextPairs(
            _paths(name, split, files, folder, format), format=format, fields=chosen, skip_empty=skip_empty, limit=limit
        )
    return translation_task(
        name,
        vocabulary_path,
        pairs,
        files=tuple(str(path) for split in pairs.values() for path in split.paths),
        source_language=source_language,
        target_language=target_language,
    )


def _check_fields(name: str, format: str, fields: tuple) -> tuple:
    names = len(fields) == 2 and all(isinstance(field, str) for field in fields)
    columns = len(fields) == 2 and all(isinstance(field, int) and field >= 0 for field in fields)
    if names or (columns and format != "jsonl"):
        return fields
    wanted = "two keys" if format == "jsonl" else "two column numbers from 0 or two column names"
    raise PadirError(f"task {name}: option fields={fields} must be {wanted}")


def _paths(name: str, split: str, files: str | Sequence[str], folder: str, format: str) -> tuple[Path, ...]:
    names = (files,) if isinstance(files, str) else tuple(files)
    if len(names) != (2 if format == "lines" else 1):
        wanted = "a pair of files (source, target)" if format == "lines" else "one file"
        raise PadirError(f"task {name}: option {split}={files!r} must name {wanted} for format={format!r}")
    return tuple(joined(folder, file) for file in names)
