"""Training noise, drawn on device inside the step (layer 3; paper section 4.2.2.2, DESIGN section 4)."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from padir.errors import PadirError
from padir.masks import stutter_mask
from padir.types import EOS_ID, PAD_ID, Array, TokenIds


@dataclass(frozen=True)
class CorruptionConfig:
    """How a target becomes the first hypothesis of training.

    Attributes:
      keep_probability: chance that a position keeps its right token (the paper's 15%).
      random_probability: chance that a noised position holds a uniformly random piece instead of MASK:
        0 for MASK noise, 1 for random tokens, between for a mixture.
    """

    keep_probability: float = 0.15
    random_probability: float = 0.0

    def __post_init__(self):
        for name in ("keep_probability", "random_probability"):
            value = getattr(self, name)
            if not 0.0 <= value <= 1.0:
                raise PadirError(f"CorruptionConfig.{name}: {value} is not in [0, 1]")


def noise(key: Array, shape: tuple[int, ...], ids: TokenIds, random_probability: float) -> Array:
    """Draws noise tokens of the given shape, int32: MASK, or with `random_probability` any piece but pad and EOS."""
    which_key, token_key = jax.random.split(key)
    random_tokens = jax.random.randint(token_key, shape, EOS_ID + 1, ids.num_pieces)
    return jnp.where(jax.random.uniform(which_key, shape) < random_probability, random_tokens, ids.mask_id)


def corrupt(key: Array, targets: Array, ids: TokenIds, config: CorruptionConfig) -> Array:
    """Makes the stage-1 decoder input.

    Args:
      key: randomness.
      targets: [B, Lt] int32, padded with 0.
      ids: the vocabulary's reserved ids.
      config: the noise.

    Returns:
      [B, Lt] int32: each token kept with `keep_probability`, else noise; padding and EOS stay. EOS is no
      secret, since the length is given, and without it a hypothesis of nothing but MASK looks the same from
      every position: no attention could ever tell them apart.
    """
    keep_key, noise_key = jax.random.split(key)
    keep = jax.random.uniform(keep_key, targets.shape) < config.keep_probability
    noised = noise(noise_key, targets.shape, ids, config.random_probability)
    return jnp.where(keep | (targets == PAD_ID) | (targets == EOS_ID), targets, noised)


def hand_over(key: Array, prediction: Array, targets: Array, ids: TokenIds, config: CorruptionConfig) -> Array:
    """Makes the next stage's decoder input of a stage's predictions, as decoding would.

    Args:
      key: randomness for the noise that replaces stutter.
      prediction: [B, Lt] int32, the argmax of the stage's logits.
      targets: [B, Lt] int32; where they are padding the result is too.
      ids: the vocabulary's reserved ids.
      config: the noise.

    Returns:
      [B, Lt] int32: predictions, their stutter noised again, padding kept.
    """
    inside = targets != PAD_ID
    # What decoding puts back at the last position is the start's EOS.
    noised = noise(key, prediction.shape, ids, config.random_probability)
    noised = jnp.where(targets == EOS_ID, EOS_ID, noised)
    tokens = jnp.where(stutter_mask(prediction, inside), noised, prediction)
    return jnp.where(inside, tokens, PAD_ID)
