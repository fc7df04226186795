"""The device mesh, what the axes of arrays are split over, and where each array lives.

Every array has named (logical) axes: parameters by the table of `padir.models.axes`, activations where `constrain` is
called. `AxisRules` is the one table of what each name is split over; `PRESETS` are the tables to choose from.
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
    """Which mesh axes each logical axis is split over; () leaves it whole. The defaults are data parallelism.

    Attributes:
      vocab, embed, mlp, heads: of parameters: V, E, the feed-forward width, and H or H·D (D is never split).
      batch, length: of activations: rows, and positions.
      act_embed, act_mlp, act_heads, act_vocab: of activations: E, the feed-forward width, H and V.
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
        """The mesh axes of a logical axis; None, an axis that is never split, has none."""
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

# FSDP splits parameters and optimizer state within a slice only: between slices they are copies, since gathering them
# over the slow network in every layer would take longer than computing.
PRESETS = {
    "data": AxisRules(),
    "fsdp": AxisRules(embed=(DATA_AXIS,)),
    "tensor": _TENSOR,
    "fsdp+tensor": replace(_TENSOR, embed=(DATA_AXIS,)),
}


@dataclass(frozen=True)
class Layout:
    """How a training job uses its devices. It changes no result beyond the order in which floats are added up.

    Attributes:
      preset: what is split besides the batch: nothing ('data'); parameters and optimizer state over the devices of a
        slice ('fsdp'); every layer and the vocabulary over `model` devices ('tensor'); or both ('fsdp+tensor').
      model: devices that share a layer.
      replicas: groups of devices that hold copies of everything, as the slices of a TPU job; None takes as many as
        there are slices.
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
                f"Layout.model: {self.model} devices would do the same work, since preset {self.preset!r} splits no "
                "layer; choose 'tensor' or 'fsdp+tensor', or set it to 1"
            )

    @property
    def rules(self) -> AxisRules:
        """The preset's mapping of logical axes to the axes of the mesh."""
        return PRESETS[self.preset]


def make_mesh(devices: Sequence[jax.Device] | None = None, layout: Layout = Layout()) -> Mesh:
    """Lays devices out as (replica, data, model): by default all on the data axis.

    Args:
      devices: the devices to use; all of them by default.
      layout: sizes of the other two axes.

    Raises:
      PadirError: the devices do not divide into replicas of layers of that many devices.
    """
    devices = list(jax.devices() if devices is None else devices)
    slices = len({getattr(device, "slice_index", 0) for device in devices}) if devices[0].platform == "tpu" else 1
    replicas = slices if layout.replicas is None else layout.replicas
    if len(devices) % (replicas * layout.model):
        raise PadirError(
            f"Layout: {len(devices)} device(s) do not divide into {replicas} replica(s) of {layout.model} device(s) a "
            "layer; choose another Layout.model or Layout.replicas"
        )
    shape = (replicas, len(devices) // (replicas * layout.model), layout.model)
    if slices > 1 and replicas == slices:
        arranged = mesh_utils.create_hybrid_device_mesh(
            (1, *shape[1:]), (slices, 1, 1), devices, allow_split_physical_axes=True
        )
    else:
        # Neighbours on a TPU's torus become neighbours on the mesh; elsewhere the order stays.
        arranged = mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True)
    return Mesh(arranged, MESH_AXES)


def partition_spec(name: str, shape: Sequence[int], axes: LogicalAxes, rules: AxisRules, mesh: Mesh) -> PartitionSpec:
    """What an array is split over.

    Args:
      name: of the array, for messages.
      shape: its shape.
      axes: the logical name of each of its axes.
      rules: the table.
      mesh: the mesh.

    Raises:
      PadirError: two axes would be split over the same mesh axis, or one does not divide evenly.
    """
    if len(axes) != len(shape):
        raise PadirError(f"{name}: has {len(shape)} axes; named are {axes}")
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


# What the program being traced is split by, for `constrain`; a model's methods need not hand it down to every layer.
_active: ContextVar[tuple[Mesh, AxisRules] | None] = ContextVar("padir_active_sharding", default=None)


@contextlib.contextmanager
def activations(mesh: Mesh, rules: AxisRules) -> Iterator[None]:
    """While a function is traced in here, `constrain` splits activations by these rules."""
    token = _active.set((mesh, rules))
    try:
        yield
    finally:
        _active.reset(token)


def constrain(x: Array, *axes: str | None) -> Array:
    """Splits an activation by the logical names of its axes; outside `activations`, as in decoding, `x` as it is."""
    if _active.get() is None or _active.get()[0].size == 1:
        return x
    mesh, rules = _active.get()
    spec = partition_spec(f"activation {list(x.shape)}", x.shape, axes, rules, mesh)
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, spec))


def replicated(mesh: Mesh) -> NamedSharding:
    """The sharding of what every device holds whole."""
    return NamedSharding(mesh, PartitionSpec())


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """The sharding of a batch: rows over the replica and data axes, everything else whole."""
    return NamedSharding(mesh, PartitionSpec((REPLICA_AXIS, DATA_AXIS)))


def batch_ways(mesh: Mesh) -> int:
    """Into how many parts the rows of a batch are split."""
    return mesh.shape[REPLICA_AXIS] * mesh.shape[DATA_AXIS]


def check_batch_size(batch_size: int, mesh: Mesh) -> None:
    """Raises PadirError unless `batch_size` rows divide evenly over the mesh's data axes."""
    ways = batch_ways(mesh)
    if batch_size % ways:
        raise PadirError(
            f"batch_size {batch_size} does not divide evenly over {ways} devices: choose a multiple of {ways}"
        )


def row_share(mesh: Mesh, process: int | None = None) -> RowShare:
    """Which rows of a batch a process loads: those of its devices; processes that share a layer load the same.

    Args:
      mesh: the mesh.
      process: index of the process; this one by default.

    Returns:
      As many blocks for every process, in the order of the batch; on a torus they need not be next to each other.

    Raises:
      PadirError: the mesh gives processes rows that overlap in part.
    """
    process = jax.process_index() if process is None else process
    rows: dict[int, set[int]] = {}
    for row, devices in enumerate(mesh.devices.reshape(batch_ways(mesh), -1)):
        for device in devices:
            rows.setdefault(device.process_index, set()).add(row)
    shares = {tuple(sorted(part)) for part in rows.values()}
    if sum(map(len, shares)) != batch_ways(mesh) or len({len(share) for share in shares}) != 1:
        raise PadirError(
            "Layout.model: the devices that share a layer lie in processes which do not share all their rows; choose "
            "a divisor or a multiple of the devices of a process"
        )
    return RowShare(tuple(sorted(rows[process])), batch_ways(mesh))


def place_batch(batch: dict[str, np.ndarray], mesh: Mesh) -> PyTree:
    """Makes global arrays of this process's rows.

    Args:
      batch: arrays of every feature that hold this process's rows (see `row_share`) of B.
      mesh: the mesh to place them on.

    Returns:
      The same features as global arrays [B, …], rows sharded over the data axes.
    """
    sharding = batch_sharding(mesh)
    return {name: jax.make_array_from_process_local_data(sharding, array) for name, array in batch.items()}
