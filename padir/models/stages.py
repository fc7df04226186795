"""The parallel stages of training: the first reads noise, each later one what the one before predicts."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from padir import rng
from padir.decoding.sampling import forbid_reserved, token_at
from padir.models import rejecter
from padir.models.base import BaseModel, Batch, Metrics
from padir.nn.decode_plan import with_mask
from padir.objectives import contexts, corruption
from padir.types import PAD_ID, Array


def features(model: BaseModel, batch: Batch, key: Array) -> Batch:
    """Adds the noise to a batch; see `PadirModel.features`."""
    key, targets = rng.stream(key, "corruption"), batch["decoder_target_tokens"]
    if model.network.disentangled_context:
        weights = contexts.predicted(targets).astype(jnp.float32)
        drawn = {"decoder_input_tokens": targets, "decoder_loss_weights": weights}
        return {**batch, **drawn, "decoder_contexts": contexts.draw(key, targets)}
    noise = model.ids, model.corruption, model.max_target_length
    corrupted = corruption.corrupt(jax.random.fold_in(key, 0), targets, *noise)
    keys = {stage: jax.random.fold_in(key, stage - 1) for stage in range(2, model.num_stages + 1)}
    if model.hand_over == "sample":
        later = {_uniform_name(stage): jax.random.uniform(key, targets.shape) for stage, key in keys.items()}
    else:
        later = {_noise_name(stage): corruption.noise(key, targets.shape, *noise)[0] for stage, key in keys.items()}
    first = {"decoder_input_tokens": corrupted.tokens, "decoder_loss_weights": corrupted.weights}
    return {**batch, **first, **later}


def loss(
    model: BaseModel,
    module: nnx.Module,
    features: Batch,
    encoded: Array,
    dropout_keys: Sequence[Array | None],
    totals: dict[str, Array],
) -> tuple[Array, Metrics]:
    """The share of the parallel stages in the objective, a rejecter's included.

    Args:
      model: a `PadirModel`.
      module: its modules, with parameters.
      features: of `features`, or some rows of it.
      encoded: [B, Ls, E], output of its encoder.
      dropout_keys: one for each stage; more are ignored.
      totals: what the terms of the loss divide by; see `PadirModel.totals`.

    Returns:
      (loss [] float32, metrics: scalars).
    """
    source, targets = features["encoder_input_tokens"], features["decoder_target_tokens"]
    # The cross-attention keys and the positional weights are the same in every stage.
    plan = module.network.plan(encoded, source, targets)
    inputs, weights = features["decoder_input_tokens"], features["decoder_loss_weights"]
    if model.network.disentangled_context:
        inputs, plan = with_mask(inputs, model.ids.mask_id), plan.observing(features["decoder_contexts"])
    inside = (targets != PAD_ID).astype(jnp.float32)
    metrics: Metrics = {}
    objective, conditioning = jnp.zeros((), jnp.float32), None
    for stage in range(1, model.num_stages + 1):
        key = dropout_keys[stage - 1]
        hidden = module.network.decode(inputs, plan, dropout_key=key, conditioning=conditioning).hidden
        logits, total = module.network.logits(hidden), totals["first" if stage == 1 else "tokens"]
        loss, prediction, stage_metrics = model.stage_metrics(f"stage_{stage}", logits, targets, weights, total)
        objective = objective + loss / model.loss_terms
        metrics.update(stage_metrics)
        if model.trains("rejecter"):
            right = prediction == targets
            kept = module.rejecter(hidden)
            loss, found = rejecter.metrics_of_stage(stage, kept, right, inside, totals["tokens"])
            objective = objective + model.loss.rejecter_loss_weight * loss / model.num_stages
            metrics.update(found)
        if stage < model.num_stages:
            # No gradient flows back through the hand-over.
            inputs = _handed_over(model, stage + 1, features, logits, prediction)
            weights = inside
            if model.self_conditioning:
                conditioning = module.conditioning(forbid_reserved(logits, model.ids))
    return objective, metrics


def _handed_over(model: BaseModel, stage: int, features: Batch, logits: Array, prediction: Array) -> Array:
    """What `stage` reads, [B, Lt] int32, given the logits [B, Lt, V] and their argmax of the stage before."""
    targets = features["decoder_target_tokens"]
    if model.hand_over == "sample":
        # As SUNDAE does (Savinov et al. 2022).
        allowed = forbid_reserved(jax.lax.stop_gradient(logits).astype(jnp.float32), model.ids)
        return jnp.where(targets != PAD_ID, token_at(features[_uniform_name(stage)], allowed), PAD_ID)
    return corruption.hand_over(features[_noise_name(stage)], prediction, targets)


def _noise_name(stage: int) -> str:
    return f"decoder_noise_tokens/stage_{stage}"


def _uniform_name(stage: int) -> str:
    return f"decoder_uniform/stage_{stage}"
