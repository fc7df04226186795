"""Draws sentences a second against the batch size, from results of `padir benchmark latency` with different batches:

    python benchmarks/batches.py latency_b1.json latency_b8.json latency_b64.json --output=batches.png

For one process that measures all batch sizes in turns, see `padir benchmark throughput`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from padir.benchmark import pictures


def main() -> None:
    """Reads the results and writes the picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", nargs="+", type=Path, help="JSON files of padir benchmark latency")
    parser.add_argument("--output", required=True, type=Path, help="the PNG file to write")
    options = parser.parse_args()
    results = {path: json.loads(path.read_text(encoding="utf-8")) for path in options.results}
    first = results[options.results[0]]
    for path, result in results.items():
        if list(result["systems"]) != list(first["systems"]) or result["facts"]["device"] != first["facts"]["device"]:
            sys.exit(f"{path}: has other systems or another device than {options.results[0]}")
    pictures.throughputs(options.output, rates(list(results.values())))


def rates(results: Sequence[dict[str, Any]]) -> dict[str, dict[int, float]]:
    """Sentences per second of each system, by batch size in ascending order, at the median latency."""
    ordered = sorted(results, key=lambda result: result["batch_size"])
    return {
        name: {
            result["batch_size"]: 1e3 * result["batch_size"] / result["systems"][name]["latency_ms"]["median"]
            for result in ordered
        }
        for name in ordered[0]["systems"]
    }


if __name__ == "__main__":
    main()
