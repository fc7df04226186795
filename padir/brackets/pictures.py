"""Draws the parts of the experiment from the data of the JSON files beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from padir.brackets import thesis
from padir.theory.pictures import save, shade

Data = Mapping[str, Any]


def _map(axes: Axes, pattern: Any, text: str, tops: Sequence[int] | None, title: str) -> Any:
    """An attention pattern [query, key] as a heat map, with the last unmatched opening bracket of each query framed."""
    image = axes.imshow(np.array(pattern), cmap="Blues", vmin=0.0, vmax=1.0)
    labels = ["s", *text]
    axes.set_xticks(range(len(labels)), labels, fontsize=7)
    axes.set_yticks(range(len(labels)), labels, fontsize=7)
    axes.tick_params(length=0)
    for query, top in enumerate(tops or ()):
        if top > 0:
            axes.add_patch(Rectangle((top - 0.5, query - 0.5), 1, 1, fill=False, edgecolor="tab:red", linewidth=1.0))
    axes.set_title(title, fontsize=9)
    return image


def _maps(path: Path, patterns: Sequence[Any], data: Data, titles: Sequence[str], heading: str) -> None:
    """A row of patterns on the test prefix."""
    figure = Figure(figsize=(3.2 * len(patterns) + 0.6, 3.9), layout="constrained")
    panels = np.atleast_1d(figure.subplots(1, len(patterns)))
    for axes, pattern, title in zip(panels, patterns, titles, strict=True):
        image = _map(axes, pattern, data["prefix"], data["tops"], title)
        axes.set_xlabel("key", fontsize=8)
    panels[0].set_ylabel("query", fontsize=8)
    figure.colorbar(image, ax=list(panels), shrink=0.75, pad=0.01)
    figure.suptitle(heading, fontsize=10)
    save(figure, path)


def draw_balance(path: Path, data: Data) -> None:
    """Attention of four random balanced layers, all of them optimal, with the top of the stack framed."""
    found = data["solutions"]
    titles = [f"optimal weights {index + 1}" for index in range(len(found["patterns"]))]
    heading = "Random balanced attention, no error on any prefix; red: the last unmatched opening bracket"
    _maps(path, found["patterns"], found, titles, heading)


def draw_violation(path: Path, data: Data) -> None:
    """Accuracy by length for each ε, mean and range of the layers; and by β times the length."""
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    by_length, by_product = figure.subplots(1, 2, sharey=True)
    lengths = np.array(data["lengths"], float)
    for index, epsilon in enumerate(data["epsilons"]):
        rows = [row for row in data["rows"] if row["epsilon"] == epsilon]
        accuracy = np.array([row["accuracy"] for row in rows])
        colour = shade(index, len(data["epsilons"]))
        beta = np.mean([row["beta"] for row in rows])
        by_length.plot(lengths, accuracy.mean(axis=0), "o-", color=colour, label=f"ε = {epsilon:g}, β = {beta:.2g}")
        by_length.fill_between(lengths, accuracy.min(axis=0), accuracy.max(axis=0), color=colour, alpha=0.12)
        products = np.array([row["beta"] for row in rows])[:, None] * lengths
        by_product.plot(products.ravel(), accuracy.ravel(), ".", color=colour, alpha=0.7)
    by_length.set_xlabel("length of the prefix")
    by_length.set_ylabel("accuracy of the last bracket's type")
    by_product.set_xlabel("β · length")
    for axes in (by_length, by_product):
        axes.axhline(1.0 / data["types"], color="grey", linewidth=1, linestyle="--")
        axes.set_xscale("log")
        axes.set_ylim(0.35, 1.03)
        axes.grid(alpha=0.3)
    by_length.legend(fontsize=7, loc="lower left")
    by_length.set_title("Balanced layers with noise of sd ε; mean and range", fontsize=10)
    by_product.set_title("Each layer; dashed: chance", fontsize=10)
    save(figure, path)


def draw_approximation(path: Path, data: Data) -> None:
    """Errors of pruned networks by the number of units for each weight."""
    rows = data["prunings"]["by_units"]
    units = [int(name) for name in rows]
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for name, marker in (("median", "o-"), ("largest", "s--")):
        axes.plot(units, [row[name] for row in rows.values()], marker, label=f"{name} error of an entry")
    axes.set_yscale("log")
    axes.set_xlabel("random units for each weight and sign, of which a subset is kept")
    axes.set_ylabel("distance from the target's entry")
    axes.set_xticks(units)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    axes.set_title("Subsets of random weights come close to any 4 × 4 matrix", fontsize=10)
    save(figure, path)


def draw_pairs(path: Path, data: Data) -> None:
    """β against accuracy on long prefixes, of each pair of runs; and, beside it, attention of some seeds."""
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    for axes, which in zip(figure.subplots(1, 2, sharey=True), ("closing", "every"), strict=True):
        standard, contrastive = data["standard"], data["contrastive"]
        for index in range(len(standard["beta"])):
            ends = [(of["beta"][index], of[f"long_{which}"][index]) for of in (standard, contrastive)]
            axes.plot(*zip(*ends, strict=True), color="lightgrey", linewidth=1, zorder=0)
        for of, name, colour in (
            (standard, "standard", "tab:blue"),
            (contrastive, f"contrastive, weight {data['weight']:g}", "tab:orange"),
        ):
            axes.plot(of["beta"], of[f"long_{which}"], "o", color=colour, label=name)
        if uniform := data.get("uniform"):
            axes.plot(uniform["beta"], uniform[f"long_{which}"], "s", color="tab:green", label="uniform attention")
        compared = data["comparison"][which]
        axes.set_xlabel("balance violation β")
        axes.set_title(
            f"among {'closing' if which == 'closing' else 'all'} brackets; rank correlation "
            f"{compared['correlation']:.2f}",
            fontsize=10,
        )
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
        if which == "closing":
            axes.set_ylabel("accuracy at lengths 400 to 500")
    figure.suptitle(f"Trained on {'complete words' if data['data'] == 'complete' else 'prefixes'}", fontsize=10)
    save(figure, path)
    attention = data["attention"]
    titles = [f"seed {index + 1}" for index in range(len(attention["patterns"]))]
    heading = "Trained attention behind a minimal first layer; red: the last unmatched opening bracket"
    _maps(path.with_name(f"{path.stem}_attention.png"), attention["patterns"], attention, titles, heading)


def draw_copying(path: Path, data: Data) -> None:
    """Attention of networks that copy, and their accuracy with one layer's attention made uniform."""
    panels = [
        (pattern, f"{name} layer{'s' * (int(name) > 1)}, layer {layer + 1}: {100 * row['accuracy'][0]:.1f}%, "
                  f"uniform {100 * row['uniform'][layer][0]:.1f}%")
        for name, row in data["rows"].items()
        for layer, pattern in enumerate(row["patterns"])
    ]  # fmt: skip
    figure = Figure(figsize=(3.3 * len(panels), 3.9), layout="constrained")
    for axes, (pattern, title) in zip(np.atleast_1d(figure.subplots(1, len(panels))), panels, strict=True):
        _map(axes, pattern, data["prefix"], None, title)
        axes.title.set_fontsize(8)
    figure.suptitle("Copying: attention, accuracy, and accuracy with that layer's attention made uniform", fontsize=10)
    save(figure, path)


