"""Locks between processes and hosts.

A local lock is one of the operating system, which releases it when its holder ends, even if killed. In a bucket it is
an object, a lease: its holder renews it every few seconds, and removes it at the end. Whoever waits takes it over when
it has not changed for as long as it lasts by the waiting process's own clock, so that clocks need not agree. Each of
these writes is conditional on the generation of the object, so of several that try one succeeds.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from padir.errors import PadirError, StorageError
from padir.files.paths import is_bucket

# A lease that its holder has not renewed for this long is lost. It is renewed three times as often.
LEASE_SECONDS = 30.0
_POLL_SECONDS = 1.0


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Lets one process at a time work in the block. The lock passes to the next one when its holder ends.

    Args:
      path: the file or object that stands for the lock.

    Raises:
      StorageError: the lease was lost to another process, because it could not be renewed in time.
    """
    if is_bucket(path):
        with Lease(str(path)):
            yield
        return
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def alone_in(folder: str | os.PathLike, doing: str) -> Iterator[None]:
    """Refuses the block while another process is in such a block with the same folder. A killed process is in none.

    The lock is on the folder itself, so it leaves no file. A folder in a bucket is not locked, because losing a lease
    to half a minute without storage would end a job of days. Nor is one in a file system without such locks.

    Args:
      folder: an existing folder.
      doing: what the block does, for the message, e.g. 'training this run'.

    Raises:
      PadirError: another process is in the block.
    """
    if is_bucket(folder):
        yield
        return
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PadirError(f"{folder}: another process is {doing}; wait until it has ended, or stop it") from None
        except OSError:
            pass  # No locks here, e.g. on NFS, whose locks need a file opened for writing.
        yield
    finally:
        os.close(opened)


@contextlib.contextmanager
def written_alone(path: Path) -> Iterator[BinaryIO]:
    """Opens a local file, emptied, which no other process writes until the block ends, even if it is closed before.

    The block may rename the file. In a file system without such locks, nobody is kept out.

    Raises:
      PadirError: another process is writing the file, which is left as it is.
      OSError: the file cannot be opened.
    """
    opened = _open_locked(path)
    try:
        # The lock is that of all descriptors together: this one keeps it when the file is closed.
        with os.fdopen(os.dup(opened), "wb") as file:
            yield file
    finally:
        os.close(opened)


def _open_locked(path: Path) -> int:
    """Opens a file, which is emptied, and locks it."""
    while True:
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            if not stat.S_ISREG(os.fstat(opened).st_mode):
                return opened  # Several may write to a pipe or to /dev/null, which holds nothing.
            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                remedy = "wait until it has ended, or stop it"
                raise PadirError(f"{path}: another process is writing this file; {remedy}") from None
            except OSError:
                pass  # No locks here.
            # Whoever held the lock may have renamed the file just before: then it is finished, and not ours to empty.
            if path.exists() and os.path.samestat(os.fstat(opened), path.stat()):
                os.truncate(opened, 0)
                return opened
        except BaseException:
            os.close(opened)
            raise
        os.close(opened)


class Lease:
    """A lock in a bucket; use it as a context manager."""

    def __init__(self, uri: str, seconds: float | None = None):
        """`uri` is the object; after `seconds` without renewal it is lost, `LEASE_SECONDS` by default."""
        self._uri, self._seconds = uri, LEASE_SECONDS if seconds is None else seconds
        self._holder = f"{os.uname().nodename} process {os.getpid()}"
        self._token = uuid.uuid4().hex
        self._generation = 0
        self._lost = False
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._renew_until_end, name="lease", daemon=True)

    def __enter__(self) -> Lease:
        from padir.files import objects

        known, told = objects.ABSENT, False
        while not self._write(known):
            if not told:
                print(f"{self._uri}: held by {self._holder_there()}; waiting for it", file=sys.stderr)
                told = True
            known = self._wait()
        self._thread.start()
        return self

    def _wait(self) -> int:
        """Waits until there is no lease, or until it has not changed for so long that it is lost.

        Returns:
          The generation of what is there.
        """
        known, since = self._there(), time.monotonic()
        while known and time.monotonic() - since < self._seconds:
            time.sleep(min(_POLL_SECONDS, self._seconds / 3))
            now = self._there()
            if now != known:
                known, since = now, time.monotonic()
        return known

    def _there(self) -> int:
        """Returns the generation of the lease, `objects.ABSENT` if there is none."""
        from padir.files import objects

        try:
            return objects.describe(self._uri).generation
        except FileNotFoundError:
            return objects.ABSENT

    def _write(self, generation: int) -> bool:
        """Writes the lease if the object has this generation; returns whether it is now ours."""
        from padir.files import objects

        content = json.dumps({"holder": self._holder, "token": self._token, "seconds": self._seconds})
        try:
            self._generation = objects.write(self._uri, content.encode(), generation=generation)
            return True
        except FileExistsError:
            return self._is_ours()

    def _is_ours(self) -> bool:
        """Whether the lease there is ours after all: the answer to a first attempt may have been lost."""
        from padir.files import objects

        try:
            found = objects.describe(self._uri).generation
            ours = json.loads(objects.read(self._uri, generation=found)).get("token") == self._token
        except PadirError:
            raise
        except (FileNotFoundError, ValueError):
            return False
        self._generation = found if ours else self._generation
        return ours

    def _holder_there(self) -> str:
        from padir.files import objects

        try:
            return str(json.loads(objects.read(self._uri)).get("holder"))
        except (FileNotFoundError, ValueError, AttributeError):
            return "another process"

    def _renew_until_end(self) -> None:
        renewed = time.monotonic()
        while not self._end.wait(self._seconds / 3):
            try:
                if not self._write(self._generation):
                    break
                renewed = time.monotonic()
            except ValueError:  # A PadirError: the storage does not answer, or refuses.
                if time.monotonic() - renewed > self._seconds:
                    break
        else:
            return
        self._lost = True

    def __exit__(self, kind: object, *rest: object) -> None:
        from padir.files import objects

        self._end.set()
        self._thread.join()
        with contextlib.suppress(FileNotFoundError, FileExistsError, StorageError):
            if not self._lost:
                objects.remove(self._uri, generation=self._generation)
        if self._lost and kind is None:
            raise StorageError(
                f"{self._uri}: this lock passed to another process, because it could not be renewed for "
                f"{self._seconds:.0f} s; run the same command again"
            )
