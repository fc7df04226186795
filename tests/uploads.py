"""Local folders in buckets."""

from pathlib import Path

from padir.files.atomic import copy_file
from padir.files.paths import as_path, files_below


def upload(folder, address):
    """Copies a local folder to an address; returns its path."""
    for name in files_below(Path(folder)):
        copy_file(Path(folder) / name, as_path(address) / name)
    return as_path(address)
