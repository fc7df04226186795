"""Layers in a loop against layers one after the other."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
import tiny_models
from numerics import assert_close

from padir import rng
from padir.models.padir import PadirModel
from padir.nn.network import NetworkConfig
from padir.nn.stack import scanning_layers
from padir.runtime.remat import CHOICES, rematerialising

SIZES = tiny_models.SIZES | {"num_encoder_layers": 3, "num_decoder_layers": 2}
PADIR = dataclasses.replace(tiny_models.PADIR, network=NetworkConfig(**SIZES, max_positions=24))
AR = dataclasses.replace(
    tiny_models.AR, network=NetworkConfig(**SIZES, max_positions=24, causal=True, positional_attention=False)
)
BATCH = {"encoder_input_tokens": tiny_models.rows(3, 7), "decoder_target_tokens": tiny_models.rows(3, 9, seed=1)}


def loss_and_gradients(model, scanned, remat):
    params = tiny_models.sharpen(model.init(3))

    def loss(params):
        with scanning_layers(scanned), rematerialising(remat):
            return model.loss_and_metrics(params, BATCH, rng.stream(5, "test"), True)[0]

    traced = jax.jit(jax.value_and_grad(loss)).trace(params)
    return traced.lower().compile()(params), str(traced.jaxpr).count(" scan[")


@pytest.mark.first(2)
@pytest.mark.parametrize("remat", CHOICES[::-1])
@pytest.mark.parametrize("model", [PADIR, AR], ids=["padir", "ar"])
def test_a_loop_changes_no_number(model, remat):
    """Neither loss nor gradients but by rounding, with the same dropout."""
    (expected, gradients), loops = loss_and_gradients(model, False, remat)
    (found, found_gradients), more = loss_and_gradients(model, True, remat)
    assert loops == 0 and more > 0
    assert model.network.dropout_rate > 0
    assert_close(found, expected, 1e-6)
    assert_close(found_gradients, gradients, 1e-5)


def test_outputs_of_each_layer():
    model = PADIR
    module, tokens = model.module(model.init(3)), jnp.asarray(BATCH["decoder_target_tokens"])
    source = jnp.asarray(BATCH["encoder_input_tokens"])

    def output(scanned):
        with scanning_layers(scanned):
            network = module.network
            return network.decode(tokens, network.plan(network.encode(source), source, tokens))

    expected, found = output(False), output(True)
    assert isinstance(model, PadirModel) and found.self_attentions.shape == expected.self_attentions.shape
    assert_close(found, expected, 1e-5)
