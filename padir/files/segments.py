"""Text files to which lines are appended.

Nothing can be appended to an object. In a bucket, each addition is an object of its own, a segment, and the file is its
content followed by the lines of its segments:

    <path>                      what was there when the last writer began, or when many segments were last merged
    <path>.segments/00000001    the first addition since
    <path>.segments/00000002 …  the next ones

Segments are merged into the file, and then removed. If a kill comes between the two, their lines are in both places,
and are read once.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from padir.files.atomic import write_bytes
from padir.files.paths import as_path, is_bucket

# So many segments are merged: reading them one by one takes a request each.
MERGED_AT = 256


class AppendedText:
    """Appends lines to a text file in UTF-8. One writer at a time may do so."""

    def __init__(self, path: str | os.PathLike):
        """Opens the file at its end; raises OSError or PadirError if that is not possible."""
        self._path, self.closed = as_path(path), False
        self._stream = None if is_bucket(self._path) else self._path.open("a", encoding="utf-8")
        self._number = self._merged = 0
        if self._stream is None:
            self._number = self._merged = max((int(segment.name) for segment in _segments(self._path)), default=0)

    def write(self, lines: str) -> None:
        """Appends whole lines: they are handed to the operating system, or in the bucket, before this returns."""
        if self._stream is not None:
            self._stream.write(lines)
            self._stream.flush()
            return
        from padir.files import objects

        written = False
        while not written:
            self._number += 1
            segment = str(_folder(self._path) / f"{self._number:08d}")
            try:
                objects.write(segment, lines.encode("utf-8"), generation=objects.ABSENT)
                written = True
            except FileExistsError:
                # Ours, if the answer to the first attempt was lost; else of another writer, who should have ended.
                written = objects.read(segment) == lines.encode("utf-8")
        if self._number - self._merged >= MERGED_AT:
            replace_appended(self._path, read_appended(self._path))
            self._merged = self._number

    def close(self) -> None:
        """Closes the file; a second call does nothing."""
        self.closed = True
        if self._stream is not None:
            self._stream.close()


def read_appended(path: str | os.PathLike) -> bytes:
    """Returns the whole content of a file; raises FileNotFoundError if there is none."""
    path = as_path(path)
    if not is_bucket(path):
        return path.read_bytes()
    segments = _segments(path)
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        if not segments:
            raise
        lines = []
    with ThreadPoolExecutor(16) as pool:
        added = [line for content in pool.map(_content, segments) for line in content.splitlines(keepends=True)]
    there = set(lines)
    return b"".join([*lines, *(line for line in added if line not in there)])


def _content(segment: Path) -> bytes:
    # A segment that is gone since it was listed is merged by now; whoever reads during a run misses a few lines.
    return segment.read_bytes() if segment.exists() else b""


def appended_exists(path: str | os.PathLike) -> bool:
    """Whether the file exists."""
    path = as_path(path)
    return path.exists() or (is_bucket(path) and bool(_segments(path)))


def replace_appended(path: str | os.PathLike, content: bytes) -> None:
    """Replaces the content of a file; its segments are removed."""
    path = as_path(path)
    segments = _segments(path) if is_bucket(path) else []
    write_bytes(path, content)
    for segment in segments:
        segment.unlink(missing_ok=True)


def _folder(path: Path) -> Path:
    return path.with_name(f"{path.name}.segments")


def _segments(path: Path) -> list[Path]:
    return list(_folder(path).glob("[0-9]*"))
