"""The device mesh, and the sharding of parameters, activations and batches over it.

The axes of every array have logical names. Those of parameters are defined in `padir.models.axes`, those of activations
by calls of `constrain`. `AxisRules` maps each logical axis to axes of the mesh, and `PRESETS` holds the available maps.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from padir.errors import PadirError
from padir.types import DATA_AXIS, MESH_AXES, MODEL_AXIS, REPLICA_AXIS, Array, PyTree, RowShare

MeshAxes = tuple[str, ...]
LogicalAxes = tuple[str | None, ...]


@dataclass(frozen=True)
class AxisRules:
    """Maps each logical axis to the mesh axes that it is split over; () means that it is not split.

    The defaults are data parallelism.

    Attributes:
      vocab: the vocabulary V of parameters.
      embed: the model width E of parameters.
      mlp: the feed-forward width of parameters.
      heads: the heads H, or heads times head width H·D, of parameters. D alone is never split.
      batch: the rows of activations.
      length: the positions of activations.
      act_embed: the model width E of activations.
      act_mlp: the feed-forward width of activations.
      act_heads: the heads H of activations.
      act_vocab: the vocabulary V of activations.
    """

    vocab: MeshAxes = ()
    embed: MeshAxes = ()
    mlp: MeshAxes = ()
    heads: MeshAxes = ()
    batch: MeshAxes = (REPLICA_AXIS, DATA_AXIS)
    length: MeshAxes = ()
    act_embed: MeshAxes = ()
    act_mlp: MeshAxes = ()
    act_heads: MeshAxes = ()
    act_vocab: MeshAxes = ()

    def __post_init__(self):
        for field in fields(self):
            if unknown := [axis for axis in getattr(self, field.name) if axis not in MESH_AXES]:
                raise PadirError(
                    f"AxisRules.{field.name}: no mesh axis {unknown[0]!r}; choose among {', '.join(MESH_AXES)}"
                )

    def of(self, axis: str | None) -> MeshAxes:
        """Returns the mesh axes of a logical axis; () for None, which stands for an axis that is never split.

        Raises:
          PadirError: there is no such logical axis.
        """
        if axis is None:
            return ()
        if axis not in self.__dataclass_fields__:
            names = ", ".join(field.name for field in fields(self))
            raise PadirError(f"no logical axis {axis!r}; choose among {names}, or None for one that is never split")
        return getattr(self, axis)


_TENSOR = AxisRules(
    vocab=(MODEL_AXIS,),
    mlp=(MODEL_AXIS,),
    heads=(MODEL_AXIS,),
    act_mlp=(MODEL_AXIS,),
    act_heads=(MODEL_AXIS,),
    act_vocab=(MODEL_AXIS,),
)

# FSDP splits parameters and optimizer state only within a slice. Each slice holds a copy, because gathering parameters
# over the slow network between slices in every layer would take longer than the computation.
PRESETS = {
    "data": AxisRules(),
    "fsdp": AxisRules(embed=(DATA_AXIS,)),
    "tensor": _TENSOR,
    "fsdp+tensor": replace(_TENSOR, embed=(DATA_AXIS,)),
}


@dataclass(frozen=True)
class Layout:
    """How a training job uses its devices. It changes results only by the order in which floats are summed.

    Attributes:
      preset: what is split in addition to the batch: nothing ('data'), parameters and optimizer state over the devices
        of a slice ('fsdp'), every layer and the vocabulary over `model` devices ('tensor'), or both ('fsdp+tensor').
      model: the number of devices that share a layer.
      replicas: the number of groups of devices that each hold a copy of everything, e.g. the slices of a TPU job. None
        uses one group per slice.
    """

    preset: str = "data"
    model: int = 1
    replicas: int | None = None

    def __post_init__(self):
        if self.preset not in PRESETS:
            raise PadirError(f"Layout.preset: unknown {self.preset!r}; choose one of {', '.join(PRESETS)}")
        for name in ("model", "replicas"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise PadirError(f"Layout.{name}: {value} is not at least 1")
        if self.model > 1 and not any(MODEL_AXIS in self.rules.of(field.name) for field in fields(AxisRules)):
            raise PadirError(
                f"Layout.model: {self.model} devices would do the same work, because preset {self.preset!r} splits no "
                "layer; choose preset 'tensor' or 'fsdp+tensor', or set Layout.model to 1"
            )

        if self.model == 1 and "tensor" in self.preset:
            plain = {"tensor": "data", "fsdp+tensor": "fsdp"}[self.preset]
            raise PadirError(
                f"Layout.preset: {self.preset!r} splits layers over Layout.model devices, which is 1; set it to 2 or "
                f"more, or choose preset {plain!r}"
            )

    @property
    def rules(self) -> AxisRules:
        """The map from logical axes to mesh axes of the preset."""
        return PRESETS[self.preset]


def make_mesh(devices: Sequence[jax.Device] | None = None, layout: Layout = Layout()) -> Mesh:
    """Arranges devices in a mesh with the axes (replica, data, model); by default all are on the data axis.

    Args:
      devices: the devices to use; all of them by default.
      layout: the sizes of the replica and model axes.

    Raises:
      PadirError: the number of devices is not a multiple of the product of these sizes.
    """
    devices = list(jax.devices() if devices is None else devices)
    slices = len({getattr(device, "slice_index", 0) for device in devices}) if devices[0].platform == "tpu" else 1
    replicas = slices if layout.replicas is None else layout.replicas
    if len(devices) % (replicas * layout.model):
        raise PadirError(
            f"Layout: {len(devices)} device(s) do not divide into {replicas} replica(s) with {layout.model} device(s) "
            "per layer; choose another Layout.model or Layout.replicas"
        )
    shape = (replicas, len(devices) // (replicas * layout.model), layout.model)
    if slices > 1 and replicas == slices:
        arranged = mesh_utils.create_hybrid_device_mesh(
            (1, *shape[1:]), (slices, 1, 1), devices, allow_split_physical_axes=True
        )
    else:
        # Neighbours on the torus of a TPU become neighbours on the mesh; other devices keep their order.
        arranged = mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True)
    return Mesh(arranged, MESH_AXES)


def partition_spec(name: str, shape: Sequence[int], axes: LogicalAxes, rules: AxisRules, mesh: Mesh) -> PartitionSpec:
    """Returns the partition of an array over the mesh.

    Args:
      name: the name of the array, for messages.
      shape: its shape.
      axes: the logical names of its axes; None for an axis that is never split.
      rules: maps logical axes to mesh axes.
      mesh: the mesh.

    Raises:
      PadirError: two axes would be split over the same mesh axis, or an axis does not divide evenly.
    """
    if len(axes) != len(shape):
        raise PadirError(f"{name}: has {len(shape)} axes, but {len(axes)} names are given: {axes}")
    taken: dict[str, str | None] = {}
    for axis, size in zip(axes, shape, strict=True):
        for mesh_axis in rules.of(axis):
            if mesh_axis in taken:
                raise PadirError(
                    f"{name}: axes {taken[mesh_axis]!r} and {axis!r} would both be split over mesh axis {mesh_axis!r}"
                )
            taken[mesh_axis] = axis
        ways = math.prod(mesh.shape[mesh_axis] for mesh_axis in rules.of(axis))
        if size % ways:
            raise PadirError(
                f"{name}: axis {axis!r} of size {size} does not divide evenly over {ways} devices of mesh axis "
                f"{' and '.join(rules.of(axis))}; choose another Layout, or a size that is a multiple of {ways}"
            )
    found = (rules.of(axis) for axis in axes)
    return PartitionSpec(*(None if not over else over[0] if len(over) == 1 else over for over in found))


# The mesh and rules of the function being traced. `constrain` reads them here, so models need not pass them on.
_active: ContextVar[tuple[Mesh, AxisRules] | None] = ContextVar("padir_active_sharding", default=None)


@contextlib.contextmanager
def activations(mesh: Mesh, rules: AxisRules) -> Iterator[None]:
    """Context manager: in functions traced inside, `constrain` splits activations over `mesh` by `rules`."""
    token = _active.set((mesh, rules))
    try:
        yield
    finally:
        _active.reset(token)


def constrain(x: Array, *axes: str | None) -> Array:
    """Constrains the sharding of an activation; outside `activations`, as in decoding, returns `x` unchanged.

    Args:
      x: the activation.
      *axes: the logical names of its axes; None for an axis that is never split.

    Raises:
      PadirError: an axis does not divide evenly over the mesh.
    """
    if _active.get() is None or _active.get()[0].size == 1:
        return x
    mesh, rules = _active.get()
    spec = partition_spec(f"activation {list(x.shape)}", x.shape, axes, rules, mesh)
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, spec))


def replicated(mesh: Mesh) -> NamedSharding:
    """Returns the sharding of an array of which every device holds a full copy."""
    return NamedSharding(mesh, PartitionSpec())


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Returns the sharding of a batch, whose rows are split over the replica and data axes."""
    return NamedSharding(mesh, PartitionSpec((REPLICA_AXIS, DATA_AXIS)))


