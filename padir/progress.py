"""Progress bars with rate and time left, silent when nobody watches."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from tqdm import tqdm


def progress(
    iterable: Iterable[Any] | None = None,
    *,
    label: str,
    unit: str,
    total: int | None = None,
    initial: int = 0,
    active: bool = True,
):
    """Wraps long work in a progress bar on standard error.

    Args:
      iterable: what to count through; None for a bar that the caller advances with `.update(n)`.
      label: the few words shown before the bar.
      unit: what one item is, e.g. 'sentences' or 'steps'.
      total: how many items there will be; None when unknown (no time left is shown then).
      initial: items already done when the work resumes.
      active: whether this process shows it; of several processes that share a terminal, one should.

    Returns:
      A `tqdm` object: iterable, closable, with `.update(n)`. It prints nothing when standard error is neither a
      terminal nor a notebook's, so that logs of batch jobs stay readable.
    """
    return tqdm(
        iterable,
        desc=label,
        unit=f" {unit}",
        total=total,
        initial=initial,
        disable=not (active and _is_watched()),
        dynamic_ncols=True,
    )


def _is_watched() -> bool:
    # What a notebook's kernel writes to is shown as it comes, but is no terminal.
    return sys.stderr.isatty() or type(sys.stderr).__module__.startswith("ipykernel")


def announce(text: str) -> None:
    """Says on standard error what long work comes next that cannot count its items; like a bar, only to who watches."""
    if _is_watched():
        print(text, file=sys.stderr)
