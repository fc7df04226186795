"""Frozen parts: not a bit of them changes, and nothing is spent on them."""

import dataclasses

import jax
import numpy as np
import pytest

from padir.models.padir import PadirModel
from padir.nn.network import NetworkConfig
from padir.runs.checkpoints import Checkpointer
from padir.runs.train_state import create_train_state
from padir.runtime.sharding import make_mesh, place_batch
from padir.training.optimizers import OptimizerConfig
from padir.training.step import make_train_step
from padir.types import EOS_ID, TokenIds

NETWORK = NetworkConfig(
    embed_dim=16, num_heads=2, head_dim=8, mlp_dim=32, num_encoder_layers=1, num_decoder_layers=1, max_positions=8
)
WHOLE = PadirModel(TokenIds(20), NETWORK, 8, 8, num_stages=1, rejecter=True)
MODEL = dataclasses.replace(WHOLE, freeze=("encoder", "length_predictor"))
OPTIMIZER = OptimizerConfig(peak_learning_rate=0.05, warmup_steps=2).build(10)


def batch():
    tokens = np.random.default_rng(0).integers(3, 20, (4, 8)).astype(np.int32)
    tokens[:, -1] = EOS_ID
    return {"encoder_input_tokens": tokens, "decoder_target_tokens": tokens}


def train_step(model, mesh, ema_decay=None):
    return make_train_step(model, OPTIMIZER, lambda step: 0.0, 3, mesh, ema_decay=ema_decay)


@pytest.fixture(scope="module")
def states():
    """Before and after three steps of Adafactor, its update clipping included, and the last metrics."""
    mesh = make_mesh(jax.devices()[:1])
    step, state = train_step(MODEL, mesh, 0.9), create_train_state(MODEL, OPTIMIZER, 3, mesh, ema=True)
    # A zero must keep even its sign.
    for params in (state.params, state.ema):
        embedder = params["network"]["token_embedder"]
        embedder["embedding"] = embedder["embedding"].at[5, 0].set(-0.0).at[5, 1].set(0.0)
    before = jax.device_get(state)
    for _ in range(3):
        state, metrics = step(state, place_batch(batch(), mesh))
    return before, jax.device_get(state), jax.device_get(metrics)


@pytest.mark.parametrize("which", ["params", "ema"])
def test_frozen_parameters_keep_every_bit_and_all_others_move(states, which):
    (moved_from, held), (moved_to, still) = (MODEL.split_frozen(getattr(state, which)) for state in states[:2])
    assert set(held) == {"network", "length_predictor"}
    assert set(held["network"]) == {"encoder", "token_embedder"}
    assert np.signbit(held["network"]["token_embedder"]["embedding"][5, :2]).tolist() == [True, False]
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a.view(np.int32), b.view(np.int32)), held, still)
    for old, new in zip(*map(jax.tree.leaves, (moved_from, moved_to)), strict=True):
        assert (old != new).any()


def test_the_optimizer_remembers_nothing_of_them(states):
    moments = states[0].opt_state[0].v
    assert set(moments) == {"network", "rejecter"} and set(moments["network"]) == {"decoder"}
    everything = jax.eval_shape(lambda: create_train_state(WHOLE, OPTIMIZER, 3, make_mesh()))
    assert {"encoder", "token_embedder"} <= set(everything.opt_state[0].v["network"])


def test_no_gradient_of_them_is_computed():
    """Counted in matrix products: a backward pass has two for each of the forward pass.

    In attention three, for one of each two is written in two ways, of which a platform takes one.
    """
    mesh = make_mesh(jax.devices()[:1])

    def products(model):
        state = jax.eval_shape(lambda: create_train_state(model, OPTIMIZER, 3, mesh))
        return str(train_step(model, mesh).trace(state, batch()).jaxpr).count("dot_general[")

    # The encoder's one layer multiplies by 6 matrices and twice in its attention.
    assert products(WHOLE) - products(MODEL) >= 6 * 2 + 2 * 3


def test_a_checkpoint_of_a_partly_frozen_run_is_restored_whole(states, tmp_path):
    _, after, _ = states
    mesh = make_mesh(jax.devices()[:1])
    fresh = create_train_state(MODEL, OPTIMIZER, 4, mesh, ema=True)
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(jax.device_put(after, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())))
    with Checkpointer(tmp_path) as checkpointer:
        restored = jax.device_get(checkpointer.restore(fresh))
    jax.tree.map(np.testing.assert_array_equal, restored, after)
