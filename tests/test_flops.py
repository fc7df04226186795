"""Counts from shapes against XLA's analysis of the same programs."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from padir import flops
from padir.network import EncoderDecoder, NetworkConfig

SOURCE, TARGET = 24, 40
SHAPE = {"vocab_size": 384, "embed_dim": 64, "num_heads": 4, "head_dim": 16, "mlp_dim": 256}
SHAPE |= {"num_encoder_layers": 2, "num_decoder_layers": 3, "dropout_rate": 0.0}
PARALLEL = NetworkConfig(**SHAPE)
CONFIGS = {
    "parallel": PARALLEL,
    "causal": NetworkConfig(**SHAPE, causal=True, positional_attention=False),
    "gated, untied": NetworkConfig(**SHAPE, mlp_activation="gated-gelu", tied_logits=False),
}


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
    assert flops.decoder_pass(config, 5, 1, TARGET, SOURCE, sources=1).bytes == 4 * (weights + memory)
    without = flops.decoder_pass(config, 5, 1, TARGET, SOURCE, sources=1, logits=False)
    assert without.bytes == 4 * (weights - 64 * 384 + memory)


def test_costs_add_up():
    assert flops.Cost(1, 2) + 3 * flops.Cost(10, 20) == flops.Cost(31, 62)
