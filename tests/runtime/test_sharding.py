"""The mesh and what lies where, on eight simulated devices."""

import functools
import os
import socket
import subprocess
import sys
import types
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from padir.errors import PadirError
from padir.runtime import sharding
from padir.types import MESH_AXES

ROOT = Path(__file__).resolve().parents[2]


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
    with pytest.raises(PadirError, match="batch_size 12 does not divide evenly over 8 devices; choose a multiple of 8"):
        sharding.check_batch_size(12, mesh)


@pytest.fixture(scope="module")
def split():
    return sharding.make_mesh(layout=sharding.Layout("fsdp+tensor", model=2))


def test_mesh_of_replicas_and_layers_on_several_devices():
    layout = sharding.Layout("fsdp+tensor", model=2, replicas=2)
    mesh = sharding.make_mesh(layout=layout)
    assert dict(mesh.shape) == {"replica": 2, "data": 2, "model": 2}
    # Neighbours share a layer: they need the fastest links.
    assert [device.id for device in mesh.devices[1, 0]] == [4, 5]
    with pytest.raises(PadirError, match=r"8 device\(s\) do not divide into 1 replica\(s\) with 3 device\(s\)"):
        sharding.make_mesh(layout=sharding.Layout("tensor", model=3))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"preset": "zero"}, "unknown 'zero'; choose one of data, fsdp, tensor, fsdp[+]tensor"),
        ({"preset": "fsdp", "model": 2}, "Layout.model: 2 devices would do the same work, because preset"),
        ({"model": 0}, "Layout.model: 0 is not at least 1"),
        ({"replicas": 0}, "Layout.replicas: 0 is not at least 1"),
    ],
)
def test_layouts_that_make_no_sense(options, message):
    with pytest.raises(PadirError, match=message):
        sharding.Layout(**options)


def test_an_array_is_split_as_its_axes_are(split):
    rules = sharding.PRESETS["fsdp+tensor"]
    spec = functools.partial(sharding.partition_spec, "w", rules=rules, mesh=split)
    assert spec((8, 16), ("mlp", "embed")) == P("model", "data")
    assert spec((5, 16), (None, "embed")) == P(None, "data")
    assert spec((4, 7, 16), ("batch", "length", "act_embed")) == P(("replica", "data"), None, None)


def test_two_axes_over_one_mesh_axis_collide(split):
    rules = sharding.PRESETS["fsdp+tensor"]
    with pytest.raises(PadirError, match="w: axes 'mlp' and 'heads' would both be split over mesh axis 'model'"):
        sharding.partition_spec("w", (8, 8), ("mlp", "heads"), rules, split)
    with pytest.raises(PadirError, match="w: axes 'batch' and 'embed' would both be split over mesh axis 'data'"):
        sharding.partition_spec("w", (8, 8), ("batch", "embed"), rules, split)


def test_an_axis_that_does_not_divide_is_named(split):
    rules = sharding.PRESETS["fsdp+tensor"]
    with pytest.raises(PadirError, match=r"w: axis 'embed' of size 6 does not divide evenly over 4 devices of .* data"):
        sharding.partition_spec("w", (8, 6), ("mlp", "embed"), rules, split)
    with pytest.raises(PadirError, match="no logical axis 'width'; choose among vocab, embed, mlp"):
        sharding.partition_spec("w", (8, 6), ("mlp", "width"), rules, split)
    with pytest.raises(PadirError, match="AxisRules.embed: no mesh axis 'dta'; choose among replica, data, model"):
        sharding.AxisRules(embed=("dta",))


def test_activations_are_split_while_a_step_is_traced_only(split):
    def double(x):
        return 2 * sharding.constrain(x, "batch", "length", "act_mlp")

    def traced(x):
        with sharding.activations(split, sharding.PRESETS["fsdp+tensor"]):
            return double(x)

    x = np.ones((8, 3, 4), np.float32)
    assert {shard.data.shape for shard in jax.jit(traced)(x).addressable_shards} == {(8 // 4, 3, 4 // 2)}
    assert "sharding_constraint" not in str(jax.make_jaxpr(double)(x))


class Device:
    """As much of a device as `row_share` reads."""

    def __init__(self, process_index):
        self.process_index = process_index


@pytest.mark.parametrize(
    ("processes", "expected"),
    [
        # Shape [replica, data, model] → blocks of rows of each process, in order of processes, and of how many.
        ([[[0, 0], [1, 1]]], [((0,), 2), ((1,), 2)]),
        ([[[0], [0], [1], [1]]], [((0, 1), 4), ((2, 3), 4)]),
        # A layer on both processes: the same rows.
        ([[[0, 1], [0, 1]]], [((0, 1), 2), ((0, 1), 2)]),
        ([[[0, 1]], [[2, 3]]], [((0,), 2), ((0,), 2), ((1,), 2), ((1,), 2)]),
        # As on a torus: a process's rows are not next to each other.
        ([[[1], [0], [1], [0]]], [((1, 3), 4), ((0, 2), 4)]),
    ],
)
def test_processes_that_share_a_layer_load_the_same_rows(processes, expected):
    mesh = types.SimpleNamespace(
        devices=np.vectorize(Device)(np.array(processes)), shape=dict(zip(MESH_AXES, np.shape(processes), strict=True))
    )
    assert [sharding.row_share(mesh, process) for process in range(len(expected))] == expected


_INTERLEAVED = """
import jax, numpy as np
from jax.experimental import multihost_utils
from padir.runtime import distributed
from padir.runtime import sharding
from padir.data.batching import host_rows
from padir.types import MESH_AXES
distributed.initialize()
mesh = jax.sharding.Mesh(np.array(jax.devices())[[2, 0, 3, 1]].reshape(1, 4, 1), MESH_AXES)
rows = host_rows(np.arange(8), sharding.row_share(mesh))
placed = sharding.place_batch({"rows": rows}, mesh)["rows"]
print(rows.tolist(), multihost_utils.process_allgather(placed, tiled=True).tolist())
"""


def test_a_batch_keeps_its_order_where_processes_interleave():
    """On a torus: the noise of a row must not depend on which devices there are."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        coordinator = f"127.0.0.1:{free.getsockname()[1]}"
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    environment |= {"PYTHONPATH": str(ROOT), "PADIR_COORDINATOR": coordinator, "PADIR_NUM_PROCESSES": "2"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _INTERLEAVED],
            env=environment | {"PADIR_PROCESS_ID": str(index)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for index in range(2)
    ]
    try:
        said = [process.communicate(timeout=120)[0].splitlines()[-1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    whole = list(range(8))
    assert said == [f"[2, 3, 6, 7] {whole}", f"[0, 1, 4, 5] {whole}"]


def test_rows_that_overlap_in_part_are_refused():
    devices = np.vectorize(Device)(np.array([[[0, 0, 1], [1, 2, 2]]]))
    mesh = types.SimpleNamespace(devices=devices, shape={"replica": 1, "data": 2, "model": 3})
    with pytest.raises(PadirError, match="Layout.model: the devices that share a layer lie in processes"):
        sharding.row_share(mesh, 0)
