"""What `padir checkpoint` says is so, and changes with every bit."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from padir.errors import PadirError
from padir.runs.checkpoints import Checkpointer
from padir.runs.describe import describe_checkpoint, params_sha256


def test_a_run(tiny, capsys):
    found = describe_checkpoint(path=str(tiny.padir))
    assert json.loads(capsys.readouterr().out) == found
    assert (found["step"], found["model"]) == (120, "PadirModel")
    earlier = describe_checkpoint(path=str(tiny.padir), step=60)
    assert earlier["step"] == 60 and earlier["params_sha256"] != found["params_sha256"]
    assert earlier["config_sha256"] == found["config_sha256"]
    other = describe_checkpoint(path=str(tiny.ar))
    assert other["config_sha256"] != found["config_sha256"]
    with Checkpointer(tiny.ar, read_only=True) as checkpointer:
        assert other["step"] == checkpointer.latest_step()
    with pytest.raises(PadirError, match="no checkpoint of step 7"):
        describe_checkpoint(path=str(tiny.padir), step=7)


def test_the_hash_sees_bits_names_and_shapes():
    params = {"a": jnp.arange(6.0).reshape(2, 3), "b": jnp.zeros(2)}
    digest = params_sha256(params)
    assert digest == params_sha256(jax.tree.map(np.asarray, params)), "wherever they lie"
    changed = np.array(params["a"])
    changed[1, 2] = np.nextafter(changed[1, 2], 9, dtype=np.float32)
    others = [{**params, "a": changed}, {"a": params["a"], "c": params["b"]}, {**params, "a": params["a"].T}]
    others.append({**params, "b": jnp.zeros(2, jnp.int32)})
    assert len({digest, *map(params_sha256, others)}) == 5
