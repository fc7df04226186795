"""What configurations ask of their numbers, and models of their texts."""

from __future__ import annotations

import math
import numbers

from padir.errors import PadirError

# Devices count in 32 bits.
LARGEST = 2**31 - 1


def whole(name: str, value: object, hint: str = "") -> None:
    """Refuses what is not a whole number of at least 1, or does not fit into 32 bits.

    Args:
      name: what the user calls it: 'BeamSearch.beam_size'.
      value: of any type.
      hint: what to do instead, put after the message.

    Raises:
      PadirError: it is another number, True, no number, or above `LARGEST`.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1:
        raise PadirError(f"{name}: {value!r} is not a whole number of at least 1" + (f"; {hint}" if hint else ""))
    if value > LARGEST:
        raise PadirError(f"{name}: {value} is above {LARGEST}, the largest whole number of 32 bits")


def finite(name: str, value: object) -> None:
    """Refuses what is not a finite number; `name` as for `whole`.

    Raises:
      PadirError: it is infinite, NaN or no number.
    """
    if not isinstance(value, numbers.Real) or not math.isfinite(value):
        raise PadirError(f"{name}: {value!r} is not a finite number")


def characters(text: str) -> None:
    """Refuses a text with half of a surrogate pair, which JSON and Python can spell and no file in UTF-8 can hold.

    Raises:
      PadirError: it has one.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise PadirError("holds half of a surrogate pair, which is no character") from None


def finite_or_none(value: float | None) -> float | None:
    """A number as a float, or None in place of an infinite one, NaN or None: JSON has no other word for these."""
    return float(value) if value is not None and math.isfinite(value) else None
