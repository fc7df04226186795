"""Lines of text in and out, for jobs over files and pipes of any size."""

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
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from padir.errors import PadirError

# An interactive user sees an answer so long after the last line typed; a program that writes faster than a line
# in this time has its lines translated in full batches.
PAUSE_SECONDS = 0.05

# What is longer is no sentence, and would be held in memory: 1 MiB of it is kept, to be rejected.
MAX_LINE_BYTES = 1 << 20

# What a file is called until it is whole.
_PARTIAL = ".partial"

_READ_BYTES = 1 << 16
# A group of lines ends early when it has so many bytes.
_CHUNK_BYTES = 1 << 24


@dataclass(frozen=True)
class Line:
    """One line of an input.

    Attributes:
      file: its name as given; '-' is standard input.
      number: counted from 1 in each file.
      raw: bytes without the line end, and without a byte order mark; of a line of more than `MAX_LINE_BYTES` the
        first so many and one more.
    """

    file: str
    number: int
    raw: bytes


def check_inputs(inputs: Sequence[str]) -> None:
    """Raises PadirError unless every input is '-' or something that can be opened as a file."""
    for name in inputs:
        if name != "-" and (not Path(name).exists() or Path(name).is_dir()):
            raise PadirError(f"{name}: no such input file")


def chunked(lines: Iterable[Line | None], size: int) -> Iterator[list[Line]]:
    """Groups lines by `size`, fewer where they are long; a group ends where there is None."""
    chunk: list[Line] = []
    held = 0
    for line in lines:
        if line is not None:
            chunk.append(line)
            held += len(line.raw)
        if chunk and (line is None or len(chunk) == size or held >= _CHUNK_BYTES):
            yield chunk
            chunk, held = [], 0
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


def is_compressed(name: str) -> bool:
    """Whether a file of this name, or one that is to have it, is read and written through gzip."""
    return name.removesuffix(_PARTIAL).endswith(".gz")


def _open(name: str) -> IO[bytes]:
    return gzip.open(name, "rb") if is_compressed(name) else open(name, "rb")


def lines_of_all(inputs: Sequence[str]) -> Iterator[Line | None]:
    """Every line of every input, in order; None where standard input pauses.

    Raises:
      PadirError: an input cannot be read to its end; names it and the last line that could be.
    """
    for name in inputs:
        yield from _standard_input() if name == "-" else lines_of(name)


def _standard_input() -> Iterator[Line | None]:
    number = 0
    try:
        for line in _arriving(0):
            if line is None:
                yield None
            else:
                number += 1
                yield _line("-", number, line)
    except OSError as error:
        raise PadirError(f"-: cannot be read after line {number}: {error}") from error


def lines_of(name: str, begin: int = 0, end: int | None = None, first: int = 1) -> Iterator[Line]:
    """Lines of a file that begin at its bytes `begin` to `end` (exclusive; None: to its end), numbered from `first`.

    A compressed file cannot be entered in its middle: `begin` must be 0 there, and bytes are uncompressed ones.

    Raises:
      PadirError: it cannot be read so far; names the last line that could be.
    """
    number = first - 1
    try:
        with _open(name) as stream:
            position = begin
            if begin:
                # The line to which the byte before belongs began earlier.
                stream.seek(begin - 1)
                position += _next_line(stream)[1] - 1
            while end is None or position < end:
                line, size = _next_line(stream)
                if not line:
                    break
                position += size
                number += 1
                yield _line(name, number, line)
    except (OSError, EOFError, zlib.error) as error:
        raise PadirError(f"{name}: cannot be read after line {number}: {error}") from error


def _next_line(stream: IO[bytes]) -> tuple[bytes, int]:
    """The next line, cut after MAX_LINE_BYTES + 1 bytes, and the bytes it has in the file; (b"", 0) at the end."""
    line = last = stream.readline(MAX_LINE_BYTES + 1)
    size = len(line)
    while size > MAX_LINE_BYTES and last and not last.endswith(b"\n"):
        last = stream.readline(_READ_BYTES)
        size += len(last)
    return line, size


def _line(name: str, number: int, line: bytes) -> Line:
    if len(line) > MAX_LINE_BYTES and not line.endswith(b"\n"):
        return Line(name, number, line[: MAX_LINE_BYTES + 1])
    raw = line.rstrip(b"\r\n")
    return Line(name, number, raw.removeprefix(codecs.BOM_UTF8) if number == 1 else raw)


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
def writing(path: str, *, whole: Callable[[Path], None] = lambda partial: None) -> Iterator[IO[str]]:
    """Standard output, or a file that takes its name only when it is whole and on disk; UTF-8 whatever the locale.

    Where the work ends early, by an error or a kill, what was written stays in `<path>.partial`. `whole` is called with
    that file when nothing is missing in it, just before it takes its name. A name that ends in .gz is compressed.
    """
    if path == "-":
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8")
        yield sys.stdout
        return
    partial = Path(f"{path}{_PARTIAL}")
    try:
        with _text_file(partial, compressed=is_compressed(path)) as stream:
            yield stream
        _sync(partial)
        whole(partial)
    except BaseException:
        if partial.exists() and partial.stat().st_size:
            print(f"{path}: not finished; what is done so far is kept in {partial}", file=sys.stderr)
        else:
            partial.unlink(missing_ok=True)
        raise
    os.replace(partial, path)
    _sync(partial.parent)


@contextlib.contextmanager
def _text_file(path: Path, *, compressed: bool) -> Iterator[IO[str]]:
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(path.open("wb"))
        if compressed:
            # Neither name nor time in its header: the same lines give the same bytes.
            file = stack.enter_context(gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0))
        yield stack.enter_context(io.TextIOWrapper(file, encoding="utf-8"))


def _sync(path: Path) -> None:
    """Puts a file, or the names in a folder, on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        # Folders of some network file systems have nothing to write.
        if not path.is_dir():
            raise
    finally:
        os.close(descriptor)


class Rejects:
    """A file of lines that could not be used, as JSON with the reason; made at the first of them.

    Attributes:
      count: how many there are.
    """

    def __init__(self, path: str):
        self.count = 0
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
        self.count += 1

    def __exit__(self, *exception: object) -> None:
        if self._stream is not None:
            os.fsync(self._stream.fileno())
            self._stream.close()
