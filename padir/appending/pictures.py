"""Draws tokens generated against distinct correct test cases (thesis, Figure 3.3)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from padir.appending import thesis
from padir.appending.protocol import Row
from padir.theory.pictures import save

# What the names of settings of one kind begin with, and the colour of that kind; the first that fits counts.
_KINDS = {"block": "tab:orange", "backtracking, random": "tab:grey", "Q": "tab:blue", "backtracking": "tab:blue"}
_OTHERS = "tab:green"
_MARKERS = "osD^v<>P*Xph"


def _colour(name: str) -> str:
    return next((colour for start, colour in _KINDS.items() if name.startswith(start)), _OTHERS)


def _points(axes: Axes, points: Mapping[str, tuple[float, float, float, float]], *, hollow: bool) -> None:
    """(x, its error, y, its error) of each setting, by name; settings of one kind differ in their markers."""
    met: Counter[str] = Counter()
    for name, (x, x_error, y, y_error) in points.items():
        colour = _colour(name)
        marker = _MARKERS[met[colour] % len(_MARKERS)]
        met[colour] += 1
        fill = "none" if hollow else colour
        axes.errorbar(
            x, y, y_error, x_error, marker, color=colour, markerfacecolor=fill, capsize=2, linewidth=0.8, label=name
        )
    axes.set_xlabel("Acc_distinct: distinct correct test cases of those asked for")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=6, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def draw(path: Path, rows: Mapping[str, Row], title: str) -> None:
    """Draws our settings, and beside them the thesis's of CodeLlama-7B (hollow; of plain sampling only the best).

    Bars are standard errors.

    Args:
      path: the PNG file.
      rows: our settings, by name.
      title: of ours.
    """
    figure = Figure(figsize=(13, 4.4), layout="constrained")
    ours, theirs = figure.subplots(1, 2)
    _points(ours, {name: (*row.accuracy, *row.queries) for name, row in rows.items()}, hollow=False)
    table = thesis.table()
    best = max((name for name in table if name.startswith("plain")), key=lambda name: table[name][0])
    under_verifiers = {name: row for name, row in table.items() if not name.startswith(("plain", "greedy"))}
    shown = {name: row for name, row in ({best: table[best]} | under_verifiers).items() if None not in row}
    _points(theirs, shown, hollow=True)
    ours.set_ylabel("C: tokens generated, erased ones included")
    ours.set_title(title, fontsize=10)
    theirs.set_title("Thesis, CodeLlama-7B", fontsize=10)
    for axes in (ours, theirs):
        axes.set_yscale("log")
        # Only powers of ten would be labelled otherwise, of which there may be none.
        ticks = np.geomspace(*axes.get_ylim(), 6)
        axes.set_yticks(ticks, [f"{tick:,.0f}" for tick in ticks])
        axes.minorticks_off()
    save(figure, path)
