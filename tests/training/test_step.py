"""One update: loss falls, state is donated, eight devices agree with one, evaluation has no chance in it."""

import dataclasses
import functools
import re

import jax
import numpy as np
import optax
import pytest
from numerics import assert_close

from padir.models.autoregressive import AutoregressiveModel
from padir.models.padir import PadirModel
from padir.nn.network import NetworkConfig
from padir.runs.train_state import TrainState, create_train_state
from padir.runtime import platforms
from padir.runtime.sharding import make_mesh, place_batch
from padir.training import step as train_step
from padir.training.optimizers import OptimizerConfig
from padir.training.step import _skipping, make_eval_step, make_train_step, model_features
from padir.types import EOS_ID, TokenIds

SIZES = {"embed_dim": 16, "num_heads": 2, "head_dim": 8, "mlp_dim": 32, "num_encoder_layers": 1}
# Chance comes from corruption in one model and from dropout in the other; both in one would only compile longer.
PADIR = PadirModel(TokenIds(20), NetworkConfig(num_decoder_layers=1, max_positions=8, dropout_rate=0.0, **SIZES), 8, 8)
AR = AutoregressiveModel(
    TokenIds(20), NetworkConfig(num_decoder_layers=1, causal=True, positional_attention=False, **SIZES), 8, 8
)
OPTIMIZER = OptimizerConfig(peak_learning_rate=0.05, warmup_steps=2)
NUM_STEPS = 40


def copies(rows=8, seed=0):
    """A batch whose target is its source: 2 to 7 tokens and EOS, padded to 8."""
    generator = np.random.default_rng(seed)
    tokens = np.zeros((rows, 8), np.int32)
    for row in tokens:
        length = generator.integers(2, 8)
        row[:length] = generator.integers(3, 20, length)
        row[length] = EOS_ID
    return {"encoder_input_tokens": tokens, "decoder_target_tokens": tokens.copy()}


@functools.cache
def compiled(model, num_devices):
    """The mesh, the step and a maker of initial states; compiled once for all tests."""
    mesh = make_mesh(jax.devices()[:num_devices])
    # Plain gradient descent in one of them shows the gradient itself.
    optimizer = OPTIMIZER.build(NUM_STEPS) if model == PADIR else optax.sgd(0.1)
    step = make_train_step(model, optimizer, OPTIMIZER.schedule(NUM_STEPS), 3, mesh)
    return mesh, step, lambda: create_train_state(model, optimizer, 3, mesh)


def run(model, num_devices, batches):
    """Trains on the batches; returns the final state and the metrics of every step."""
    mesh, step, new_state = compiled(model, num_devices)
    state, history = new_state(), []
    for batch in batches:
        state, metrics = step(state, place_batch(batch, mesh))
        history.append(jax.device_get(metrics))
    return state, history


pytestmark = pytest.mark.usefixtures("compilation_cache")


@pytest.fixture(scope="module")
def padir_run(compilation_cache):
    return run(PADIR, 1, [copies(16)] * NUM_STEPS)


def test_the_loss_of_one_batch_falls(padir_run):
    _, history = padir_run
    losses = [metrics["loss"] for metrics in history]
    # 17 pieces and EOS are in use: knowing no more than that costs log 18 = 2.9 nats a token.
    assert losses[0] > 4.0
    assert losses[-1] < 0.65 * losses[0]
    assert history[-1]["loss/stage_2"] < np.log(18)


def test_the_step_is_counted_and_the_learning_rate_follows_it(padir_run):
    state, history = padir_run
    assert int(state.step) == NUM_STEPS
    schedule = OPTIMIZER.schedule(NUM_STEPS)
    expected = [float(schedule(step)) for step in range(NUM_STEPS)]
    np.testing.assert_allclose([metrics["learning_rate"] for metrics in history], expected, rtol=1e-4)


