"""Draws the figures of generation under a verifier from the data of the JSON files beside them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from padir.theory import pictures

_ORANGE = "#D55E00"
# Blockwise rejection, by size of the block.
_BLOCKS = ("#0072B2", "#009E73")


def _columns(by_length: Mapping[str, Any], *names: str) -> tuple[np.ndarray, ...]:
    """The keys as numbers, and the entries' values of each name."""
    entries = by_length.values()
    return np.array([int(d) for d in by_length]), *(np.array([entry[name] for entry in entries]) for name in names)


def draw_query_complexity(path: Path, data: Mapping[str, Any]) -> None:
    """Draws queries against length: Proposition 3.1.1, Theorem 3.1.1 and Dyck words; and tokenwise rejection's bias.

    Args:
      path: the PNG file to write.
      data: the result of `query_complexity`.
    """
    figure = Figure(figsize=(12.5, 8.6), layout="constrained")
    (one_answer, hidden), (dyck, bias) = figure.subplots(2, 2)
    _draw_one_answer(one_answer, data)
    _draw_hidden(hidden, data["hidden"])
    _draw_dyck(dyck, data)
    _draw_bias(bias, data)
    for axes in (one_answer, hidden, dyck, bias):
        axes.set_yscale("log")
        axes.set_xlabel("D, tokens of an output")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    pictures.save(figure, path)


def _draw_one_answer(axes: Axes, data: Mapping[str, Any]) -> None:
    lengths = np.array([int(d) for d in data["one_answer"]])
    measured, blocks = data["measured"]["rejection"], list(enumerate(data["settings"]["blocks"]))
    curves = [
        ("rejection", _ORANGE, None),
        *((f"blockwise rejection, b = {b}", _BLOCKS[i % len(_BLOCKS)], b) for i, b in reversed(blocks)),
        ("tokenwise rejection", pictures.shade(0, 6), 1),
    ]
    for label, colour, block in curves:
        # Where D is a block, blockwise rejection is rejection, and with D = 1 all are the same.
        used = [d for d in lengths if d % (block or d) == 0 and (d > (block or 0) or block == 1)]
        exact = [data["one_answer"][str(d)]["queries"][str(block or d)] for d in used]
        axes.plot(used, exact, color=colour, linewidth=1.2, label=label)
        runs = [one for one in measured if one["block"] == (block or one["length"]) and one["length"] in used]
        axes.errorbar(
            [one["length"] for one in runs], [one["mean"] for one in runs], [one["standard_error"] for one in runs],
            fmt="o", markersize=4, capsize=3, color=colour,
        )  # fmt: skip
    axes.plot([], [], "o", color="grey", markersize=4, label=f"run, {data['settings']['runs']} outputs, ± 1 se")
    axes.set_ylabel("expected queries")
    axes.set_title("Proposition 3.1.1: two letters, one valid output", fontsize=10)


def _draw_hidden(axes: Axes, by_length: Mapping[str, Any]) -> None:
    lengths, printed, formula, measured, aware = _columns(by_length, "printed", "formula", "measured", "aware_queries")
    axes.plot(lengths, printed, "--", color=_ORANGE, label="lower bound as printed, 2^(D − 1)")
    axes.plot(lengths, formula, color="black", linewidth=1.2, label="minimax, (M + 1) / 2 − 1 / M for M = 2^(D − 1)")
    axes.errorbar(
        lengths, measured[:, 0], measured[:, 1], fmt="o", markersize=4, capsize=3, color="black",
        label="searches in a random order, ± 1 se",
    )  # fmt: skip
    axes.plot(
        lengths, aware[:, 1], "s-", markersize=4, color=pictures.shade(0, 6),
        label="tokenwise rejection, verifier of A ∩ supp p_O",
    )  # fmt: skip
    axes.set_ylabel("expected queries")
    axes.set_title("Theorem 3.1.1: the answer is behind a hidden prefix", fontsize=10)


def _draw_dyck(axes: Axes, data: Mapping[str, Any]) -> None:
    lengths, rejection, tokenwise = _columns(data["dyck"] | data["long_dyck"], "rejection", "tokenwise")
    axes.plot(lengths, rejection, "o-", color=_ORANGE, markersize=4, label="rejection")
    axes.plot(lengths, tokenwise, "o-", color=pictures.shade(0, 6), markersize=4, label="tokenwise rejection")
    axes.set_ylabel("expected queries")
    axes.set_title("Dyck words, two types of brackets, uniform generator", fontsize=10)


def _draw_bias(axes: Axes, data: Mapping[str, Any]) -> None:
    lengths, variation, printed = _columns(data["dyck"], "total_variation", "printed_total_variation")
    axes.plot(lengths, variation, "o-", color=pictures.shade(0, 6), markersize=4, label="Dyck words")
    lengths_2, variation_2 = _columns(data["one_zero"], "total_variation")
    shown = variation_2 > 0
    axes.plot(
        lengths_2[shown], variation_2[shown], "s-", color=pictures.shade(3, 6), markersize=4,
        label="Proposition 3.1.2: at least one 0 (0 for D = 1)",
    )  # fmt: skip
    axes.plot(
        lengths, printed, "^--", color=_ORANGE, markersize=5,
        label="(3.4) as printed, normalised, to the grammar\nDyck(0.2, 0.5)",
    )  # fmt: skip
    axes.set_ylabel("total variation")
    axes.set_title("tokenwise rejection's law against π*, and a misprint's size", fontsize=10)


