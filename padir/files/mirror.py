"""A folder for libraries that write local files by themselves: what they write is sent to a bucket."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from padir.files.atomic import copy_file
from padir.files.paths import files_below, is_bucket


class MirroredFolder:
    """A local folder whose files are sent to a folder; if that is local, it is the same.

    Attributes:
      local: the folder to write to.
      mirrored: whether that is another one.
    """

    def __init__(self, folder: Path):
        """`folder` is where the files belong; what is there already is not fetched."""
        self._folder, self.mirrored = folder, is_bucket(folder)
        self._sent: dict[str, tuple[int, int]] = {}
        self.local = Path(tempfile.mkdtemp(prefix="padir-")) if self.mirrored else folder

    def send(self) -> None:
        """Sends the files that have changed since they were last sent, each whole."""
        if not self.mirrored:
            return
        for name in files_below(self.local):
            status = (self.local / name).stat()
            version = status.st_size, status.st_mtime_ns
            if self._sent.get(name) != version:
                copy_file(self.local / name, self._folder / name)
                self._sent[name] = version

    def close(self) -> None:
        """Removes the local folder if its files were sent elsewhere."""
        if self.mirrored:
            shutil.rmtree(self.local, ignore_errors=True)
