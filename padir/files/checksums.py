"""SHA-256 checksums of the files in a folder, stored in the format of `sha256sum`."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath

from padir.files.atomic import write_durably
from padir.files.paths import files_below
from padir.files.reading import open_for_reading

# `sha256sum -c SHA256SUMS` in the folder checks the files, too.
FILE = "SHA256SUMS"

_LINE = re.compile(r"([0-9a-f]{64})  (.+)")


def file_hash(path: str | os.PathLike) -> str:
    """Returns the SHA-256 of a file in hexadecimal."""
    with open_for_reading(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_checksums(folder: Path, parts: Iterable[str]) -> None:
    """Writes `<folder>/SHA256SUMS`, with one line for every file in the subfolders `parts`."""
    hashes = _hashes(folder, [name for part in parts for name in _files(folder, part)])
    # Without fsync, a crash of the machine could leave a truncated file in a folder that counts as complete.
    write_durably(folder / FILE, "".join(f"{digest}  {name}\n" for name, digest in hashes.items()))


def read_checksums(folder: Path) -> dict[str, str] | None:
    """Returns the hashes that `write_checksums` wrote, by file name; None if there is no SHA256SUMS.

    Raises:
      ValueError: SHA256SUMS is damaged.
    """
    if not (folder / FILE).exists():
        return None
    lines = (folder / FILE).read_text(encoding="utf-8", errors="replace").splitlines()
    found = [_LINE.fullmatch(line) for line in lines]
    if not all(found):
        raise ValueError(f"{FILE} has changed since it was saved")
    return {match[2]: match[1] for match in found}


def check_files(folder: Path, parts: Iterable[str], hashes: Mapping[str, str]) -> None:
    """Checks the files in some subfolders against their hashes.

    Args:
      folder: the folder.
      parts: the names of the subfolders to check.
      hashes: the expected hashes by file name, as returned by `read_checksums`.

    Raises:
      ValueError: a file has changed, is missing or is not listed; the message names it.
      OSError: a file cannot be read.
    """
    for part in parts:
        listed, there = {name for name in hashes if name.startswith(f"{part}/")}, set(_files(folder, part))
        if missing := sorted(listed - there):
            raise ValueError(f"{missing[0]} is missing")
        if not listed or there - listed:
            raise ValueError(f"{FILE} does not list all files of {part}")
        for name, digest in _hashes(folder, sorted(there)).items():
            if digest != hashes[name]:
                raise ValueError(f"{name} has changed since it was saved")


def _files(folder: Path, part: str) -> list[str]:
    """Returns the names, relative to `folder`, of all files in the subfolder `part` ("." is itself) and below."""
    return [str(PurePosixPath(part, name)) for name in files_below(folder / part)]


def _hashes(folder: Path, names: list[str]) -> dict[str, str]:
    # hashlib releases the GIL, so the files are hashed in parallel.
    with ThreadPoolExecutor() as pool:
        return dict(zip(names, pool.map(lambda name: file_hash(folder / name), names), strict=True))
