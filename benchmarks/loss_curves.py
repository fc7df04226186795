"""Losses of training with rounded products beside those in float32: are they within the spread of seeds?

    python benchmarks/loss_curves.py --data_dir=runs/tatoeba --output=benchmarks/results/loss_curves_cpu.json

Trains a small PaDIR model (d 128, 2+2 layers, 2 stages) for `--steps` updates from each of `--seeds` seeds in float32
and with products rounded to bfloat16, on the pairs of a prepared set that have at most `--length` tokens, so that one
program serves all batches of a run. Runs of one seed see the same batches, noise and dropout. The losses are means over
windows of updates, and a mean over the validation split at the end, which is computed in float32. Prints a table and
writes JSON.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np

from padir.benchmark.facts import run_facts
from padir.data.batching import Batch, Buckets, evaluation_schedule, load_batch, schedule
from padir.data.records import PreparedSet, PreparedSplit
from padir.files.atomic import write_text
from padir.models.padir import PadirModel
from padir.nn.network import NetworkConfig
from padir.nn.weights import TRAINING_TYPES
from padir.progress import progress
from padir.runs.train_state import create_train_state
from padir.runtime import host_memory, sharding
from padir.training.optimizers import OptimizerConfig
from padir.training.step import make_eval_step, make_train_step, model_features
from padir.types import TokenIds

_NETWORK = NetworkConfig(
    embed_dim=128, num_heads=4, head_dim=32, mlp_dim=512, num_encoder_layers=2, num_decoder_layers=2
)
_PEAK_LEARNING_RATE = 0.02


def main() -> None:
    """Trains every run, compares, prints and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", required=True, help="JSON file to write")
    parser.add_argument("--data_dir", required=True, help="prepared set")
    for name, default in {"steps": 1000, "seeds": 3, "batch": 64, "length": 12, "window": 100}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    if options.steps % options.window or options.seeds < 2:
        parser.error("--steps must be a multiple of --window, and --seeds at least 2")
    host_memory.keep_freed_before_jax()  # As `padir train` does.
    facts, data = run_facts(), PreparedSet.open(options.data_dir)
    settings = {name: getattr(options, name) for name in ("steps", "batch", "length", "window")}
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in ("float32", *TRAINING_TYPES)}
    for seed in range(options.seeds):
        for name, found in runs.items():
            found.append(trained(data, seed, None if name == "float32" else name, **settings))
    result = {"facts": facts, **settings, "seeds": options.seeds, "runs": runs, "compared": compared(runs)}
    write_text(Path(options.output), json.dumps(result, indent=2) + "\n")
    print(table(result))


def trained(
    data: PreparedSet, seed: int, compute_type: str | None, *, steps: int, batch: int, length: int, window: int
) -> dict[str, Any]:
    """Trains one run; returns its 'losses', a mean for each window of updates, and its 'validation' loss."""
    model = PadirModel(TokenIds(data.vocabulary().num_pieces), _NETWORK, length, length)
    config, mesh = OptimizerConfig(_PEAK_LEARNING_RATE, warmup_steps=steps // 10), sharding.make_mesh(jax.devices()[:1])
    optimizer = config.build(steps)
    state = create_train_state(model, optimizer, seed, mesh)
    step = make_train_step(model, optimizer, config.schedule(steps), seed, mesh, compute_type=compute_type)
    losses = []
    batches = short_batches(data.split("train"), seed, steps, batch, length)
    for features in progress(batches, label=f"seed {seed}, {compute_type or 'float32'}", unit="steps", total=steps):
        state, metrics = step(state, sharding.place_batch(features, mesh))
        losses.append(float(metrics["loss"]))
    evaluate, measured = make_eval_step(model, mesh), []
    for features in validation_batches(data.split("validation"), batch, length):
        metrics = evaluate(state.params, sharding.place_batch(features, mesh))
        measured.append((float(metrics["loss"]), int(metrics["rows"])))
    of_windows = np.asarray(losses).reshape(-1, window).mean(axis=1)
    values, weights = zip(*measured, strict=True)
    return {"losses": of_windows.tolist(), "validation": float(np.average(values, weights=weights))}


def short_batches(split: PreparedSplit, seed: int, steps: int, batch: int, length: int) -> list[Batch]:
    """Returns the batches of the first `steps` updates on the pairs of at most `length` tokens."""
    short, buckets = _short(split, length), Buckets.square([length])
    found: list[Batch] = []
    epoch = 0
    while len(found) < steps:
        rows = schedule(split.lengths[short], buckets=buckets, batch_size=batch, seed=seed, epoch=epoch).rows
        found += [
            model_features(load_batch(split, short[of_batch], (length, length)))
            for of_batch in rows[: steps - len(found)]
        ]
        epoch += 1
    return found


def validation_batches(split: PreparedSplit, batch: int, length: int) -> list[Batch]:
    """Returns batches of all pairs of at most `length` tokens; the last one is filled up with empty rows."""
    short = _short(split, length)
    rows = evaluation_schedule(split.lengths[short], buckets=Buckets.square([length]), batch_size=batch).rows
    chosen = np.where(rows >= 0, short[rows], -1)
    return [model_features(load_batch(split, of_batch, (length, length))) for of_batch in chosen]


def _short(split: PreparedSplit, length: int) -> np.ndarray:
    return np.flatnonzero(split.lengths.max(axis=1) <= length)


def compared(runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """How far rounded products are from float32, beside how far seeds are from one another.

    Returns:
      By type, each a list over the windows, the last of which is the validation loss: 'difference', of the means over
      seeds; 'spread', the largest minus the smallest loss of a seed in float32; and 'within', whether no window's
      difference is larger than its spread.
    """
    curves = {
        name: np.array([[*run["losses"], run["validation"]] for run in of_type]) for name, of_type in runs.items()
    }
    exact = curves.pop("float32")
    spread = exact.max(axis=0) - exact.min(axis=0)
    found = {}
    for name, curve in curves.items():
        difference = curve.mean(axis=0) - exact.mean(axis=0)
        within = bool((np.abs(difference) <= spread).all())
        found[name] = {"difference": difference.tolist(), "spread": spread.tolist(), "within": within}
    return found


def table(result: dict[str, Any]) -> str:
    """Formats a result as a Markdown table."""
    updates = [str((at + 1) * result["window"]) for at in range(result["steps"] // result["window"])]
    lines = [f"| products | {' | '.join([*updates, 'validation'])} |", "|---|" + "---:|" * (len(updates) + 1)]
    for name, runs in result["runs"].items():
        for seed, run in enumerate(runs):
            losses = [*run["losses"], run["validation"]]
            lines.append(f"| {name}, seed {seed} | {' | '.join(f'{loss:.3f}' for loss in losses)} |")
    for name, row in result["compared"].items():
        lines.append(f"| {name} - float32 | {' | '.join(f'{value:+.4f}' for value in row['difference'])} |")
        lines.append(f"| spread of seeds | {' | '.join(f'{value:.4f}' for value in row['spread'])} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
