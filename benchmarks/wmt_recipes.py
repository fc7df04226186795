"""Which slice of TPUs for the WMT recipes: estimates of XLA's compiler for their updates. Nothing is run.

All WMT recipes of a kind (PaDIR, AR) train with the same program, since they differ in their data alone. Each is
compiled as `padir compile train` does it, for the longest bucket and for a bucket of the mean length. What the result
has already is not compiled again:

    python benchmarks/wmt_recipes.py --output=benchmarks/results/wmt_recipes.json
"""

from __future__ import annotations

import argparse
import concurrent.futures
import itertools
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from padir.benchmark.facts import run_facts
from padir.files.atomic import write_text

KEYS = ("kind", "topology", "length", "dtype", "num_slices")
CREDIT = "estimated by XLA's compiler; not run"
KINDS = ("padir", "ar")
SLICES = ("v3-32", "v4-32", "v5e-16", "v6e-16")
# The longest bucket decides about memory. The mean padded length of pairs as long as those of WMT14 German to English
# (benchmarks/results/feed_cpu.json) decides about hours.
LONGEST, MEAN = 128, 40
VARIANTS = (
    {"length": MEAN, "dtype": "bfloat16", "num_slices": 1},
    {"length": LONGEST, "dtype": "bfloat16", "num_slices": 1},
    {"length": MEAN, "dtype": "bfloat16", "num_slices": 2},
    {"length": MEAN, "dtype": "float32", "num_slices": 1},
)


def compile_recipe(kind: str, topology: str, length: int, dtype: str, num_slices: int) -> dict[str, Any]:
    """Returns what `padir compile train` says of the update of one bucket of WMT14 German to English.

    If it does not fit, the layers are computed again in the backward pass.
    """
    for remat in ("none", "layer"):
        found = _compiled(kind, topology, length, dtype, num_slices, remat) | {"remat": remat}
        if found["program"]["fits"]:
            break
    return found


def _compiled(kind: str, topology: str, length: int, dtype: str, num_slices: int, remat: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "compiled.json"
        command = [
            *(sys.executable, "-m", "padir.cli", "compile", "train"),
            f"--topology={topology}",
            f"--num_slices={num_slices}",
            f"--output={output}",
            f"--remat={remat}",
            "--no-try_others",
            f"--gin_file=runs/wmt14_de_en_{kind}.gin",
            "--gin.DATA_DIR='data'",
            "--gin.RUN_DIR='run'",
            f"--gin.NetworkConfig.dtype='{dtype}'",
            f"--gin.train.buckets=({length},)",
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if not output.exists():
            raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
        result = json.loads(output.read_text(encoding="utf-8"))
    (said,) = result["programs"].values()
    return {"slice": result["topology"], "program": said}


def main() -> None:
    """Compiles what the result does not have yet; writes it after each program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="the JSON file; what it has is kept")
    parser.add_argument("--jobs", type=int, default=2, help="programs compiled at once")
    options = parser.parse_args()
    there = options.output
    found = json.loads(there.read_text(encoding="utf-8"))["recipes"] if there.exists() else []
    known = {tuple(each[key] for key in KEYS) for each in found}
    wanted = [
        dict(zip(KEYS, (kind, topology, *variant.values()), strict=True))
        for variant, topology, kind in itertools.product(VARIANTS, SLICES, KINDS)
    ]
    facts = run_facts()
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        jobs = {pool.submit(compile_recipe, **each): each for each in wanted if tuple(each.values()) not in known}
        for job in concurrent.futures.as_completed(jobs):
            found.append(jobs[job] | job.result() | {"commit": facts["commit"]})
            found.sort(key=lambda each: [wanted.index({key: each[key] for key in KEYS})])
            write_text(there, json.dumps({"estimated_by": CREDIT, "recipes": found, "facts": facts}, indent=1) + "\n")
            print(jobs[job], job.result()["program"].get("run", "does not fit"), flush=True)


if __name__ == "__main__":
    main()
