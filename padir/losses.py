"""Losses, in float32 (layer 3)."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from padir.types import Array


def cross_entropy(logits: Array, targets: Array, *, label_smoothing: float = 0.0, z_loss: float = 0.0) -> Array:
    """Cross-entropy per position, as T5X defines it, without a one-hot tensor.

    Label smoothing spreads `label_smoothing` evenly over the wrong tokens and subtracts the entropy of
    that target, so a perfect prediction costs 0. The z-loss, `z_loss` · log(Z)², keeps log(Z) near 0.

    Args:
      logits: [..., V] float32.
      targets: [...] int32.
      label_smoothing: probability given to the wrong tokens together.
      z_loss: weight of the z-loss.

    Returns:
      Loss in nats, [...] float32.
    """
    logits = logits.astype(jnp.float32)
    log_z = jax.nn.logsumexp(logits, axis=-1)
    target_logits = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    if label_smoothing:
        vocab_size = logits.shape[-1]
        right, wrong = 1.0 - label_smoothing, label_smoothing / (vocab_size - 1)
        expected = right * target_logits + wrong * (logits.sum(-1) - target_logits)
        entropy = -(right * math.log(right) + (vocab_size - 1) * wrong * math.log(wrong + 1e-20))
        loss = log_z - expected - entropy
    else:
        loss = log_z - target_logits
    return loss + z_loss * jnp.square(log_z) if z_loss else loss


def weighted_mean(values: Array, weights: Array) -> Array:
    """Σ values·weights / Σ weights, [] float32; 0 when nothing weighs."""
    return (values * weights).sum() / jnp.maximum(weights.sum(), 1e-9)


def length_loss(length_logits: Array, lengths: Array, row_weights: Array) -> Array:
    """Cross-entropy over lengths: logits [B, max_target_length], lengths [B] int32 (EOS counted) → [] nats a row.

    `row_weights` [B] is 0 for rows that only pad the batch.
    """
    targets = jnp.clip(lengths - 1, 0, length_logits.shape[-1] - 1)
    return weighted_mean(cross_entropy(length_logits, targets), row_weights)