def test_metrics_of_a_padir_model(padir_run):
    _, history = padir_run
    assert set(history[0]) == {
        "loss",
        "loss/length",
        "loss/stage_1",
        "loss/stage_2",
        "token_accuracy/stage_1",
        "token_accuracy/stage_2",
        "length_accuracy",
        "gradient_norm",
        "learning_rate",
        "tokens",
    }
    first = history[0]
    mean = (first["loss/stage_1"] + first["loss/stage_2"]) / 2
    assert first["loss"] == pytest.approx(mean + first["loss/length"], rel=1e-6)
    assert first["tokens"] == 2 * (copies(16)["encoder_input_tokens"] != 0).sum()
    assert all(0 <= first[name] <= 1 for name in first if "accuracy" in name)


def test_metrics_of_an_autoregressive_model_and_the_gradient_norm_by_hand():
    before = jax.device_get(compiled(AR, 1)[2]().params)
    after, (metrics,) = run(AR, 1, [copies(16)])
    names = {"loss", "loss/stage_1", "token_accuracy/stage_1", "gradient_norm", "learning_rate", "tokens"}
    assert set(metrics) == names
    assert metrics["loss"] == metrics["loss/stage_1"]
    # Gradient descent moved every parameter by 0.1 times its gradient.
    moved = jax.tree.map(lambda a, b: ((b - a) / 0.1) ** 2, before, jax.device_get(after.params))
    assert metrics["gradient_norm"] == pytest.approx(
        np.sqrt(sum(leaf.sum() for leaf in jax.tree.leaves(moved))), rel=1e-4
    )


def test_the_state_is_donated():
    mesh, step, new_state = compiled(PADIR, 1)
    state = new_state()
    after, _ = step(state, place_batch(copies(16), mesh))
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state.params))
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(after))


@pytest.mark.first(1)
@pytest.mark.parametrize("model", [PADIR, AR], ids=["padir", "ar"])
def test_eight_devices_take_the_same_steps_as_one(model):
    """Dropout and corruption included: every row draws the same noise wherever it lives."""
    assert jax.device_count() == 8
    batches = [copies(16, seed) for seed in range(4)]
    one, one_history = run(model, 1, batches)
    eight, eight_history = run(model, 8, batches)
    for alone, together in zip(one_history, eight_history, strict=True):
        for name in alone:
            assert together[name] == pytest.approx(alone[name], rel=1e-5), name
    assert_close(jax.device_get(eight.params), jax.device_get(one.params), 1e-5)


def test_evaluation_is_free_of_chance_and_counts_rows():
    mesh = make_mesh()
    step = make_eval_step(PADIR, mesh)
    params = PADIR.init(0)
    batch = copies(16)
    padded = {name: np.where(np.arange(16)[:, None] < 11, array, 0) for name, array in batch.items()}
    first, second = (jax.device_get(step(params, place_batch(padded, mesh))) for _ in range(2))
    assert first == second
    assert first["rows"] == 11
    # No dropout: the rate makes no difference.
    dropped = dataclasses.replace(PADIR, network=dataclasses.replace(PADIR.network, dropout_rate=0.9))
    third = jax.device_get(make_eval_step(dropped, mesh)(params, place_batch(padded, mesh)))
    assert {name: pytest.approx(value, rel=1e-6) for name, value in first.items()} == third


def test_empty_rows_change_no_metric_of_an_autoregressive_model():
    mesh = make_mesh(jax.devices()[:1])
    step = make_eval_step(AR, mesh)
    params = AR.init(0)
    alone = jax.device_get(step(params, copies(8)))
    padded = jax.device_get(step(params, {name: np.pad(a, ((0, 8), (0, 0))) for name, a in copies(8).items()}))
    assert padded.pop("rows") == alone.pop("rows") == 8
    assert {name: pytest.approx(value, rel=1e-5) for name, value in alone.items()} == padded


def test_reports_indices_stay_on_the_host():
    batch = copies() | {"example_index": np.arange(8)}
    assert set(model_features(batch)) == {"encoder_input_tokens", "decoder_target_tokens"}


def test_an_option_that_xla_has_no_more_is_left_out(monkeypatch):
    monkeypatch.setattr(train_step, "_ON_CPU", {"xla_cpu_of_another_version": True, "xla_cpu_prefer_vector_width": 512})
    options = train_step._compiler_options.__wrapped__
    assert options("cpu") == {"xla_cpu_prefer_vector_width": 512}
    assert options("tpu") is None
    monkeypatch.setattr(train_step, "_ON_CPU", {"xla_cpu_prefer_vector_width": "wide"})
    with pytest.raises(jax.errors.JaxRuntimeError, match="wide"):
        options("cpu")


