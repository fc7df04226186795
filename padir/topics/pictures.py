"""Pictures of the parts, from the data of the JSON files beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from padir.theory.pictures import save, shade
from padir.topics import thesis
from padir.topics.block_statistics import KINDS

Data = Mapping[str, Any]
_NAMES = {"cross_entropy": "cross-entropy", "squared": "squared error", "sgd": "SGD", "adam": "Adam"}
_LABELS = {"key": "W^K", "query": "W^Q", "value": "W^V"}


def heat_map(axes: Axes, matrix: Any, words_per_topic: int, title: str) -> None:
    """A square matrix, MASK first, with the borders of topics; red is positive and blue negative."""
    matrix = np.asarray(matrix, float)
    # A few large entries, such as the column of MASK, must not hide the blocks.
    largest = float(np.quantile(np.abs(matrix), 0.995)) or 1.0
    image = axes.imshow(matrix, cmap="RdBu_r", vmin=-largest, vmax=largest, interpolation="nearest")
    for border in range(1, len(matrix), words_per_topic):
        axes.axhline(border - 0.5, color="grey", linewidth=0.3)
        axes.axvline(border - 0.5, color="grey", linewidth=0.3)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_title(title, fontsize=8)
    axes.figure.colorbar(image, ax=axes, shrink=0.8, pad=0.02).ax.tick_params(labelsize=6)


def _whole(stored: Data) -> np.ndarray:
    """A matrix that `learned.compact` has made."""
    return np.array(stored["thousandths"]) * stored["scale"] / 1000.0


def draw_optima(path: Path, data: Data) -> None:
    """W^V* of Theorem 2.1.2, and embeddings that were trained on the exact loss, without and with L2."""
    figure = Figure(figsize=(10.5, 3.4), layout="constrained")
    value, free, regular = figure.subplots(1, 3)
    of = data["embeddings"]
    heat_map(value, data["value"], 3, "W^V* of Theorem 2.1.2, T = 4, v = 3")
    words = f"T = {of['topics']}, v = {of['words_per_topic']}"
    heat_map(free, of["gram without L2"], of["words_per_topic"], f"E = W^E' W^E, trained without L2, {words}")
    heat_map(regular, of["gram with L2"], of["words_per_topic"], f"with L2, λ = 1e-4: blocks of c_3 / v, {words}")
    save(figure, path)


def draw_attention(path: Path, data: Data) -> None:
    """Optimal γ and β between the theorems' bounds."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    cases = data["cases"]
    labels = [f"T = {case['T']:.0e}" if case["T"] > 1000 else f"T = {case['T']}" for case in cases]
    labels = [f"{label}\nτ = {case['τ']}\nv = {case['v']}" for label, case in zip(labels, cases, strict=True)]
    x = np.arange(len(cases))
    panels = (
        ("gamma", "γ*, W^V of equal blocks (Theorem 2.1.3)", "lambda_1_printed", "lambda_2", -1),
        ("beta", "β*, W^V diagonal (Theorem 2.1.5)", "lambda_3", "lambda_4", 0),
    )
    for axes, (name, title, low, high, shift) in zip(figure.subplots(1, 2), panels, strict=True):
        bottom = [case["bounds"][low] * (case["τ"] + shift) for case in cases]
        top = [case["bounds"][high] * case["T"] for case in cases]
        axes.vlines(x, bottom, top, color="lightgrey", linewidth=9, label="interval of the theorem")
        axes.plot(x, [case["words"][name] for case in cases], "o", color="tab:blue", label="optimum, words")
        axes.plot(x, [case["literal"][name] for case in cases], "x", color="tab:red", label="optimum, literal")
        axes.set_yscale("log")
        axes.set_xticks(x, labels, fontsize=7)
        axes.set_title(title, fontsize=10)
        axes.grid(alpha=0.3, axis="y")
        axes.legend(fontsize=7, loc="upper left")
    save(figure, path)


def draw_landscapes(path: Path, data: Data) -> None:
    """Figures 2.7 and 2.8: the loss over α and β, above for the diagonal W^V and below for equal blocks."""
    panels, ends = data["panels"], np.log10(np.asarray(data["axis"])[[0, -1]])
    figure = Figure(figsize=(13, 6.4), layout="constrained")
    rows = figure.subplots(2, len(panels), sharex=True, sharey=True)
    for row, value, title in zip(rows, ("diagonal", "blocks"), ("diagonal", "equal blocks"), strict=True):
        every = [np.array(panel[value]) for panel in panels]
        # One colour bar is that of the whole row.
        norm = LogNorm(1e-5, max(losses.max() - losses.min() for losses in every))
        for axes, panel, losses in zip(row, panels, every, strict=True):
            above = losses - losses.min() + 1e-5
            image = axes.imshow(
                above.T, origin="lower", extent=(*ends, *ends), cmap="viridis", norm=norm,
                interpolation="nearest", aspect="auto",
            )  # fmt: skip
            axes.set_title(f"W^V {title}, τ = {panel['τ']}, min {losses.min():.4f}", fontsize=9)
            if value == "blocks":
                _equal_gamma(axes, panel["gamma"], 300, ends)
            else:
                axes.axhline(np.log10(panel["beta"]), color="red", linewidth=1)
                axes.text(ends[0] + 0.2, np.log10(panel["beta"]) + 0.2, "β*", color="red", fontsize=9)
        figure.colorbar(image, ax=list(row), label="loss above its minimum")
        row[0].set_ylabel("log₁₀ β")
    for axes in rows[-1]:
        axes.set_xlabel("log₁₀ α")
    save(figure, path)


