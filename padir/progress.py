"""Progress with rate and time left: a bar for who watches, and a line a minute for the log of a job."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from tqdm import tqdm

# Seconds between two lines, and before the first.
_PAUSE = 60.0
_LINE = "{desc}: {n_fmt}/{total_fmt}{unit} [{elapsed}<{remaining}, {rate_fmt}]"


class _Lines(tqdm):
    """Says in lines of its own how far the work is; of work that is soon done, nothing."""

    def __init__(self, *args: Any, **options: Any):
        # Every update asks for the time (`miniters`), so that tqdm's monitor has nothing to add.
        super().__init__(*args, mininterval=_PAUSE, miniters=1, delay=_PAUSE, leave=False, **options)

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        """Writes a line; tqdm calls it with an empty message to clear a bar."""
        del pos
        if msg is None:
            print(self.format_meter(**self.format_dict | {"bar_format": _LINE}), file=sys.stderr, flush=True)


def progress(
    iterable: Iterable[Any] | None = None,
    *,
    label: str,
    unit: str,
    total: int | None = None,
    initial: int = 0,
    active: bool = True,
    lines: bool = True,
):
    """Wraps long work in a progress bar on standard error; where nobody watches, it says a line a minute.

    Args:
      iterable: what to count through; None for a bar that the caller advances with `.update(n)`.
      label: the few words shown before the bar.
      unit: what one item is, e.g. 'sentences' or 'steps'.
      total: how many items there will be; None when unknown (no time left is shown then).
      initial: items already done when the work resumes.
      active: whether this process shows it; of several processes that share a terminal, one should.
      lines: whether lines are said where standard error is neither a terminal nor a notebook's; not if the caller says
        some of its own.

    Returns:
      A `tqdm` object: iterable, closable, with `.update(n)`.
    """
    watched = _is_watched()
    shown = {"desc": label, "unit": f" {unit}", "total": total, "initial": initial}
    if watched or not lines:
        return tqdm(iterable, **shown, disable=not (active and watched), dynamic_ncols=True)
    return _Lines(iterable, **shown, disable=not active)


def _is_watched() -> bool:
    # What a notebook's kernel writes to is shown as it comes, but is no terminal.
    return sys.stderr.isatty() or type(sys.stderr).__module__.startswith("ipykernel")


def announce(text: str) -> None:
    """Says on standard error what long work comes next that cannot count its items; like a bar, only to who watches."""
    if _is_watched():
        print(text, file=sys.stderr)
