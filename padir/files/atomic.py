"""Writing files so that a reader never sees a partly written one; creating, copying and removing.

A local file is written beside its place and renamed. An object in a bucket is written to a local file first, in the
folder for temporary files (TMPDIR), and sent whole: it appears when all of it has arrived.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import stat
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

from padir.errors import PadirError, kind_of
from padir.files.locks import written_alone
from padir.files.paths import as_path, is_bucket


def make_folder(path: str | os.PathLike) -> None:
    """Creates a folder for output, with its parents, unless it exists. In a bucket, only the bucket must exist.

    Raises:
      PadirError: it cannot be created.
    """
    try:
        as_path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        kind = kind_of(error) or PadirError
        raise kind(
            f"{path}: this folder cannot be created ({error.strerror}); choose an output path that you can write to"
        ) from error


class Replacement:
    """A local file to write, which then takes the place of a file or object as a whole.

    Attributes:
      path: what is replaced.
      local: the file to write. Nothing is there yet.
    """

    def __init__(self, path: str | os.PathLike, suffix: str = ".tmp"):
        """`path` is what is replaced; the name of a local one gets `suffix` until it is complete."""
        self.path = as_path(path)
        self._folder: str | None = None
        if is_bucket(self.path):
            self._folder = tempfile.mkdtemp(prefix="padir-")
            # The whole name is kept, because its end may say how the content is written.
            self.local = Path(self._folder) / f"{self.path.name}{suffix}"
        else:
            self.local = Path(f"{self.path}{suffix}")

    def commit(self, *, sync: bool = False) -> None:
        """Puts the written file in its place.

        Args:
          sync: whether the file and its name must be on disk before this returns.

        Raises:
          OSError, PadirError: this is not possible; nothing has changed.
        """
        if self._folder is not None:
            self.send()
            self.discard()
            return
        if sync:
            sync_to_disk(self.local)
        os.replace(self.local, self.path)
        if sync:
            sync_to_disk(self.path.parent)

    def send(self, suffix: str = "") -> None:
        """Writes what is in the local file to the bucket, under the name with `suffix`."""
        from padir.files import objects

        objects.write_file(f"{self.path}{suffix}", self.local)

    def discard(self) -> None:
        """Removes the local file."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        elif self.local.exists():
            self.local.unlink()


@contextlib.contextmanager
def replacing(path: str | os.PathLike, suffix: str = ".tmp", *, sync: bool = False) -> Iterator[Path]:
    """Yields a local file to write, which takes the place of `path` at the end of the block; see `Replacement`.

    If the block fails, `path` keeps its former content.
    """
    replacement = Replacement(path, suffix)
    try:
        yield replacement.local
        replacement.commit(sync=sync)
    except BaseException:
        if is_bucket(path):
            replacement.discard()
        raise


def share_as_usual(path: Path) -> None:
    """Gives a local file the permissions of one that `open` creates; some libraries write for the owner alone."""
    usual = path.with_name(f"{path.name}.mode")
    usual.touch()
    path.chmod(stat.S_IMODE(usual.stat().st_mode))
    usual.unlink()


def write_text(path: str | os.PathLike, text: str) -> None:
    """Writes a text file in UTF-8; if that fails, the file keeps its former content.

    Raises:
      OSError, PadirError: the file cannot be written.
    """
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: str | os.PathLike, content: bytes) -> None:
    """Writes a file; if that fails, the file keeps its former content.

    Raises:
      OSError, PadirError: the file cannot be written.
    """
    if is_bucket(path):
        as_path(path).write_bytes(content)
        return
    # A name of its own, because several processes may write the same file.
    temporary = Path(f"{path}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_durably(path: Path, text: str) -> None:
    """Writes a text file in UTF-8 to its place, and does not return before it is on disk."""
    if is_bucket(path):
        path.write_bytes(text.encode("utf-8"))
        return
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def write_by_any(path: Path, content: bytes) -> None:
    """Writes a file that several independent hosts may write at the same time with the same content.

    In a bucket the first one's stays.
    """
    if is_bucket(path):
        from padir.files import objects

        with contextlib.suppress(FileExistsError):
            objects.write(str(path), content, generation=objects.ABSENT)
        return
    replacement = Replacement(path, f".{os.uname().nodename}-{os.getpid()}")
    replacement.local.write_bytes(content)
    replacement.commit(sync=True)


def copy_file(source: str | os.PathLike, target: str | os.PathLike) -> None:
    """Copies a file; the copy appears when it is complete. Within buckets, nothing is read here.

    Nothing happens if both are the same.
    """
    source, target = as_path(source), as_path(target)
    if source == target:
        return
    if is_bucket(source) and is_bucket(target):
        source.copy(target)
    elif is_bucket(target):
        from padir.files import objects

        objects.write_file(str(target), source)
    elif is_bucket(source):
        with replacing(target) as local, source.open("rb") as stream, local.open("wb") as out:
            shutil.copyfileobj(stream, out, 1 << 20)
    else:
        with replacing(target) as local:
            shutil.copyfile(source, local)


def remove_folder(path: Path, *, ignore_errors: bool = False) -> None:
    """Removes a folder with all that is in it."""
    if is_bucket(path):
        with contextlib.suppress(*[OSError, PadirError] * ignore_errors):
            path.rmtree(missing_ok=ignore_errors)
    else:
        shutil.rmtree(path, ignore_errors=ignore_errors)


def rename_folder(path: Path, target: Path, *, last: str = "") -> None:
    """Renames a folder. In a bucket, its objects are copied within the storage, and then removed.

    Args:
      path: the folder.
      target: its new name; what is there is removed.
      last: in a bucket, the object by which the folder counts as whole. It is removed first, and not copied.
    """
    remove_folder(target, ignore_errors=True)
    if not is_bucket(path):
        path.rename(target)
        return
    names = path.names_below()
    for name in names:
        if name != last:
            (path / name).copy(target / name)
    if last:
        (path / last).unlink(missing_ok=True)
    remove_folder(path)


def sync_to_disk(path: Path) -> None:
    """Flushes a local file, or the names in a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        # Some network file systems do not support fsync on folders.
        if not path.is_dir():
            raise
    finally:
        os.close(descriptor)


class KeptLines:
    """A text file whose lines are handed over one by one, and which is on disk or in the bucket once closed.

    In a bucket it appears when it is closed.
    """

    def __init__(self, path: Path):
        """`path` is the file; raises OSError if it cannot be created, PadirError if another process is writing it."""
        self._replacement = Replacement(path) if is_bucket(path) else None
        self._stack = contextlib.ExitStack()
        local = path if self._replacement is None else self._replacement.local
        file = self._stack.enter_context(written_alone(local))
        self._stream = self._stack.enter_context(io.TextIOWrapper(file, encoding="utf-8"))

    def write(self, line: str) -> None:
        """Writes a line, and hands it to the operating system."""
        self._stream.write(line)
        self._stream.flush()

    def close(self) -> None:
        """Completes the file."""
        if stat.S_ISREG(os.fstat(self._stream.fileno()).st_mode):  # A pipe or /dev/null keeps nothing.
            os.fsync(self._stream.fileno())
        self._stack.close()
        if self._replacement is not None:
            self._replacement.commit()
