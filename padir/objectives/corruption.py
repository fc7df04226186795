"""Training noise, drawn on device inside the step (paper section 4.2.2.2).

All random numbers are drawn for a whole batch before anything is computed from them, so that splitting the batch
into micro-batches or over devices changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import struct

from padir.errors import PadirError
from padir.nn.masks import stutter_mask
from padir.types import EOS_ID, PAD_ID, UNK_ID, Array, TokenIds

LOSS_WEIGHTINGS = ("all", "noise", "mask")
HAND_OVERS = ("argmax", "sample")


@dataclass(frozen=True)
class CorruptionConfig:
    """How a target becomes the first hypothesis of training.

    A position is noised with probability d, the noise density. A noised position holds:

    * its right token, with probability keep_probability;
    * a random piece, with probability (1 - keep_probability) · random_probability;
    * MASK otherwise.

    The defaults are the paper's recipe with MASK noise; `random_probability=1` gives its other reading, 85%
    random tokens (footnote 17).

    Attributes:
      keep_probability: chance that a noised position keeps its right token (the paper's 15%).
      random_probability: chance that a position that lost its token holds a uniformly random piece instead of
        MASK: 0 for MASK noise, 1 for random tokens, between for a mixture.
      min_noise_density, max_noise_density: d is drawn for each example, uniformly between them; equal values
        fix it. 0 and 1 give the training of mask-predict (CMLM).
      mask_range: MASK of position i is an id of its own, mask_id - max_target_length + i, as in the T5X release.
        With 100 extra ids and targets of more than 99 tokens, the first ones are also the ids of the last pieces.
      loss_weighting: positions that count in the first stage's loss: 'all' of the target, 'noise' (noised positions
        and EOS) or 'mask' (positions that hold MASK, and EOS). Later stages always count the whole target.
    """

    keep_probability: float = 0.15
    random_probability: float = 0.0
    min_noise_density: float = 1.0
    max_noise_density: float = 1.0
    mask_range: bool = False
    loss_weighting: str = "all"

    def __post_init__(self):
        for name in ("keep_probability", "random_probability", "min_noise_density", "max_noise_density"):
            value = getattr(self, name)
            if not 0.0 <= value <= 1.0:
                raise PadirError(f"CorruptionConfig.{name}: {value} is not in [0, 1]")
        if self.min_noise_density > self.max_noise_density:
            raise PadirError(
                f"CorruptionConfig.min_noise_density: {self.min_noise_density} is above "
                f"max_noise_density {self.max_noise_density}"
            )
        if self.loss_weighting not in LOSS_WEIGHTINGS:
            raise PadirError(
                f"CorruptionConfig.loss_weighting: unknown {self.loss_weighting!r}; "
                f"choose one of {', '.join(LOSS_WEIGHTINGS)}"
            )
        if self.loss_weighting != "all" and self.max_noise_density == 0.0:
            raise PadirError(
                f"CorruptionConfig.loss_weighting: {self.loss_weighting!r} weighs noised positions, but none is with "
                "max_noise_density 0"
            )
        if self.loss_weighting == "mask" and 1.0 in (self.keep_probability, self.random_probability):
            raise PadirError(
                "CorruptionConfig.loss_weighting: 'mask' weighs positions that hold a MASK, but none does with "
                f"keep_probability {self.keep_probability} and random_probability {self.random_probability}"
            )

    def check(self, ids: TokenIds, max_target_length: int) -> None:
        """Raises PadirError if targets of this length have no MASK id for every position."""
        if self.mask_range and ids.mask_id - max_target_length <= UNK_ID:
            raise PadirError(
                f"CorruptionConfig.mask_range: {max_target_length} positions need as many ids below MASK "
                f"({ids.mask_id}); shorten max_target_length or give the vocabulary more extra ids"
            )


@struct.dataclass
class Corrupted:
    """The first stage's input and where its loss counts.

    Attributes:
      tokens: [B, Lt] int32, what the decoder reads.
      weights: [B, Lt] float32, 1 where the loss counts, 0 elsewhere and on padding.
    """

    tokens: Array
    weights: Array


def noise(
    key: Array, shape: tuple[int, int], ids: TokenIds, config: CorruptionConfig, max_target_length: int
) -> tuple[Array, Array]:
    """Draws what noised positions hold once their right token is gone.

    Args:
      key: randomness.
      shape: (B, Lt).
      ids: the vocabulary's reserved ids.
      config: the noise.
      max_target_length: of the model; where a range of MASK ids begins.

    Returns:
      (tokens [B, Lt] int32: MASK, or any piece but pad and EOS; which of them are MASK [B, Lt] bool).
    """
    mask = jnp.full(shape, ids.mask_id, jnp.int32)
    if config.mask_range:
        mask = jnp.broadcast_to(ids.mask_id - max_target_length + jnp.arange(shape[1], dtype=jnp.int32), shape)
    if config.random_probability == 0.0:
        return mask, jnp.ones(shape, bool)
    which_key, token_key = jax.random.split(key)
    random_tokens = jax.random.randint(token_key, shape, EOS_ID + 1, ids.num_pieces)
    masked = jax.random.uniform(which_key, shape) >= config.random_probability
    return jnp.where(masked, mask, random_tokens), masked


def corrupt(key: Array, targets: Array, ids: TokenIds, config: CorruptionConfig, max_target_length: int) -> Corrupted:
    """Makes the stage-1 decoder input.

    Padding and EOS stay. The length is given, so EOS gives nothing away. Without it a hypothesis of MASK alone would
    look the same from every position.

    Args:
      key: randomness.
      targets: [B, Lt] int32, padded with 0.
      ids: the vocabulary's reserved ids.
      config: the noise.
      max_target_length: of the model.

    Returns:
      The corrupted targets, and the weights of the first stage's loss.
    """
    keep_key, noise_key = jax.random.split(key)
    end, inside = targets == EOS_ID, targets != PAD_ID
    noised = _noised(jax.random.fold_in(key, 2), targets.shape, config) & inside & ~end
    lost = noised & (jax.random.uniform(keep_key, targets.shape) >= config.keep_probability)
    tokens, masked = noise(noise_key, targets.shape, ids, config, max_target_length)
    counted = {"all": inside, "noise": noised | end, "mask": lost & masked | end}[config.loss_weighting]
    return Corrupted(jnp.where(lost, tokens, targets), counted.astype(jnp.float32))


def _noised(key: Array, shape: tuple[int, int], config: CorruptionConfig) -> Array:
    """Which positions are noised: [B, Lt] bool."""
    low, high = config.min_noise_density, config.max_noise_density
    if low == 1.0:
        return jnp.ones(shape, bool)
    density_key, position_key = jax.random.split(key)
    density = low if low == high else jax.random.uniform(density_key, (shape[0], 1), minval=low, maxval=high)
    return jax.random.uniform(position_key, shape) < density


def hand_over(noise_tokens: Array, prediction: Array, targets: Array) -> Array:
    """Makes the next stage's decoder input of a stage's predictions, as decoding would.

    Args:
      noise_tokens: [B, Lt] int32, what replaces stutter; see `noise`.
      prediction: [B, Lt] int32, the argmax of the stage's logits.
      targets: [B, Lt] int32; where they are padding the result is too.

    Returns:
      [B, Lt] int32: predictions, their stutter noised again, padding kept.
    """
    inside = targets != PAD_ID
    # What decoding puts back at the last position is the start's EOS.
    replacement = jnp.where(targets == EOS_ID, EOS_ID, noise_tokens)
    tokens = jnp.where(stutter_mask(prediction, inside), replacement, prediction)
    return jnp.where(inside, tokens, PAD_ID)
