"""Draws the latency of systems against the batch size:

    python benchmarks/batches.py latency_b1.json latency_b8.json latency_b64.json --output=latency.png

The files are results of `padir benchmark latency` with different values of `--batch_size`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import ScalarFormatter

# Autoregressive systems are black and grey; colour-blind readers can tell the others apart.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")


def main() -> None:
    """Reads the results and writes the picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", nargs="+", type=Path, help="JSON files of padir benchmark latency")
    parser.add_argument("--output", required=True, type=Path, help="the PNG file to write")
    options = parser.parse_args()
    draw(options.output, [json.loads(path.read_text(encoding="utf-8")) for path in options.results])


def draw(path: Path, results: Sequence[Mapping[str, Any]]) -> None:
    """Draws median milliseconds a batch against the batch size, one line a system.

    Args:
      path: the PNG file to write.
      results: of `padir benchmark latency`, for the same systems.
    """
    ordered = sorted(results, key=lambda result: result["batch_size"])
    names = list(ordered[0]["systems"])
    kinds = {name: [other for other in names if other.startswith("AR") == name.startswith("AR")] for name in names}
    figure = Figure(figsize=(11, 5.5), layout="constrained")
    axes = figure.subplots()
    for name in names:
        at = kinds[name].index(name)
        autoregressive = name.startswith("AR")
        axes.plot(
            [result["batch_size"] for result in ordered],
            [result["systems"][name]["latency_ms"]["median"] for result in ordered],
            marker="s" if autoregressive else "o",
            color=("black", "#777777")[at % 2] if autoregressive else _COLOURS[at % len(_COLOURS)],
            linestyle=("-", "--", ":")[at // (2 if autoregressive else len(_COLOURS)) % 3],
            label=name,
        )
    sizes = [result["batch_size"] for result in ordered]
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(ScalarFormatter())
    axes.yaxis.set_minor_formatter(ScalarFormatter())
    axes.set_xlabel("sentences in a batch")
    axes.set_ylabel("median milliseconds per batch, host to host")
    axes.set_title(ordered[0]["facts"]["device"])
    axes.grid(alpha=0.3, which="both")
    figure.legend(loc="outside right upper", fontsize="small")
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
