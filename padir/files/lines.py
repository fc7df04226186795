"""Reading and writing lines of text, from files and pipes of any size."""

from __future__ import annotations

import codecs
import contextlib
import gzip
import io
import json
import os
import re
import select
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO

from padir.errors import PadirError, kind_of
from padir.files.atomic import KeptLines, Replacement
from padir.files.locks import written_alone
from padir.files.paths import as_path, is_bucket
from padir.files.reading import open_for_reading

# If standard input delivers nothing for this long, the lines read so far are processed. Programs that write lines
# faster than this get full batches.
PAUSE_SECONDS = 0.05

# Longer lines are not sentences. Only this much of such a line is kept in memory, and it is rejected.
MAX_LINE_BYTES = 1 << 20

# The suffix of an output file until it is complete.
PARTIAL = ".partial"

_READ_BYTES = 1 << 16
# A group of lines ends early when it has this many bytes.
_CHUNK_BYTES = 1 << 24


@dataclass(frozen=True)
class Line:
    """One line of an input.

    Attributes:
      file: the name of the file as given, with bytes that are not UTF-8 escaped; '-' is standard input.
      number: the line number, counted from 1 in each file.
      raw: the bytes of the line without line end and byte order mark. A longer line is cut to `MAX_LINE_BYTES` + 1.
    """

    file: str
    number: int
    raw: bytes


def resolved_inputs(inputs: Sequence[str]) -> list[str]:
    """Returns the names of input files.

    Args:
      inputs: their names, and '-'. One in a bucket may be a pattern with '*', '?' or '[…]', which no shell expands:
        it stands for the files that match, in order of their names.

    Raises:
      PadirError: one does not exist or is a folder, or nothing matches.
    """
    names = []
    for name in inputs:
        if name == "-" or (as_path(name).exists() and not as_path(name).is_dir()):
            names.append(name)
        elif matching := [str(path) for path in _matching(name) if not path.is_dir()]:
            names += matching
        else:
            raise PadirError(f"{name}: no such input file")
    return names


def _matching(name: str) -> Iterable[Path]:
    """What a pattern in a bucket matches; nothing if it is none."""
    found = re.search(r"/[^/]*[*?[]", name)
    return as_path(name[: found.start()]).glob(name[found.start() + 1 :]) if found and is_bucket(name) else ()


def chunked(lines: Iterable[Line | None], size: int) -> Iterator[list[Line]]:
    """Groups lines into lists of `size`.

    A group is shorter if its lines are very long, or if None follows, which marks a pause of the input.
    """
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
    """Counts the lines of all inputs for a progress bar.

    Returns:
      The number of lines; None if an input is a pipe, or cannot be read to its end.
    """
    count = 0
    for name in inputs:
        if not as_path(name).is_file():
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
    """Whether a file of this name is compressed with gzip; it may end in '.partial'."""
    return name.removesuffix(PARTIAL).endswith(".gz")


def _open(name: str, end: int | None = None) -> IO[bytes]:
    return open_for_reading(name, decompress=is_compressed(name), end=None if is_compressed(name) else end)


