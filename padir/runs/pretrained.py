"""The models that come with padir, by name.

They lie in the repository's folder `pretrained/`, which is a package of its own: `pip install ./pretrained`. A clone
finds them there, and any other installation in that package.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from padir.interop.huggingface import CONFIG_FILE

PACKAGE = "padir_pretrained"


def folders() -> dict[str, Path]:
    """The pretrained models at hand: the folder of each by its name, in the order of the alphabet."""
    beside = Path(__file__).resolve().parents[2] / "pretrained"
    spec = importlib.util.find_spec(PACKAGE)
    installed = [] if spec is None else [Path(place) for place in spec.submodule_search_locations or ()]
    found = {}
    for place in (*installed, beside):
        found |= {path.parent.name: path.parent for path in sorted(place.glob(f"*/{CONFIG_FILE}"))}
    return dict(sorted(found.items()))


def find(path: str | os.PathLike) -> Path | None:
    """The folder of the pretrained model of this name; None for any other path, and where such a folder is at hand."""
    name = os.fspath(path)
    if os.path.basename(name) != name or Path(name).exists():
        return None
    return folders().get(name)


def hint() -> str:
    """The end of a message about a path without a model: which pretrained models could be named instead."""
    names = list(folders())
    return f"; or name a pretrained model: {', '.join(names)}" if names else ""
