"""Finds classes and functions in a user's own modules for gin: `Refinement.remask = @my_policies.RemaskRare()`.

The module may be installed, or be in the working directory, beside a gin file, or in a folder of `--gin_search_path`.
"""

from __future__ import annotations

import dataclasses
import importlib
import re
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from padir.errors import PadirError

# gin's message for a name that is not registered: a reference '@a/module.Class()', or the left side of a binding.
_UNKNOWN = re.compile(r"No configurable matching (?:reference )?'@?(?:[\w/]+/)?((?:\w+\.)+)(\w+)(?:\(\))?'")


def unknown_name(message: str) -> tuple[str, str] | None:
    """The (module, name) that gin's error message reports as not registered; None for any other message."""
    found = _UNKNOWN.search(message)
    return (found.group(1).rstrip("."), found.group(2)) if found else None


def find(module_name: str, name: str, folders: Sequence[str]) -> Any | None:
    """Imports a user's module and returns its class or function `name`.

    Args:
      module_name: the module's dotted name.
      name: the name of a class or function in it.
      folders: where to look for the module after Python's own path. They stay on that path, because the module may
        import its neighbours later.

    Returns:
      The class or function; None if there is no such module.

    Raises:
      PadirError: the module fails to import, has no such name, or the class is not a frozen dataclass.
    """
    module = _imported(module_name, folders)
    if module is None:
        return None
    found = getattr(module, name, None)
    if found is None:
        raise PadirError(f"@{module_name}.{name}: {module.__file__} defines no {name}")
    if isinstance(found, type) and not _is_frozen(found):
        raise PadirError(
            f"@{module_name}.{name}: put @dataclasses.dataclass(frozen=True) above the class in {module.__file__}; "
            "JAX needs a hashable object to recognise the programs that it has compiled for it"
        )
    return found


def _imported(module_name: str, folders: Sequence[str]) -> ModuleType | None:
    sys.path += [folder for folder in folders if folder not in sys.path]
    importlib.invalidate_caches()
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module_name}.".startswith(f"{error.name}."):
            return None
        raise PadirError(f"{module_name}: cannot be imported: {error}") from error
    except (ImportError, SyntaxError) as error:
        raise PadirError(f"{module_name}: cannot be imported: {error}") from error
    # A folder without __init__.py imports as an empty namespace.
    return module if getattr(module, "__file__", None) else None


def _is_frozen(cls: type) -> bool:
    return dataclasses.is_dataclass(cls) and cls.__dataclass_params__.frozen


def with_modules(text: str, modules: dict[str, str]) -> str:
    """Adds the modules of users' classes to a configuration, from which gin leaves them out when it prints it.

    Args:
      text: a configuration in gin's syntax.
      modules: the module of each class: {'RemaskRare': 'my_policies', …}.

    Returns:
      The configuration with 'my_policies.RemaskRare' in place of 'RemaskRare'.
    """
    for name, module in modules.items():
        text = re.sub(rf"^((?:\w+/)*){name}(?=\.\w+ =)|(@(?:\w+/)*){name}\b", rf"\1\2{module}.{name}", text, flags=re.M)
    return text
