"""How a PaDIR model decodes: lengths, buckets, refinement, ranking (layer 5)."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from padir.decoding.refinement import Refinement, drop_repeats, refine
from padir.decoding.sampling import forbid_reserved
from padir.decoding.state import Hypotheses
from padir.errors import PadirError
from padir.length import top_lengths
from padir.masks import length_mask
from padir.models.base import BaseModel
from padir.network import DecodePlan, EncoderDecoder
from padir.types import PAD_ID, Array, PyTree


def decode(
    model: BaseModel, params: PyTree, source: Array, key: Array, config: Refinement, num_steps: Array | None = None
) -> Hypotheses:
    """Translates a batch.

    Args:
      model: a `PadirModel`.
      params: parameters.
      source: [B, Ls] int32.
      key: randomness of the start, where it is random.
      config: steps and policies (static).
      num_steps: [] int32, overrides the steps of `config` without compiling anew; see `refine`.

    Returns:
      `Hypotheses` with K = config.num_hypotheses and L = max_target_length.

    Raises:
      PadirError: more hypotheses than lengths.
    """
    if config.num_hypotheses > model.max_target_length:
        raise PadirError(
            f"Refinement.num_hypotheses: {config.num_hypotheses} exceeds the "
            f"{model.max_target_length} lengths there are"
        )
    encoded, length_logits = model.encode(params, source)
    lengths, _ = top_lengths(length_logits, config.num_hypotheses, model.max_target_length)
    # A row that only pads the batch gets the shortest length: it must not widen the others' bucket.
    lengths = jnp.where((source != PAD_ID).any(-1, keepdims=True), lengths, 1)
    # One compiled branch per padded length, chosen on device: no round trip to ask how long it will be.
    buckets = [*(b for b in config.target_buckets if b < model.max_target_length), model.max_target_length]
    branches = [lambda *args, bucket=bucket: _refine(model, *args, bucket=bucket, config=config) for bucket in buckets]
    index = jnp.searchsorted(jnp.asarray(buckets), lengths.max())
    return jax.lax.switch(index, branches, params, encoded, source, lengths, key, num_steps)


def _refine(
    model: BaseModel,
    params: PyTree,
    encoded: Array,
    source: Array,
    lengths: Array,
    key: Array,
    num_steps: Array | None,
    *,
    bucket: int,
    config: Refinement,
) -> Hypotheses:
    """Refines hypotheses of the given lengths [B, K], all at most `bucket`."""
    network = model.module(params).network
    rows = lengths.reshape(-1)
    inside = length_mask(rows, bucket)
    start = config.start(key, rows, bucket, model.ids)
    plan = network.plan(encoded, source, start)
    live = jnp.repeat((source != PAD_ID).any(-1), lengths.shape[1])
    state = refine(lambda tokens: step_logits(model, network, tokens, plan), start, rows, live, config, num_steps)
    tokens = drop_repeats(state.proposal, inside) if config.drop_repeats else state.proposal
    scores = config.rank(state.log_probs, inside).reshape(lengths.shape)

    order = jnp.argsort(-scores, axis=-1, stable=True)
    pad = ((0, 0), (0, 0), (0, model.max_target_length - bucket))
    trace = None
    if state.trace is not None:
        best = jnp.arange(lengths.shape[0]) * lengths.shape[1] + order[:, 0]
        trace = jax.tree.map(lambda field: jnp.pad(field[:, best], pad), state.trace)
    ranked = {
        "tokens": jnp.pad(tokens.reshape(*lengths.shape, bucket), pad),
        "scores": scores,
        "predicted_lengths": lengths,
        "steps_run": state.steps_run.reshape(lengths.shape),
    }
    ranked = {name: _reorder(field, order) for name, field in ranked.items()}
    return Hypotheses(**ranked, batch_steps=state.step, trace=trace)


def step_logits(model: BaseModel, network: EncoderDecoder, tokens: Array, plan: DecodePlan) -> Array:
    """One refinement pass: tokens [N, L] int32 → logits [N, L, V] float32, reserved ids forbidden."""
    return forbid_reserved(network.logits(network.decode(tokens, plan).hidden), model.ids)


def _reorder(field: Array, order: Array) -> Array:
    """Sorts hypotheses: field [B, K, …], order [B, K] → field[b, order[b]]."""
    return jnp.take_along_axis(field, order.reshape(order.shape + (1,) * (field.ndim - 2)), axis=1)
