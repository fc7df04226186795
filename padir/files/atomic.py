"""Writing files so that a reader never sees a partly written one, and creating output folders."""

from __future__ import annotations

import os
from pathlib import Path

from padir.errors import PadirError, kind_of


def make_folder(path: str | os.PathLike) -> None:
    """Creates a folder for output, with its parents, unless it exists.

    Raises:
      PadirError: it cannot be created.
    """
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        kind = kind_of(error) or PadirError
        raise kind(
            f"{path}: this folder cannot be created ({error.strerror}); choose an output path that you can write to"
        ) from error


def write_text(path: str | os.PathLike, text: str) -> None:
    """Writes a text file in UTF-8; if that fails, the file keeps its former content.

    Raises:
      OSError: the file cannot be written.
    """
    temporary = Path(f"{path}.tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)
