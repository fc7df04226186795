"""SHA-256 of files, and of those of a folder, kept beside them as `sha256sum` writes it."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# `sha256sum -c SHA256SUMS` in the folder reads it, too.
FILE = "SHA256SUMS"

_LINE = re.compile(r"([0-9a-f]{64})  (.+)")


def file_hash(path: str | os.PathLike) -> str:
    """Returns the SHA-256 of a file in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_checksums(folder: Path, parts: Iterable[str]) -> None:
    """Writes `<folder>/SHA256SUMS`: a line for every file of those `parts`, folders in it, that are there."""
    hashes = _hashes(folder, [name for part in parts for name in _files(folder, part)])
    with (folder / FILE).open("w", encoding="utf-8") as file:
        file.writelines(f"{digest}  {name}\n" for name, digest in hashes.items())
        file.flush()
        # A machine that stops must not leave half of it in a folder that counts as whole.
        os.fsync(file.fileno())


def read_checksums(folder: Path) -> dict[str, str] | None:
    """What `write_checksums` wrote, hashes by name of file; None if there is no SHA256SUMS.

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
    """Checks that the files of `parts` are those that `hashes` were taken of.

    Raises:
      ValueError: one has changed, is gone or is new, or there are none; says which.
      OSError: one cannot be read.
    """
    for part in parts:
        listed, there = {name for name in hashes if name.startswith(f"{part}/")}, set(_files(folder, part))
        if missing := sorted(listed - there):
            raise ValueError(f"{missing[0]} is gone")
        if not listed or there - listed:
            raise ValueError(f"{FILE} lacks files of {part}")
        for name, digest in _hashes(folder, sorted(there)).items():
            if digest != hashes[name]:
                raise ValueError(f"{name} has changed since it was saved")


def _files(folder: Path, part: str) -> list[str]:
    """Names in `folder` of all files in one of its folders, however deep."""
    return sorted(str(path.relative_to(folder)) for path in (folder / part).rglob("*") if path.is_file())


def _hashes(folder: Path, names: list[str]) -> dict[str, str]:
    # Other threads go on while one hashes.
    with ThreadPoolExecutor() as pool:
        return dict(zip(names, pool.map(lambda name: file_hash(folder / name), names), strict=True))
