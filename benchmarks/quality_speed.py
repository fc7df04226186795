"""Seconds of an update of each model of `quality.py`, which starts this script.

All models take turns in one process, each on one batch: of the length in the middle, when an epoch's batches are sorted
by length. The result is scaled to the mean length.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from train_step import Updates, spread_batches

import gin as gin_config
from padir.benchmark.measure import take_turns
from padir.cli import config
from padir.data.batching import Buckets, schedule
from padir.data.records import PreparedSet
from padir.files.atomic import write_text
from padir.nn.fastest_type import resolved_for_training
from padir.runtime import host_memory
from padir.types import TokenIds

_REPEATS = 8


def main() -> None:
    """Measures, and writes the seconds by model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data_dir", required=True, help="the prepared set")
    parser.add_argument(
        "--arguments", type=Path, required=True, help="JSON: of each model the arguments of padir train"
    )
    parser.add_argument("--output", type=Path, required=True, help="the JSON file to write")
    options = parser.parse_args()
    host_memory.keep_freed_before_jax()  # As `padir train` does.
    data = PreparedSet.open(options.data_dir)
    write_text(options.output, json.dumps(measure(data, json.loads(options.arguments.read_text()))) + "\n")


def measure(data: PreparedSet, arguments: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """Mean seconds of an update of each model.

    Args:
      data: the prepared set.
      arguments: of `padir train`, by model.
    """
    ids = TokenIds(data.vocabulary().num_pieces)
    runs, share = {}, {}
    for model, given in arguments.items():
        config.parse(*parsed(given))
        size, lengths = (gin_config.query_parameter(f"train.{name}") for name in ("batch_size", "buckets"))
        kind = gin_config.query_parameter("train.compute_type") if config.has_value("train.compute_type") else None
        (batch,) = spread_batches(data, lengths, size, 1)
        share[model] = mean_length(data, lengths, size) / batch["decoder_target_tokens"].shape[1]
        made = gin_config.query_parameter("train.model").scoped_configurable_fn(ids)
        optimizer = gin_config.query_parameter("train.optimizer").scoped_configurable_fn()
        updates = Updates(made, batch, resolved_for_training("train.compute_type", kind), optimizer)
        runs[model] = lambda _, updates=updates: updates()
    timings = take_turns(runs, [None], repeats=_REPEATS, untimed=1)
    return {model: float(np.median(timing.samples)) / 1e3 * share[model] for model, timing in timings.items()}


def mean_length(data: PreparedSet, lengths: Sequence[int], batch_size: int) -> float:
    """The mean length that the batches of an epoch are padded to."""
    buckets = Buckets.square(lengths)
    epoch = schedule(data.split("train").lengths, buckets=buckets, batch_size=batch_size, seed=0, epoch=0)
    return float(np.array([boundary[1] for boundary in buckets.boundaries])[epoch.bucket].mean())


def parsed(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """(gin files, bindings) of arguments of `padir train`."""
    files = [argument.partition("=")[2] for argument in arguments if argument.startswith("--gin_file=")]
    return files, [argument.removeprefix("--gin.") for argument in arguments if argument.startswith("--gin.")]


if __name__ == "__main__":
    main()