def batch_ways(mesh: Mesh) -> int:
    """Returns the number of parts into which the rows of a batch are split."""
    return mesh.shape[REPLICA_AXIS] * mesh.shape[DATA_AXIS]


def check_batch_size(batch_size: int, mesh: Mesh) -> None:
    """Raises PadirError unless `batch_size` rows divide evenly over the mesh's data axes."""
    ways = batch_ways(mesh)
    if batch_size % ways:
        raise PadirError(
            f"batch_size {batch_size} does not divide evenly over {ways} devices; choose a multiple of {ways}"
        )


def row_share(mesh: Mesh, process: int | None = None) -> RowShare:
    """Returns which rows of a batch a process loads, namely those of its devices.

    Processes whose devices share a layer load the same rows.

    Args:
      mesh: the mesh.
      process: the index of the process; this process by default.

    Returns:
      The blocks of rows, the same number for every process. They need not be adjacent.

    Raises:
      PadirError: the rows of two processes overlap, but are not the same.
    """
    process = jax.process_index() if process is None else process
    rows: dict[int, set[int]] = {}
    for row, devices in enumerate(mesh.devices.reshape(batch_ways(mesh), -1)):
        for device in devices:
            rows.setdefault(device.process_index, set()).add(row)
    shares = {tuple(sorted(part)) for part in rows.values()}
    if sum(map(len, shares)) != batch_ways(mesh) or len({len(share) for share in shares}) != 1:
        raise PadirError(
            "Layout.model: the devices that share a layer lie in processes that do not share all their rows; choose "
            "a divisor or a multiple of the number of devices per process"
        )
    return RowShare(tuple(sorted(rows[process])), batch_ways(mesh))


def place_batch(batch: dict[str, np.ndarray], mesh: Mesh) -> PyTree:
    """Makes global arrays from the rows of this process.

    Args:
      batch: an array for each feature, with the rows of this process (see `row_share`).
      mesh: the mesh to place them on.

    Returns:
      The same features as global arrays [B, …], with rows split over the replica and data axes.
    """
    sharding = batch_sharding(mesh)
    return {name: jax.make_array_from_process_local_data(sharding, array) for name, array in batch.items()}
