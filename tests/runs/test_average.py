"""Averages of checkpoints against numpy, the moving average by hand, and that they open as runs."""

import shutil

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import padir
from padir.errors import PadirError
from padir.models.autoregressive import AutoregressiveModel
from padir.nn.network import NetworkConfig
from padir.runs.average import average
from padir.runs.checkpoints import Checkpointer
from padir.runs.convert import open_model
from padir.runs.directory import load_model
from padir.runs.train_state import TrainState, create_train_state
from padir.runtime.sharding import make_mesh, place_batch
from padir.training.step import make_train_step
from padir.types import TokenIds

pytestmark = pytest.mark.usefixtures("compilation_cache")

STEPS = (10, 20, 30)
# Of the steps: the lowest are those of 10 and 30. Step 40 has no checkpoint.
VALIDATION = {10: 2.0, 20: 3.0, 30: 2.5, 40: 1.0}


@pytest.fixture(scope="module")
def run(tiny, tmp_path_factory):
    """A run with checkpoints of random parameters at three steps, the last with a moving average (that of seed 99)."""
    folder = tmp_path_factory.mktemp("run") / "run"
    shutil.copytree(tiny.ar, folder, ignore=shutil.ignore_patterns("checkpoints", "metrics"))
    model, _ = load_model(folder)
    with Checkpointer(folder) as checkpointer:
        for step in STEPS:
            ema = model.init(99) if step == 30 else None
            checkpointer.save(TrainState(jnp.int32(step), model.init(step), {}, ema))
    (folder / "metrics").mkdir()
    lines = [f'{{"step": {step}, "validation/loss": {value}}}\n' for step, value in VALIDATION.items()]
    (folder / "metrics" / "metrics.jsonl").write_text("".join(lines))
    return folder


def test_a_loss_that_was_not_finite_is_none_of_the_best(run, tmp_path):
    """It is written as null."""
    shutil.copytree(run, tmp_path / "run")
    metrics = tmp_path / "run" / "metrics" / "metrics.jsonl"
    metrics.write_text(metrics.read_text().replace('"validation/loss": 2.0', '"validation/loss": null'))
    average(run_dir=str(tmp_path / "run"), output_dir=str(tmp_path / "best"), best=1)
    assert opened(tmp_path / "best")[0] == 30


def opened(path):
    found = open_model(path, make_mesh())
    return found.step, jax.device_get(found.params)


@pytest.mark.parametrize(
    ("choice", "steps"),
    [({"last": 2}, (20, 30)), ({"last": 3}, STEPS), ({"best": 2}, (10, 30)), ({"best": 1}, (10,))],
    ids=str,
)
def test_the_mean_is_numpys(run, tmp_path, choice, steps):
    average(run_dir=str(run), output_dir=str(tmp_path / "mean"), **choice)
    step, params = opened(tmp_path / "mean")
    assert step == max(steps)
    drawn = [load_model(run)[0].init(seed) for seed in steps]
    expected = jax.tree.map(lambda *leaves: np.mean(np.stack(leaves), axis=0, dtype=np.float64), *drawn)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b.astype(np.float32)), params, expected)


def test_the_moving_average_becomes_a_run_that_translates(run, tmp_path, capsys):
    average(run_dir=str(run), output_dir=str(tmp_path / "ema"), ema=True)
    assert f"the moving average at step 30 of {run}" in capsys.readouterr().err
    step, params = opened(tmp_path / "ema")
    assert step == 30
    jax.tree.map(np.testing.assert_array_equal, params, load_model(run)[0].init(99))
    assert padir.load(tmp_path / "ema").step == 30


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "give exactly one of --last=N, --best=N and --ema"),
        ({"last": 1, "ema": True}, "give exactly one of"),
        ({"last": 4}, r"has checkpoints of step 10, 20, 30; --last=4 must be from 1 to 3"),
        ({"last": 0}, "--last=0 must be from 1 to 3"),
        ({"best": 2, "metric": "bleu"}, r"has no checkpoints with a finite bleu$"),
    ],
)
def test_what_cannot_be_averaged(run, tmp_path, options, message):
    with pytest.raises(PadirError, match=message):
        average(run_dir=str(run), output_dir=str(tmp_path / "no"), **options)
    assert not (tmp_path / "no").exists()


def test_a_run_is_not_overwritten_and_one_without_an_average_says_so(run, tiny, tmp_path):
    with pytest.raises(PadirError, match="holds a run; choose another output_dir"):
        average(run_dir=str(run), output_dir=str(run), last=1)
    with pytest.raises(PadirError, match="has no moving average; train with OptimizerConfig.ema_decay"):
        average(run_dir=str(tiny.ar), output_dir=str(tmp_path / "no"), ema=True)


NETWORK = NetworkConfig(
    embed_dim=8,
    num_heads=2,
    head_dim=4,
    mlp_dim=8,
    num_encoder_layers=1,
    num_decoder_layers=1,
    causal=True,
    positional_attention=False,
    dropout_rate=0.0,
)
MODEL = AutoregressiveModel(TokenIds(20), NETWORK, 8, 8)


def test_the_moving_average_by_hand(tmp_path):
    """Three steps: 0.75 of the average and 0.25 of the parameters; kept in a checkpoint, begun where there is none."""
    mesh, optimizer = make_mesh(jax.devices()[:1]), optax.sgd(0.5)
    step = make_train_step(MODEL, optimizer, optax.constant_schedule(0.5), 3, mesh, ema_decay=0.75)
    tokens = np.tile(np.array([[5, 6, 7, 1, 0, 0, 0, 0]], np.int32), (2, 1))
    batch = place_batch({"encoder_input_tokens": tokens, "decoder_target_tokens": tokens}, mesh)
    state = create_train_state(MODEL, optimizer, 3, mesh, ema=True)
    expected = jax.device_get(state.params)
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(state.ema), expected)
    for _ in range(3):
        state, _ = step(state, batch)
        params = jax.device_get(state.params)
        expected = jax.tree.map(lambda old, new: 0.75 * old + 0.25 * new, expected, params)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), jax.device_get(state.ema), expected)
    moved = jax.tree.map(lambda a, b: float(np.abs(a - b).max()), params, expected)
    assert max(jax.tree.leaves(moved)) > 0.01

    with Checkpointer(tmp_path / "with") as checkpointer:
        checkpointer.save(state)
    with Checkpointer(tmp_path / "with", read_only=True) as checkpointer:
        restored = checkpointer.restore(state)
        jax.tree.map(np.testing.assert_array_equal, restored.ema, state.ema)
        assert checkpointer.restore(state.replace(ema=None)).ema is None
    with Checkpointer(tmp_path / "without") as checkpointer:
        checkpointer.save(state.replace(ema=None))
    with Checkpointer(tmp_path / "without", read_only=True) as checkpointer:
        begun = checkpointer.restore(state)
    jax.tree.map(np.testing.assert_array_equal, begun.ema, state.params)
