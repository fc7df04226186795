"""Checks of settings that several experiments use."""

from __future__ import annotations

from collections.abc import Sequence

from padir.errors import PadirError


def require_in(owner: object, name: str, low: float, high: float = float("inf")) -> None:
    """Checks that a setting, or each of its numbers, is from `low` to `high`, both included.

    Args:
      owner: the settings object.
      name: name of the setting, a number or a non-empty sequence of numbers.
      low, high: the limits.

    Raises:
      PadirError: a number is out of range, or the sequence is empty.
    """
    value = getattr(owner, name)
    several = isinstance(value, Sequence)
    if (several and not value) or not all(low <= one <= high for one in (value if several else [value])):
        ends = f"at least {low}" if high == float("inf") else f"from {low} to {high}"
        each = "one or more numbers, each " if several else ""
        raise PadirError(f"{type(owner).__name__}.{name} = {value!r}: must be {each}{ends}")


def require_ascending(owner: object, name: str) -> None:
    """Checks that the numbers of a setting ascend, because some claims compare neighbouring values.

    Args:
      owner: the settings object.
      name: name of the setting.

    Raises:
      PadirError: the numbers do not ascend.
    """
    values = list(getattr(owner, name))
    if values != sorted(set(values)):
        raise PadirError(f"{type(owner).__name__}.{name} = {values!r}: must be ascending numbers")
