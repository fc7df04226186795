"""Where gin files are found: in the working directory, on the search path, among those of padir, or in a bucket."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TextIO

from padir.errors import PadirError
from padir.files.paths import as_path, is_bucket

# Folders to look in after the working directory. gin's own list of them can only grow: a parse would find the files of
# an earlier one.
search_folders: list[str] = []


def gin_folder() -> Path:
    """The gin files that come with padir: the checkout's `gin/`, or the installed wheel's copy."""
    package = Path(__file__).resolve().parents[1]
    checkout = package.parent / "gin"
    return checkout if (checkout / "models").is_dir() else package / "gin_files"


def found(name: str) -> Path | None:
    """Where the gin file of a name lies: an address as it is, or in the first of `search_folders` that has it.

    Raises:
      PadirError: it is an address of something that is not in a bucket.
    """
    if is_bucket(path := as_path(name)):
        return path
    paths = (Path(folder) / name for folder in search_folders)
    return next((path for path in paths if path.is_file()), None)


def opened(name: str) -> TextIO:
    """The text of a gin file that was `found`; its `name` lets gin say where a mistake stands.

    Raises:
      PadirError: there is no such file, it is not UTF-8, or the storage refuses.
    """
    path = found(name)
    try:
        text = io.StringIO(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise PadirError(f"{path}: there is no such gin file; correct its name in --gin_file or include") from None
    except UnicodeDecodeError as error:
        raise PadirError(f"{path}: this gin file is not UTF-8 ({error})") from None
    text.name = str(path)
    return text
