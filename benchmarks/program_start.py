"""Seconds from the start of a process to its first translation: `python benchmarks/program_start.py --output=F`.

A run is exported as StableHLO for this CPU. Then, in turns, these commands translate one sentence, each in a process of
its own: the exported program and `padir translate`, each without a compilation cache and with one that it has filled.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from padir.benchmark.facts import run_facts

_PADIR = [sys.executable, "-m", "padir.cli"]


def seconds(command: list[str], text: str, cache: Path | None) -> float:
    """Runs a command that translates one text; returns what its clock on the wall took."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX_COMPILATION_CACHE")}
    if cache is not None:
        environment |= {"JAX_COMPILATION_CACHE_DIR": str(cache), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    began = time.perf_counter()
    done = subprocess.run(command, input=text + "\n", env=environment, stdout=subprocess.PIPE, text=True, check=True)
    took = time.perf_counter() - began
    if not done.stdout.strip():
        raise RuntimeError(f"{' '.join(command)}: no translation")
    return took


def measure(folder: Path, run_dir: str, text: str, repeats: int) -> dict[str, dict[str, float]]:
    """Exports the run below `folder` and times the commands; returns median, least, greatest and n of each."""
    program = folder / "program"
    options = ["--platforms", "cpu", "--gin.export.batch_sizes=(1,)"]
    subprocess.run(
        [*_PADIR, "export", "--format=stablehlo", f"--run_dir={run_dir}", f"--output_dir={program}", *options],
        check=True,
    )
    commands = {
        "exported program": [sys.executable, str(program / "load_program.py")],
        "padir translate": [*_PADIR, "translate", f"--run_dir={run_dir}", "--batch_size=1"],
    }
    systems = {
        f"{name}, {with_cache}": (command, folder / f"cache {name}" if with_cache == "filled cache" else None)
        for name, command in commands.items()
        for with_cache in ("no cache", "filled cache")
    }
    for command, cache in systems.values():
        if cache is not None:
            seconds(command, text, cache)
    found: dict[str, list[float]] = {name: [] for name in systems}
    for _ in range(repeats):
        for name, (command, cache) in systems.items():
            found[name].append(seconds(command, text, cache))
    return {
        name: {"median": statistics.median(each), "min": min(each), "max": max(each), "n": len(each)}
        for name, each in found.items()
    }


def main() -> None:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run_dir", default="tatoeba_de_en_padir")
    parser.add_argument("--text", default="Ich habe heute keine Zeit.")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", required=True, help="JSON file to write")
    options = parser.parse_args()
    facts = run_facts()
    with tempfile.TemporaryDirectory() as folder:
        systems = measure(Path(folder), options.run_dir, options.text, options.repeats)
    result = {"facts": facts, "run_dir": options.run_dir, "text": options.text, "seconds": systems}
    Path(options.output).write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    for name, each in systems.items():
        print(f"{name}: median {each['median']:.2f} s, {each['min']:.2f} to {each['max']:.2f} (n = {each['n']})")


if __name__ == "__main__":
    main()
