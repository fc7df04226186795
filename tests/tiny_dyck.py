"""A tiny language model of brackets, untrained or nearly so: it errs often enough to test what follows from errors."""

import dataclasses
import functools

import jax
import numpy as np
import tiny_models

from padir.decoding.verifiers import Probe
from padir.dyck.generator import Generator, Prefixes
from padir.dyck.language_model import model_of, train_language_model, words_of
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
    """The language model with random parameters, and with changed settings."""
    config = dataclasses.replace(CONFIG, **changes)
    return Generator(config, tiny_models.sharpen(model_of(config).init(7)))


@functools.cache
def probe():
    """A verifier that has learnt nothing, and objects to about half of all prefixes."""
    texts = Prefixes(np.asarray(words_of(CONFIG.ood_grammar, jax.random.key(1), 64)), np.full(64, CONFIG.room))
    mean = generator().read(texts)[0][:, 4:].mean(axis=(0, 1))
    fresh = Probe.fresh(mean.shape, jax.random.key(0))
    return fresh.replace(mean=mean)


@functools.cache
def trained():
    """The language model after a few updates: it knows half of the grammar."""
    return Generator(CONFIG, train_language_model(CONFIG)[0])
