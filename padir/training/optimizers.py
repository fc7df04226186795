"""Adafactor and the learning-rate schedule of the paper, through optax (paper section 4.2.3)."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import optax

from padir.errors import PadirError
from padir.types import Array, PyTree


@dataclass(frozen=True)
class OptimizerConfig:
    """Adafactor with T5X defaults; linear warm-up, then cosine decay.

    Attributes:
      peak_learning_rate: reached at the end of the warm-up.
      warmup_steps: steps from the floor to the peak.
      floor_learning_rate: where warm-up starts and the cosine ends.
      decay_rate: exponent of Adafactor's second-moment decay.
      momentum: m of a moving average of updates, m · average + (1 - m) · update, which is what is added to the
        parameters; as much memory again as they take. None, as in T5X, keeps none. Short runs of small models learn
        faster with it, and bear higher rates.
      clip_global_norm: longest gradient, all parameters taken together; longer ones are scaled to it before
        Adafactor sees them. None, as in T5X: only Adafactor's own clipping, of each array's update at RMS 1.
      ema_decay: d of an exponential moving average of the parameters, kept in checkpoints: after each update
        d · average + (1 - d) · parameters, from the initial parameters on. None keeps none. Training itself does not
        read it; `padir average --ema` makes a run directory of it.
    """

    peak_learning_rate: float = 3e-3
    warmup_steps: int = 10_000
    floor_learning_rate: float = 1e-5
    decay_rate: float = 0.8
    momentum: float | None = None
    clip_global_norm: float | None = None
    ema_decay: float | None = None

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
        if self.momentum is not None and not 0.0 < self.momentum < 1.0:
            raise PadirError(f"OptimizerConfig.momentum: {self.momentum} is not between 0 and 1; None is off")
        if self.clip_global_norm is not None and self.clip_global_norm <= 0.0:
            raise PadirError(f"OptimizerConfig.clip_global_norm: {self.clip_global_norm} is not above 0; None is off")

        if self.ema_decay is not None and not 0.0 < self.ema_decay < 1.0:
            raise PadirError(f"OptimizerConfig.ema_decay: {self.ema_decay} is not between 0 and 1; None is off")

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
        weight decay, and momentum only where asked for; a step is relative to the RMS of its array, or to 0.001 where
        that is larger.
        """
        adafactor = optax.chain(
            _by_factored_rms(self.decay_rate),
            # Where checkpoints have had the clipping, which has no state.
            optax.identity(),
            optax.scale_by_learning_rate(self.schedule(num_steps), flip_sign=False),
            _relative_to_parameters(),
            *([] if self.momentum is None else [optax.ema(self.momentum, debias=False)]),
            optax.scale(-1),
        )
        if self.clip_global_norm is None:
            return adafactor
        return optax.chain(optax.clip_by_global_norm(self.clip_global_norm), adafactor)


def _by_factored_rms(decay_rate: float) -> optax.GradientTransformation:
    """Gradients over the root of their second moments, then clipped: no array's update has an RMS above 1.

    Second moments are factored where two axes have 128 entries or more. What `optax.scale_by_factored_rms` and
    `optax.clip_by_block_rms` compute, with the former's very state. But XLA on CPU would write down each square and
    each update for all that read them, while what a sum alone reads never leaves the cache: so the three sums of a
    factored gradient are each of a product of their own. Two are squares, which cost half of what another product does.
    """
    epsilon = 1e-30
    theirs = optax.scale_by_factored_rms(
        factored=True, decay_rate=decay_rate, step_offset=0, min_dim_size_to_factor=128, epsilon=epsilon
    )

    def update(gradients: PyTree, state: PyTree, params: PyTree | None = None) -> tuple[PyTree, PyTree]:
        """The gradients, scaled and clipped, and the state with their moments; parameters are not read."""
        decay = 1.0 - (state.count + 1).astype(jnp.float32) ** -decay_rate
        rate = 1.0 - decay

        def moment(old: Array, weighted_squares: Array) -> Array:
            return (decay * old + weighted_squares + rate * epsilon).astype(old.dtype)

        def scaled(gradient: Array, row: Array, column: Array, whole: Array) -> tuple[Array, Array, Array, Array]:
            """One array's update, and its moments: by row and column, or whole."""
            if whole.shape == gradient.shape:
                whole = moment(whole, rate * jnp.square(gradient))
                step = gradient * whole**-0.5
                return step / jnp.maximum(1.0, jnp.sqrt(jnp.square(step).mean())), row, column, whole
            second, longest = (int(axis) for axis in np.argsort(gradient.shape)[-2:])
            row = moment(row, rate * jnp.square(gradient).mean(longest))
            # Behind the barrier it is not the row's square, which XLA would write down for both.
            column = moment(column, rate * jnp.square(jax.lax.optimization_barrier(gradient)).mean(second))
            rows, columns = jnp.expand_dims(row, longest), jnp.expand_dims(column, second)
            # What a gradient's square is multiplied with, so that the update need not be there for its RMS.
            row_square, column_square = rows.mean(second, keepdims=True) / rows, 1.0 / columns
            by_row = (gradient * column_square * gradient).mean(longest, keepdims=True)
            rms = jnp.sqrt((by_row * row_square).mean())
            factor = jnp.sqrt(row_square) / jnp.maximum(1.0, rms) * jnp.sqrt(column_square)
            return gradient * factor, row, column, whole

        leaves, tree = jax.tree.flatten(gradients)
        moments = (tree.flatten_up_to(part) for part in (state.v_row, state.v_col, state.v))
        found = [scaled(*of_one) for of_one in zip(leaves, *moments, strict=True)]
        updates, v_row, v_col, v = (tree.unflatten(part) for part in zip(*found, strict=True))
        return updates, state._replace(count=optax.safe_increment(state.count), v_row=v_row, v_col=v_col, v=v)

    return optax.GradientTransformation(theirs.init, update)


def global_norm(gradients: PyTree) -> Array:
    """The root of the sum of all squares [], as `optax.tree.norm`.

    Each array is summed along its longest axis first, which the optimizer also does: XLA then reads it once for both.
    """

    def squares(gradient: Array) -> Array:
        along = jnp.square(gradient).sum(int(np.argsort(gradient.shape)[-1])) if gradient.ndim else gradient**2
        # Else XLA makes one sum over all axes of the two.
        return jax.lax.optimization_barrier(along).sum()

    return jnp.sqrt(sum(map(squares, jax.tree.leaves(gradients))))


def _relative_to_parameters(smallest: float = 1e-3) -> optax.GradientTransformation:
    """Steps relative to the RMS of their array, or to `smallest` where that is larger.

    What `optax.scale_by_param_block_rms` computes, without its copy of every parameter.
    """

    def update(updates: PyTree, state: optax.EmptyState, params: PyTree) -> tuple[PyTree, optax.EmptyState]:
        def scaled(step: Array, param: Array) -> Array:
            return step * jnp.maximum(jnp.sqrt(jnp.mean(jnp.square(param))), smallest)

        return jax.tree.map(scaled, updates, params), state

    return optax.GradientTransformation(optax.init_empty_state, update)