def draw_value_guided(path: Path, data: Mapping[str, Any]) -> None:
    """Draws VGB's leaf mass and spectral gap against the accuracy κ of its values, and its moves on Dyck words.

    Args:
      path: the PNG file to write.
      data: the result of `value_guided`.
    """
    figure = Figure(figsize=(15, 5), layout="constrained")
    mass, gap, moves = figure.subplots(1, 3)
    letters, depth = data["settings"]["letters"][-1], data["settings"]["depths"][-1]
    drawn = [entry for entry in data["by_kappa"] if (entry["letters"], entry["depth"]) == (letters, depth)]
    for index, errors in enumerate(dict.fromkeys(entry["errors"] for entry in drawn)):
        cases = [entry for entry in drawn if entry["errors"] == errors]
        # Shifted slightly, so that points of different errors do not hide each other.
        kappas = np.array([entry["kappa"] for entry in cases]) * 1.012 ** (index - 1.5)
        for axes, name in ((mass, "leaf_mass"), (gap, "gap")):
            axes.plot(
                kappas, [entry[name] for entry in cases], "osv^"[index % 4], markersize=5, alpha=0.7,
                color=pictures.shade(index, 4), label=f"V̂ / V*: {errors}",
            )  # fmt: skip
    bounds = {entry["kappa"]: entry for entry in drawn}
    for end in (0, 1):
        mass.plot(list(bounds), [entry["leaf_mass_bounds"][end] for entry in bounds.values()], "--", color=_ORANGE)
    gap.plot(list(bounds), [entry["gap_bound"] for entry in bounds.values()], "--", color=_ORANGE)
    exact = next(tree for tree in data["trees"] if tree["depth"] == depth and tree["kind"] == "any τ")
    mass.axhline(exact["leaf_mass_formula"], color="black", linewidth=0.8, label="V̂ = V*: 1 / (2H)")
    gap.axhline(exact["gap_formula"], color="black", linewidth=0.8, label="V̂ = V*: (1 − cos(π / 2H)) / 2")
    for axes, name in ((mass, "stationary probability of leaves"), (gap, "spectral gap")):
        axes.plot([], [], "--", color=_ORANGE, label="bounds")
        axes.set_xscale("log")
        axes.set_xticks(list(bounds), [f"{kappa:g}" for kappa in bounds])
        axes.set_xticks([], minor=True)
        axes.set_xlabel("κ, accuracy of V̂")
        axes.set_ylabel(name)
        axes.set_title(f"VGB on random trees, |Σ| = {letters}, H = {depth}", fontsize=10)
    _draw_moves(moves, data["dyck"])
    for axes in (mass, gap, moves):
        axes.set_yscale("log")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    pictures.save(figure, path)


def _draw_moves(axes: Axes, by_length: Mapping[str, Any]) -> None:
    lengths = [int(d) for d in by_length]
    for name, colour, label in (
        ("verifier", _ORANGE, "V̂ = perfect verifier (0 or 1)"),
        ("value", pictures.shade(0, 6), "V̂ = V*: D²"),
    ):
        axes.plot(
            lengths, [entry[name]["moves"] for entry in by_length.values()], "o-", markersize=4, color=colour,
            label=label,
        )  # fmt: skip
    axes.set_xlabel("D, letters of a word")
    axes.set_ylabel("expected moves to the first leaf")
    axes.set_title("VGB on Dyck words, uniform generator", fontsize=10)


def draw_error_amplification(path: Path, data: Mapping[str, Any]) -> None:
    """Draws the total variation to π* of three samplers against length, one panel for each accuracy.

    Args:
      path: the PNG file to write.
      data: the result of `error_amplification`.
    """
    by_kappa, lengths = data["by_kappa"], data["settings"]["lengths"]
    figure = Figure(figsize=(3.4 * len(by_kappa) + 0.6, 4), layout="constrained")
    panels = figure.subplots(1, len(by_kappa), sharey=True, squeeze=False)[0]
    for axes, (kappa, entry) in zip(panels, by_kappa.items(), strict=True):
        for name, style, colour, label in (
            ("action_level", "o-", _ORANGE, "action-level sampling"),
            ("first_leaf", "s-", pictures.shade(0, 6), "VGB, first leaf"),
            ("stationary", "^-", pictures.shade(4, 6), "VGB, stationary law at leaves"),
        ):
            axes.plot(lengths, entry[name], style, markersize=5, color=colour, label=label)
        axes.set_xticks(lengths)
        axes.set_ylim(-0.03, 1.0)
        axes.set_xlabel("H, tokens of an output")
        axes.set_title(f"V̂ is wrong by a factor κ = {kappa}", fontsize=10)
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("total variation to π*")
    panels[0].legend(fontsize=8, loc="upper left")
    pictures.save(figure, path)
