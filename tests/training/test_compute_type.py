"""`train.compute_type`: updates with rounded products, and what a run records of it."""

import dataclasses
import json

import jax
import numpy as np
import optax
import pytest
from numerics import assert_close
from tiny_models import AR, PADIR, batch

from padir.errors import PadirError
from padir.runs.train_state import create_train_state
from padir.runtime.sharding import make_mesh, place_batch
from padir.training import train as training
from padir.training.step import make_train_step
from padir.training.train import Cadence

FEATURES = batch(16, 7, 7)


def updated(model=PADIR, devices=1, **options):
    """Parameters and metrics after one update by plain gradient descent, which shows the gradient itself."""
    mesh, optimizer = make_mesh(jax.devices()[:devices]), optax.sgd(0.1)
    step = make_train_step(model, optimizer, optax.constant_schedule(0.1), 3, mesh, **options)
    state, metrics = step(create_train_state(model, optimizer, 3, mesh), place_batch(FEATURES, mesh))
    return jax.device_get((state.params, metrics))


@pytest.fixture(scope="module")
def rounded():
    return updated(compute_type="bfloat16")


def test_an_update_is_nearly_that_of_float32(rounded):
    params, metrics = rounded
    expected, expected_metrics = updated()
    assert all(leaf.dtype == np.float32 for leaf in jax.tree.leaves(params))
    assert metrics["loss"] != expected_metrics["loss"]
    for name in ("loss", "loss/stage_1", "loss/length", "gradient_norm"):
        assert metrics[name] == pytest.approx(expected_metrics[name], rel=0.01), name
    assert metrics["tokens"] == expected_metrics["tokens"]
    assert_close(params, expected, 0.01)


@pytest.mark.usefixtures("optimised")
@pytest.mark.parametrize(
    "options",
    [{"devices": 8}, {"devices": 8, "accumulate": 2}, {"remat": "dots"}, {"scan_layers": True, "remat": "layer"}],
    ids=str,
)
def test_with_other_options_it_is_the_same_up_to_rounding(options):
    """As XLA compiles for users, which chooses other products; without dropout, which micro-batches draw anew."""
    model = dataclasses.replace(PADIR, network=dataclasses.replace(PADIR.network, dropout_rate=0.0))
    params, metrics = updated(model, compute_type="bfloat16")
    found, found_metrics = updated(model, compute_type="bfloat16", **options)
    assert found_metrics["loss"] == pytest.approx(metrics["loss"], rel=2e-3)
    assert_close(found, params, 2e-3)


def test_frozen_parts_and_updates_left_out(rounded):
    frozen = dataclasses.replace(AR, freeze=("encoder",))
    params, _ = updated(frozen, compute_type="bfloat16", skip_non_finite=True)
    before = jax.device_get(frozen.init(3))["network"]
    np.testing.assert_array_equal(
        params["network"]["token_embedder"]["embedding"], before["token_embedder"]["embedding"]
    )
    assert np.abs(params["network"]["decoder"]["decoder_norm"]["scale"] - 1.0).max() > 0
    careful, metrics = updated(compute_type="bfloat16", skip_non_finite=True)
    assert metrics["skipped"] == 0
    assert_close(careful, rounded[0], 1e-6)


def test_what_cannot_be_trained_in(tiny, tmp_path):
    with pytest.raises(
        PadirError, match="train.compute_type: 'int8' is only for decoding; choose bfloat16, auto or No"
    ):
        tiny.train(tmp_path / "run", compute_type="int8")
    with pytest.raises(PadirError, match="train.compute_type: 'float16' is unknown"):
        updated(compute_type="float16")
    assert not (tmp_path / "run").exists()


def record_of(run_dir):
    return json.loads((run_dir / "train.json").read_text())


def test_auto_is_resolved_once(tiny, tmp_path, monkeypatch, capfd):
    """A run goes on in the type that it was begun in, whatever 'auto' would stand for where it is resumed."""

    def stands_for(kind):
        monkeypatch.setattr(training, "resolved_for_training", lambda option, given: kind if given == "auto" else given)

    run, whole = tmp_path / "run", tmp_path / "whole"
    options = {"cadence": Cadence(log=4, evaluate=0, checkpoint=4), "kind": "ar"}
    stands_for("bfloat16")
    tiny.train(run, num_steps=12, compute_type="auto", **options)
    assert record_of(run) == {"settings": record_of(run)["settings"], "changes": []}
    assert record_of(run)["settings"]["compute_type"] == "bfloat16"

    # As on a machine that does not round, after the last checkpoint was lost.
    stands_for(None)
    for step in ("8", "12"):
        (run / "checkpoints" / step).rename(tmp_path / step)
    capfd.readouterr()
    resumed = tiny.train(run, num_steps=12, compute_type="auto", **options)
    assert "resuming at step 4 of 12" in (said := capfd.readouterr().err) and "changed" not in said
    expected = tiny.train(whole, num_steps=12, compute_type="bfloat16", **options)
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(resumed.params), jax.device_get(expected.params))


def test_another_type_by_name_is_recorded(tiny, tmp_path, capfd):
    options = {"cadence": Cadence(log=4, evaluate=0, checkpoint=4), "kind": "ar"}
    tiny.train(tmp_path, num_steps=8, **options)
    assert record_of(tmp_path)["settings"]["compute_type"] is None
    # A run of an older version did not record it.
    record = record_of(tmp_path)
    del record["settings"]["compute_type"]
    (tmp_path / "train.json").write_text(json.dumps(record))
    tiny.train(tmp_path, num_steps=12, compute_type="bfloat16", **options)
    said = capfd.readouterr().err
    assert "compute_type: None there, 'bfloat16' now" in said and "products are rounded differently from now on" in said
    (change,) = record_of(tmp_path)["changes"]
    assert change["step"] == 8 and change["was"]["compute_type"] is None
    assert record_of(tmp_path)["settings"]["compute_type"] == "bfloat16"
