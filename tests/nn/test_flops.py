"""Counts from shapes against XLA's analysis of the same programs."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from padir.models.autoregressive import AutoregressiveModel
from padir.models.padir import PadirModel
from padir.nn import flops, for_decoding
from padir.nn.network import EncoderDecoder, NetworkConfig
from padir.types import TokenIds

SOURCE, TARGET = 24, 40
SHAPE = {"vocab_size": 384, "embed_dim": 64, "num_heads": 4, "head_dim": 16, "mlp_dim": 256}
SHAPE |= {"num_encoder_layers": 2, "num_decoder_layers": 3, "dropout_rate": 0.0}
PARALLEL = NetworkConfig(**SHAPE)
CONFIGS = {
    "parallel": PARALLEL,
    "causal": NetworkConfig(**SHAPE, causal=True, positional_attention=False),
    "gated, untied": NetworkConfig(**SHAPE, mlp_activation="gated-gelu", tied_logits=False),
}


pytestmark = pytest.mark.usefixtures("optimised")


def counted(function, *arguments):
    return jax.jit(function).lower(*arguments).compile().cost_analysis()["flops"]


def assert_close(found, cost):
    """XLA counts element-wise work too: norms, softmax, masks. It must be what is left over, and little."""
    assert cost.flops <= found <= 1.15 * cost.flops


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
class TestAgainstXla:
    def test_encode(self, config):
        network = EncoderDecoder(config, nnx.Rngs(0))
        assert_close(counted(network.encode, jnp.ones((2, SOURCE), int)), flops.encode(config, 2, SOURCE))

    def test_plan(self, config):
        network = EncoderDecoder(config, nnx.Rngs(0))
        encoded, source = jnp.ones((2, SOURCE, 64)), jnp.ones((2, SOURCE), int)
        target = TARGET if config.causal else jnp.ones((1, TARGET), int)
        found = counted(lambda encoded: network.plan(encoded, source, target), encoded)
        assert_close(found, flops.plan(config, 2, SOURCE, TARGET))
        for_decoding.prepare(network)
        found = counted(lambda encoded: network.plan(encoded, source, target), encoded)
        assert_close(found, flops.plan(config, 2, SOURCE, TARGET, prepared=True))

    @pytest.mark.first(2)
    @pytest.mark.parametrize("rows", [1, 3])
    def test_decoder_pass(self, config, rows):
        """All positions at once, or one with a cache."""
        network = EncoderDecoder(config, nnx.Rngs(0))
        source, tokens = jnp.ones((1, SOURCE), int), jnp.ones((rows, TARGET), int)
        plan = network.plan(jnp.ones((1, SOURCE, 64)), source, TARGET if config.causal else tokens)
        cache = network.empty_cache(rows, TARGET) if config.causal else None
        queries = 1 if config.causal else TARGET

        def run(tokens, plan, cache):
            return network.logits(network.decode(tokens, plan, cache).hidden)

        found = counted(run, tokens[:, :queries], plan, cache)
        assert_close(found, flops.decoder_pass(config, rows, queries, TARGET, SOURCE, sources=1))


def test_bytes_by_hand():
    """One layer, float32: each weight once; a cached step also reads keys and values of source and cache."""
    config = NetworkConfig(**SHAPE | {"num_decoder_layers": 1}, causal=True, positional_attention=False)
    weights = 6 * 64 * 64 + 2 * 64 * 256 + 64 * 384
    memory = 2 * 64 * (1 * SOURCE + 5 * TARGET)
    assert flops.decoder_pass(config, 5, 1, TARGET, SOURCE, sources=1).bytes() == 4 * (weights + memory)
    without = flops.decoder_pass(config, 5, 1, TARGET, SOURCE, sources=1, logits=False)
    assert without.bytes() == 4 * (weights - 64 * 384 + memory)
    assert without.bytes(1, 2) == weights - 64 * 384 + 2 * memory


def test_costs_add_up():
    assert flops.Cost(1, 2, 3) + 3 * flops.Cost(10, 20, 30) - flops.Cost(1, 1, 1) == flops.Cost(30, 61, 92)


class TestTrainingStep:
    """An update's forward and backward against XLA's analysis of the gradient of the loss."""

    @pytest.mark.first(2)
    @pytest.mark.parametrize("stages", [0, 2, 1])
    def test_against_xla(self, stages):
        """Of an autoregressive model (0 stages) and a PaDIR model."""
        layers = {"num_encoder_layers": 1, "num_decoder_layers": 1}
        lengths, ids = {"max_source_length": SOURCE, "max_target_length": TARGET}, TokenIds(num_pieces=250)
        if stages:
            model = PadirModel(ids, dataclasses.replace(PARALLEL, **layers), **lengths, num_stages=stages)
        else:
            model = AutoregressiveModel(ids, dataclasses.replace(CONFIGS["causal"], **layers), **lengths)
        tokens = {"encoder_input_tokens": SOURCE, "decoder_target_tokens": TARGET}
        batch = {name: jax.ShapeDtypeStruct((4, length), jnp.int32) for name, length in tokens.items()}

        def gradient(params, batch):
            return jax.grad(lambda p: model.loss_and_metrics(p, batch, jax.random.key(0), True)[0])(params)

        found = counted(gradient, jax.eval_shape(model.init, 0), batch)
        cost = model.training_flops(4, SOURCE, TARGET)
        # What XLA counts besides is element-wise: softmax and its gradient, norms, argmax, noise.
        assert cost <= found <= 1.2 * cost, found / cost

    def test_stages_share_the_encoder(self):
        """By hand: one more stage is one more decoder pass, three times."""
        one, two = (flops.training_step(PARALLEL, 4, SOURCE, TARGET, stages=stages) for stages in (1, 2))
        assert two - one == 3 * flops.decoder_pass(PARALLEL, 4, TARGET, TARGET, SOURCE, sources=4).flops

    def test_products_by_hand(self):
        """One layer each, no attention over anything long: 6 operations per weight and token, and the mixing."""
        sizes = {"vocab_size": 128, "embed_dim": 8, "num_heads": 2, "head_dim": 4, "mlp_dim": 16}
        config = NetworkConfig(
            **sizes, num_encoder_layers=1, num_decoder_layers=1, causal=True, positional_attention=False
        )
        batch, source, target = 2, 3, 5
        encoder = batch * source * (4 * 64 + 2 * 128) + batch * 2 * source * source * 8
        memory = batch * source * 2 * 64
        decoder = batch * target * (6 * 64 + 2 * 128 + 8 * 128)
        decoder += batch * 2 * target * target * 8 + batch * 2 * target * source * 8
        assert flops.training_step(config, batch, source, target) == 6 * (encoder + memory + decoder)
