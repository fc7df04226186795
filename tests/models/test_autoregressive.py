"""The autoregressive model's searches: against uncached passes, and batch invariance."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numerics import assert_close, assert_same

from padir.decoding.autoregressive import Autoregressive
from padir.decoding.beam import BeamSearch
from padir.decoding.guided import Guided
from padir.decoding.refinement import Refinement
from padir.decoding.sampling import Sampling
from padir.errors import PadirError
from padir.models.autoregressive import AutoregressiveModel
from padir.models.kinds import DECODE_CONFIGS
from padir.nn.network import NetworkConfig
from padir.types import TokenIds

LONGEST = 16
ROOM = {"max_length_ratio": 1.0, "max_length_offset": 4}
KEY = jax.random.key(5)
MODEL = AutoregressiveModel(
    TokenIds(num_pieces=40),
    NetworkConfig(
        embed_dim=16,
        num_heads=2,
        head_dim=8,
        mlp_dim=32,
        num_encoder_layers=1,
        num_decoder_layers=2,
        tied_logits=False,
        causal=True,
        positional_attention=False,
    ),
    max_source_length=16,
    max_target_length=LONGEST,
)
decode = jax.jit(MODEL.decode, static_argnums=3)


@pytest.fixture(scope="module")
def params():
    """Kernels large enough for clear choices, EOS likelier than chance."""
    params = jax.tree_util.tree_map_with_path(lambda path, x: 2.0 * x if path[-1].key == "weight" else x, MODEL.init(3))
    weight = params["network"]["logits_dense"]["weight"]
    params["network"]["logits_dense"]["weight"] = weight.at[1].multiply(1.5)
    return params


@pytest.fixture(scope="module")
def sources():
    """16 sentences of 2 to 9 tokens, padded to 9."""
    generator = np.random.default_rng(0)
    lengths = np.resize([9, 2, 5, 3, 6, 4, 8, 7], 16)
    tokens = generator.integers(3, 40, (16, 9))
    tokens = np.where(np.arange(9) == lengths[:, None] - 1, 1, tokens)
    return jnp.asarray(np.where(np.arange(9) < lengths[:, None], tokens, 0), jnp.int32)


CONFIGS = {
    "sampling": Autoregressive(**ROOM, sampling=Sampling(1.0, top_k=10), num_samples=3),
    "beam": BeamSearch(**ROOM),
    "greedy": Autoregressive(**ROOM),
    "nucleus": Autoregressive(**ROOM, sampling=Sampling(0.7, top_p=0.9)),
    "best of beam": BeamSearch(**ROOM, num_hypotheses=1, alpha=0.6),
}


@pytest.mark.first(2)
@pytest.mark.parametrize("name", CONFIGS)
def test_nothing_but_the_source_decides_a_translation(params, sources, name):
    config = CONFIGS[name]
    together = decode(params, sources, KEY, config)
    assert len(np.unique(together.predicted_lengths[:, 0])) > 3, "examples should differ in length"
    assert len(np.unique(together.tokens[:, 0], axis=0)) > 10, "examples should differ in translation"
    for row in range(0, 16, 3):
        assert_same(decode(params, sources[row : row + 1], KEY, config), together, slice(row, row + 1))
    # A wider source bucket (with more room for targets), other rows, and rows that only pad the batch.
    order = np.array([5, 3, 0, 10])
    wide = jnp.pad(sources[order], ((0, 12), (0, 5)))
    found = decode(params, wide, KEY, config)
    assert_same(jax.tree.map(lambda field: field[:4] if field.ndim else field, found), together, order)
    assert found.batch_steps == found.steps_run[:4].max() == together.steps_run[order].max()
    assert not found.tokens[4:].any() and not found.steps_run[4:].any()


@pytest.mark.parametrize("name", CONFIGS)
def test_scores_are_those_of_uncached_teacher_forcing(params, sources, name):
    """Whatever was written, its score is what one causal pass over it says; best first, within its limit."""
    config = CONFIGS[name]
    found = decode(params, sources, KEY, config)
    network = MODEL.module(params).network

    @jax.jit
    def log_probs(inputs):
        plan = network.plan(network.encode(sources), sources, LONGEST)
        logits = network.logits(network.decode(inputs, plan).hidden)
        return jax.nn.log_softmax(logits[..., : MODEL.ids.unpadded_size])

    tokens, size = np.asarray(found.tokens), found.tokens.shape[1]
    limits = (np.asarray(sources) != 0).sum(-1) + 4
    inputs = np.pad(tokens, ((0, 0), (0, 0), (1, 0)))[..., :-1].reshape(-1, LONGEST)
    each = np.asarray(log_probs(jnp.asarray(inputs))).reshape(16, size, LONGEST, -1)
    chosen = np.take_along_axis(each, tokens[..., None], axis=-1)[..., 0]
    lengths = (tokens != 0).sum(-1)
    assert_close(found.scores, np.where(tokens, chosen, 0).sum(-1) / lengths**config.alpha, 3e-5)
    np.testing.assert_array_equal(found.predicted_lengths, lengths)
    assert (np.diff(found.scores, axis=1) <= 0).all()
    ended = np.take_along_axis(tokens, lengths[..., None] - 1, axis=-1)[..., 0] == 1
    assert (ended | (lengths == limits[:, None])).all()
    assert tokens.max() < MODEL.ids.num_pieces and ((tokens == 1).sum(-1) <= 1).all()


@pytest.mark.parametrize("name", ["greedy", "beam"])
def test_lengths_that_are_asked_for(params, sources, name):
    """No EOS, as many tokens and steps as asked for; what comes before is chosen as if EOS did not exist."""
    config = dataclasses.replace(CONFIGS[name], max_length_offset=LONGEST)
    lengths = jnp.arange(16) % 7 + 1
    found = jax.jit(lambda params: MODEL.decode(params, sources, KEY, config, lengths=lengths))(params)
    np.testing.assert_array_equal(found.predicted_lengths, np.repeat(lengths[:, None], found.tokens.shape[1], 1))
    assert found.batch_steps == 7 and not (found.tokens == 1).any()
    longer = jax.jit(lambda params: MODEL.decode(params, sources, KEY, config, lengths=lengths + 2))(params)
    if name == "greedy":
        kept = np.arange(LONGEST) < np.asarray(lengths)[:, None]
        np.testing.assert_array_equal(found.tokens[:, 0], np.where(kept, longer.tokens[:, 0], 0))


def test_a_beam_of_one_is_greedy(params, sources):
    greedy = decode(params, sources, KEY, CONFIGS["greedy"])
    assert_same(decode(params, sources, KEY, BeamSearch(**ROOM, beam_size=1)), greedy)


def test_a_wider_beam_finds_likelier_translations(params, sources):
    greedy = decode(params, sources, KEY, dataclasses.replace(CONFIGS["greedy"], alpha=0.0))
    beam5 = decode(params, sources, KEY, BeamSearch(**ROOM, alpha=0.0))
    assert (beam5.scores[:, 0] > greedy.scores[:, 0] - 1e-4).mean() > 0.9
    assert (beam5.scores[:, 0] > greedy.scores[:, 0] + 1e-2).any()


def test_samples_follow_the_key_and_differ(params, sources):
    config = CONFIGS["sampling"]
    first = decode(params, sources, KEY, config)
    assert_same(decode(params, sources, KEY, config), first)
    other = decode(params, sources, jax.random.key(6), config)
    assert (other.tokens != first.tokens).any(axis=(1, 2)).mean() > 0.9
    # Of three samples of a sentence, seldom all are equal.
    assert np.mean([len(np.unique(samples, axis=0)) > 1 for samples in first.tokens]) > 0.8


def test_another_models_configuration_is_refused(params, sources):
    assert DECODE_CONFIGS[AutoregressiveModel] == (Autoregressive, BeamSearch, Guided)
    with pytest.raises(PadirError, match="Refinement does not fit an AutoregressiveModel; use Autoregressive, BeamS"):
        MODEL.decode(params, sources, KEY, Refinement())
