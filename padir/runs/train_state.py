"""The state of a training run (step, parameters, optimizer state), and its sharding over devices."""

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
    """Everything that a run needs to resume. The data order and all random numbers follow from `step`.

    Attributes:
      step: [] int32, the number of updates done.
      params: nested dict of float32 arrays.
      opt_state: the state of the optimizer, for the parameters that are not frozen.
      ema: the exponential moving average of `params`, with the same structure; None if none is kept.
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
    """Returns the shapes, dtypes and shardings of a state; computes and allocates nothing.

    Args:
      model: the model.
      optimizer: as built by `OptimizerConfig.build`.
      mesh: the devices of the state.
      rules: which logical axes are split over which axes of the mesh.
      ema: whether a moving average of the parameters is kept.

    Returns:
      A `TrainState` of `jax.ShapeDtypeStruct`. A statistic of the optimizer is split like its parameter. A statistic
      that lacks an axis of the parameter is split along the remaining axes. Scalars are replicated.

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
    """Returns the shardings of a tree of arrays or `jax.ShapeDtypeStruct`s, in the same structure."""
    return jax.tree.map(lambda leaf: leaf.sharding, state)


def statistic_axes(name: str, shape: Sequence[int], param_shape: Sequence[int], axes: LogicalAxes) -> LogicalAxes:
    """Returns the logical axes of an optimizer's statistic of one parameter.

    Adafactor has three: `v_row` averages over the parameter's longest axis, `v_col` averages over the second longest,
    and `v` has the parameter's shape. Those that a parameter does not need are arrays of shape [1].

    Args:
      name: the name of the statistic in the optimizer's state.
      shape: the shape of the statistic.
      param_shape: the shape of the parameter.
      axes: the logical axes of the parameter.

    Raises:
      PadirError: the shape fits none of these, because the statistic belongs to an unsupported optimizer.
    """
    if tuple(shape) == tuple(param_shape):
        return axes
    if name in ("v_row", "v_col") and len(axes) > 1:
        # optax also sorts with np.argsort, so axes of equal size come in the same order.
        missing = int(np.argsort(param_shape)[-1 if name == "v_row" else -2])
        if tuple(shape) == tuple(np.delete(param_shape, missing)):
            return (*axes[:missing], *axes[missing + 1 :])
    if tuple(shape) == (1,):
        return (None,)
    raise PadirError(
        f"optimizer statistic {name} has shape {tuple(shape)}, which does not fit its parameter of shape "
        f"{tuple(param_shape)}; the optimizer is not supported"
    )


def _optimizer_shardings(opt_state: PyTree, params: PyTree, mesh: Mesh, rules: AxisRules) -> PyTree:
    """Returns the sharding of each array of an optimizer's state.

    The path of a statistic in the state ends with the path of its parameter.
    """
    shapes = {path: leaf.shape for path, leaf in jax.tree_util.tree_leaves_with_path(params)}

    def place(path, leaf) -> NamedSharding:
        """Returns the sharding of the array at `path` in the optimizer's state."""
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
    """Draws the initial state directly on its devices. The values do not depend on the mesh.

    Args:
      model: the model.
      optimizer: as built by `OptimizerConfig.build`.
      seed: the seed of the initial parameters.
      mesh: the devices of the state.
      rules: which logical axes are split over which axes of the mesh.
      ema: whether a moving average of the parameters is kept; it starts as a copy of them.

    Raises:
      PadirError: an axis does not divide evenly over the mesh.
    """
    shardings = shardings_of(abstract_train_state(model, optimizer, mesh, rules, ema=ema))
    return jax.jit(functools.partial(_init, model, optimizer, seed, ema), out_shardings=shardings)()
