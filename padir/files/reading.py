"""Opening files for reading, wherever they are."""

from __future__ import annotations

import atexit
import contextlib
import gzip
import io
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from padir.files.atomic import copy_file
from padir.files.paths import as_path, is_bucket

_BUFFER_BYTES = 1 << 16


def open_for_reading(
    path: str | os.PathLike, *, decompress: bool = False, end: int | None = None, buffering: int = -1
) -> IO[bytes]:
    """Opens a file for reading bytes.

    An object is read as a stream, with a block read ahead, from whatever position is sought.

    Args:
      path: the file.
      decompress: whether it is compressed with gzip.
      end: in a bucket, do not read ahead beyond this position.
      buffering: of a local file, as in `open`.

    Raises:
      OSError, PadirError: it cannot be opened.
    """
    if not is_bucket(path):
        return gzip.open(path, "rb") if decompress else open(path, "rb", buffering=buffering)
    from padir.files.streams import ObjectStream

    stream = io.BufferedReader(ObjectStream(str(as_path(path)), end), _BUFFER_BYTES)
    return gzip.GzipFile(fileobj=stream, mode="rb") if decompress else stream


def stand_in(path: Path) -> Path:
    """Returns a local path for libraries that know no buckets: `path` itself, or one that ends with this process.

    There is no file yet.
    """
    if not is_bucket(path):
        return path
    folder = tempfile.mkdtemp(prefix="padir-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder) / path.name


@contextlib.contextmanager
def local_file(path: str | os.PathLike) -> Iterator[Path]:
    """Yields a local file with the content of `path`: itself, or a copy of an object for as long as the block lasts."""
    if not is_bucket(path):
        yield Path(path)
        return
    with tempfile.TemporaryDirectory(prefix="padir-") as folder:
        local = Path(folder) / as_path(path).name
        copy_file(path, local)
        yield local
