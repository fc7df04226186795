"""Seconds of padir commands in two versions of it, in turns:

    git worktree add ../before 12c3636
    python benchmarks/before_after.py --before=../before --output=F --command 'translate --run_dir=R --output={new} …'

Each command runs in a process of its own, first of both versions once without being counted, which fills a compilation
cache for each. '{new}' becomes the name of a path that does not exist yet. Both versions share what is installed.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from padir.benchmark.facts import portable, run_facts

VERSIONS = ("before", "after")


def seconds(source: Path, command: str, new: Path, cache: Path) -> float:
    """Seconds on the wall of one command of the version in the folder `source`.

    Raises:
      RuntimeError: the command failed.
    """
    words = [word.replace("{new}", str(new)) for word in shlex.split(command)]
    environment = os.environ | {"PYTHONPATH": str(source), "JAX_COMPILATION_CACHE_DIR": str(cache)}
    environment |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-P", "-m", "padir.cli", *words], env=environment, capture_output=True, text=True
    )
    took = time.perf_counter() - began
    if done.returncode:
        raise RuntimeError(f"{source}: padir {command}: status {done.returncode}\n{done.stderr[-2000:]}")
    return took


def measure(sources: dict[str, Path], command: str, rounds: int, folder: Path) -> dict[str, Any]:
    """Runs a command of each version in turn, which of them first alternating.

    Returns:
      'command', and of each version median, p99 and n of its seconds; and the ratio of the medians, after / before.
    """
    found: dict[str, list[float]] = {version: [] for version in VERSIONS}
    for number in range(-1, rounds):
        for version in VERSIONS if number % 2 else VERSIONS[::-1]:
            new, cache = folder / f"{version}_{number}", folder / f"cache_{version}"
            took = seconds(sources[version], command, new, cache)
            if number >= 0:
                found[version].append(took)
    rows = {
        version: {"median": statistics.median(each), "p99": float(np.percentile(each, 99)), "n": len(each)}
        for version, each in found.items()
    }
    return {"command": portable(command), **rows, "ratio": rows["after"]["median"] / rows["before"]["median"]}


def commit_of(source: Path) -> str:
    """The commit of a source folder."""
    command = ["git", "-C", str(source), "rev-parse", "HEAD"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def main() -> None:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path, required=True, help="folder with the sources of the older version")
    parser.add_argument("--after", type=Path, default=Path(__file__).resolve().parents[1])
    parser.add_argument("--command", action="append", required=True, help="what follows `padir`; may be repeated")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--output", required=True, help="JSON file to write")
    options = parser.parse_args()
    sources = {"before": options.before, "after": options.after}
    result: dict[str, Any] = {"facts": run_facts(), "before": commit_of(options.before), "commands": []}
    for command in options.command:
        with tempfile.TemporaryDirectory() as folder:
            row = measure(sources, command, options.rounds, Path(folder))
        result["commands"].append(row)
        times = ", ".join(f"{version} {row[version]['median']:.2f} s" for version in VERSIONS)
        print(f"padir {command}: {times}, ratio {row['ratio']:.3f}", flush=True)
    Path(options.output).write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