def draw_variation(path: Path, data: Data) -> None:
    """The last layer's attention variation of each kind of network; and, beside it, attention of some seeds."""
    networks = data["networks"]
    figure = Figure(figsize=(7, 1.2 + 0.7 * len(networks)), layout="constrained")
    axes = figure.subplots()
    names = list(networks)
    axes.barh(names, [networks[name]["variation"][-1] for name in names], color="tab:blue")
    baseline = next(iter(networks.values()))["baseline"]
    axes.axvline(baseline, color="black", linestyle="--", linewidth=1, label=f"random rows: {baseline:.2f}")
    axes.invert_yaxis()
    axes.set_xlabel("attention variation of the last layer, mean over pairs of seeds")
    axes.legend(fontsize=8)
    save(figure, path)
    for index, name in enumerate(names):
        row = networks[name]
        titles = [f"seed {at + 1}" for at in range(len(row["patterns"]))]
        heading = f"{name}; red: the last unmatched opening bracket"
        _maps(path.with_name(f"{path.stem}_attention_{index + 1}.png"), row["patterns"], row, titles, heading)


def draw_architectures(path: Path, data: Data) -> None:
    """Attention variation by layer, with the thesis's (hollow) and the random baseline; and one network's attention."""
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    for index, (name, row) in enumerate(data["rows"].items()):
        layers = np.arange(1, len(row["mean"]) + 1)
        colour = f"C{index}"
        axes.errorbar(
            layers, row["mean"], row["sd"], fmt="o-", capsize=3, color=colour, label=f"(k, D, layers) = ({name})"
        )
        if theirs := thesis.LAYERS.get(tuple(int(of) for of in name.split(","))):
            axes.plot(layers + 0.04, theirs, "o--", color=colour, markerfacecolor="none", linewidth=0.7)
    axes.axhline(data["baseline"], color="black", linestyle="--", linewidth=1, label="random rows")
    axes.plot([], [], "o--", color="grey", markerfacecolor="none", linewidth=0.7, label="thesis, 40 sentences")
    axes.set_yscale("log")
    axes.set_xticks(range(1, 1 + max(len(row["mean"]) for row in data["rows"].values())))
    axes.set_xlabel("layer")
    axes.set_ylabel("attention variation")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    save(figure, path)
    shown = data["shown"]
    titles = [f"layer {index + 1}" for index in range(len(shown["patterns"]))]
    heading = f"(k, D, layers) = ({shown['name']}), one network; red: the last unmatched opening bracket"
    _maps(path.with_name(f"{path.stem}_attention.png"), shown["patterns"], shown, titles, heading)
