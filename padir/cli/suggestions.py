"""What a user may have meant by a name that does not exist."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from padir.cli import gin_files


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """'; did you mean …?' with the name that is most similar, or '' if none is."""
    near = difflib.get_close_matches(name, list(known), 1)
    return f"; did you mean {near[0]}?" if near else ""


def for_gin(reason: str, configurables: Mapping[str, Callable[..., Any]]) -> str:
    """The same for what gin says it does not know: a file, a configurable, or a parameter of one.

    Args:
      reason: gin's message.
      configurables: whatever gin may configure, by name.
    """
    if found := re.search(r"Unable to open file: (\S+)\. ", reason):
        folder = gin_files.gin_folder()
        return did_you_mean(found[1], (path.relative_to(folder).as_posix() for path in folder.rglob("*.gin")))
    if found := re.search(r"Configurable '([\w.]+)' doesn't have a parameter named '(\w+)'", reason):
        configurable = configurables.get(found[1].split(".")[-1])
        return did_you_mean(found[2], inspect.signature(configurable).parameters) if configurable else ""
    if found := re.search(r"No configurable matching '([\w.]+)'", reason):
        return did_you_mean(found[1], configurables)
    return ""
