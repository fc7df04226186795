"""Losses, in float32."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from padir.types import Array


def cross_entropy(
    logits: Array,
    targets: Array,
    *,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    log_z: Array | None = None,
) -> Array:
    """Cross-entropy per position, as T5X defines it, without a one-hot tensor.

    Label smoothing spreads `label_smoothing` evenly over the wrong tokens and subtracts the entropy of
    that target, so a perfect prediction costs 0. The z-loss, `z_loss` · log(Z)², keeps log(Z) near 0.

    Args:
      logits: [..., V] float32.
      targets: [...] int32.
      label_smoothing: probability given to the wrong tokens together.
      z_loss: weight of the z-loss.
      log_z: log(Z) [...] float32, with its gradient, if it has been computed already.

    Returns:
      Loss in nats, [...] float32.
    """
    logits = logits.astype(jnp.float32)
    if log_z is None:
        log_z = jax.nn.logsumexp(logits, axis=-1)
    target_logits = _of_targets(logits, targets)
    if label_smoothing:
        vocab_size = logits.shape[-1]
        right, wrong = 1.0 - label_smoothing, label_smoothing / (vocab_size - 1)
        expected = right * target_logits + wrong * (logits.sum(-1) - target_logits)
        entropy = -(right * math.log(right) + (vocab_size - 1) * wrong * math.log(wrong + 1e-20))
        loss = log_z - expected - entropy
    else:
        loss = log_z - target_logits
    return loss + z_loss * jnp.square(log_z) if z_loss else loss


def hits(logits: Array, targets: Array, largest: Array) -> Array:
    """Whether no logit is larger than the target's: logits [..., V], targets [...] int32 → [...] bool.

    Uses the largest logits [...], which the cross-entropy needs anyway, so it costs almost nothing, unlike an argmax. A
    tie counts as a hit: where all logits are equal, every target is one.
    """
    return _of_targets(jax.lax.stop_gradient(logits), targets) >= largest


@jax.custom_vjp
def _of_targets(logits: Array, targets: Array) -> Array:
    """Each target's logit: logits [..., V], targets [...] int32 → [...].

    Its gradient is a comparison, which fuses with the softmax's; that of a gather is a scatter, which does not.
    """
    return jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]


def _of_targets_forward(logits: Array, targets: Array) -> tuple[Array, tuple[Array, Array]]:
    # An empty array says how many logits there are.
    return _of_targets(logits, targets), (targets, jnp.zeros((logits.shape[-1], 0), logits.dtype))


def _of_targets_backward(kept: tuple[Array, Array], gradient: Array) -> tuple[Array, None]:
    targets, shape = kept
    hit = jax.lax.broadcasted_iota(jnp.int32, (*targets.shape, len(shape)), targets.ndim) == targets[..., None]
    return jnp.where(hit, gradient[..., None], 0).astype(shape.dtype), None


_of_targets.defvjp(_of_targets_forward, _of_targets_backward)


def weighted_mean(values: Array, weights: Array, total: Array | None = None) -> Array:
    """Σ values·weights / Σ weights, [] float32; 0 when nothing weighs.

    `total` [] stands in for Σ weights where the values are only part of what the mean is over: the results of all
    parts then add up to the mean.
    """
    total = weights.sum() if total is None else total
    return (values * weights).sum() / jnp.maximum(total, 1e-9)


def length_cross_entropy(length_logits: Array, lengths: Array) -> Array:
    """Cross-entropy over lengths: logits [B, max_target_length], lengths [B] int32 (EOS counted) → nats [B]."""
    return cross_entropy(length_logits, _length_index(length_logits, lengths))


def length_squared_error(length_logits: Array, lengths: Array) -> Array:
    """Squared error of the estimate behind such logits as `length.py` makes: arguments as above → tokens² [B]."""
    return -jnp.take_along_axis(length_logits, _length_index(length_logits, lengths)[:, None], axis=1)[:, 0]


def _length_index(length_logits: Array, lengths: Array) -> Array:
    """Lengths [B] → columns of the logits [B]; what is beyond them counts as the longest."""
    return jnp.clip(lengths - 1, 0, length_logits.shape[-1] - 1)


def binary_cross_entropy(logits: Array, labels: Array) -> Array:
    """Cross-entropy of yes or no: logits [...] float32 of yes, labels [...] bool → nats [...]."""
    return jnp.logaddexp(logits, 0.0) - jnp.where(labels, logits, 0.0)
