"""The training step, a compiled pure function that donates its state, and the evaluation step."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
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
from padir.nn.rounded import rounding_products
from padir.nn.stack import scanning_layers
from padir.nn.weights import check_training_type
from padir.runs.train_state import TrainState, abstract_train_state, shardings_of
from padir.runtime import remat as rematerialisation
from padir.runtime.platforms import choices, tracing_for
from padir.runtime.sharding import AxisRules, activations, batch_sharding, batch_ways, constrain, replicated
from padir.training.optimizers import global_norm
from padir.types import PAD_ID, PyTree

MODEL_FEATURES = ("encoder_input_tokens", "decoder_target_tokens")

# Compiler options of XLA on CPU.
_ON_CPU = {
    # Without it, XLA copies each parameter that is updated before all its readers are done. With it, a parameter is
    # updated soon after its gradient is computed, while the gradient is still in the cache.
    "xla_cpu_copy_insertion_use_region_analysis": True,
    # Use the full width of AVX-512 registers where the CPU has them.
    "xla_cpu_prefer_vector_width": 512,
}


def model_features(batch: dict) -> dict:
    """Returns the features of a loaded batch that the model reads, without indices that only reports need."""
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
    scan_layers: bool = False,
    ema_decay: float | None = None,
    skip_non_finite: bool = False,
    compute_type: str | None = None,
) -> Callable[[TrainState, Batch], tuple[TrainState, Metrics]]:
    """Returns the jitted function that does one update.

    Args:
      model: the model to train. The parts that it freezes do not change.
      optimizer: as built by `OptimizerConfig.build`.
      schedule: the learning rate as a function of the step; only reported among the metrics.
      seed: the seed of corruption and dropout. The step is folded in.
      mesh: the devices. The rows of a batch are split over its data axes.
      accumulate: the number of micro-batches that an update is computed in, one after the other. Use more than one if
        a batch does not fit into memory. The gradient is that of the whole batch with the same corruption; only
        dropout is drawn differently.
      rules: how parameters, optimizer state and activations are split over the mesh.
      remat: what the backward pass recomputes, one of `remat.CHOICES`.
      scan_layers: whether layers are gone through in a loop; see `nn.stack`.
      ema_decay: the decay d of the moving average of the parameters: after each update, average =
        d · average + (1 - d) · parameters. None for states without an average.
      skip_non_finite: whether an update with a non-finite loss or gradient changes only the counts of steps.
      compute_type: 'bfloat16' to round the factors of products, forward and in gradients; see `nn.rounded`.

    Returns:
      The function (state, batch) → (state, metrics). It donates the given state, which must not be used afterwards.
      On CPU it has compiler options of its own, so it cannot be called inside another jitted function.
      `metrics` are scalars [] on the device: those of the model, `gradient_norm`, `learning_rate`, `tokens` (the
      number of non-pad source and target tokens of the batch) and, with `skip_non_finite`, `skipped` (1 or 0).

    Raises:
      PadirError: `accumulate` is below 1, `remat` or `compute_type` is unknown, or sizes do not divide evenly over the
        mesh. The returned function raises it if a batch does not divide into the micro-batches.
    """
    if accumulate < 1:
        raise PadirError(f"train.accumulate: {accumulate} is not at least 1")
    rematerialisation.check(remat)
    check_training_type("train.compute_type", compute_type)

    def split(gradients: PyTree) -> PyTree:
        # Gradients are split like their parameters, so each device sums and updates only its own part.
        return jax.lax.with_sharding_constraint(gradients, parameter_shardings(gradients, mesh, rules))

    def copied(params: PyTree) -> PyTree:
        return _with_copied_table(params, mesh, rules)

    def step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        """One update, traced once."""
        key = rng.stream(seed, "train_step", state.step)
        trained, frozen = model.split_frozen(state.params)

        def objective(trained: PyTree):
            return model.loss_and_metrics(copied(model.join_frozen(trained, frozen)), batch, key, True)

        with _tracing(mesh, rules, remat, scan_layers, compute_type):
            if accumulate == 1:
                (_, metrics), gradients = jax.value_and_grad(objective, has_aux=True)(trained)
                gradients = split(gradients)
            else:
                check_micro_batches(batch["decoder_target_tokens"].shape[0], accumulate, mesh)
                gradients, metrics = _accumulated(model, trained, frozen, batch, key, accumulate, split, copied)
        updates, opt_state = optimizer.update(gradients, state.opt_state, trained)
        metrics["gradient_norm"] = global_norm(gradients)
        metrics["learning_rate"] = schedule(state.step)
        metrics["tokens"] = sum((batch[name] != PAD_ID).sum() for name in MODEL_FEATURES)
        trained, ema = optax.apply_updates(trained, updates), None
        if ema_decay is not None:
            averages = model.split_frozen(state.ema)[0]  # An average of equal numbers would be rounded.
            ema = model.join_frozen(optax.incremental_update(trained, averages, 1.0 - ema_decay), frozen)
        return TrainState(state.step + 1, model.join_frozen(trained, frozen), opt_state, ema), metrics

    shardings = shardings_of(abstract_train_state(model, optimizer, mesh, rules, ema=ema_decay is not None))
    return jax.jit(
        _skipping(step) if skip_non_finite else step,
        in_shardings=(shardings, batch_sharding(mesh)),
        out_shardings=(shardings, replicated(mesh)),
        donate_argnums=0,
        compiler_options=_compiler_options(mesh.devices.flat[0].platform),
    )


@contextlib.contextmanager
def _tracing(
    mesh: Mesh, rules: AxisRules, remat: str = "none", scan_layers: bool = False, compute_type: str | None = None
) -> Iterator[None]:
    """Context manager: the model is traced for these devices and with these options of training."""
    with (
        tracing_for(mesh.devices.flat[0].platform),
        activations(mesh, rules),
        rematerialisation.rematerialising(remat),
        scanning_layers(scan_layers),
        rounding_products(compute_type is not None),
    ):
        yield


@functools.cache
def _compiler_options(platform: str) -> dict[str, Any] | None:
    """Returns the compiler options for a platform, leaving out those that this version of XLA does not know."""

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
    """Wraps a step so that a non-finite update changes only the counts of steps."""

    def careful(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        updated, metrics = step(state, batch)
        good = jnp.isfinite(metrics["loss"]) & jnp.isfinite(metrics["gradient_norm"])

        def keep(new: jax.Array, old: jax.Array) -> jax.Array:
            # Counts always advance, so that the learning rate remains a function of the step.
            return new if jnp.issubdtype(new.dtype, jnp.integer) else jnp.where(good, new, old)

        return jax.tree.map(keep, updated, state), {**metrics, "skipped": 1.0 - good}

    return careful


def _with_copied_table(params: PyTree, mesh: Mesh, rules: AxisRules) -> PyTree:
    """Gives each device a copy of its own of the token embeddings, [devices, V, E], if the platform wants that.

    The gradients of look-ups and of tied logits are then summed on each device, and once over all devices. Of one
    common table, XLA sums them over the devices apart.
    """
    ways, table = batch_ways(mesh), params["network"]["token_embedder"]["embedding"]
    if ways == 1 or rules.vocab or rules.embed or not choices().copies_table:
        return params
    copies = constrain(jnp.broadcast_to(table, (ways, *table.shape)), "batch", "vocab", "embed")
    network = params["network"] | {"token_embedder": {"embedding": copies}}
    return params | {"network": network}


def _accumulated(
    model: Model,
    trained: PyTree,
    frozen: PyTree,
    batch: Batch,
    key: jax.Array,
    count: int,
    place: Callable[[PyTree], PyTree],
    copied: Callable[[PyTree], PyTree],
) -> tuple[PyTree, Metrics]:
    """Returns gradients and metrics of a batch, computed in `count` micro-batches [B / count, …].

    `place` puts the sharding constraints on the gradients, and `copied` gives each device its own table of tokens.
    """
    features = model.features(batch, key)
    totals = model.totals(features)

    def split(array: jax.Array) -> jax.Array:
        # A micro-batch takes every count-th row. Each device holds adjacent rows, so it has a part of each micro-batch.
        return jnp.moveaxis(array.reshape(-1, count, *array.shape[1:]), 1, 0)

    def share(trained: PyTree, micro: Batch, index: jax.Array) -> tuple[jax.Array, Metrics]:
        params = copied(model.join_frozen(trained, frozen))
        return model.loss_share(params, micro, jax.random.fold_in(key, index), True, totals)

    def add(total: PyTree, micro: tuple[Batch, jax.Array]) -> tuple[PyTree, Metrics]:
        (_, metrics), gradients = jax.value_and_grad(share, has_aux=True)(trained, *micro)
        return place(jax.tree.map(jnp.add, total, gradients)), metrics

    micros = jax.tree.map(split, features), jnp.arange(count)
    gradients, metrics = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, trained), micros)
    return gradients, {name: shares.sum() for name, shares in metrics.items()}


def check_micro_batches(rows: int, count: int, mesh: Mesh) -> None:
    """Raises PadirError unless `rows` divide into `count` micro-batches that divide evenly over the data axes."""
    ways = batch_ways(mesh)
    if rows % (count * ways):
        raise PadirError(
            f"train.accumulate: a batch of {rows} does not divide into {count} micro-batches over {ways} device(s); "
            f"choose a batch size that is a multiple of {count * ways}"
        )


def make_eval_step(model: Model, mesh: Mesh, rules: AxisRules = AxisRules()) -> Callable[[PyTree, Batch], Metrics]:
    """Returns the jitted function (params, batch) → metrics, without dropout and with the same corruption every time.

    Its products are never rounded, so that losses of runs with and without a `compute_type` compare.

    Args:
      model: the model.
      mesh: the devices. The rows of a batch are split over its data axes.
      rules: how parameters and activations are split over the mesh.

    Returns:
      The function. Its metrics are scalars [] on the device: those of the model, and `rows`, the number of rows whose
      target is not empty.

    Raises:
      PadirError: sizes do not divide evenly over the mesh.
    """

    def step(params: PyTree, batch: Batch) -> Metrics:
        with _tracing(mesh, rules):
            metrics = model.loss_and_metrics(params, batch, rng.stream(0, "evaluation"), False)[1]
        rows = (batch["decoder_target_tokens"][:, 0] != PAD_ID).sum()
        return {**metrics, "rows": rows}

    shardings = parameter_shardings(model.param_shapes, mesh, rules)
    return jax.jit(step, in_shardings=(shardings, batch_sharding(mesh)), out_shardings=replicated(mesh))
