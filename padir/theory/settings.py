"""Checks that the experiments' settings share."""

from __future__ import annotations

from collections.abc import Sequence

from padir.errors import PadirError


def require_in(owner: object, name: str, low: float, high: float = float("inf")) -> None:
    """Refuses a setting, a number or several, that does not lie between `low` and `high`, both included.

    Args:
      owner: the settings.
      name: of the setting.
      low, high: the ends.

    Raises:
      PadirError: names the setting, its value and the ends.
    """
    value = getattr(owner, name)
    several = isinstance(value, Sequence)
    if (several and not value) or not all(low <= one <= high for one in (value if several else [value])):
        ends = f"at least {low}" if high == float("inf") else f"{low} to {high}"
        each = "one or more numbers, each " if several else ""
        raise PadirError(f"{type(owner).__name__}.{name} = {value!r}: it takes {each}{ends}")


def require_ascending(owner: object, name: str) -> None:
    """Refuses a list of numbers that does not ascend, which claims on neighbours suppose.

    Raises:
      PadirError: names the setting and its value.
    """
    values = list(getattr(owner, name))
    if values != sorted(set(values)):
        raise PadirError(f"{type(owner).__name__}.{name} = {values!r}: it takes ascending numbers")
