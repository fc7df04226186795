"""Tiny models of both kinds, parameters and batches for tests of models."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from padir.models.autoregressive import AutoregressiveModel
from padir.models.padir import PadirModel
from padir.nn.network import NetworkConfig
from padir.objectives.corruption import CorruptionConfig
from padir.types import TokenIds

IDS = TokenIds(num_pieces=20)
SIZES = {
    "embed_dim": 16,
    "num_heads": 2,
    "head_dim": 8,
    "mlp_dim": 32,
    "num_encoder_layers": 1,
    "num_decoder_layers": 1,
    "dropout_rate": 0.1,
}
PADIR = PadirModel(
    IDS,
    NetworkConfig(**SIZES),
    max_source_length=12,
    max_target_length=12,
    # No token kept and no randomness: what the decoder reads in training is then known.
    corruption=CorruptionConfig(keep_probability=0.0),
)
AR = AutoregressiveModel(
    IDS, NetworkConfig(**SIZES, causal=True, positional_attention=False), max_source_length=12, max_target_length=12
)
# Two layers, so that what a position has observed could reach another one's keys.
DISCO = PadirModel(
    IDS,
    NetworkConfig(**SIZES | {"num_decoder_layers": 2}, disentangled_context=True),
    max_source_length=12,
    max_target_length=12,
    num_stages=1,
)
KEY = jax.random.key(0)


def sharpen(params):
    """Larger weights: outputs then vary with the input, and greedy choices are clear."""
    return jax.tree.map(lambda x: 1.7 * x if x.ndim == 2 else x, params)


def rows(count, length, seed=0, ids=IDS):
    """Random sentences of 2 to `length` tokens, ending in EOS."""
    generator = np.random.default_rng(seed)
    lengths = np.concatenate([[length], generator.integers(2, length + 1, count - 1)])
    tokens = generator.integers(3, ids.num_pieces, (count, length))
    positions = np.arange(length)
    tokens = np.where(positions == lengths[:, None] - 1, 1, tokens)
    return jnp.asarray(np.where(positions < lengths[:, None], tokens, 0), jnp.int32)


def batch(count=4, source_length=7, target_length=6):
    return {
        "encoder_input_tokens": rows(count, source_length),
        "decoder_target_tokens": rows(count, target_length, seed=1),
    }


def value_and_grad(model, train=False):
    return jax.jit(jax.value_and_grad(partial(model.loss_and_metrics, train=train), has_aux=True))


def reversed_pairs():
    """Four sentences of up to nine tokens as sources, and what they are backwards as targets."""
    source = rows(4, 9)
    return {"encoder_input_tokens": source, "decoder_target_tokens": source[:, ::-1] * (source > 0)}
