"""`padir benchmark throughput`: measures sentences per second at increasing batch sizes."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from padir.benchmark import pictures
from padir.benchmark.facts import run_facts
from padir.benchmark.latency import Asked, Batch, ask, batched, describe_requests, grouped, shape_of
from padir.benchmark.measure import Compilations, Timing, take_turns
from padir.benchmark.systems import System
from padir.benchmark.workloads import Workload
from padir.errors import PadirError
from padir.files.atomic import write_text
from padir.files.paths import local_path


def throughput(
    *,
    systems: Sequence[System],
    workload: Workload,
    output: str,
    batch_sizes: Sequence[int] = (1, 2, 4, 8, 16, 32, 64),
    repeats: int = 3,
    num_pieces: int = 32_000,
    seed: int = 0,
) -> dict[str, Any]:
    """Measures sentences per second for each system and batch size, prints a table, and writes JSON and a figure.

    Batches of all sizes hold the same requests: those of the batches of the largest size, which the other sizes should
    divide. If a system runs out of memory at a batch size, a message says so, and this size and all larger ones are
    left out for that system.

    Args:
      systems, workload, num_pieces, seed: as for `latency`.
      output: the JSON file to write. The figure `<stem>.png` is written beside it.
      batch_sizes: batch sizes in ascending order.
      repeats: how often each batch is timed on each system.

    Returns:
      The contents of the JSON file.

    Raises:
      PadirError: as for `latency`, or the batch sizes do not ascend.
    """
    if not batch_sizes or list(batch_sizes) != sorted(set(batch_sizes)) or batch_sizes[0] < 1 or repeats < 1:
        raise PadirError(
            f"benchmark throughput: batch_sizes {tuple(batch_sizes)} must be ascending numbers of at least 1, and "
            f"repeats {repeats} must be at least 1"
        )
    facts = run_facts()
    asked = ask(systems, workload, num_pieces)
    fitting = dict(asked)
    described: dict[str, Any] = {
        name: {"decode": repr(it.system.decode), "compute_type": it.system.decoder.compute_type, "batches": {}}
        for name, it in asked.items()
    }
    requests = [request for batch in batched(workload, asked, batch_sizes[-1]) for request in batch]
    for size in batch_sizes:
        batches, first = grouped(requests, size), {}
        for name, it in list(fitting.items()):
            with Compilations() as first[name]:
                fits = _fits(it, batches)
            if not fits:
                print(f"{name}: batches of {size} do not fit into memory", file=sys.stderr)
                del fitting[name]
        timings = take_turns(fitting, batches, repeats=repeats, seed=seed, shape=shape_of(asked)) if fitting else {}
        for name, timing in timings.items():
            timing = dataclasses.replace(
                timing,
                compilations=timing.compilations + first[name].count,
                compile_seconds=timing.compile_seconds + first[name].seconds,
            )
            described[name]["batches"][size] = _describe(timing, size, batches, fitting[name])
    result = {
        "facts": facts | {"load_average_after": list(os.getloadavg())},
        "workload": repr(workload),
        "requests": describe_requests(grouped(requests, 1)),
        "systems": described,
    }
    write_text(output, json.dumps(result, indent=2) + "\n")
    rates = {
        name: {size: found["sentences_per_second"] for size, found in system["batches"].items()}
        for name, system in described.items()
    }
    pictures.throughputs(local_path(output).with_suffix(".png"), rates)
    print(throughput_table(rates, batch_sizes))
    return result


def _fits(asked: Asked, batches: Sequence[Batch]) -> bool:
    """Whether the system can answer the batch with the longest sources without running out of memory."""
    try:
        asked(max(batches, key=asked.source_width))
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return False
    return True


def _describe(timing: Timing, size: int, batches: Sequence[Batch], asked: Asked) -> dict[str, Any]:
    # The mean over all batches: batches differ in length, and each counts by the time that it takes.
    seconds = timing.samples.mean() / 1e3
    gflops = float(np.mean([asked.cost(batch).flops for batch in batches])) / 1e9
    return {
        "batch_ms": timing.to_dict(),
        "sentences_per_second": size / seconds,
        "steps_per_batch": float(np.mean([asked.steps[batch] for batch in batches])),
        "gflops_per_second": gflops / seconds,
    }


def throughput_table(rates: dict[str, dict[int, float]], batch_sizes: Sequence[int]) -> str:
    """A Markdown table of sentences per second, with a row for each system and a column for each batch size."""
    lines = [f"| sentences/s at batch | {' | '.join(map(str, batch_sizes))} |", "|---|" + "---:|" * len(batch_sizes)]
    for name, by_size in rates.items():
        cells = (f"{by_size[size]:.2f}" if size in by_size else "–" for size in batch_sizes)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)
