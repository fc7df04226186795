"""Lines of text in and out, for jobs over files and pipes of any size (layer 0)."""

from __future__ import annotations

import codecs
import contextlib
import gzip
import io
import json
import os
import select
import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from padir.errors import PadirError

# An interactive user sees an answer so long after the last line typed; a program that writes faster than a line
# in this time has its lines translated in full batches.
PAUSE_SECONDS = 0.05

_READ_BYTES = 1 << 16


@dataclass(frozen=True)
class Line:
    """One line of an input.

    Attributes:
      file: its name as given; '-' is standard input.
      number: counted from 1 in each file.
      raw: bytes without the line end, and without a byte order mark.
    """

    file: str
    number: int
    raw: bytes


def check_inputs(inputs: Sequence[str]) -> None:
    """Raises PadirError unless every input is '-' or something that can be opened as a file."""
    for name in inputs:
        if name != "-" and (not Path(name).exists() or Path(name).is_dir()):
            raise PadirError(f"{name}: no such input file")


def read_chunks(inputs: Sequence[str], size: int) -> Iterator[list[Line]]:
    """Groups the lines of all inputs by `size`, in order; standard input also where it pauses.

    Raises:
      PadirError: an input cannot be read to its end; names it and the last line that could be.
    """
    chunk: list[Line] = []
    for line in _lines(inputs):
        if line is not None:
            chunk.append(line)
        if chunk and (line is None or len(chunk) == size):
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def count_lines(inputs: Sequence[str]) -> int | None:
    """How many lines there are, for a progress bar; None if an input can be read only once, or not to its end."""
    count = 0
    for name in inputs:
        if not Path(name).is_file():
            return None
        last = b"\n"
        try:
            with _open(name) as stream:
                for block in iter(lambda: stream.read(_READ_BYTES), b""):
                    count, last = count + block.count(b"\n"), block
        except (OSError, EOFError, zlib.error):
            return None
        count += not last.endswith(b"\n")
    return count


def _open(name: str) -> IO[bytes]:
    return gzip.open(name, "rb") if name.endswith(".gz") else open(name, "rb")


def _lines(inputs: Sequence[str]) -> Iterator[Line | None]:
    """Every line of every input; None where standard input pauses."""
    for name in inputs:
        number = 0
        try:
            with contextlib.nullcontext(_arriving(0)) if name == "-" else _open(name) as stream:
                for line in stream:
                    if line is None:
                        yield None
                        continue
                    number += 1
                    raw = line.rstrip(b"\r\n")
                    yield Line(name, number, raw.removeprefix(codecs.BOM_UTF8) if number == 1 else raw)
        except (OSError, EOFError, zlib.error) as error:
            raise PadirError(f"{name}: cannot be read after line {number}: {error}") from error


def _arriving(descriptor: int) -> Iterator[bytes | None]:
    """Lines of a pipe, terminal or file as they arrive; None when a pause begins."""
    pending = b""
    while True:
        if not select.select([descriptor], [], [], PAUSE_SECONDS)[0]:
            yield None
        # Waits for as long as the pause lasts.
        block = os.read(descriptor, _READ_BYTES)
        if not block:
            break
        *lines, pending = (pending + block).split(b"\n")
        yield from lines
    if pending:
        yield pending


@contextlib.contextmanager
def writing(path: str) -> Iterator[IO[str]]:
    """Standard output, or a file that takes its name only when it is whole; UTF-8 whatever the locale.

    Where the work ends early, by an error or a kill, what was written stays in `<path>.partial`.
    """
    if path == "-":
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8")
        yield sys.stdout
        return
    partial = Path(f"{path}.partial")
    with partial.open("w", encoding="utf-8") as stream:
        try:
            yield stream
        except BaseException:
            if stream.tell():
                print(f"{path}: not finished; what is done so far is kept in {partial}", file=sys.stderr)
            else:
                partial.unlink()
            raise
    os.replace(partial, path)


class Rejects:
    """A file of lines that could not be used, as JSON with the reason; made at the first of them."""

    def __init__(self, path: str):
        self._path = Path(path)
        self._stream: IO[str] | None = None

    def __enter__(self) -> Rejects:
        return self

    def write(self, line: Line, reason: str) -> None:
        """Adds one line."""
        if self._stream is None:
            self._stream = self._path.open("w", encoding="utf-8")
        text = line.raw.decode("utf-8", errors="backslashreplace")
        record = {"file": line.file, "line": line.number, "reason": reason, "text": text}
        self._stream.write(json.dumps(record, ensure_ascii=False) + "\n")
        self._stream.flush()

    def __exit__(self, *exception: object) -> None:
        if self._stream is not None:
            self._stream.close()