def _equal_gamma(axes: Axes, gamma: float, v: int, ends: np.ndarray) -> None:
    """The line of all (α, β) whose γ is optimal."""
    # β has a share of v γ, and α the rest; steps are even in the logarithms of both.
    share = 1.0 / (1.0 + np.exp(np.linspace(-40.0, 40.0, 800)))
    alpha, beta = (1.0 - share) * v * gamma / (v - 1), share * v * gamma
    shown = (alpha >= 10.0 ** ends[0]) & (beta >= 10.0 ** ends[0])
    axes.plot(np.log10(alpha[shown]), np.log10(beta[shown]), color="red", linewidth=1)
    axes.set_ylim(*ends)
    axes.text(ends[0] + 0.2, np.log10(gamma * v) + 0.2, "γ*", color="red", fontsize=9)


def draw_value(path: Path, data: Data) -> None:
    """Figures 2.2 and 2.5, beside the optima; the first topics."""
    v, runs = data["model"]["words_per_topic"], data["runs"]
    figure = Figure(figsize=(12.5, 9.0), layout="constrained")
    figure.suptitle(f"W^V under uniform attention; MASK and the first topics of {data['model']['topics']}", fontsize=10)
    axes = figure.subplots(3, 4).ravel()
    for panel, run in zip(axes, sorted(runs, key=lambda run: run["l2"]), strict=False):
        heat_map(panel, _whole(run["matrix"]), v, f"{_named(run)}, λ = {run['l2']:g}")
    heat_map(axes[8], _whole(data["theorem"]["matrix"]), v, "Theorem 2.1.2")
    heat_map(axes[9], _whole(data["least_squares"]["matrix"]), v, "least squares on 20,000 documents")
    for panel in axes[10:]:
        panel.set_axis_off()
    save(figure, path)


def _named(run: Data) -> str:
    return f"{_NAMES[run['loss']]}, {_NAMES[run['optimizer']]}"


def draw_stages(path: Path, data: Data) -> None:
    """Figure 2.4: norms by step; one line a seed."""
    figure = Figure(figsize=(10.5, 3.8), layout="constrained")
    for axes, (name, title) in zip(
        figure.subplots(1, 2), (("sgd", "SGD: two stages"), ("adam", "Adam: none")), strict=True
    ):
        styles = (("key", "tab:blue", "-"), ("query", "tab:orange", "--"), ("value", "tab:green", "-"))
        for part, colour, style in styles:
            for index, norms in enumerate(data[name]["norms"][part]):
                label = f"‖{_LABELS[part]}‖, ends at {norms[-1]:.3g}" if index == 0 else None
                share = np.array(norms) / norms[-1]
                axes.plot(data[name]["steps"], share, style, color=colour, linewidth=1, label=label)
        axes.set_xlabel("step")
        axes.set_ylabel("share of the last norm")
        axes.set_title(title, fontsize=10)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    save(figure, path)


def draw_joint(path: Path, data: Data) -> None:
    """Table 2.1 as bars, ours and the thesis's, and W^V (Figure 2.6)."""
    v, runs = data["model"]["words_per_topic"], data["runs"]
    figure = Figure(figsize=(4.2 + 3.6 * len(runs), 3.8), layout="constrained")
    bars, *maps = figure.subplots(1, 1 + len(runs), width_ratios=[1.4, *[1.0] * len(runs)])
    ours = {name: run["attention"] for name, run in runs.items()}
    _bars(bars, ours, thesis.TABLE_2_1, logarithmic=False)
    for axes, (name, run) in zip(maps, runs.items(), strict=True):
        heat_map(axes, _whole(run["matrix"]), v, f"W^V, cross-entropy, {name}")
    save(figure, path)


