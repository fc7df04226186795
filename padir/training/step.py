"""The training step: a pure function that donates its state."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from padir import rng
from padir.errors import PadirError
from padir.models.axes import parameter_shardings
from padir.models.base import Batch, Metrics
from padir.models.kinds import Model
from padir.runs.train_state import TrainState, abstract_train_state, shardings_of
from padir.runtime import remat as rematerialisation
from padir.runtime.sharding import AxisRules, activations, batch_sharding, batch_ways, replicated
from padir.training.optimizers import global_norm
from padir.types import PAD_ID, PyTree

MODEL_FEATURES = ("encoder_input_tokens", "decoder_target_tokens")

# What XLA is asked for on CPU.
_ON_CPU = {
    # Else it copies each parameter whose update does not wait for all that reads it. So an update is done soon after
    # its gradient, which the cache still holds.
    "xla_cpu_copy_insertion_use_region_analysis": True,
    # Whole registers of AVX-512, where there are any, rather than halves.
    "xla_cpu_prefer_vector_width": 512,
}


def model_features(batch: dict) -> dict:
    """Of a loaded batch, what the model reads; indices that only reports need stay on the host."""
    return {name: batch[name] for name in MODEL_FEATURES}


def make_train_step(
    model: Model,
    optimizer: optax.GradientTransformation,
    schedule: optax.Schedule,
    seed: int,
    mesh: Mesh,
    accumulate: int = 1,
    *,
    rules: AxisRules = AxisRules(),
    remat: str = "none",
    ema_decay: float | None = None,
    skip_non_finite: bool = False,
) -> Callable[[TrainState, Batch], tuple[TrainState, Metrics]]:
    """Compiles one update.

    Args:
      model: what to train; the parts it freezes stay as they are.
      optimizer: as built by `OptimizerConfig.build`.
      schedule: its learning rate, reported among the metrics.
      seed: of corruption and dropout; the step is folded in.
      mesh: batch rows are split over its data axes.
      accumulate: micro-batches that each update is computed in, one after the other, for batches that do not fit
        the memory at once. The gradient is the whole batch's, the same noise included; only dropout is drawn anew.
      rules: what parameters, the optimizer's state and activations are split over.
      remat: what the backward pass computes again, one of `remat.CHOICES`.
      ema_decay: d of the average of the parameters, d · average + (1 - d) · parameters after each update; None for
        states without one.
      skip_non_finite: whether an update whose loss or gradient is not finite changes nothing but the counts of steps.

    Returns:
      (state, batch) → (state, metrics), compiled; no other program can be traced over it on CPU. The given state's
      buffers are reused and must not be read again.
      Metrics are float32 scalars on device: the model's, `gradient_norm`, `learning_rate`, `tokens` (non-pad source
      and target tokens of the batch) and, with `skip_non_finite`, `skipped`, 1 or 0.

    Raises:
      PadirError: `accumulate` is not positive, an unknown `remat`, or sizes that do not divide evenly over the mesh;
        by the step, a batch that does not divide into such micro-batches.
    """
    if accumulate < 1:
        raise PadirError(f"train.accumulate: {accumulate} is not at least 1")
    rematerialisation.check(remat)

    def split(gradients: PyTree) -> PyTree:
        # As their parameters: each device then adds up, and updates, only its own part.
        return jax.lax.with_sharding_constraint(gradients, parameter_shardings(gradients, mesh, rules))

    def step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        """One update, traced once."""
        key = rng.stream(seed, "train_step", state.step)
        trained, frozen = model.split_frozen(state.params)

        def objective(trained: PyTree):
            return model.loss_and_metrics(model.join_frozen(trained, frozen), batch, key, True)

        with activations(mesh, rules), rematerialisation.rematerialising(remat):
            if accumulate == 1:
                (_, metrics), gradients = jax.value_and_grad(objective, has_aux=True)(trained)
                gradients = split(gradients)
            else:
                _check_micro_batches(batch["decoder_target_tokens"].shape[0], accumulate, mesh)
                gradients, metrics = _accumulated(model, trained, frozen, batch, key, accumulate, split)
        updates, opt_state = optimizer.update(gradients, state.opt_state, trained)
        metrics["gradient_norm"] = global_norm(gradients)
        metrics["learning_rate"] = schedule(state.step)
        metrics["tokens"] = sum((batch[name] != PAD_ID).sum() for name in MODEL_FEATURES)
        params = model.join_frozen(optax.apply_updates(trained, updates), frozen)
        ema = None if ema_decay is None else optax.incremental_update(params, state.ema, 1.0 - ema_decay)
        return TrainState(state.step + 1, params, opt_state, ema), metrics

    shardings = shardings_of(abstract_train_state(model, optimizer, mesh, rules, ema=ema_decay is not None))
    return jax.jit(
        _skipping(step) if skip_non_finite else step,
        in_shardings=(shardings, batch_sharding(mesh)),
        out_shardings=(shardings, replicated(mesh)),
        donate_argnums=0,
        compiler_options=_compiler_options(mesh.devices.flat[0].platform),
    )


@functools.cache
def _compiler_options(platform: str) -> dict[str, Any] | None:
    """Those of the options for a platform that this version of XLA has."""

    def has(name: str, value: Any) -> bool:
        try:
            jax.jit(lambda: 0, compiler_options={name: value}).lower().compile()
        except jax.errors.JaxRuntimeError as error:
            if "No such compile option" not in str(error):
                raise
            return False
        return True

    return {name: value for name, value in _ON_CPU.items() if has(name, value)} if platform == "cpu" else None


def _skipping(step: Callable) -> Callable:
    """The step, whose updates that are not finite change nothing but the counts."""

    def careful(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        updated, metrics = step(state, batch)
        good = jnp.isfinite(metrics["loss"]) & jnp.isfinite(metrics["gradient_norm"])

        def keep(new: jax.Array, old: jax.Array) -> jax.Array:
            # Counts go on, the learning rate's too: it stays a function of the step.
            return new if jnp.issubdtype(new.dtype, jnp.integer) else jnp.where(good, new, old)

        return jax.tree.map(keep, updated, state), {**metrics, "skipped": 1.0 - good}

    return careful


def _accumulated(
    model: Model,
    trained: PyTree,
    frozen: PyTree,
    batch: Batch,
    key: jax.Array,
    count: int,
    place: Callable[[PyTree], PyTree],
) -> tuple[PyTree, Metrics]:
    """Gradients, each put in its `place`, and metrics of a batch, computed in `count` micro-batches [B / count, …]."""
    features = model.features(batch, key)
    totals = model.totals(features)

    def split(array: jax.Array) -> jax.Array:
        # Every count-th row: a device's rows are neighbours, so each micro-batch has its share on every device.
        return jnp.moveaxis(array.reshape(-1, count, *array.shape[1:]), 1, 0)

    def share(trained: PyTree, micro: Batch, index: jax.Array) -> tuple[jax.Array, Metrics]:
        params = model.join_frozen(trained, frozen)
        return model.loss_share(params, micro, jax.random.fold_in(key, index), True, totals)

    def add(total: PyTree, micro: tuple[Batch, jax.Array]) -> tuple[PyTree, Metrics]:
        (_, metrics), gradients = jax.value_and_grad(share, has_aux=True)(trained, *micro)
        return place(jax.tree.map(jnp.add, total, gradients)), metrics

    micros = jax.tree.map(split, features), jnp.arange(count)
    gradients, metrics = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, trained), micros)
    return gradients, {name: shares.sum() for name, shares in metrics.items()}


def _check_micro_batches(rows: int, count: int, mesh: Mesh) -> None:
    """Raises PadirError unless `rows` make `count` micro-batches that divide evenly over the mesh's data axes."""
    ways = batch_ways(mesh)
    if rows % (count * ways):
        raise PadirError(
            f"train.accumulate: a batch of {rows} does not divide into {count} micro-batches over {ways} device(s); "
            f"choose a batch size that is a multiple of {count * ways}"
        )


def make_eval_step(model: Model, mesh: Mesh, rules: AxisRules = AxisRules()) -> Callable[[PyTree, Batch], Metrics]:
    """Compiles (params, batch) → metrics without dropout, under the same corruption every time."""

    def step(params: PyTree, batch: Batch) -> Metrics:
        with activations(mesh, rules):
            metrics = model.loss_and_metrics(params, batch, rng.stream(0, "evaluation"), False)[1]
        rows = (batch["decoder_target_tokens"][:, 0] != PAD_ID).sum()
        return {**metrics, "rows": rows}

    shardings = parameter_shardings(jax.eval_shape(model.init, 0), mesh, rules)
    return jax.jit(step, in_shardings=(shardings, batch_sharding(mesh)), out_shardings=replicated(mesh))
