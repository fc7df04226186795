"""A verifier's folder: the same scores after loading, and no other generator (spec, test 19)."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from padir.decoding.verifiers import Probe
from padir.errors import PadirError
from padir.runs.describe import params_sha256
from padir.runs.saved_verifier import RECORD_FILE, WEIGHTS_FILE, load_verifier, save_verifier

GENERATOR = {"network": {"weight": np.arange(6, dtype=np.float32).reshape(2, 3)}}
FEATURES = jax.random.normal(jax.random.key(5), (20, 4))


def probe(*hidden, standardised=True):
    fresh = Probe.fresh((4, *hidden), jax.random.key(1))
    return fresh.replace(mean=jnp.arange(4.0), scale=jnp.arange(1.0, 5.0)) if standardised else fresh


@pytest.mark.parametrize("made", [probe(), probe(7, 3), probe(standardised=False)])
def test_scores_are_the_same_after_loading(tmp_path, made):
    save_verifier(tmp_path / "verifier", made, GENERATOR, {"accuracy": 0.75})
    loaded, layer, threshold = load_verifier(tmp_path / "verifier", GENERATOR)
    assert (layer, threshold) == (None, 0.5)
    np.testing.assert_array_equal(loaded(None, None, FEATURES), made(None, None, FEATURES))
    record = json.loads((tmp_path / "verifier" / RECORD_FILE).read_text())
    assert record["accuracy"] == 0.75 and record["generator_params_sha256"] == params_sha256(GENERATOR)


def test_layer_and_threshold_are_kept(tmp_path):
    save_verifier(tmp_path, probe(), GENERATOR, {}, layer=3, threshold=0.1)
    assert load_verifier(tmp_path, GENERATOR)[1:] == (3, 0.1)
    # Older verifiers know neither.
    record = json.loads((tmp_path / RECORD_FILE).read_text())
    del record["layer"], record["threshold"]
    (tmp_path / RECORD_FILE).write_text(json.dumps(record))
    assert load_verifier(tmp_path, GENERATOR)[1:] == (None, 0.5)
    (tmp_path / RECORD_FILE).write_text(json.dumps(record | {"layer": "last"}))
    with pytest.raises(PadirError, match="damaged.*layer 'last' or threshold 0.5"):
        load_verifier(tmp_path, GENERATOR)


def test_another_generator_is_refused(tmp_path):
    save_verifier(tmp_path, probe(), GENERATOR, {})
    other = {"network": {"weight": GENERATOR["network"]["weight"] + np.float32(1e-6)}}
    with pytest.raises(PadirError, match=f"params_sha256 {params_sha256(GENERATOR)[:12]}.*train one for this model"):
        load_verifier(tmp_path, other)


def test_a_folder_without_verifier_is_named(tmp_path):
    for folder in (tmp_path, tmp_path / "absent"):
        with pytest.raises(PadirError, match=f"{folder}: there is no verifier here; `padir verifier"):
            load_verifier(folder, GENERATOR)


def test_damage_is_named(tmp_path):
    save_verifier(tmp_path, probe(5), GENERATOR, {})
    weights = (tmp_path / WEIGHTS_FILE).read_bytes()
    (tmp_path / WEIGHTS_FILE).write_bytes(weights[:50])
    with pytest.raises(PadirError, match="damaged"):
        load_verifier(tmp_path, GENERATOR)
    (tmp_path / WEIGHTS_FILE).write_bytes(weights.replace(b"bias_1", b"bias_x"))
    with pytest.raises(PadirError, match="has no 'bias_1'"):
        load_verifier(tmp_path, GENERATOR)
    (tmp_path / RECORD_FILE).write_text("{}")
    with pytest.raises(PadirError, match="format_version"):
        load_verifier(tmp_path, GENERATOR)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mean": jnp.zeros(3)}, r"damaged.*mean of shape \[3\] is not \[4\]"),
        # Either would be broadcast, and the probe would say something else.
        ({"scale": jnp.ones(1)}, r"damaged.*scale of shape \[1\] is not \[4\]"),
        ({"layers": ((jnp.zeros((4, 1)), jnp.zeros(())),)}, r"damaged.*bias_0 of shape \[\] is not \[1\]"),
        ({"layers": ((jnp.zeros(4), jnp.zeros(1)),)}, r"damaged.*kernels of shapes \[\(4,\)\] are no probe"),
        ({"layers": ()}, "damaged.*are no probe"),
    ],
)
def test_arrays_that_do_not_fit_each_other_are_named(tmp_path, changes, message):
    save_verifier(tmp_path, probe().replace(**changes), GENERATOR, {})
    with pytest.raises(PadirError, match=message):
        load_verifier(tmp_path, GENERATOR)


def test_saving_again_replaces(tmp_path):
    save_verifier(tmp_path, probe(5, 6), GENERATOR, {})
    save_verifier(tmp_path, probe(), GENERATOR, {})
    assert len(load_verifier(tmp_path, GENERATOR).probe.layers) == 1
