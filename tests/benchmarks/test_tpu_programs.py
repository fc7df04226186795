"""Estimates of standard programs: a change must not raise them without saying so, by committing new ones."""

import json

import jax
import pytest

from padir.compilation import deviceless

RESULT = "tpu_programs.json"

pytestmark = pytest.mark.skipif(not deviceless.is_installed(), reason="libtpu, the compiler for TPUs, is not installed")


@pytest.fixture(scope="module")
def script(load_script):
    return load_script("tpu_programs")


@pytest.mark.first(1)
@pytest.mark.parametrize("name", ["PaDIR 4 x 1", "AR greedy"])
def test_estimates_are_no_higher_than_the_committed_ones(name, script):
    committed = json.loads((script.RESULTS / RESULT).read_text(encoding="utf-8"))
    if committed["facts"]["versions"]["libtpu"] != deviceless.libtpu_version():
        pytest.skip("the committed estimates are of another version of libtpu")
    jax.config.update("jax_disable_most_optimizations", False)
    try:
        found = script.decoding("v5e-1", name)
    finally:
        jax.config.update("jax_disable_most_optimizations", True)
    before = committed["programs"][f"{name}, batch 1, v5e-1"]["estimated_cycles"]
    assert found["fits"] and found["host_transfers"] == 0
    assert found["estimated_cycles"] <= 1.02 * before
