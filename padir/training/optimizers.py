"""Adafactor and the learning-rate schedule of the paper, with optax (paper section 4.2.3)."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import optax

from padir.errors import PadirError
from padir.types import Array, PyTree

# The parts of the state with clipping, of which Adafactor's is the last; and of that, those before momentum's.
_WITH_CLIPPING, _BEFORE_MOMENTUM = 2, 4


@dataclass(frozen=True)
class OptimizerConfig:
    """Adafactor with the defaults of T5X, and a learning rate with linear warm-up and cosine decay.

    Attributes:
      peak_learning_rate: the learning rate at the end of the warm-up.
      warmup_steps: the number of steps from the floor to the peak.
      floor_learning_rate: the learning rate at the start of the warm-up and at the end of the cosine.
      decay_rate: the exponent of Adafactor's second-moment decay.
      momentum: the decay m of a moving average of updates: average = m · average + (1 - m) · update. The average is
        added to the parameters instead of the update. It needs as much memory as the parameters. Short runs of small
        models learn faster with it and tolerate higher learning rates. None, as in T5X, turns it off.
      clip_global_norm: the largest norm of the gradient of all parameters together. A gradient with a larger norm is
        scaled down to it before Adafactor. None, as in T5X, turns it off; Adafactor itself then still clips the update
        of each array to an RMS of 1.
      ema_decay: the decay d of an exponential moving average of the parameters, which is kept in checkpoints. It
        starts at the initial parameters; after each update, average = d · average + (1 - d) · parameters. Training
        does not use it; `padir average --ema` makes a run directory from it. None keeps no average.
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
            raise PadirError(f"OptimizerConfig.momentum: {self.momentum} is not between 0 and 1; None turns it off")
        if self.clip_global_norm is not None and self.clip_global_norm <= 0.0:
            raise PadirError(
                f"OptimizerConfig.clip_global_norm: {self.clip_global_norm} is not above 0; None turns it off"
            )
        if self.ema_decay is not None and not 0.0 < self.ema_decay < 1.0:
            raise PadirError(f"OptimizerConfig.ema_decay: {self.ema_decay} is not between 0 and 1; None turns it off")

    def schedule(self, num_steps: int) -> optax.Schedule:
        """Returns the learning rate as a function of the step, counted from 0, for a run of `num_steps`.

        Raises:
          PadirError: the warm-up is as long as the run, or longer.
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
        """Returns Adafactor with the defaults of T5X, written out so that no release of optax can change them.

        Second moments are factored for arrays in which two axes have at least 128 entries. There is no weight decay.
        An update is multiplied by the RMS of its parameter array, or by 0.001 if that is larger.

        Args:
          num_steps: the number of steps of the run, for the schedule.

        Raises:
          PadirError: the warm-up is as long as the run, or longer.
        """
        adafactor = optax.chain(
            _by_factored_rms(self.decay_rate),
            # Keeps the structure of the state in existing checkpoints, which had the stateless clipping here.
            optax.identity(),
            optax.scale_by_learning_rate(self.schedule(num_steps), flip_sign=False),
            _relative_to_parameters(),
            # `_BEFORE_MOMENTUM` counts what is above.
            *([] if self.momentum is None else [optax.ema(self.momentum, debias=False)]),
            optax.scale(-1),
        )
        if self.clip_global_norm is None:
            return adafactor
        return optax.chain(optax.clip_by_global_norm(self.clip_global_norm), adafactor)

    def other_structures(self) -> list[OptimizerConfig]:
        """Configurations whose optimizers have states of another structure; see `carried_over`."""
        momenta = (self.momentum, None if self.momentum else 0.9)
        norms = (self.clip_global_norm, None if self.clip_global_norm else 1.0)
        pairs = [(momentum, norm) for momentum in momenta for norm in norms][1:]
        return [dataclasses.replace(self, momentum=momentum, clip_global_norm=norm) for momentum, norm in pairs]

    def carried_over(self, state: PyTree, fresh: PyTree) -> PyTree:
        """Returns a state of this optimizer that goes on from one with or without momentum and clipping.

        Second moments and the number of updates stay. So does the average of updates, if both have momentum; it begins
        at 0 if only this one has.

        Args:
          state: a state of an optimizer of any such configuration.
          fresh: a state of this optimizer before the first update.
        """

        def adafactor(state: PyTree) -> list[PyTree]:
            return list(state[1] if len(state) == _WITH_CLIPPING else state)

        own, theirs = adafactor(fresh), adafactor(state)
        kept = _BEFORE_MOMENTUM + (len(own) == len(theirs))
        own[:kept] = theirs[:kept]
        return (fresh[0], tuple(own)) if len(fresh) == _WITH_CLIPPING else tuple(own)


def _by_factored_rms(decay_rate: float) -> optax.GradientTransformation:
    """Divides gradients by the root of their second moments and clips the update of each array to an RMS of 1.

    Second moments are factored for arrays in which two axes have at least 128 entries.

    It computes the same as `optax.scale_by_factored_rms` followed by `optax.clip_by_block_rms`, with the state of the
    former, but is faster on CPU. There, XLA stores an intermediate array in memory if several operations read it, but
    keeps it in the cache if only one sum does. Therefore each of the three sums over a factored gradient has an
    operand of its own.
    """
    epsilon = 1e-30
    theirs = optax.scale_by_factored_rms(
        factored=True, decay_rate=decay_rate, step_offset=0, min_dim_size_to_factor=128, epsilon=epsilon
    )

    def update(gradients: PyTree, state: PyTree, params: PyTree | None = None) -> tuple[PyTree, PyTree]:
        """Returns the scaled and clipped gradients, and the new state; `params` is not used."""
        decay = 1.0 - (state.count + 1).astype(jnp.float32) ** -decay_rate
        rate = 1.0 - decay

        def moment(old: Array, weighted_squares: Array) -> Array:
            return (decay * old + weighted_squares + rate * epsilon).astype(old.dtype)

        def scaled(gradient: Array, row: Array, column: Array, whole: Array) -> tuple[Array, Array, Array, Array]:
            """Returns the update of one array and its second moments: of rows, of columns, and unfactored."""
            if whole.shape == gradient.shape:
                whole = moment(whole, rate * jnp.square(gradient))
                step = gradient * whole**-0.5
                return step / jnp.maximum(1.0, jnp.sqrt(jnp.square(step).mean())), row, column, whole
            second, longest = (int(axis) for axis in np.argsort(gradient.shape)[-2:])
            row = moment(row, rate * jnp.square(gradient).mean(longest))
            # Without the barrier XLA would share the square of the row's sum and store it in memory.
            column = moment(column, rate * jnp.square(jax.lax.optimization_barrier(gradient)).mean(second))
            rows, columns = jnp.expand_dims(row, longest), jnp.expand_dims(column, second)
            # The factors of the squared gradient: the RMS is computed without the update itself.
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
    """Returns the root of the sum of squares over all arrays, a scalar [], like `optax.tree.norm`.

    Each array is first summed along its longest axis, as in the optimizer, so that XLA reads it only once for both.
    """

    def squares(gradient: Array) -> Array:
        along = jnp.square(gradient).sum(int(np.argsort(gradient.shape)[-1])) if gradient.ndim else gradient**2
        # The barrier keeps XLA from merging the two sums into one over all axes.
        return jax.lax.optimization_barrier(along).sum()

    return jnp.sqrt(sum(map(squares, jax.tree.leaves(gradients))))


def _relative_to_parameters(smallest: float = 1e-3) -> optax.GradientTransformation:
    """Multiplies the update of each array by the RMS of its parameters, or by `smallest` if that is larger.

    It computes the same as `optax.scale_by_param_block_rms`, but does not copy every parameter.
    """

    def update(updates: PyTree, state: optax.EmptyState, params: PyTree) -> tuple[PyTree, optax.EmptyState]:
        def scaled(step: Array, param: Array) -> Array:
            return step * jnp.maximum(jnp.sqrt(jnp.mean(jnp.square(param))), smallest)

        return jax.tree.map(scaled, updates, params), state

    return optax.GradientTransformation(optax.init_empty_state, update)
