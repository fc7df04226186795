"""Adafactor and the learning-rate schedule of the paper, through optax (layer 7; paper section 4.2.3)."""

from __future__ import annotations

from dataclasses import dataclass

import optax

from padir.errors import PadirError


@dataclass(frozen=True)
class OptimizerConfig:
    """Adafactor with T5X defaults; linear warm-up, then cosine decay.

    Attributes:
      peak_learning_rate: reached at the end of the warm-up.
      warmup_steps: steps from the floor to the peak.
      floor_learning_rate: where warm-up starts and the cosine ends.
      decay_rate: exponent of Adafactor's second-moment decay.
      clip_global_norm: longest gradient, all parameters taken together; longer ones are scaled to it before
        Adafactor sees them. None, as in T5X: only Adafactor's own clipping, of each array's update at RMS 1.
    """

    peak_learning_rate: float = 3e-3
    warmup_steps: int = 10_000
    floor_learning_rate: float = 1e-5
    decay_rate: float = 0.8
    clip_global_norm: float | None = None

    def __post_init__(self):
        if not 0.0 < self.floor_learning_rate <= self.peak_learning_rate:
            raise PadirError(
                f"OptimizerConfig: floor_learning_rate {self.floor_learning_rate} must be above 0 and at most "
                f"peak_learning_rate {self.peak_learning_rate}"
            )
        if self.warmup_steps < 0:
            raise PadirError(f"OptimizerConfig.warmup_steps: {self.warmup_steps} is negative")
        if self.decay_rate <= 0.0:
            raise PadirError(f"OptimizerConfig.decay_rate: {self.decay_rate} is not above 0")
        if self.clip_global_norm is not None and self.clip_global_norm <= 0.0:
            raise PadirError(f"OptimizerConfig.clip_global_norm: {self.clip_global_norm} is not above 0; None is off")

    def schedule(self, num_steps: int) -> optax.Schedule:
        """The learning rate by step, counted from 0, of a run of `num_steps`.

        Raises:
          PadirError: the warm-up leaves no step to train at the peak.
        """
        if self.warmup_steps >= num_steps:
            raise PadirError(
                f"OptimizerConfig.warmup_steps: {self.warmup_steps} must be below the run's {num_steps} steps"
            )
        return optax.warmup_cosine_decay_schedule(
            init_value=self.floor_learning_rate,
            peak_value=self.peak_learning_rate,
            warmup_steps=self.warmup_steps,
            decay_steps=num_steps,
            end_value=self.floor_learning_rate,
        )

    def build(self, num_steps: int) -> optax.GradientTransformation:
        """Adafactor with T5X's defaults, spelt out so that no release of optax can change them.

        Second moments are factored where both dimensions have at least 128 entries, otherwise whole; there is no
        momentum and no weight decay; a step is relative to the RMS of its array, or to 0.001 where that is larger.
        """
        adafactor = optax.adafactor(
            learning_rate=self.schedule(num_steps),
            min_dim_size_to_factor=128,
            decay_rate=self.decay_rate,
            multiply_by_parameter_scale=True,
            clipping_threshold=1.0,
            momentum=None,
            weight_decay_rate=None,
            eps=1e-30,
        )
        if self.clip_global_norm is None:
            return adafactor
        return optax.chain(optax.clip_by_global_norm(self.clip_global_norm), adafactor)
