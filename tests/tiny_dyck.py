"""A tiny, untrained language model of brackets: it errs often enough to test what follows from errors."""

import dataclasses

import jax
import tiny_models

from padir.decoding.verifiers import Probe
from padir.dyck.generator import Generator
from padir.dyck.language_model import model_of
from padir.dyck.settings import DyckConfig
from padir.nn.network import NetworkConfig

CONFIG = DyckConfig(
    NetworkConfig(
        **tiny_models.SIZES | {"dropout_rate": 0.0},
        tied_logits=False,
        causal=True,
        positional_attention=False,
    ),
    length=6,
    shortest=3,
    longest=5,
    steps=40,
    batch_size=16,
    peak_learning_rate=1e-2,
    warmup_steps=5,
    ema_decay=0.8,
    num_samples=64,
    num_prompts=64,
    num_seeds=2,
    decode_batch=64,
    num_errors=40,
    num_validation=20,
    most_prompts=512,
    repetitions=2,
    verifier_epochs=3,
    diversity_prompts=6,
    diversity_draws=10,
    num_rollouts=64,
    value_epochs=1,
    law_prompts=3,
    law_draws=20,
)


def generator(**changes):
    """A generator whose logits are as they come."""
    config = dataclasses.replace(CONFIG, **changes)
    return Generator(config, model_of(config).init(7))


def probe(seed=0, scale=3.0):
    """A verifier that has learnt nothing, and objects to about half of all prefixes."""
    fresh = Probe.fresh((CONFIG.network.embed_dim,), jax.random.key(seed))
    return fresh.replace(layers=tuple((scale * kernel, bias) for kernel, bias in fresh.layers))
