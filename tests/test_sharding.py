"""The mesh and what lies where, on eight simulated devices."""

import jax
import numpy as np
import pytest

from padir import sharding
from padir.errors import PadirError
from padir.types import MESH_AXES


@pytest.fixture(scope="module")
def mesh():
    assert jax.device_count() == 8, "tests/conftest.py asks for eight devices"
    return sharding.make_mesh()


def test_mesh_puts_every_device_on_the_data_axis(mesh):
    assert mesh.axis_names == MESH_AXES == ("replica", "data", "model")
    assert mesh.devices.shape == (1, 8, 1)
    assert sharding.make_mesh(jax.devices()[:2]).devices.shape == (1, 2, 1)


def test_place_batch_gives_each_device_its_own_rows(mesh):
    tokens = np.arange(16 * 3, dtype=np.int32).reshape(16, 3)
    placed = sharding.place_batch({"tokens": tokens, "weights": np.ones(8, np.float32)}, mesh)
    np.testing.assert_array_equal(placed["tokens"], tokens)
    rows = {shard.device: np.asarray(shard.data) for shard in placed["tokens"].addressable_shards}
    for index, device in enumerate(mesh.devices.ravel()):
        np.testing.assert_array_equal(rows[device], tokens[2 * index : 2 * index + 2])
    assert {shard.data.shape for shard in placed["weights"].addressable_shards} == {(1,)}


def test_replicated_arrays_are_whole_everywhere(mesh):
    placed = jax.device_put(np.arange(5), sharding.replicated(mesh))
    assert len(placed.addressable_shards) == 8
    for shard in placed.addressable_shards:
        np.testing.assert_array_equal(shard.data, np.arange(5))


def test_a_batch_that_does_not_divide_is_refused(mesh):
    sharding.check_batch_size(24, mesh)
    with pytest.raises(PadirError, match="batch_size 12 does not divide evenly over 8 devices: choose a multiple of 8"):
        sharding.check_batch_size(12, mesh)
