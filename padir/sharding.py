"""The device mesh and where each array lives on it (layer 0)."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from padir.errors import PadirError
from padir.types import DATA_AXIS, MESH_AXES, REPLICA_AXIS, PyTree


def make_mesh(devices: Sequence[jax.Device] | None = None) -> Mesh:
    """Lays devices out for data parallelism: shape [1, n, 1] over (replica, data, model).

    Args:
      devices: the devices to use; all of them by default.
    """
    devices = list(jax.devices() if devices is None else devices)
    return Mesh(np.asarray(devices).reshape(1, len(devices), 1), MESH_AXES)


def replicated(mesh: Mesh) -> NamedSharding:
    """The sharding of what every device holds whole: parameters and optimizer state."""
    return NamedSharding(mesh, PartitionSpec())


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """The sharding of a batch: rows over the replica and data axes, everything else whole."""
    return NamedSharding(mesh, PartitionSpec((REPLICA_AXIS, DATA_AXIS)))


def check_batch_size(batch_size: int, mesh: Mesh) -> None:
    """Raises PadirError unless `batch_size` rows divide evenly over the mesh's data axes."""
    ways = mesh.shape[REPLICA_AXIS] * mesh.shape[DATA_AXIS]
    if batch_size % ways:
        raise PadirError(
            f"batch_size {batch_size} does not divide evenly over {ways} devices: choose a multiple of {ways}"
        )


def place_batch(batch: dict[str, np.ndarray], mesh: Mesh) -> PyTree:
    """Makes global arrays of this host's rows.

    Args:
      batch: arrays [B_local, …], this process's share of every feature.
      mesh: the mesh to place them on.

    Returns:
      The same features as global arrays [B, …], rows sharded over the data axes.
    """
    sharding = batch_sharding(mesh)
    return {name: jax.make_array_from_process_local_data(sharding, array) for name, array in batch.items()}
