"""Reads sentence pairs from text files; error messages give file and line (no TensorFlow)."""

from __future__ import annotations

import abc
import itertools
import json
import random
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from padir import checks
from padir.errors import PadirError
from padir.files.reading import open_for_reading

FORMATS = ("lines", "tsv", "jsonl")


class Pairs(abc.ABC):
    """The (source, target) sentence pairs of one split; each iteration reads them again.

    Attributes:
      skipped: number of pairs that the latest complete iteration left out because a side was empty.
      total: number of pairs that an iteration yields; None if it is not known before the first iteration has ended.
    """

    skipped: int = 0
    total: int | None = None

    @abc.abstractmethod
    def __iter__(self) -> Iterator[tuple[str, str]]: ...


class NextPairs(Pairs):
    """The next `count` pairs of an iterator.

    Attributes:
      read: number of pairs read so far.
    """

    def __init__(self, rows: Iterator[tuple[str, str]], count: int):
        self._rows, self._count, self.read = rows, count, 0

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """Yields (source, target). Works only once."""
        for pair in itertools.islice(self._rows, self._count):
            self.read += 1
            yield pair


class TextPairs(Pairs):
    """Sentence pairs from plain or gzip-compressed UTF-8 files, which are not held in memory.

    Surrounding white space and a byte order mark are removed. The text is otherwise unchanged.
    """

    def __init__(
        self,
        paths: tuple[Path, ...],
        *,
        format: str,
        fields: tuple[int, int] | tuple[str, str],
        skip_empty: bool = False,
        limit: int | None = None,
    ):
        """Checks that the files exist, without reading them.

        Args:
          paths: two line-aligned files (source, target) for 'lines', one file otherwise.
          format: one of FORMATS.
          fields: source and target field. For 'tsv' two column numbers from 0, or two names in the header row; for
            'jsonl' two keys. Has no effect for 'lines'.
          skip_empty: whether to skip and count pairs with an empty side instead of raising an error.
          limit: maximum number of pairs to read; None reads all.

        Raises:
          PadirError: a file does not exist.
        """
        for path in paths:
            if not path.is_file():
                raise PadirError(f"{path}: no such file")
        self.paths, self.format, self.fields = paths, format, fields
        self.skip_empty, self.limit = skip_empty, limit

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """Yields (source, target).

        Raises:
          PadirError: invalid UTF-8, an empty side or a malformed row, with file and line; or the files have different
            numbers of lines.
        """
        readers = {"lines": self._aligned, "tsv": self._tsv, "jsonl": self._jsonl}
        self.skipped = total = 0
        for pair in itertools.islice(self._checked(readers[self.format]()), self.limit):
            total += 1
            yield pair
        self.total = total

    def _checked(self, rows: Iterable[tuple[int, str, str]]) -> Iterator[tuple[str, str]]:
        for number, source, target in rows:
            pair = source.strip(), target.strip()
            if all(pair):
                yield pair
            elif self.skip_empty:
                self.skipped += 1
            else:
                # With two files, the message names the one with the empty line.
                path = self.paths[-1] if pair[0] else self.paths[0]
                side = "target" if pair[0] else "source"
                raise PadirError(f"{path}:{number}: empty {side}; remove the pair or set skip_empty=True")

    def _aligned(self) -> Iterator[tuple[int, str, str]]:
        source_path, target_path = self.paths
        sources, targets = read_lines(source_path), read_lines(target_path)
        number = 0
        for number, source in sources:
            target = next(targets, None)
            if target is None:
                raise self._unequal(number + sum(1 for _ in sources), number - 1)
            yield number, source, target[1]
        if surplus := sum(1 for _ in targets):
            raise self._unequal(number, number + surplus)

    def _unequal(self, sources: int, targets: int) -> PadirError:
        return PadirError(
            f"{self.paths[0]} has {sources} lines but {self.paths[1]} has {targets}; "
            "line n of one must translate line n of the other"
        )

    def _tsv(self) -> Iterator[tuple[int, str, str]]:
        path = self.paths[0]
        lines = read_lines(path)
        columns, width = self.fields, None
        if isinstance(columns[0], str):
            header = next(lines, (1, ""))[1].split("\t")
            missing = [name for name in columns if name not in header]
            if missing:
                raise PadirError(f"{path}:1: no column {missing[0]!r} in the header row; it has {', '.join(header)}")
            columns, width = tuple(header.index(name) for name in columns), len(header)
        for number, line in lines:
            row = line.split("\t")
            if width is None:
                width = max(len(row), max(columns) + 1)
            if len(row) != width:
                raise PadirError(f"{path}:{number}: expected {width} tab-separated columns, found {len(row)}")
            yield number, row[columns[0]], row[columns[1]]

    def _jsonl(self) -> Iterator[tuple[int, str, str]]:
        path = self.paths[0]
        for number, line in read_lines(path):
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise PadirError(f"{path}:{number}: not JSON: {error}") from error
            texts = []
            for field in self.fields:
                if not isinstance(row, dict) or not isinstance(row.get(field), str):
                    raise PadirError(f"{path}:{number}: no text field {field!r} in this JSON row")
                try:
                    checks.characters(row[field])
                except PadirError as error:
                    raise PadirError(f"{path}:{number}: field {field!r} {error}") from None
                texts.append(row[field])
            yield number, texts[0], texts[1]


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yields (line number from 1, text without line end) for each line of a UTF-8 file.

    A file whose name ends in .gz is decompressed.

    Raises:
      PadirError: the file cannot be read or contains invalid UTF-8; the message gives file and line.
    """
    number = 0
    try:
        with open_for_reading(path, decompress=path.suffix == ".gz") as file:
            for number, line in enumerate(file, start=1):
                text = line.decode("utf-8").rstrip("\r\n")
                yield number, text.removeprefix("\ufeff") if number == 1 else text
    except UnicodeDecodeError as error:
        raise PadirError(f"{path}:{number}: invalid UTF-8 at byte {error.start + 1} of the line") from error
    except (OSError, EOFError, zlib.error) as error:
        raise PadirError(f"{path}: cannot be read after line {number}: {error}") from error


def sample(sentences: Iterable[str], size: int, *, seed: int = 0) -> list[str]:
    """Returns a uniform sample of at most `size` sentences (reservoir sampling, Vitter 1985, algorithm R).

    The stream is read once, and only the sample is held in memory. The same stream and seed give the same sample.
    """
    rng = random.Random(seed)
    kept: list[str] = []
    for seen, sentence in enumerate(sentences):
        if seen < size:
            kept.append(sentence)
        elif (place := int(rng.random() * (seen + 1))) < size:
            kept[place] = sentence
    return kept
