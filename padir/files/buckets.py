"""Paths in buckets, as `etils.epath` has them and Orbax takes them. Use `padir.files.paths.as_path` to make one."""

from __future__ import annotations

import fnmatch
import io
import os
import stat
from collections.abc import Iterator
from typing import IO, Any

# etils would import TensorFlow to reach a bucket wherever it is installed.
os.environ.setdefault("EPATH_USE_TF", "0")

from etils import epath
from etils.epath.gpath import PosixGPath

from padir.files import objects
from padir.files.streams import ObjectStream


class Status(epath.stat_utils.StatResult):
    """What is known of an object, under the names of `etils` and those of `os.stat`."""

    st_size = property(lambda self: self.length, doc="Bytes.")
    st_mtime = property(lambda self: self.mtime, doc="Seconds since 1970, of the last change.")
    st_mode = property(lambda self: self.mode, doc="As in `os.stat`.")


# Registered, so that Orbax reads and writes its own small files through it too.
@epath.register_path_cls("gs://")
class BucketPath(PosixGPath):
    """A gs:// address with the methods of `pathlib.Path`.

    Methods raise FileNotFoundError like those of `Path`, and else StorageError or another PadirError.
    """

    def exists(self) -> bool:
        """Whether there is an object of this name, or something below it."""
        return self.is_file() or self.is_dir()

    def is_file(self) -> bool:
        """Whether there is an object of this name."""
        try:
            self.described()
        except FileNotFoundError:
            return False
        return True

    def is_dir(self) -> bool:
        """Whether there is something below this name; a bucket itself is always a folder."""
        if not objects.split(str(self))[1]:
            objects.check_bucket(objects.split(str(self))[0])
            return True
        return any(objects.listed(str(self), most=1))

    def described(self) -> objects.Description:
        """Describes the object; raises FileNotFoundError if there is none."""
        return objects.describe(str(self))

    def stat(self) -> Status:
        """Returns the size and the time of the object. A folder has size 0."""
        try:
            found = self.described()
        except FileNotFoundError:
            if not self.is_dir():
                raise
            return Status(is_directory=True, length=0, mtime=0, mode=stat.S_IFDIR)
        return Status(is_directory=False, length=found.size, mtime=int(found.modified), mode=stat.S_IFREG)

    def iterdir(self) -> Iterator[BucketPath]:
        """Yields what is in this folder; raises FileNotFoundError if there is nothing."""
        found, folders = objects.listed(str(self))
        if not found and not folders and not self.is_dir():
            raise FileNotFoundError(2, "No such folder", str(self))
        yield from map(type(self), sorted([*(entry.uri for entry in found), *folders]))

    def names_below(self) -> list[str]:
        """Returns the names of all objects below this folder, relative to it, in order."""
        start = len(str(self)) + 1
        return sorted(entry.uri[start:] for entry in objects.listed(str(self), below=True)[0])

    def glob(self, pattern: str) -> Iterator[BucketPath]:
        """Yields what matches a pattern, in order; '*' matches within one name."""
        first, _, rest = pattern.partition("/")
        names = {entry.rsplit("/", 1)[1] for entry in self._entries()}
        for name in sorted(name for name in names if fnmatch.fnmatchcase(name, first)):
            yield from (self / name).glob(rest) if rest else [self / name]

    def _entries(self) -> list[str]:
        found, folders = objects.listed(str(self))
        return [*(entry.uri for entry in found), *folders]

    def mkdir(self, mode: int | None = None, parents: bool = False, exist_ok: bool = False) -> None:
        """Does nothing, except that the bucket must exist."""
        objects.check_bucket(objects.split(str(self))[0])

    def unlink(self, missing_ok: bool = False) -> None:
        """Removes the object."""
        objects.remove(str(self), missing_ok=missing_ok)

    def rmdir(self) -> None:
        """Does nothing: an empty folder does not exist."""

    def rmtree(self, missing_ok: bool = False) -> None:
        """Removes all objects below this folder."""
        found = objects.listed(str(self), below=True)[0]
        if not found and not missing_ok:
            raise FileNotFoundError(2, "No such folder", str(self))
        for entry in found:
            objects.remove(entry.uri, missing_ok=True)

    def resolve(self, strict: bool = False) -> BucketPath:
        """Returns the same address: it is absolute."""
        return self

    def rename(self, target: str | os.PathLike) -> BucketPath:
        """Copies an object, or all below a folder, and then removes the original. This is not atomic."""
        target = type(self)(target)
        names = self.names_below()
        for name in names or [""]:
            objects.copy(f"{self}/{name}" if name else str(self), f"{target}/{name}" if name else str(target))
        if names:
            self.rmtree()
        else:
            self.unlink()
        return target

    replace = rename

    def copy(self, dst: str | os.PathLike, overwrite: bool = False) -> BucketPath:
        """Copies an object within the storage."""
        objects.copy(str(self), str(type(self)(dst)))
        return type(self)(dst)

    def read_bytes(self) -> bytes:
        """Reads the whole object."""
        return objects.read(str(self))

    def read_text(self, encoding: str | None = None, errors: str | None = None) -> str:
        """Reads the whole object as text, in UTF-8 unless told otherwise."""
        text = self.read_bytes().decode(encoding or "utf-8", errors or "strict")
        return text.replace("\r\n", "\n").replace("\r", "\n")

    def write_bytes(self, data: bytes) -> int:
        """Writes the object whole."""
        objects.write(str(self), bytes(data))
        return len(data)

    def write_text(
        self, data: str, encoding: str | None = None, errors: str | None = None, newline: str | None = None
    ) -> int:
        """Writes a text whole, in UTF-8 unless told otherwise."""
        self.write_bytes(data.encode(encoding or "utf-8", errors or "strict"))
        return len(data)

    def touch(self, mode: int = 0o666, exist_ok: bool = True) -> None:
        """Writes an empty object unless there is one."""
        if not self.exists():
            self.write_bytes(b"")

    def open(
        self, mode: str = "r", *, encoding: str | None = None, errors: str | None = None, **kwargs: Any
    ) -> IO[Any]:
        """Opens the object: for reading as a stream; for writing in memory, until it is closed without an error."""
        kind = mode.replace("b", "").replace("t", "")
        if kind == "r":
            stream: IO[Any] = io.BufferedReader(ObjectStream(str(self)), 1 << 16)
        elif kind == "w":
            stream = _Upload(str(self))
        else:
            raise ValueError(f"{self}: mode {mode!r} is not possible in a bucket")
        return stream if "b" in mode else _Text(stream, encoding=encoding or "utf-8", errors=errors)


class _Upload(io.BytesIO):
    """Content of an object that is written when the stream is closed, unless an error ends its `with` block."""

    def __init__(self, uri: str):
        super().__init__()
        self._uri, self.failed = uri, False

    def __exit__(self, kind: Any, *rest: Any) -> None:
        self.failed = kind is not None
        self.close()

    def close(self) -> None:
        """Writes the object."""
        if not self.closed and not self.failed:
            self.failed = True  # Of two attempts, a second would hide the first one's error.
            objects.write(self._uri, self.getvalue())
        super().close()


class _Text(io.TextIOWrapper):
    """A text stream that tells what it wraps whether an error ends its `with` block."""

    def __exit__(self, kind: Any, *rest: Any) -> None:
        if kind is not None and isinstance(self.buffer, _Upload):
            self.buffer.failed = True
        super().__exit__(kind, *rest)
