"""A local copy of files in a bucket that are read often and at random, such as a data set.

    <cache>/<hash>/<file>    a copy, of this name once it is whole

The hash is that of the folder's address and of the versions of the files, so a set that was replaced is copied again.
Processes may fill one cache at the same time: each copies what is missing, and the first whole copy of a file stays.
"""

from __future__ import annotations

import base64
import hashlib
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from padir.errors import PadirError, StorageError
from padir.files.atomic import Replacement, copy_file, make_folder
from padir.files.paths import is_bucket

# Files copied at once.
_AT_ONCE = 8


def copied(folder: Path, names: Sequence[str], cache: Path) -> Path:
    """Copies files of a folder in a bucket into a local cache, unless they are there.

    Args:
      folder: the folder.
      names: the files.
      cache: the folder of the cache; created if it does not exist.

    Returns:
      The local folder that now has all of these files, whole.

    Raises:
      PadirError: the cache is in a bucket, it cannot be written, or a file does not exist.
      StorageError: a file did not arrive whole.
    """
    if is_bucket(cache):
        raise PadirError(f"{cache}: a data cache must be a local folder")
    try:
        found = {name: (folder / name).described() for name in names}
    except FileNotFoundError as error:
        raise PadirError(f"{error.filename}: is missing; delete {folder} and run `padir prepare` again") from error
    versions = [str(folder), *(f"{name} {entry.generation}" for name, entry in sorted(found.items()))]
    local = cache / hashlib.sha256("\n".join(versions).encode()).hexdigest()[:16]
    make_folder(local)
    missing = [name for name, entry in found.items() if _size(local / name) != entry.size]
    if missing:
        size = sum(found[name].size for name in missing)
        print(f"{folder}: copying {len(missing)} files of {size / 1e6:.1f} MB to {local}", file=sys.stderr)

    def copy(name: str) -> None:
        replacement = Replacement(local / name, f".{os.getpid()}")
        try:
            copy_file(folder / name, replacement.local)
            _check(replacement.local, found[name].size, found[name].md5, folder / name)
            replacement.commit()
        except OSError as error:
            raise PadirError(
                f"{local / name}: cannot be written ({error.strerror}); free the disk, or choose another data_cache"
            ) from error
        finally:
            replacement.discard()

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(copy, missing))
    return local


def _size(path: Path) -> int | None:
    return path.stat().st_size if path.exists() else None


def _check(path: Path, size: int, md5: str | None, source: Path) -> None:
    """Raises StorageError unless a copy has the size and, where the bucket knows it, the MD5 of its source."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "md5").digest()
    if path.stat().st_size != size or (md5 is not None and base64.b64decode(md5) != found):
        raise StorageError(f"{source}: did not arrive whole; run the same command again")
