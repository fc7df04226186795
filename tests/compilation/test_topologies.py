"""Names of slices and nodes. What compilers make of them is in test_programs.py and test_gpu_programs.py."""

import pytest

from padir.compilation.topologies import named, names
from padir.errors import PadirError


@pytest.mark.parametrize(
    ("name", "shape", "chips", "hosts"),
    [
        ("v3-8", (2, 2), 4, (2, 2, 1)),
        ("v3-32", (4, 4), 16, (2, 2, 1)),
        ("v4-32", (2, 2, 4), 16, (2, 2, 1)),
        ("v5e-1", (1, 1), 1, (1, 1, 1)),
        ("v5litepod-16", (4, 4), 16, (2, 2, 1)),
        ("v5litepod-8", (2, 4), 8, (2, 4, 1)),
        ("v5p-8", (2, 2, 1), 4, (2, 2, 1)),
        ("v6e-16", (4, 4), 16, (2, 2, 1)),
    ],
)
def test_a_name_says_chips_and_hosts(name, shape, chips, hosts):
    found = named(name)
    assert (found.shape, found.chips, found.hosts) == (shape, chips, hosts)


def test_several_slices():
    assert named("v5e-16", 2).chips == 32


@pytest.mark.parametrize(("name", "chips", "nodes"), [("h100-1", 1, 1), ("h100-8", 8, 1), ("h200-64", 64, 8)])
def test_a_name_says_gpus_and_nodes(name, chips, nodes):
    found = named(name)
    assert (found.platform, found.chips, found.nodes) == ("gpu", chips, nodes)


def test_gpus_have_no_slices():
    with pytest.raises(
        PadirError, match="^num_slices: 2 slices of GPUs do not exist; name more GPUs, such as h100-16$"
    ):
        named("h100-8", 2)


def test_rings_close_on_whole_pods_and_whole_blocks():
    assert named("v5e-256").rings == (True, True, False)
    assert named("v5e-128").rings == (False, True, False)
    assert named("v5e-64").rings == (False, False, False)
    assert named("v4-32").rings == (False, False, False)
    assert named("v4-128").rings == (True, True, True)
    assert named("v3-2048").rings == (True, True, False)


@pytest.mark.parametrize(
    "name", ["v9-8", "v3", "v3-7", "v5e-3", "v3:4x4", "", "h100-3", "h100-128", "h100-08", "h300-8"]
)
def test_an_unknown_name_lists_those_there_are(name):
    with pytest.raises(
        PadirError, match=r"topology: unknown .*choose one of v2-8, .*v3-32.*v5e-16.*tpu7x-8.*h100-1, .*h200-64$"
    ):
        named(name)


def test_all_names_are_known():
    assert all(named(name).chips >= 1 for name in names())
    with pytest.raises(PadirError, match="num_slices: 0"):
        named("v3-8", 0)
