"""Draws the figures from the data of the JSON files beside them."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from padir.theory.hitting import PARALLEL


def shade(index: int, count: int) -> tuple[float, ...]:
    """The colour of curve `index` of `count`, red, green, blue and alpha, from dark to light."""
    return colormaps["viridis"](0.9 * index / max(1, count - 1))


def save(figure: Figure, path: Path) -> None:
    """Writes a PNG with 64 colours, which makes the file smaller."""
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=110)
    Image.open(drawn).convert("RGB").quantize(64).save(path, optimize=True)


def draw_estimation(path: Path, data: Mapping[str, Any]) -> None:
    """Figures 4.1 and 4.2: mean squared error ± 0.5 sd against n, and tr(Γ_k) / n as lines."""
    settings = data["settings"]
    figure = Figure(figsize=(6.5, 4.4), layout="constrained")
    axes = figure.subplots()
    for index, (k, model) in enumerate(data["by_k"].items()):
        colour = shade(index, len(data["by_k"]))
        sizes = np.array([point["n"] for point in model["points"]], float)
        errors = np.array([point["squared_errors"] for point in model["points"]])
        axes.plot(sizes, [point["predicted"] for point in model["points"]], color=colour, linewidth=1)
        # Shifted slightly, so that the bars of different k do not hide each other.
        axes.errorbar(
            sizes * 1.04 ** (index - 1.5), errors.mean(axis=1), 0.5 * errors.std(axis=1, ddof=1),
            fmt="o", markersize=4, capsize=3, color=colour, label=f"k = {k}",
        )  # fmt: skip
    axes.plot([], [], color="grey", linewidth=1, label="exact: tr(Γ_k) / n")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("n, pairs of a sample and a block")
    axes.set_ylabel("squared error of the parameters")
    axes.set_title(
        f"N = |C| = {settings['spins']}, J = {settings['coupling']}, h = 0; {settings['repetitions']} fits, ± 0.5 sd",
        fontsize=10,
    )
    axes.grid(alpha=0.3, which="both")
    axes.legend(fontsize=8)
    save(figure, path)


def draw_theorems(path: Path, data: Mapping[str, Any]) -> None:
    """Draws efficiency by k, the Poincaré constant against the variance it bounds, and the spectral gap of k-Gibbs.

    Each line or marker is one random model.
    """
    figure = Figure(figsize=(12.5, 4), layout="constrained")
    efficiency, bound, gaps = figure.subplots(1, 3)
    for index, (n, measures) in enumerate(data["by_spins"].items()):
        colour = shade(index, len(data["by_spins"]))
        sizes = np.arange(1, int(n) + 1)
        trace = np.array(measures["trace"])
        efficiency.plot(sizes, (trace[:, -1:] / trace).T, color=colour, alpha=0.25, linewidth=0.8)
        efficiency.plot([], [], color=colour, label=f"N = {n}")
        constants = np.array(measures["uniform"]["poincare"])
        gaps.plot(sizes, (constants[:, :1] / constants / sizes).T, color=colour, alpha=0.25, linewidth=0.8)
        for kind, marker in (("uniform", "."), ("weighted", "x"), ("adaptive", "+")):
            tight, poincare = (np.ravel(measures[kind][name]) for name in ("tightness", "poincare"))
            bound.plot(poincare, tight, marker, color=colour, alpha=0.5, markersize=4)
    for marker, label in ((".", "k-Gibbs"), ("x", "random weights"), ("+", "adaptive weights")):
        bound.plot([], [], marker, color="grey", label=label)
    ends = bound.get_xlim()
    bound.plot(ends, ends, color="black", linewidth=0.8, label="the bound")
    bound.set_xscale("log")
    bound.set_yscale("log")
    bound.set_xlabel("Poincaré constant C of the chain")
    bound.set_ylabel("smallest c with Γ ⪯ c I⁻¹")
    bound.set_title("Theorems 4.1.2 and 4.1.3", fontsize=10)
    efficiency.set_xlabel("k")
    efficiency.set_ylabel("tr(I⁻¹) / tr(Γ_k)")
    efficiency.set_title("Theorem 4.1.1: larger blocks, smaller variance", fontsize=10)
    gaps.axhline(1.0, color="black", linewidth=0.8)
    gaps.set_yscale("log")
    gaps.set_xlabel("k")
    gaps.set_ylabel("gap of k-Gibbs / (k · gap of 1-Gibbs)")
    gaps.set_title("larger blocks mix at least k times faster", fontsize=10)
    for axes in (efficiency, bound, gaps):
        axes.grid(alpha=0.3)
    efficiency.legend(fontsize=8)
    bound.legend(fontsize=8)
    save(figure, path)


def draw_hitting(path: Path, data: Mapping[str, Any]) -> None:
    """Draws Figure 4.3, exact steps and Proposition 4.1.4 over a wide range of J, and Proposition 4.1.5 by clique size.

    Args:
      path: the PNG file to write.
      data: the results of `hitting` and `separation`, under these names.
    """
    figure = Figure(figsize=(16, 6), layout="constrained")
    narrow, wide, stuck = figure.subplots(1, 3)
    _draw_simulated(narrow, data["hitting"])
    _draw_wide(wide, data["hitting"])
    _draw_stuck(stuck, data["separation"])
    for axes in (narrow, wide, stuck):
        axes.set_yscale("log")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=3)
    save(figure, path)


def _sampler_colours(data: Mapping[str, Any]) -> dict[str, Any]:
    gibbs = [name for name in data["exact"] if name != PARALLEL]
    return {name: shade(index, len(gibbs)) for index, name in enumerate(gibbs)} | {PARALLEL: "#D55E00"}


def _draw_simulated(axes: Axes, data: Mapping[str, Any]) -> None:
    settings, colours = data["settings"], _sampler_colours(data)
    couplings = np.array(settings["couplings"])
    for index, (name, runs) in enumerate(data["simulated"].items()):
        steps = np.array(runs["steps"], float)
        axes.plot(couplings, data["exact"][name]["mean_within_budget"], color=colours[name], linewidth=1)
        # The lower bars end at half a step, because the axis is logarithmic.
        half = 0.5 * steps.std(axis=1, ddof=1)
        mean = steps.mean(axis=1)
        axes.errorbar(
            couplings + 0.02 * (index - 3.5), mean, [np.minimum(half, mean - 0.5), half],
            fmt="s" if name == PARALLEL else "o", markersize=4, capsize=3, color=colours[name], label=name,
        )  # fmt: skip
    axes.axhline(settings["budget"], color="black", linewidth=0.8, linestyle=":")
    axes.plot([], [], color="grey", linewidth=1, label="exact mean within the budget")
    shown = axes.get_xlim()
    for name, times in data["bounds"]["clique's fields"].items():
        axes.plot(settings["wide_couplings"], times, "--", color=colours[name], linewidth=0.9)
    axes.plot([], [], "--", color="grey", label="Prop. 4.1.4's bound")
    axes.set_xlim(shown)
    axes.set_xlabel("J")
    axes.set_ylabel("steps from R₋₁ to R₁")
    axes.set_title(
        f"N = {settings['spins']}, |C| = {settings['clique']}, h = {settings['field']:g}; "
        f"{settings['repetitions']} runs, ± 0.5 sd; budget {settings['budget']}",
        fontsize=9,
    )


def _draw_wide(axes: Axes, data: Mapping[str, Any]) -> None:
    settings, colours = data["settings"], _sampler_colours(data)
    couplings = settings["wide_couplings"]
    for name, times in data["wide"].items():
        axes.plot(couplings, times, color=colours[name], linewidth=1.2, label=name)
    for form, style in (("all fields", ":"), ("clique's fields", "--")):
        for name, times in data["bounds"][form].items():
            axes.plot(couplings, times, style, color=colours[name], linewidth=0.9)
        axes.plot([], [], style, color="grey", label=f"Prop. 4.1.4, ‖h‖₁ of {form}")
    axes.axhline(settings["budget"], color="black", linewidth=0.8, linestyle=":")
    axes.set_ylim(0.7, 1e12)
    axes.set_xscale("log")
    axes.set_xlabel("J")
    axes.set_ylabel("expected steps, exact")
    axes.set_title("exact expected steps and the bound 1 / (1 − c_R₁)", fontsize=9)


def _draw_stuck(axes: Axes, separation: Mapping[str, Any]) -> None:
    sizes = [entry["clique"] for entry in separation["stuck"]]
    expected = [entry["expected_steps_to_mode"] for entry in separation["stuck"]]
    axes.plot(sizes, expected, "s-", color="#D55E00", markersize=4, label="independent parallel, Σ x ≤ −2: expected")
    for delta, style in zip(separation["settings"]["deltas"], (":", "--", "-."), strict=False):
        bound = [next(at["steps"] for at in entry["by_delta"] if at["delta"] == delta) for entry in separation["stuck"]]
        axes.plot(sizes, bound, style, color="#D55E00", label=f"Prop. 4.1.5: T for δ = {delta}")
    axes.plot(
        sizes, [entry["n_gibbs_expected_steps"] for entry in separation["stuck"]], "o-", markersize=4,
        color=shade(9, 10), label="N-Gibbs: expected",
    )  # fmt: skip
    # The cases of the corollary, for all delta together, since delta hardly affects |C|.
    for steps in separation["settings"]["corollary_steps"]:
        cases = [entry for entry in separation["corollary"] if entry["steps"] == steps]
        axes.plot([entry["clique"] for entry in cases], [steps] * len(cases), "^", color="#CC79A7", markersize=5)
    axes.plot([], [], "^", color="#CC79A7", label="Corollary 4.1.1: stuck for M, N-Gibbs takes 1")
    axes.axhline(1.0, color="black", linewidth=0.8, linestyle=":")
    axes.set_ylim(1e-1, 1e20)
    axes.set_xlabel("|C|")
    axes.set_ylabel("steps to R₁")
    axes.set_title(
        f"J − ‖h‖₁ = {separation['settings']['j_0']}, h_G = {separation['settings']['h_clique']}, N = |C|", fontsize=9
    )


def draw_learned(path: Path, data: Mapping[str, Any]) -> None:
    """Draws the total variation between samplers and the truth: by steps for each J, and after the last step by k.

    Args:
      path: the PNG file to write.
      data: the data of `learned`.
    """
    settings, by_coupling = data["settings"], data["by_coupling"]
    figure = Figure(figsize=(4.2 * (len(by_coupling) + 1), 4.2), layout="constrained")
    *panels, ends = figure.subplots(1, len(by_coupling) + 1, sharey=True)
    for axes, (coupling, by_k) in zip(panels, by_coupling.items(), strict=True):
        for index, (k, entry) in enumerate(by_k.items()):
            colour = shade(index, len(by_k))
            axes.plot(settings["steps"], entry["chain"], color=colour, label=f"learnt, k = {k}")
            axes.plot(settings["steps"], entry["ideal"], "--", color=colour, linewidth=0.9)
            axes.plot(settings["steps"], np.maximum(entry["k_gibbs"], 1e-6), ":", color=colour, linewidth=1.2)
            axes.plot(settings["steps"][: len(entry["loop"])], entry["loop"], "o", color=colour, markersize=4)
        axes.set_xscale("log", base=2)
        axes.set_xlabel("steps")
        axes.set_title(f"N = |C| = {settings['spins']}, J = {coupling}", fontsize=10)
    for index, (coupling, by_k) in enumerate(by_coupling.items()):
        colour, sizes = shade(index, len(by_coupling)), [int(k) for k in by_k]
        ends.plot(sizes, [entry["chain"][-1] for entry in by_k.values()], "s-", color=colour, label=f"J = {coupling}")
        ends.plot(sizes, [max(entry["ideal"][-1], 1e-6) for entry in by_k.values()], "--", color=colour, linewidth=0.9)
        ends.plot(sizes, [entry["loop"][-1] for entry in by_k.values()], "o", color=colour, markersize=4)
    ends.set_xticks(sizes)
    ends.set_xlabel("k, spins written per step")
    ends.set_title(f"after {settings['steps'][-1]} steps (loop: {settings['loop_steps']})", fontsize=10)
    for axes in (*panels, ends):
        axes.set_yscale("log")
        axes.set_ylim(1e-4, 1.0)
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("total variation to the truth")
    loop = f"PaDIR's loop, {settings['runs']} runs"
    for marker, label in (("o", loop), ("--", "ideal: true marginals"), (":", "k-Gibbs")):
        panels[0].plot([], [], marker, color="grey", label=label)
    for axes in (panels[0], ends):
        axes.legend(fontsize=7, loc="lower left")
    save(figure, path)