def test_an_update_that_is_not_finite_changes_nothing_but_the_counts():
    def step(state, batch):
        new = TrainState(state.step + 1, {"w": state.params["w"] + batch}, {"count": state.opt_state["count"] + 1})
        return new, {"loss": batch, "gradient_norm": 2.0 * batch}

    careful = jax.jit(_skipping(step))
    state = TrainState(np.int32(3), {"w": np.array([1.0, 2.0], np.float32)}, {"count": np.int32(7)})
    for batch, skipped in ((0.5, 0.0), (np.nan, 1.0), (np.inf, 1.0), (2.5, 0.0)):
        state, metrics = careful(state, np.float32(batch))
        assert metrics["skipped"] == skipped
    np.testing.assert_array_equal(state.params["w"], [4.0, 5.0])
    assert (int(state.step), int(state.opt_state["count"])) == (7, 11)


@pytest.mark.first(1)
@pytest.mark.parametrize("model", [PADIR, AR], ids=["padir", "ar"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_an_update_as_a_tpu_does_it(model, accumulate, monkeypatch):
    """Heads as axes, one reduction for softmax, a table of tokens for each device: the same numbers."""
    mesh, _, _ = compiled(model, 8)
    optimizer = optax.sgd(0.1)

    def update():
        step = make_train_step(model, optimizer, OPTIMIZER.schedule(NUM_STEPS), 3, mesh, accumulate)
        return step(create_train_state(model, optimizer, 3, mesh), place_batch(copies(16), mesh))

    expected, expected_metrics = update()
    monkeypatch.setitem(platforms.OF_PLATFORM, "cpu", platforms.OF_PLATFORM["tpu"])
    found, metrics = update()
    assert_close(metrics["loss"], expected_metrics["loss"], 1e-5)
    assert_close(found.params, expected.params, 1e-5)


@pytest.mark.parametrize("accumulate", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_layers_in_a_loop_are_trained_alike(accumulate):
    """On eight devices; the second layer makes it a loop."""
    model = dataclasses.replace(AR, network=dataclasses.replace(AR.network, num_encoder_layers=2, num_decoder_layers=2))
    mesh, optimizer = make_mesh(), OPTIMIZER.build(NUM_STEPS)

    def update(**options):
        step = make_train_step(model, optimizer, OPTIMIZER.schedule(NUM_STEPS), 3, mesh, accumulate, **options)
        return step(create_train_state(model, optimizer, 3, mesh), place_batch(copies(16), mesh))

    expected, expected_metrics = update()
    found, metrics = update(scan_layers=True, remat="layer")
    assert_close(metrics["loss"], expected_metrics["loss"], 1e-6)
    assert_close(found.params, expected.params, 1e-5)


# The last of the file: what is compiled after it would be optimised, too.
@pytest.mark.first(1)
@pytest.mark.usefixtures("optimised")
@pytest.mark.parametrize("options", [{"ema_decay": 0.9}, {"accumulate": 2}, {}, {"skip_non_finite": True}], ids=str)
def test_nothing_of_the_state_is_copied(options):
    """But it is where XLA is not asked to look closer."""
    if jax.default_backend() != "cpu":
        pytest.skip("an option of XLA on CPU")
    mesh, optimizer = make_mesh(jax.devices()[:1]), OPTIMIZER.build(NUM_STEPS)
    ema = "ema_decay" in options

    def copied():
        step = make_train_step(PADIR, optimizer, OPTIMIZER.schedule(NUM_STEPS), 3, mesh, **options)
        state = create_train_state(PADIR, optimizer, 3, mesh, ema=ema)
        program = step.lower(state, place_batch(copies(16), mesh)).compile().as_text()
        return len(re.findall(r"copy\(%?state_", program))

    assert copied() == 0
    if not options:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(train_step, "_compiler_options", lambda platform: None)
            assert copied() > 0
