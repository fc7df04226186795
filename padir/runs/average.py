"""`padir average`: makes one model from several checkpoints of a run, or from its moving average."""

from __future__ import annotations

import math
import sys

import jax
import jax.numpy as jnp
import numpy as np

from padir.errors import PadirError
from padir.files.paths import as_path
from padir.metrics.writers import read_metrics
from padir.runs.checkpoints import Checkpointer, holds_run
from padir.runs.directory import METRICS_FOLDER, load_model, save_model
from padir.runs.train_state import TrainState
from padir.runtime import sharding
from padir.types import PyTree


def average(
    *,
    run_dir: str,
    output_dir: str,
    last: int | None = None,
    best: int | None = None,
    ema: bool = False,
    metric: str = "validation/loss",
) -> None:
    """Averages the parameters of several checkpoints and writes the result as a new run directory.

    What an interruption or a failing storage leaves in `output_dir` is no run; the same call then makes it one.
    Exactly one of `last`, `best` and `ema` must be given.

    Args:
      run_dir: the run to average. `Cadence.keep` decides how many of its checkpoints are kept.
      output_dir: the run directory to write. It must not hold a run yet. Its step is that of the newest checkpoint
        in the average.
      last: average this many of the newest checkpoints.
      best: average this many of the checkpoints with the lowest `metric`.
      ema: take the exponential moving average (`OptimizerConfig.ema_decay`) of the newest checkpoint instead.
      metric: the name in metrics.jsonl by which `best` chooses; lower is better.

    Raises:
      PadirError: not exactly one of `last`, `best` and `ema` is given, the run has too few checkpoints or no moving
        average, or `output_dir` holds a run.
    """
    if [last is not None, best is not None, ema].count(True) != 1:
        raise PadirError("average: give exactly one of --last=N, --best=N and --ema")
    if holds_run(output_dir):
        raise PadirError(f"{output_dir}: holds a run; choose another output_dir")
    model, vocabulary = load_model(run_dir)
    shapes, mesh = model.param_shapes, sharding.make_mesh()
    with Checkpointer(run_dir, read_only=True) as checkpointer:
        steps = checkpointer.steps()
        if ema:
            if not steps or not checkpointer.has_ema():
                raise PadirError(f"{run_dir}: has no moving average; train with OptimizerConfig.ema_decay")
            chosen, params = steps[-1:], checkpointer.restore_params(shapes, mesh, ema=True)
        else:
            chosen = _newest(run_dir, steps, last) if best is None else _best(run_dir, steps, best, metric)
            params = _mean(lambda step: checkpointer.restore_params(shapes, mesh, step), chosen)
    save_model(output_dir, model, vocabulary)
    params = jax.device_put(params, sharding.replicated(mesh))
    with Checkpointer(output_dir) as checkpointer:
        checkpointer.save(TrainState(jnp.int32(max(chosen)), params, {}))
    what = "the moving average at step" if ema else "the mean of step"
    print(f"{output_dir}: {what} {', '.join(map(str, chosen))} of {run_dir}", file=sys.stderr)


def _mean(restore, steps: list[int]) -> PyTree:
    """Returns the mean of the parameters at `steps`, summed in float64 with one checkpoint in memory at a time."""
    total: PyTree | None = None
    for step in steps:
        params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), restore(step))
        total = params if total is None else jax.tree.map(np.add, total, params)
    return jax.tree.map(lambda leaf: (leaf / len(steps)).astype(np.float32), total)


def _newest(run_dir: str, steps: list[int], count: int) -> list[int]:
    _check_count("last", count, steps, f"{run_dir}: has", "checkpoints")
    return steps[-count:]


def _best(run_dir: str, steps: list[int], count: int, metric: str) -> list[int]:
    """Returns the steps with the lowest metric in increasing order; later steps win ties."""
    lines = read_metrics(as_path(run_dir) / METRICS_FOLDER / "metrics.jsonl")
    values = {line["step"]: line[metric] for line in lines if line["step"] in steps and metric in line}
    values = {step: value for step, value in values.items() if value is not None and math.isfinite(value)}
    _check_count("best", count, sorted(values), f"{run_dir}: has", f"checkpoints with a finite {metric}")
    return sorted(sorted(values, key=lambda step: (values[step], -step))[:count])


def _check_count(name: str, count: int, steps: list[int], has: str, what: str) -> None:
    if not steps:
        raise PadirError(f"{has} no {what}")
    if not 1 <= count <= len(steps):
        there = ", ".join(map(str, steps))
        raise PadirError(f"{has} {what} of step {there}; --{name}={count} must be from 1 to {len(steps)}")
