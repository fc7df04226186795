"""Prefixes are continued as if each were read anew, wherever the row was before."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_models

from padir.decoding.sampling import log_probabilities
from padir.errors import PadirError
from padir.models.autoregressive import AutoregressiveModel
from padir.models.prefixes import prefix_steps
from padir.nn.network import NetworkConfig
from padir.types import TokenIds

IDS = TokenIds(num_pieces=20)
SIZES = tiny_models.SIZES | {"dropout_rate": 0.0, "num_decoder_layers": 2}
MODEL = AutoregressiveModel(
    IDS, NetworkConfig(**SIZES, causal=True, positional_attention=False), max_source_length=8, max_target_length=12
)
ROOM = 9
PARAMS = tiny_models.sharpen(MODEL.init(3))
SOURCE = tiny_models.rows(3, 5, seed=5, ids=IDS)


@jax.jit
def uncached(targets, source):
    """Log-probabilities and hidden states of all prefixes of `targets`, of length 0 to `ROOM`: [N, ROOM + 1, …].

    And the hidden states of all layers [N, layers, ROOM + 1, E].
    """
    network = MODEL.module(PARAMS).network
    plan = network.plan(MODEL.encode(network, source), source, ROOM + 1)
    output = network.decode(jnp.pad(targets, ((0, 0), (1, 0))), plan, keep_layers=True)
    return log_probabilities(network.logits(output.hidden), IDS), output.hidden, output.layer_hidden


def walked(params, source, prompts, targets, positions, layer=None):
    """Steps at `positions` [steps, N] of `targets` [N, ROOM]: log-probabilities and features [steps, N, …]."""

    @jax.jit
    def walk(params):
        step, cache = prefix_steps(MODEL, params, source, prompts, ROOM, layer)
        inputs = jnp.pad(targets, ((0, 0), (1, 0)))

        def at(cache, position):
            last = jnp.take_along_axis(inputs, position[:, None], axis=1)[:, 0]
            log_probs, features, cache = step(last, position, cache)
            return cache, (log_probs, features)

        return jax.lax.scan(at, cache, positions)[1]

    return walk(params)


@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("rows", [3, 6])
def test_after_erasing_a_step_equals_an_uncached_pass(prepared, rows):
    """Rows go forward, and back by different numbers of tokens, and to where they never were; prompts differ in length.

    What was written before the step back is other text: the cache is stale there.
    """
    generator = np.random.default_rng(rows)
    lengths = generator.integers(1, 6, rows)
    targets = jnp.asarray(generator.integers(1, 20, (rows, ROOM)), jnp.int32)
    prompts = jnp.where(jnp.arange(6) < lengths[:, None], targets[:, :6], 0)
    # All go to the end, then back to the prompt's end or anywhere behind it, and on from there.
    forward = np.minimum(lengths + np.arange(ROOM)[:, None], ROOM)
    back = generator.integers(lengths, ROOM + 1, rows)
    positions = np.concatenate([forward, np.minimum(back + np.arange(ROOM)[:, None], ROOM)]).astype(np.int32)
    params = MODEL.for_decoding(PARAMS) if prepared else PARAMS
    log_probs, features = walked(params, SOURCE, prompts, targets, jnp.asarray(positions))

    wide = jnp.repeat(SOURCE, rows // len(SOURCE), axis=0)
    expected, hidden, _ = (np.asarray(field) for field in uncached(targets, wide))
    at = np.arange(rows), positions
    np.testing.assert_array_equal(np.isfinite(log_probs), np.isfinite(expected[at]))
    finite = np.isfinite(log_probs)
    np.testing.assert_allclose(log_probs[finite], expected[at][finite], atol=1e-5)
    np.testing.assert_allclose(features, hidden[at], atol=1e-5 * np.abs(hidden).max())


def test_stale_text_makes_no_difference():
    """Rewritten text is read as such, although the cache still holds what was erased behind it."""
    generator = np.random.default_rng(0)
    old, new = (jnp.asarray(generator.integers(1, 20, (3, ROOM)), jnp.int32) for _ in range(2))
    new = new.at[:, :3].set(old[:, :3])

    @jax.jit
    def both():
        step, cache = prefix_steps(MODEL, PARAMS, SOURCE, old[:, :3], ROOM)
        for text, first in ((old, 3), (new, 4)):
            for length in range(first, ROOM):
                position = jnp.full((3,), length, jnp.int32)
                log_probs, features, cache = step(text[:, length - 1], position, cache)
        return log_probs, features

    log_probs, features = both()
    expected, hidden, _ = uncached(new, SOURCE)
    np.testing.assert_allclose(np.exp(log_probs), np.exp(expected[:, ROOM - 1]), atol=1e-5)
    np.testing.assert_allclose(features, hidden[:, ROOM - 1], atol=1e-5 * float(jnp.abs(hidden).max()))


def test_without_prompts_the_first_step_reads_start():
    targets = jnp.full((3, ROOM), 5, jnp.int32)
    positions = jnp.asarray(np.repeat(np.arange(ROOM + 1)[:, None], 3, axis=1), jnp.int32)
    log_probs, _ = walked(PARAMS, SOURCE, jnp.zeros((3, 0), jnp.int32), targets, positions)
    expected, _, _ = uncached(targets, SOURCE)
    np.testing.assert_allclose(np.exp(log_probs), np.exp(expected).swapaxes(0, 1), atol=1e-5)


@pytest.mark.parametrize("layer", [1, 2])
def test_features_of_a_layer_are_what_it_passes_on(layer):
    targets = jnp.asarray(np.random.default_rng(layer).integers(1, 20, (3, ROOM)), jnp.int32)
    # Up to the end, and back to the middle.
    positions = jnp.asarray([*range(ROOM + 1), 4], jnp.int32)[:, None].repeat(3, axis=1)
    log_probs, features = walked(PARAMS, SOURCE, targets[:, :0], targets, positions, layer)
    expected, hidden, layers = uncached(targets, SOURCE)
    np.testing.assert_allclose(
        features, np.asarray(layers)[:, layer - 1][np.arange(3), positions], atol=1e-5 * float(jnp.abs(layers).max())
    )
    np.testing.assert_allclose(np.exp(log_probs), np.exp(expected)[np.arange(3), positions], atol=1e-5)
    # The decoder's norm makes of the last layer what logits are made of.
    normed = MODEL.module(PARAMS).network.decoder.decoder_norm(layers[:, -1])
    np.testing.assert_allclose(normed, hidden, atol=1e-5 * float(jnp.abs(hidden).max()))


def test_what_does_not_fit_is_refused():
    with pytest.raises(PadirError, match="layer: 3 is none of the decoder's, 1 to 2"):
        prefix_steps(MODEL, PARAMS, SOURCE, jnp.zeros((3, 0), jnp.int32), ROOM, 3)
    with pytest.raises(PadirError, match="prompts of 10 tokens need a room of at least 10, not 9"):
        prefix_steps(MODEL, PARAMS, SOURCE, jnp.zeros((3, 10), jnp.int32), ROOM)
    with pytest.raises(PadirError, match="4 prompts cannot be divided among 3 sources"):
        prefix_steps(MODEL, PARAMS, SOURCE, jnp.zeros((4, 2), jnp.int32), ROOM)
