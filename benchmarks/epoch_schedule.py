"""Time and memory of an epoch's schedule: `python benchmarks/epoch_schedule.py --output FILE.json`.

Makes a synthetic length table like that of a prepared set with `--pairs` pairs. Computes from it the schedules of two
training epochs and of an evaluation, without reading any record. Prints seconds and the peak memory of the process, and
writes JSON.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from pathlib import Path
from typing import Any

import numpy as np

from padir.benchmark.facts import run_facts
from padir.data.batching import Buckets, TrainingSchedule, evaluation_schedule
from padir.files.atomic import write_text


def main() -> None:
    """Measures, prints the figures and writes them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", required=True, help="JSON file to write")
    parser.add_argument("--pairs", type=int, default=2_000_000)
    parser.add_argument("--batch_size", type=int, default=2048)
    parser.add_argument("--buckets", type=int, nargs="+", default=[16, 24, 32, 48, 64, 96, 128])
    options = parser.parse_args()
    facts = run_facts()
    before = peak_megabytes()
    found = measure(synthetic_lengths(options.pairs, options.buckets[-1]), options.buckets, options.batch_size)
    described = {
        "facts": facts,
        "pairs": options.pairs,
        "batch_size": options.batch_size,
        "buckets": options.buckets,
        "process_megabytes_before": before,
        "process_megabytes_at_most": peak_megabytes(),
        **found,
    }
    write_text(Path(options.output), json.dumps(described, indent=2) + "\n")
    print(
        f"{options.pairs} pairs: first epoch's schedule {found['epoch_seconds']:.2f} s, next epoch's "
        f"{found['next_epoch_seconds']:.2f} s, evaluation's {found['evaluation_seconds']:.2f} s; peak memory of the "
        f"process {described['process_megabytes_at_most']:.0f} MB ({before:.0f} MB before the length table was made)"
    )


def synthetic_lengths(pairs: int, longest: int, seed: int = 0) -> np.ndarray:
    """Returns a length table, int32 [pairs, 2] (source, target), in tokens.

    Sources are log-normal around 24 tokens, targets are near their sources, and both have 2 to `longest` tokens.
    """
    generator = np.random.default_rng(seed)
    source = generator.lognormal(np.log(24.0), 0.6, pairs)
    target = source * generator.lognormal(0.0, 0.2, pairs)
    return np.clip(np.stack([source, target], axis=1), 2, longest).astype(np.int32)


def measure(lengths: np.ndarray, buckets: list[int], batch_size: int) -> dict[str, Any]:
    """Times the schedules of two epochs and of an evaluation, and describes the first epoch.

    Args:
      lengths: length table, int32 [pairs, 2].
      buckets: padded lengths, in tokens.
      batch_size: pairs per batch.

    Returns:
      'epoch_seconds', 'next_epoch_seconds', 'evaluation_seconds', 'steps_per_epoch', 'dropped' (pairs that fill no
      batch) and 'padding' (the share of positions, of both sides, that hold no token).
    """
    boundaries = Buckets.square(buckets)
    began = time.perf_counter()
    schedule = TrainingSchedule(lengths, buckets=boundaries, batch_size=batch_size, seed=0)
    first = time.perf_counter()
    schedule.batch_at(schedule.steps_per_epoch)
    second = time.perf_counter()
    evaluation_schedule(lengths, buckets=boundaries, batch_size=batch_size)
    third = time.perf_counter()
    padded, tokens = 0, 0
    for step in range(schedule.steps_per_epoch):
        bucket, rows = schedule.batch_at(step)
        padded += len(rows) * sum(boundaries.boundaries[bucket])
        tokens += int(lengths[rows].sum())
    return {
        "epoch_seconds": first - began,
        "next_epoch_seconds": second - first,
        "evaluation_seconds": third - second,
        "steps_per_epoch": schedule.steps_per_epoch,
        "dropped": len(lengths) - schedule.steps_per_epoch * batch_size,
        "padding": 1.0 - tokens / padded,
    }


def peak_megabytes() -> float:
    """The peak resident memory of this process so far, in MB (10^6 bytes)."""
    # Linux reports ru_maxrss in units of 1,024 bytes.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


if __name__ == "__main__":
    main()
