"""Growth of memory during training: `python benchmarks/train_memory.py --output FILE.json --data_dir DIR`.

Trains a tiny PaDIR model for `--steps` updates, with batches of several padded lengths, with evaluation and with
checkpoints. Reads the memory of the process from the metrics of the run, and fits a line to all but its first quarter.
Prints the slope of that line and writes JSON. A missing data set is prepared from the embedded language pair.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from padir.benchmark.facts import run_facts
from padir.data.manifest import MANIFEST_NAME, PrepareSettings, TaskConfig
from padir.files.atomic import write_text
from padir.metrics.writers import read_metrics
from padir.models.padir import PadirModel
from padir.nn.network import NetworkConfig
from padir.runs.directory import METRICS_FOLDER
from padir.runtime import host_memory
from padir.training.optimizers import OptimizerConfig
from padir.training.train import Cadence, train

_MEMORY = "train/host_memory_mb"


def main() -> None:
    """Trains, prints the growth and writes it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", required=True, help="JSON file to write")
    parser.add_argument("--data_dir", required=True, help="prepared set with at most 32 tokens; made if missing")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--buckets", type=int, nargs="+", default=[12, 20, 32])
    parser.add_argument("--every", type=int, default=20, help="updates between two readings of the memory")
    options = parser.parse_args()
    host_memory.keep_freed_before_jax()  # As `padir train` does.
    facts = run_facts()
    found = growth(train_tiny(options.data_dir, options.steps, options.every, options.buckets))
    described = {"facts": facts, "steps": options.steps, **found}
    write_text(Path(options.output), json.dumps(described, indent=2) + "\n")
    print(
        f"{options.steps} updates: {found['mb_at_first']:.0f} MB after a quarter, {found['mb_at_last']:.0f} MB at "
        f"the end, at most {found['mb_at_most']:.0f}; {found['mb_per_1000_steps']:+.2f} MB per 1,000 updates"
    )


def train_tiny(data_dir: str, steps: int, every: int, buckets: Sequence[int]) -> list[dict[str, Any]]:
    """Trains in a temporary run directory; returns the lines of the run's metrics."""
    network = NetworkConfig(
        embed_dim=64, num_heads=2, head_dim=32, mlp_dim=128, num_encoder_layers=1, num_decoder_layers=1
    )
    task = settings = None
    if not (Path(data_dir) / MANIFEST_NAME).exists():
        task = TaskConfig("tasks.synthetic", "memory", {"num_train": 20_000, "num_validation": 100, "num_test": 100})
        settings = PrepareSettings(num_pieces=300, max_source_length=32, max_target_length=32)
    with tempfile.TemporaryDirectory() as run_dir:
        train(
            run_dir=run_dir,
            data_dir=data_dir,
            model=lambda ids: PadirModel(ids, network, 32, 32),
            num_steps=steps,
            batch_size=16,
            buckets=buckets,
            optimizer=OptimizerConfig(warmup_steps=steps // 10),
            cadence=Cadence(log=every, evaluate=10 * every, checkpoint=10 * every, keep=2),
            task=task,
            settings=settings,
        )
        return read_metrics(Path(run_dir) / METRICS_FOLDER / "metrics.jsonl")


def growth(lines: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Growth of memory according to the metrics of a run, without its first quarter, which compiles and warms up.

    Returns:
      'mb_at_first', 'mb_at_last' and 'mb_at_most' in MB, and 'mb_per_1000_steps', the slope of the fitted line.
    """
    steps = np.array([line["step"] for line in lines])
    memory = np.array([line[_MEMORY] for line in lines])[steps > steps[-1] / 4]
    steps = steps[steps > steps[-1] / 4]
    slope = np.polyfit(steps, memory, 1)[0]
    return {
        "mb_at_first": float(memory[0]),
        "mb_at_last": float(memory[-1]),
        "mb_at_most": float(memory.max()),
        "mb_per_1000_steps": 1000.0 * float(slope),
    }


if __name__ == "__main__":
    main()