def lines_of_all(inputs: Sequence[str]) -> Iterator[Line | None]:
    """Yields the lines of all inputs in order, and None whenever standard input pauses.

    Raises:
      PadirError: an input cannot be read to its end; the message names it and the last line that was read.
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
    """Yields the lines of a file that begin in a range of its bytes.

    Args:
      name: the file.
      begin: the start of the range. It must be 0 for a compressed file, which can only be read from its start.
      end: the end of the range, exclusive; None reads to the end of the file. For a compressed file it counts
        uncompressed bytes.
      first: the number of the first of these lines.

    Raises:
      PadirError: the file cannot be read; the message gives the last line that was read.
    """
    number = first - 1
    shown = os.fsencode(name).decode("utf-8", errors="backslashreplace")
    try:
        with _open(name, end) as stream:
            position = begin
            if begin:
                # Skips the line that contains the byte before `begin`, because it began earlier.
                stream.seek(begin - 1)
                position += _next_line(stream)[1] - 1
            while end is None or position < end:
                line, size = _next_line(stream)
                if not line:
                    break
                position += size
                number += 1
                yield _line(shown, number, line)
    except (OSError, EOFError, zlib.error) as error:
        raise PadirError(f"{name}: cannot be read after line {number}: {error}") from error


def _next_line(stream: IO[bytes]) -> tuple[bytes, int]:
    """Returns the next line, cut after MAX_LINE_BYTES + 1 bytes, and its full size; (b"", 0) at the end."""
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
    """Yields the lines of a pipe, terminal or file as they arrive, and None whenever a pause begins."""
    pending = b""
    while True:
        if not select.select([descriptor], [], [], PAUSE_SECONDS)[0]:
            yield None
        # Blocks until the pause ends.
        block = os.read(descriptor, _READ_BYTES)
        if not block:
            break
        *lines, pending = (pending + block).split(b"\n")
        yield from lines
        # Of a longer line no more is needed; it may be endless.
        pending = pending[: MAX_LINE_BYTES + 1]
    if pending:
        yield pending


@contextlib.contextmanager
def writing(path: str, *, whole: Callable[[Path], None] = lambda partial: None) -> Iterator[IO[str]]:
    """Opens an output for writing in UTF-8: standard output for '-', or a file.

    A file is written as `<path>.partial` and renamed to `path` when it is complete and on disk. If the work fails or
    is killed, `<path>.partial` remains. For an object, that is a local temporary file, which is sent when it is
    complete; if the work fails, what it holds is sent as `<path>.partial`. A file whose name ends in .gz is compressed.

    Args:
      path: the file, or '-'.
      whole: called with the complete partial file just before it is renamed; it may raise to prevent that.

    Raises:
      PadirError: the file cannot be created, is a folder, or another process is writing it.
    """
    if path == "-":
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8")
        yield sys.stdout
        return
    check_no_folder(path)
    replacement = Replacement(path, PARTIAL)
    partial = replacement.local
    with contextlib.ExitStack() as stack:
        with _creating(partial):
            # To the end, because another process that began between the last line and the renaming would empty it.
            file = stack.enter_context(written_alone(partial))
        try:
            with _text_stream(file, compressed=is_compressed(path)) as stream:
                yield stream
            whole(partial)
            replacement.commit(sync=True)
            if is_bucket(path):
                # Of an attempt that failed; a local one was replaced.
                as_path(f"{path}{PARTIAL}").unlink(missing_ok=True)
        except BaseException:
            if partial.exists() and partial.stat().st_size:
                kept = _keep(replacement)
                print(f"{path}: not finished; the lines written so far are kept in {kept}", file=sys.stderr)
            else:
                replacement.discard()
            raise


def check_no_folder(path: str) -> None:
    """Raises PadirError if a file that is to be written is a folder."""
    if path != "-" and not is_bucket(path) and as_path(path).is_dir():
        raise PadirError(f"{path}: this is a folder; give the name of a file to write")


def _keep(replacement: Replacement) -> str:
    """Keeps what has been written; returns where it is."""
    if not is_bucket(replacement.path):
        return str(replacement.local)
    try:
        replacement.send(PARTIAL)
    except (OSError, PadirError):
        return str(replacement.local)
    replacement.discard()
    return f"{replacement.path}{PARTIAL}"


@contextlib.contextmanager
def _text_stream(file: BinaryIO, *, compressed: bool) -> Iterator[IO[str]]:
    with contextlib.ExitStack() as stack:
        stack.enter_context(file)
        if compressed:
            # The header holds neither name nor time, so that the same lines give the same bytes.
            file = stack.enter_context(gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0))
        yield stack.enter_context(io.TextIOWrapper(file, encoding="utf-8"))


@contextlib.contextmanager
def _creating(path: Path) -> Iterator[None]:
    """Raises PadirError, which names the file, if it cannot be created in the block."""
    try:
        yield
    except OSError as error:
        kind = kind_of(error) or PadirError
        raise kind(
            f"{path}: this file cannot be created ({error.strerror}); choose an output in an existing folder that you "
            "can write to"
        ) from error


class Rejects:
    """Writes rejected lines to a file, as JSON with the reason. The file is created with the first of them.

    No other process can write the file from then on until it is closed.

    Attributes:
      count: the number of rejected lines.
    """

    def __init__(self, path: str):
        """`path` is the file to write; use the object as a context manager, which closes it."""
        self.count = 0
        self._path = as_path(path)
        self._stream: KeptLines | None = None

    def __enter__(self) -> Rejects:
        return self

    def write(self, line: Line, reason: str) -> None:
        """Writes one rejected line with the reason.

        Raises:
          PadirError: the file cannot be created or written, or another process is writing it.
        """
        if self._stream is None:
            with _creating(self._path):
                self._stream = KeptLines(self._path)
        text = line.raw.decode("utf-8", errors="backslashreplace")
        record = {"file": line.file, "line": line.number, "reason": reason, "text": text}
        try:
            self._stream.write(json.dumps(record, ensure_ascii=False) + "\n")
        except OSError as error:
            kind = kind_of(error) or PadirError
            raise kind(f"{self._path}: cannot be written after {self.count} lines ({error.strerror})") from error
        self.count += 1

    def __exit__(self, *exception: object) -> None:
        if self._stream is not None:
            self._stream.close()
