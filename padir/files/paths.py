"""Paths: of local files, and gs:// addresses of objects in a bucket.

Everywhere else a path is what `as_path` returns. Both kinds have the methods of `pathlib.Path` that are used here. What
a bucket does differently:

* A folder exists while it contains something; making one does nothing.
* Writing an object is atomic (`padir.files.atomic`), and nothing can be appended to it (`padir.files.segments`).
* Listings are up to date: nothing is cached.

No other module looks at how an address begins. gcsfs, the extra padir[gcs], is imported with the first gs:// address.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from padir.errors import PadirError, how_to_install

_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*)://")


def is_bucket(path: str | os.PathLike) -> bool:
    """Whether a path is the gs:// address of something in a bucket."""
    return os.fspath(path).startswith("gs://")


def as_path(path: str | os.PathLike) -> Path:
    """Returns a path with the methods of `pathlib.Path`: a `Path`, or a `BucketPath` for a gs:// address.

    Raises:
      PadirError: it is an address of another kind, or the extra padir[gcs] is not installed.
    """
    text = os.fspath(path)
    if not is_bucket(text):
        if found := _SCHEME.match(text):
            raise PadirError(
                f"{text}: {found[1]}:// is not supported, because Orbax cannot save checkpoints there; give a gs:// "
                "address or a local path"
            )
        return Path(text)
    try:
        from padir.files.buckets import BucketPath
    except ImportError as error:
        raise PadirError(f"{text}: needs {how_to_install('gcs')} ({error})") from error
    return BucketPath(text)


def local_path(path: str | os.PathLike) -> Path:
    """Returns the path of a local file or folder, where nothing else will do.

    Raises:
      PadirError: it is an address.
    """
    found = as_path(path)
    if is_bucket(found):
        raise PadirError(
            f"{found}: this must be a local path; copy it from or to the bucket with `gcloud storage cp --recursive`"
        )
    return found


def joined(folder: str | os.PathLike, name: str | os.PathLike) -> Path:
    """Returns the path of a file named relative to a folder, or by an address or an absolute path; '~' is expanded.

    Raises:
      PadirError: see `as_path`.
    """
    if _SCHEME.match(os.fspath(name)):
        return as_path(name)
    name = Path(name).expanduser()
    folder = as_path(folder)
    return name if name.is_absolute() else (folder if is_bucket(folder) else folder.expanduser()) / name


def files_below(folder: Path) -> list[str]:
    """Returns the names of all files in a folder and below, relative to it, in order."""
    if is_bucket(folder):
        return folder.names_below()
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def version_of(path: str | os.PathLike) -> dict[str, int]:
    """Returns numbers that change with a file: its size, and its time of change or the generation of the object.

    Raises:
      OSError: there is no such file.
    """
    path = as_path(path)
    if is_bucket(path):
        found = path.described()
        return {"bytes": found.size, "generation": found.generation}
    status = os.stat(path)
    return {"bytes": status.st_size, "modified_ns": status.st_mtime_ns}
