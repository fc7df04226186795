"""Figures of latency and throughput."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from padir.benchmark.measure import Timing

# Black is for the baseline. Colour-blind readers can tell the others apart; line styles help, too.
_COLOURS = ("black", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#999999")
_LINES = ("-", "--", ":")


def distributions(path: Path, samples: Mapping[str, np.ndarray]) -> None:
    """Draws the cumulative distribution of the latency of each system.

    Args:
      path: the PNG file to write.
      samples: milliseconds [n] per request of each system.
    """
    figure, axes = _axes()
    for style, (name, values) in zip(_styles(len(samples)), samples.items(), strict=True):
        ordered = np.sort(values)
        share = np.arange(1, len(ordered) + 1) / len(ordered)
        axes.plot(ordered, share, label=f"{name} (n={len(values)})", **style)
    axes.set_xscale("log")
    axes.set_xlabel("milliseconds per request, host to host")
    axes.set_ylabel("share of requests within this time")
    _save(figure, axes, path)


def by_length(path: Path, lengths: np.ndarray, timings: Mapping[str, Timing], side: str = "target") -> None:
    """Draws the median latency of each request against its length.

    Args:
      path: the PNG file to write.
      lengths: length of each request, int [requests], in tokens.
      timings: the measured times of each system.
      side: whose lengths they are, 'source' or 'target'.
    """
    figure, axes = _axes()
    for style, (name, timing) in zip(_styles(len(timings)), timings.items(), strict=True):
        medians = [np.median(timing.samples[timing.requests == index]) for index in range(len(lengths))]
        order = np.argsort(lengths, kind="stable")
        axes.plot(lengths[order], np.asarray(medians)[order], label=name, linewidth=1, **style)
    axes.set_yscale("log")
    axes.set_xlabel(f"{side} tokens")
    axes.set_ylabel("median milliseconds per request")
    _save(figure, axes, path)


def quality_against_latency(path: Path, systems: Mapping[str, Mapping[str, Any]]) -> None:
    """Draws BLEU against median latency, for the systems whose BLEU is known.

    Args:
      path: the PNG file to write.
      systems: the facts about each system, as `padir benchmark latency` writes them.
    """
    figure, axes = _axes()
    known = {name: system for name, system in systems.items() if "bleu" in system}
    for style, (name, system) in zip(_styles(len(known)), known.items(), strict=True):
        axes.plot(system["latency_ms"]["median"], system["bleu"], "o", label=name, color=style["color"])
    axes.set_xscale("log")
    axes.set_xlabel("median milliseconds per request")
    axes.set_ylabel("BLEU")
    _save(figure, axes, path)


def throughputs(path: Path, by_system: Mapping[str, Mapping[int, float]]) -> None:
    """Draws sentences per second against batch size.

    Args:
      path: the PNG file to write.
      by_system: sentences per second of each system, by batch size.
    """
    figure, axes = _axes()
    for style, (name, rates) in zip(_styles(len(by_system)), by_system.items(), strict=True):
        axes.plot(list(rates), list(rates.values()), marker="o", label=name, **style)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("sentences in a batch")
    axes.set_ylabel("sentences per second")
    _save(figure, axes, path)


def load(path: Path, servers: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Draws quantiles of latency against the rate of requests.

    Args:
      path: the PNG file to write.
      servers: loads as `padir benchmark serve` writes them, by name of the server.
    """
    figure, axes = _axes()
    for index, (server, loads) in enumerate(servers.items()):
        for quantile, line in (("p50", "-"), ("p99", ":")):
            of = [(load["rate"], load["latency_ms"][quantile]) for load in loads]
            points = [(rate, latency) for rate, latency in of if latency is not None]
            style = {"color": _COLOURS[index % len(_COLOURS)], "linestyle": line, "marker": "o"}
            axes.plot(*zip(*points, strict=True), label=f"{server}, {quantile}", **style)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("requests per second, scheduled")
    axes.set_ylabel("milliseconds from schedule to answer")
    _save(figure, axes, path)


def _axes():
    figure = Figure(figsize=(8.5, 4.5), layout="constrained")
    return figure, figure.subplots()


def _styles(count: int) -> list[dict[str, str]]:
    """A colour and a line style for each of `count` systems."""
    return [
        {"color": _COLOURS[i % len(_COLOURS)], "linestyle": _LINES[i // len(_COLOURS) % len(_LINES)]}
        for i in range(count)
    ]


def _save(figure: Figure, axes: Any, path: Path) -> None:
    axes.grid(alpha=0.3, which="both")
    axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.savefig(path, dpi=120)
