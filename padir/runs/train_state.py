"""What a training step changes, and where it lives."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct
from jax.sharding import Mesh, NamedSharding

from padir.errors import PadirError
from padir.models.axes import axes_of, parameter_shardings, path_name
from padir.models.kinds import Model
from padir.runtime.sharding import AxisRules, LogicalAxes, partition_spec, replicated
from padir.types import Array, PyTree


@struct.dataclass
class TrainState:
    """Everything a resumed run needs; the data and all random numbers follow from `step`.

    Attributes:
      step: [] int32, updates done.
      params: nested dict of float32 arrays.
      opt_state: the optimizer's, of the parameters that are not frozen.
      ema: exponential moving average of `params`, like them; None where none is kept.
    """

    step: Array
    params: PyTree
    opt_state: PyTree
    ema: PyTree | None = None


def _init(model: Model, optimizer: optax.GradientTransformation, seed: int, ema: bool) -> TrainState:
    params = model.init(seed)
    opt_state = optimizer.init(model.split_frozen(params)[0])
    return TrainState(jnp.zeros((), jnp.int32), params, opt_state, params if ema else None)


def abstract_train_state(
    model: Model,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    rules: AxisRules = AxisRules(),
    *,
    ema: bool = False,
) -> TrainState:
    """The state's shapes, dtypes and shardings; nothing is computed or allocated.

    Args:
      model: the model.
      optimizer: as built by `OptimizerConfig.build`.
      mesh: where the state lives.
      rules: what is split over it.
      ema: whether an average of the parameters is kept.

    Returns:
      A `TrainState` of `jax.ShapeDtypeStruct`. Statistics of the optimizer are split as their parameter is, those that
      lack one of its axes as the axes that remain; scalars are on every device.

    Raises:
      PadirError: an axis does not divide evenly over the mesh.
    """
    state = jax.eval_shape(functools.partial(_init, model, optimizer, 0, ema))
    params = parameter_shardings(state.params, mesh, rules)
    shardings = TrainState(
        replicated(mesh),
        params,
        _optimizer_shardings(state.opt_state, state.params, mesh, rules),
        params if ema else None,
    )
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), state, shardings
    )


def shardings_of(state: PyTree) -> PyTree:
    """The shardings of arrays, or of abstract ones."""
    return jax.tree.map(lambda leaf: leaf.sharding, state)


def statistic_axes(name: str, shape: Sequence[int], param_shape: Sequence[int], axes: LogicalAxes) -> LogicalAxes:
    """The logical axes of an optimizer's statistic of one parameter.

    Args:
      name: of the statistic: of Adafactor `v_row`, means over the parameter's longest axis, `v_col`, means over the
        second longest, or `v`, all of it; those of the three that a parameter does not need are arrays of one zero.
      shape: of the statistic.
      param_shape, axes: of the parameter.

    Raises:
      PadirError: a statistic of another shape, as of an optimizer that this function does not know.
    """
    if tuple(shape) == tuple(param_shape):
        return axes
    if name in ("v_row", "v_col") and len(axes) > 1:
        # The order among equals is numpy's, as in optax.
        missing = int(np.argsort(param_shape)[-1 if name == "v_row" else -2])
        if tuple(shape) == tuple(np.delete(param_shape, missing)):
            return (*axes[:missing], *axes[missing + 1 :])
    if tuple(shape) == (1,):
        return (None,)
    raise PadirError(f"optimizer statistic {name} of shape {tuple(shape)}: its parameter is {tuple(param_shape)}")


def _optimizer_shardings(opt_state: PyTree, params: PyTree, mesh: Mesh, rules: AxisRules) -> PyTree:
    """Where each array of the optimizer lives; those of a parameter have its path at the end of theirs."""
    shapes = {path: leaf.shape for path, leaf in jax.tree_util.tree_leaves_with_path(params)}

    def place(path, leaf) -> NamedSharding:
        """Of the array at `path` of the optimizer's state."""
        for start in range(len(path)):
            if path[start:] in shapes:
                statistic = getattr(path[start - 1], "name", "") if start else ""
                own = statistic_axes(statistic, leaf.shape, shapes[path[start:]], axes_of(path_name(path[start:])))
                return NamedSharding(mesh, partition_spec(path_name(path), leaf.shape, own, rules, mesh))
        return replicated(mesh)

    return jax.tree_util.tree_map_with_path(place, opt_state)


def create_train_state(
    model: Model,
    optimizer: optax.GradientTransformation,
    seed: int,
    mesh: Mesh,
    rules: AxisRules = AxisRules(),
    *,
    ema: bool = False,
) -> TrainState:
    """Draws the initial state where it will live, the same numbers on any mesh; see `abstract_train_state`."""
    shardings = shardings_of(abstract_train_state(model, optimizer, mesh, rules, ema=ema))
    return jax.jit(functools.partial(_init, model, optimizer, seed, ema), out_shardings=shardings)()
