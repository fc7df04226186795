"""What a training step changes (layer 7)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jax.sharding import Mesh

from padir.models import Model
from padir.sharding import replicated
from padir.types import Array, PyTree


@struct.dataclass
class TrainState:
    """Everything a resumed run needs; the data and all random numbers follow from `step`.

    Attributes:
      step: [] int32, updates done.
      params: nested dict of float32 arrays.
      opt_state: the optimizer's, of the parameters that are not frozen.
    """

    step: Array
    params: PyTree
    opt_state: PyTree


def create_train_state(model: Model, optimizer: optax.GradientTransformation, seed: int, mesh: Mesh) -> TrainState:
    """Draws the initial state, placed on the mesh."""

    def init() -> TrainState:
        params = model.init(seed)
        return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(model.split_frozen(params)[0]))

    return jax.jit(init, out_shardings=replicated(mesh))()
