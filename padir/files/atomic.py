"""Writing a file whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path


def write_text(path: str | os.PathLike, text: str) -> None:
    """Writes a text file whole or not at all, in UTF-8."""
    temporary = Path(f"{path}.tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)
