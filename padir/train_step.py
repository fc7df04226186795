"""The training step: a pure function that donates its state (layer 7)."""

from __future__ import annotations

from collections.abc import Callable

import jax
import optax
from jax.sharding import Mesh

from padir import rng
from padir.models import Batch, Metrics, Model
from padir.sharding import batch_sharding, replicated
from padir.train_state import TrainState
from padir.types import PAD_ID, PyTree

MODEL_FEATURES = ("encoder_input_tokens", "decoder_target_tokens")


def model_features(batch: dict) -> dict:
    """Of a loaded batch, what the model reads; indices that only reports need stay on the host."""
    return {name: batch[name] for name in MODEL_FEATURES}


def make_train_step(
    model: Model, optimizer: optax.GradientTransformation, schedule: optax.Schedule, seed: int, mesh: Mesh
) -> Callable[[TrainState, Batch], tuple[TrainState, Metrics]]:
    """Compiles one update.

    Args:
      model: what to train.
      optimizer: as built by `OptimizerConfig.build`.
      schedule: its learning rate, reported among the metrics.
      seed: of corruption and dropout; the step is folded in.
      mesh: batch rows are split over its data axes, the state is replicated.

    Returns:
      (state, batch) → (state, metrics). The given state's buffers are reused and must not be read again.
      Metrics are float32 scalars on device: the model's, `gradient_norm`, `learning_rate` and `tokens`
      (non-pad source and target tokens of the batch).
    """

    def step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        key = rng.stream(seed, "train_step", state.step)

        def objective(params: PyTree):
            return model.loss_and_metrics(params, batch, key, True)

        (_, metrics), gradients = jax.value_and_grad(objective, has_aux=True)(state.params)
        updates, opt_state = optimizer.update(gradients, state.opt_state, state.params)
        metrics["gradient_norm"] = optax.tree.norm(gradients)
        metrics["learning_rate"] = schedule(state.step)
        metrics["tokens"] = sum((batch[name] != PAD_ID).sum() for name in MODEL_FEATURES)
        return TrainState(state.step + 1, optax.apply_updates(state.params, updates), opt_state), metrics

    return jax.jit(
        step,
        in_shardings=(replicated(mesh), batch_sharding(mesh)),
        out_shardings=replicated(mesh),
        donate_argnums=0,
    )


def make_eval_step(model: Model, mesh: Mesh) -> Callable[[PyTree, Batch], Metrics]:
    """Compiles (params, batch) → metrics without dropout, under the same corruption every time."""

    def step(params: PyTree, batch: Batch) -> Metrics:
        metrics = model.loss_and_metrics(params, batch, rng.stream(0, "evaluation"), False)[1]
        rows = (batch["decoder_target_tokens"][:, 0] != PAD_ID).sum()
        return {**metrics, "rows": rows}

    return jax.jit(step, in_shardings=(replicated(mesh), batch_sharding(mesh)), out_shardings=replicated(mesh))
