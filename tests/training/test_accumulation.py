"""An update computed in micro-batches is the update of the whole batch."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from numerics import assert_close

from padir import rng
from padir.errors import PadirError
from padir.models.autoregressive import AutoregressiveModel
from padir.models.base import LossConfig
from padir.models.padir import PadirModel
from padir.nn.network import NetworkConfig
from padir.objectives.corruption import CorruptionConfig
from padir.runs.train_state import create_train_state
from padir.runtime.sharding import make_mesh, place_batch
from padir.training.step import make_train_step
from padir.types import EOS_ID, TokenIds

SIZES = {"embed_dim": 16, "num_heads": 2, "head_dim": 8, "mlp_dim": 32, "num_encoder_layers": 1}
STILL = NetworkConfig(num_decoder_layers=1, max_positions=8, dropout_rate=0.0, **SIZES)
# Every kind of mean at once: first-stage weights drawn with the noise, target tokens, rows.
PADIR = PadirModel(
    TokenIds(20),
    STILL,
    8,
    8,
    corruption=CorruptionConfig(0.3, random_probability=0.3, min_noise_density=0.1, loss_weighting="mask"),
    loss=LossConfig(label_smoothing=0.1, z_loss=1e-3, length_loss_weight=0.3, rejecter_loss_weight=0.7),
    rejecter=True,
)
CAUSAL = dataclasses.replace(STILL, causal=True, positional_attention=False)
AR = AutoregressiveModel(TokenIds(20), CAUSAL, 8, 8)
DISCO = PadirModel(TokenIds(20), dataclasses.replace(STILL, disentangled_context=True), 8, 8, num_stages=1)
SEED = 3


def uneven(rows, count):
    """Every `count`-th row is long and the others have two tokens, but one is empty: uneven micro-batches."""
    generator = np.random.default_rng(0)
    lengths = np.where(np.arange(rows) % count == 0, generator.integers(4, 8, rows), 1)
    tokens = generator.integers(3, 20, (rows, 8)).astype(np.int32)
    tokens[np.arange(rows), lengths] = EOS_ID
    tokens[np.arange(8) > lengths[:, None]] = 0
    tokens[5] = 0
    return {"encoder_input_tokens": tokens, "decoder_target_tokens": tokens.copy()}


def one_step(model, num_devices, batch, accumulate):
    """One step of gradient descent of length 1: parameters before, the gradient, and the metrics.

    The optimizer keeps the gradient: the difference of parameters would be rounded to their own last bits.
    """
    mesh, optimizer = make_mesh(jax.devices()[:num_devices]), optax.sgd(1.0, momentum=0.0)
    step = make_train_step(model, optimizer, optax.constant_schedule(1.0), SEED, mesh, accumulate)
    state = create_train_state(model, optimizer, SEED, mesh)
    before = jax.device_get(state.params)
    after, metrics = step(state, place_batch(batch, mesh))
    (kept,) = [state.trace for state in after.opt_state if isinstance(state, optax.TraceState)]
    return before, jax.device_get(kept), jax.device_get(metrics)


@pytest.mark.parametrize(
    ("model", "num_devices", "accumulate"),
    [(PADIR, 4, 4), (AR, 1, 4), (DISCO, 4, 2)],
    ids=["padir, 4 devices", "ar", "disco, 4 devices"],
)
def test_gradient_and_metrics_are_those_of_the_whole_batch(model, num_devices, accumulate):
    batch = uneven(16, accumulate)
    _, whole, metrics = one_step(model, num_devices, batch, 1)
    _, parts, part_metrics = one_step(model, num_devices, batch, accumulate)
    assert set(part_metrics) == set(metrics)
    for name in metrics:
        assert part_metrics[name] == pytest.approx(metrics[name], rel=1e-5, abs=1e-6), name
    assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(whole)) > 0.1
    assert_close(parts, whole, 1e-5)


def test_plain_means_of_micro_batches_would_be_something_else():
    """So the test above can tell."""
    features = PADIR.features({name: jnp.asarray(rows) for name, rows in uneven(16, 2).items()}, jax.random.key(0))
    params = PADIR.init(1)

    @jax.jit
    def loss(part, totals):
        return PADIR.loss_share(params, part, None, False, totals)[0]

    halves = [jax.tree.map(lambda array, half=half: array[half::2], features) for half in (0, 1)]
    whole = float(loss(features, PADIR.totals(features)))
    shares = [float(loss(half, PADIR.totals(features))) for half in halves]
    means = [float(loss(half, PADIR.totals(half))) for half in halves]
    assert sum(shares) == pytest.approx(whole, rel=1e-5)
    assert abs(sum(means) / 2 - whole) > 0.01


def test_each_micro_batch_draws_its_own_dropout():
    """Four times the same row: its loss under four keys."""
    model = dataclasses.replace(AR, network=dataclasses.replace(CAUSAL, dropout_rate=0.5))
    row = {name: array[:1] for name, array in uneven(1 + 5, 1).items()}
    params, _, metrics = one_step(model, 1, {name: np.repeat(array, 4, axis=0) for name, array in row.items()}, 4)
    key = rng.stream(SEED, "train_step", 0)
    loss = jax.jit(lambda index: model.loss_and_metrics(params, row, jax.random.fold_in(key, index), True)[0])
    expected = [float(loss(index)) for index in range(4)]
    assert len(set(expected)) == 4
    assert metrics["loss"] == pytest.approx(np.mean(expected), rel=1e-5)


@pytest.mark.parametrize(
    ("num_devices", "accumulate", "message"),
    [
        (1, 0, r"train\.accumulate: 0 is not at least 1"),
        (1, 3, r"a batch of 16 does not divide into 3 micro-batches over 1 device\(s\); .* a multiple of 3"),
        (8, 4, r"a batch of 16 does not divide into 4 micro-batches over 8 device\(s\); .* a multiple of 32"),
    ],
)
def test_what_does_not_divide_is_refused(num_devices, accumulate, message):
    with pytest.raises(PadirError, match=message):
        one_step(AR, num_devices, uneven(16, 1), accumulate)
