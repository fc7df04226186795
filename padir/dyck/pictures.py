"""Pictures of a run, from the data of its JSON file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from padir.dyck import thesis
from padir.dyck.inducing import QUOTAS, STRIDES
from padir.dyck.laws import EXACT

_COLOURS = ("tab:blue", "tab:orange", "tab:green")


def draw_all(folder: Path, results: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Draws all pictures into a folder; returns (file name, caption) of each."""
    made = [
        ("accuracy.png", _accuracy, "Accuracy on error-inducing prefixes; hollow: the thesis's, of a larger model"),
        (
            "errors.png",
            _errors,
            "Errors and queries of the samplers, on unseen prompts (left) and on a few (right)",
        ),
        (
            "features.png",
            _features,
            "Hidden states that the verifier has learnt from, in their first two principal axes",
        ),
    ]
    for name, draw, _ in made:
        figure = Figure(figsize=(11, 4.2), layout="constrained")
        draw(figure, results)
        figure.savefig(folder / name, dpi=110)
    return [(name, caption) for name, _, caption in made]


def _accuracy(figure: Figure, results: Mapping[str, Any]) -> None:
    """Against the stride of a forced backtrack, and against the quota of the verifier's."""
    forced, cells = results["inducing"]["forced"], results["inducing"]["grid"]
    of_stride, of_quota = figure.subplots(1, 2, sharey=True)
    for name, colour in zip(("rewritten greedily", "drawn"), _COLOURS, strict=False):
        strides = [int(stride) for stride in forced[name]]
        of_stride.plot(strides, list(forced[name].values()), "o-", color=colour, label=name)
    _hollow(of_stride, list(thesis.FORCED), list(thesis.FORCED.values()), "black", "thesis")
    of_stride.set_xlabel("tokens erased by one forced backtrack, B")
    of_stride.set_ylabel("accuracy")
    of_quota.axhline(forced["rewritten greedily"]["0"], color="grey", linewidth=1, label="no backtrack")
    for stride, colour in zip(STRIDES, _COLOURS, strict=True):
        ours = [cells[f"{quota},{stride}"]["accuracy"] for quota in QUOTAS]
        of_quota.plot(QUOTAS, ours, "o-", color=colour, label=f"B = {stride}")
        _hollow(of_quota, QUOTAS, [thesis.GRID[quota, stride] for quota in QUOTAS], colour, None)
    of_quota.set_xlabel("backtracks allowed to the verifier, Q")
    of_quota.set_xticks(QUOTAS)
    for axes in (of_stride, of_quota):
        axes.set_ylim(0, 1)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)


def _hollow(axes: Axes, x: Any, y: Any, colour: str, label: str | None) -> None:
    axes.plot(x, y, "o--", color=colour, markerfacecolor="none", linewidth=0.7, label=label)


def _errors(figure: Figure, results: Mapping[str, Any]) -> None:
    """Shares of invalid outputs against queries."""
    unseen, laws = results["unseen"], results["laws"]["systems"]
    panels = (
        {name: (row["queries"], row["mean"] / unseen["prompts"]) for name, row in unseen["systems"].items()},
        {name: (row["queries"], 1.0 - row["valid"]) for name, row in laws.items() if name != EXACT},
    )
    for axes, points in zip(figure.subplots(1, 2), panels, strict=True):
        for index, (name, (queries, errors)) in enumerate(points.items()):
            axes.plot(queries, errors, "os^Dv*"[index // 10 + index % 3], color=f"C{index % 10}", label=name)
        axes.set_xlabel("queries for a completion")
        axes.set_ylabel("share that is not valid")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        # Below, where no point is.
        axes.legend(fontsize=6, ncol=2, loc="upper center", bbox_to_anchor=(0.5, -0.2))


def _features(figure: Figure, results: Mapping[str, Any]) -> None:
    """Principal components, by label."""
    axes = figure.subplots()
    points, labels = (np.array(results["verifier"][of]) for of in ("points", "labels"))
    for label, name in ((1, "fine"), (0, "ends in an error")):
        axes.plot(*points[labels == label].T, ".", markersize=4, alpha=0.6, color=_COLOURS[label], label=name)
    axes.set_xlabel("first principal component")
    axes.set_ylabel("second")
    axes.legend(fontsize=8)


def principal_plane(features: np.ndarray) -> np.ndarray:
    """Features [n, E] in the plane of their two largest principal components: [n, 2]."""
    centred = features - features.mean(axis=0)
    _, _, axes = np.linalg.svd(centred, full_matrices=False)
    return centred @ axes[:2].T
