"""SHA-256 of the files of a folder, kept beside them as `sha256sum` writes it (layer 0)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

# `sha256sum -c SHA256SUMS` in the folder reads it, too.
FILE = "SHA256SUMS"


def write_checksums(folder: Path, parts: Iterable[str]) -> None:
    """Writes `<folder>/SHA256SUMS`: a line for every file of those `parts`, folders in it, that are there."""
    paths = sorted(path for part in parts for path in (folder / part).rglob("*") if path.is_file())
    lines = [f"{_sha256(path)}  {path.relative_to(folder)}\n" for path in paths]
    (folder / FILE).write_text("".join(lines), encoding="utf-8")


def first_changed(folder: Path, parts: Iterable[str]) -> Path | None:
    """The first file of `parts` that is no longer what `write_checksums` saw; None if all are.

    That is also a file that is gone, and SHA256SUMS itself if it says nothing of one of the parts. A folder without
    SHA256SUMS has nothing to be held against: None.

    Raises:
      OSError: a file cannot be read.
    """
    sums = folder / FILE
    if not sums.exists():
        return None
    listed = [line.partition("  ")[::2] for line in sums.read_text(encoding="utf-8", errors="replace").splitlines()]
    for part in parts:
        of_part = [(digest, folder / name) for digest, name in listed if name.startswith(f"{part}/")]
        if not of_part:
            return sums
        for digest, path in of_part:
            if not path.is_file() or _sha256(path) != digest:
                return path
    return None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