def draw_second_stage(path: Path, data: Data) -> None:
    """Table 2.2 as bars, and α, β, γ of models that were trained on τ = 3 documents."""
    figure = Figure(figsize=(11, 3.8), layout="constrained")
    bars, weights = figure.subplots(1, 2)
    ours = {f"W^V {value}": run["attention"] for value, run in data["lda"].items()}
    _bars(bars, ours, {f"W^V diagonal, {name}": row for name, row in thesis.TABLE_2_2.items()}, logarithmic=True)
    for at, run in enumerate(data["few_topics"].values()):
        for shift, (name, colour) in enumerate((("alpha", "tab:blue"), ("beta", "tab:orange"), ("gamma", "tab:green"))):
            mean = float(np.mean([seed[name] for seed in run["weights"]]))
            label = {"alpha": "α", "beta": "β", "gamma": "γ"}[name] if at == 0 else None
            weights.bar(at + 0.25 * (shift - 1), mean, 0.22, color=colour, label=label)
            weights.text(at + 0.25 * (shift - 1), mean * 1.1, f"{mean:.3g}", ha="center", fontsize=8)
    weights.set_yscale("log")
    weights.set_ylim(0.3, 200)
    weights.set_xticks(range(len(data["few_topics"])), [f"W^V {value}" for value in data["few_topics"]])
    gamma, beta = (" and ".join(f"{value:.3g}" for value in data["optima"][name]) for name in ("gamma", "beta"))
    title = f"attention learnt from τ = 3 documents\noptima of both conventions: γ {gamma}, β {beta}"
    weights.set_title(title, fontsize=8)
    weights.legend(fontsize=8)
    save(figure, path)


def _bars(axes: Axes, ours: Mapping[str, Sequence[Data]], theirs: Mapping[str, Any], logarithmic: bool) -> None:
    """Mean attention by kind of pair; the thesis's are hollow."""
    for at, seeds in enumerate(ours.values()):
        for kind, colour, shift in zip(KINDS, ("tab:orange", "tab:blue", "grey"), (-0.25, 0.0, 0.25), strict=True):
            values = [seed[kind] for seed in seeds]
            axes.bar(at + shift, np.mean(values), 0.22, color=colour, label=kind if at == 0 else None)
            axes.plot([at + shift] * len(values), values, "k.", markersize=3)
    for at, row in enumerate(theirs.values(), len(ours)):
        for value, colour, shift in zip(row, ("tab:orange", "tab:blue", "grey"), (-0.25, 0.0, 0.25), strict=True):
            axes.bar(at + shift, value, 0.22, color="none", edgecolor=colour)
    names = [*ours, *(f"thesis: {name}" for name in theirs)]
    axes.set_xticks(range(len(names)), names, rotation=30, ha="right", fontsize=7)
    if logarithmic:
        axes.set_yscale("log")
    axes.set_ylabel("mean attention")
    axes.margins(y=0.15)
    axes.legend(fontsize=7, loc="upper center", ncols=3)


def draw_all_trained(path: Path, data: Data) -> None:
    """Figure 2.1: W^E' W^E; W^V of attention and W^V trained on one-hot words; and held-out losses."""
    v = data["model"]["words_per_topic"]
    drawn = [run for run in data["runs"] if "matrix" in run]
    figure = Figure(figsize=(14, 9.5), layout="constrained")
    axes = figure.subplots(3, 4).ravel()
    for panel, run in zip(axes, drawn, strict=False):
        heat_map(panel, _whole(run["matrix"]), v, f"{run['kind']}: {_named(run)}, λ = {run['l2']:g}")
    for panel in axes[len(drawn) : -1]:
        panel.set_axis_off()
    for run in data["runs"]:
        if "value_matrix" in run:
            axes[-2].set_axis_on()
            heat_map(axes[-2], _whole(run["value_matrix"]), v, f"{run['kind']}: W^V, {_named(run)}")
    _held_out(axes[-1], data["runs"])
    save(figure, path)


def _held_out(axes: Axes, runs: Sequence[Data]) -> None:
    """Held-out cross-entropy of what was trained, without L2 and with it."""
    shown = [run for run in runs if run["loss"] == "cross_entropy" and run["optimizer"] == "adam"]
    kinds = list(dict.fromkeys(run["kind"] for run in shown))
    for index, l2 in enumerate(sorted({run["l2"] for run in shown})):
        for place, kind in enumerate(kinds):
            values = next(run for run in shown if (run["kind"], run["l2"]) == (kind, l2))["held_out"]
            places = np.full(len(values), place + 0.2 * (index - 0.5))
            label = None if place else f"λ = {l2:g}, each seed"
            axes.plot(places, values, "o", color=shade(index, 3), label=label)
    axes.set_xticks(range(len(kinds)), kinds, fontsize=8)
    axes.set_xlim(-0.5, len(kinds) - 0.5)
    axes.grid(axis="y", alpha=0.3)
    axes.set_title("held-out cross-entropy, nats", fontsize=9)
    axes.legend(fontsize=7)


def draw_lengths(path: Path, data: Data) -> None:
    """The ratio of a random encoder, raw and corrected."""
    figure = Figure(figsize=(5.5, 3.6), layout="constrained")
    axes = figure.subplots()
    for index, which in enumerate(("raw", "corrected")):
        values = [of[which]["ratio"] for of in data.values()]
        bars = axes.bar(np.arange(len(data)) + 0.36 * (index - 0.5), values, 0.34, color=shade(index, 3), label=which)
        axes.bar_label(bars, fmt="%.3f", fontsize=8)
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_xticks(range(len(data)), list(data))
    axes.set_ylim(0.0, 1.6)
    axes.set_ylabel("attention, same topic / different topic")
    axes.set_title("an encoder with random weights knows no topics", fontsize=9)
    axes.legend(fontsize=8)
    save(figure, path)
