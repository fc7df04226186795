"""Heat maps of the attention of one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# The colour of tokens that stutter, which colour-blind readers can tell from black.
_STUTTER = "#D55E00"


def heat_maps(
    path: Path,
    self_weights: np.ndarray,
    cross_weights: np.ndarray,
    target: Sequence[str],
    source: Sequence[str],
    stutters: np.ndarray,
) -> None:
    """Draws self-attention and cross-attention of one sentence, averaged over the heads.

    Args:
      path: the PNG file to write.
      self_weights: [H, Lt, Lt].
      cross_weights: [H, Lt, Ls].
      target, source: Lt and Ls tokens, which label the axes.
      stutters: [Lt - 1] bool, whether positions t and t + 1 hold the same token. These tokens are coloured, and their
        attention to each other is framed.
    """
    wide = 0.24 * (len(target) + len(source)) + 4.0
    figure = Figure(figsize=(wide, 0.24 * len(target) + 2.0), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(len(target), len(source)))
    repeated = np.concatenate([[False], stutters]) | np.concatenate([stutters, [False]])
    for axes, weights, keys, title in (
        (left, self_weights, target, "self-attention"),
        (right, cross_weights, source, "cross-attention"),
    ):
        image = axes.imshow(weights.mean(0), cmap="viridis", vmin=0.0, aspect="auto")
        axes.set_title(f"{title}, mean of {len(weights)} heads", fontsize=9)
        axes.set_xticks(range(len(keys)), [_label(token) for token in keys], rotation=90, fontsize=7)
        axes.set_yticks(range(len(target)), [_label(token) for token in target], fontsize=7)
        _colour(axes.get_yticklabels(), repeated)
        figure.colorbar(image, ax=axes, shrink=0.7)
    _colour(left.get_xticklabels(), repeated)
    for position in np.flatnonzero(stutters):
        _frame(left, (position + 1, position))
        _frame(left, (position, position + 1))
    left.set_ylabel("attending position", fontsize=8)
    figure.savefig(path, dpi=100)


def _label(token: str) -> str:
    """A token as a label; a dollar sign is escaped because Matplotlib would take it as the start of a formula."""
    return token.replace("▁", "_").replace("$", r"\$")


def _colour(labels: Sequence, chosen: np.ndarray) -> None:
    for label, is_chosen in zip(labels, chosen, strict=True):
        if is_chosen:
            label.set_color(_STUTTER)


def _frame(axes: Axes, at: tuple[int, int]) -> None:
    """Frames the cell at (column, row) `at`."""
    x, y = (at[0] - 0.5, at[0] + 0.5), (at[1] - 0.5, at[1] + 0.5)
    axes.plot([x[0], x[1], x[1], x[0], x[0]], [y[0], y[0], y[1], y[1], y[0]], color=_STUTTER, linewidth=1.5)
