"""A decoder with a disentangled context: what a position sees, and what it cannot see."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_models
from flax import nnx
from numerics import assert_close
from tiny_models import DISCO

from padir.errors import PadirError
from padir.models.padir import PadirModel
from padir.nn import flops, for_decoding
from padir.nn.decode_plan import DecodePlan, with_mask
from padir.nn.layers import relative_position_bucket
from padir.nn.network import EncoderDecoder, NetworkConfig
from padir.runtime import platforms

pytestmark = pytest.mark.usefixtures("optimised")

MASK = DISCO.ids.mask_id
LENGTH = 7
SOURCE = tiny_models.rows(3, 6)
TARGET = tiny_models.rows(3, LENGTH, seed=1)


def model_with(**network):
    return dataclasses.replace(DISCO, network=dataclasses.replace(DISCO.network, **network))


def random_contexts(seed=0, share=0.5):
    """Contexts [3, L, L]: half of what there is, no padding."""
    drawn = np.random.default_rng(seed).random((3, LENGTH, LENGTH)) < share
    return jnp.asarray(drawn & ~np.eye(LENGTH, dtype=bool) & np.asarray(TARGET != 0)[:, None])


@pytest.fixture(scope="module")
def params():
    # Large weights: every attention is of some consequence.
    return tiny_models.sharpen(DISCO.init(3))


def logits_of(model, params, target, contexts, *, prepared=False, source=SOURCE):
    params = model.for_decoding(params) if prepared else params

    @jax.jit
    def run(params, target, contexts):
        network = model.module(params).network
        plan = network.plan(network.encode(source), source, target).observing(contexts)
        return network.logits(network.decode(with_mask(target, MASK), plan).hidden)

    return np.asarray(run(params, target, contexts))


class TestNothingLeaks:
    @pytest.mark.first(2)
    @pytest.mark.parametrize("positional", [True, False], ids=["by position too", "self-attention only"])
    @pytest.mark.parametrize("prepared", [False, True], ids=["trained", "prepared"])
    def test_logits_are_bit_identical_whatever_is_not_observed(self, positional, prepared):
        """Every token that position n does not observe is changed, its own always: n says the very same."""
        model = model_with(positional_attention=positional, num_decoder_layers=3)
        params, contexts = tiny_models.sharpen(model.init(3)), random_contexts()
        before = logits_of(model, params, TARGET, contexts, prepared=prepared)
        inside = np.asarray(TARGET != 0)
        for position in range(LENGTH):
            unseen = jnp.asarray(inside) & ~contexts[:, position]
            assert unseen[:, position].tolist() == inside[:, position].tolist()
            changed = jnp.where(unseen, TARGET % 17 + 2, TARGET)
            assert (changed[unseen] != TARGET[unseen]).all()
            after = logits_of(model, params, changed, contexts, prepared=prepared)
            there = inside[:, position]
            np.testing.assert_array_equal(after[there, position], before[there, position])

    def test_every_observed_token_matters(self, params):
        contexts = random_contexts()
        before = logits_of(DISCO, params, TARGET, contexts)
        for other in range(LENGTH):
            changed = TARGET.at[:, other].set(jnp.where(TARGET[:, other] != 0, TARGET[:, other] % 17 + 2, 0))
            moved = np.abs(logits_of(DISCO, params, changed, contexts) - before).max(-1) > 1e-4
            inside = np.asarray((TARGET != 0) & (TARGET[:, other] != 0)[:, None])
            np.testing.assert_array_equal(moved & inside, np.asarray(contexts[:, :, other]) & inside)

    def test_a_position_does_not_observe_itself_though_told_to(self, params):
        contexts = random_contexts()
        itself = jnp.eye(LENGTH, dtype=bool)
        found = logits_of(DISCO, params, TARGET, contexts | itself)
        np.testing.assert_array_equal(found, logits_of(DISCO, params, TARGET, contexts))

    def test_others_contexts_are_nobodys_business(self, params):
        """Not even two layers up: hidden states are no keys."""
        one, other = random_contexts(0), random_contexts(1)
        mixed = one.at[:, 3:].set(other[:, 3:])
        before, after = (logits_of(DISCO, params, TARGET, contexts) for contexts in (one, mixed))
        np.testing.assert_array_equal(after[:, :3], before[:, :3])
        assert np.abs(after[0, 3:] - before[0, 3:]).max() > 1e-3


def test_positions_are_told_apart_without_a_word_to_read(params):
    """All begin as MASK and read MASK and the EOS at the end, and yet say different things."""
    said = logits_of(DISCO, params, TARGET, jnp.broadcast_to((TARGET == 1)[:, None], (3, LENGTH, LENGTH)))
    length = int((TARGET[0] != 0).sum())
    apart = [np.abs(said[0, i] - said[0, j]).max() for i in range(length) for j in range(i)]
    assert min(apart) > 1e-3


def test_one_layer_is_a_plain_decoder_that_reads_mask_elsewhere():
    """Without positional attention, whose values in a plain decoder are of hidden states."""
    model = model_with(num_decoder_layers=1, positional_attention=False)
    plain = PadirModel(
        DISCO.ids, dataclasses.replace(model.network, disentangled_context=False), max_target_length=12, num_stages=1
    )
    params, contexts = tiny_models.sharpen(model.init(3)), random_contexts()
    found = logits_of(model, params, TARGET, contexts)

    @jax.jit
    def plain_logits(tokens):
        network = plain.module(params).network
        return network.logits(network.decode(tokens, network.plan(network.encode(SOURCE), SOURCE, tokens)).hidden)

    for position in range(LENGTH):
        read = jnp.where((TARGET == 0) | contexts[:, position], TARGET, MASK)
        there = np.asarray(TARGET[:, position] != 0)
        assert_close(found[there, position], plain_logits(read)[there, position], 1e-5)


class Plain:
    """The decoder in NumPy and float64: one target position after the other, one key for each position."""

    def __init__(self, params, config):
        self.params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params["network"])
        self.heads = config.num_heads

    def hidden(self, encoded, source, target, contexts):
        """Encoder output [Ls, E], source [Ls], target [length] without padding, contexts [length, length] → [., E]."""
        table, length = self.params["token_embedder"]["embedding"], len(target)
        distance = jnp.arange(length)[None] - jnp.arange(length)[:, None]
        options = {"bidirectional": True, "num_buckets": 32, "max_distance": 128}
        bias = self.params["decoder"]["relpos_bias"]["rel_embedding"][:, relative_position_bucket(distance, **options)]
        memory = encoded[source != 0]
        states = []
        for position in range(length):
            read = table[np.where(contexts[position], target, MASK)]
            x = table[MASK]
            for layer in self.params["decoder"]["layers"].values():
                x = self.layer(layer, x, read, bias[:, position], position, memory)
            states.append(norm(x, self.params["decoder"]["decoder_norm"]))
        return np.stack(states)

    def layer(self, layer, x, read, bias, position, memory):
        scale = layer["pre_self_attention_layer_norm"]
        query, keys = norm(x, scale), norm(read, scale)
        x = x + self.attend(layer["self_attention"], query, keys, keys, bias)
        positions = norm(
            self.params["decoder"]["abs_pos_embed"]["embedding"][: len(read)],
            layer["pre_positional_attention_layer_norm"],
        )
        x = x + self.attend(layer["positional_attention"], positions[position], positions, read, bias)
        query = norm(x, layer["pre_cross_attention_layer_norm"])
        x = x + self.attend(layer["encoder_decoder_attention"], query, memory, memory, 0.0)
        up = np.maximum(layer["mlp"]["wi"]["weight"] @ norm(x, layer["pre_mlp_layer_norm"]), 0.0)
        return x + layer["mlp"]["wo"]["weight"] @ up

    def attend(self, weights, query, keys, values, bias):
        """One query [E] to keys and values [K, E] with a bias [H, K]."""

        def heads(of, name):
            return (of @ weights[name]["weight"].T).reshape(-1, self.heads, 8)

        logits = np.einsum("hd,khd->hk", heads(query, "query")[0], heads(keys, "key")) + bias
        shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
        return weights["out"]["weight"] @ np.einsum("hk,khd->hd", shares, heads(values, "value")).ravel()


def norm(x, of):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * of["scale"]


@pytest.mark.first(3)
@pytest.mark.parametrize("platform", ["cpu", "gpu", "tpu"])
@pytest.mark.parametrize("prepared", [False, True], ids=["trained", "prepared"])
def test_against_numpy(params, prepared, platform, monkeypatch):
    """Two layers with attention of both kinds, by a loop that reads MASK at each place anew."""
    monkeypatch.setitem(platforms.OF_PLATFORM, "cpu", platforms.OF_PLATFORM[platform])
    plain, contexts = Plain(params, DISCO.network), random_contexts()

    @jax.jit
    def run(params):
        network = DISCO.module(params).network
        encoded = network.encode(SOURCE)
        plan = network.plan(encoded, SOURCE, TARGET).observing(contexts)
        return encoded, network.decode(with_mask(TARGET, MASK), plan).hidden

    with jax.default_matmul_precision("highest"):
        encoded, found = jax.device_get(run(DISCO.for_decoding(params) if prepared else params))
    for row in range(3):
        length = int((TARGET[row] != 0).sum())
        of_row = np.asarray(contexts[row, :length, :length])
        expected = plain.hidden(encoded[row], np.asarray(SOURCE[row]), np.asarray(TARGET[row, :length]), of_row)
        assert_close(found[row, :length], expected, 3e-5)


def test_a_plan_by_hand():
    """One head, biases 0, 1 and 2 of keys, two of three positions of the target within its length."""
    bias = jnp.array([[0.0, 1.0, -1e10], [2.0, 0.0, -1e10], [-1e10, -1e10, -1e10]])[None, None]
    weights = jnp.array([[0.25, 0.75, 0.0], [0.5, 0.5, 0.0], [0.2, 0.3, 0.5]])[None, None]
    contexts = jnp.array([[[0, 1, 0], [0, 0, 0], [0, 0, 0]]], bool)
    found = DecodePlan((), jnp.zeros((1, 1, 1, 1)), bias, (weights,)).observing(contexts)
    # Position 0 observes 1, so only it itself is MASK; position 1 reads MASK twice.
    both = float(np.log(np.exp(2.0) + 1.0))
    hidden = -1e10
    expected = [[hidden, 1.0, hidden, 0.0], [hidden, hidden, hidden, both]]
    np.testing.assert_allclose(found.self_bias[0, 0, :2], expected, rtol=1e-6)
    expected = [[0.0, 0.75, 0.0, 0.25], [0.0, 0.0, 0.0, 1.0]]
    np.testing.assert_allclose(found.positional_weights[0][0, 0, :2], expected, rtol=1e-6)
    assert np.isfinite(found.self_bias).all()


def test_target_and_source_padding_change_nothing(params):
    contexts = random_contexts()
    found = logits_of(DISCO, params, TARGET, contexts)
    wide = jnp.pad(contexts, ((0, 0), (0, 4), (0, 4)))
    target, source = jnp.pad(TARGET, ((0, 0), (0, 4))), jnp.pad(SOURCE, ((0, 0), (0, 3)))
    padded = logits_of(DISCO, params, target, wide, source=source)[:, :LENGTH]
    there = np.asarray(TARGET != 0)
    assert_close(padded[there], found[there], 1e-5)


def test_parameters_are_those_of_a_plain_model():
    """By name and shape, so that it starts from an autoregressive model or a PaDIR model."""
    plain = dataclasses.replace(DISCO.network, disentangled_context=False)
    shapes = [jax.eval_shape(dataclasses.replace(DISCO, network=of).init, 0) for of in (DISCO.network, plain)]
    assert shapes[0] == shapes[1]


def test_operations_are_counted():
    """Against XLA's analysis: one key more, and keys and values of one token more."""
    sizes = {"vocab_size": 384, "embed_dim": 64, "num_heads": 4, "head_dim": 16, "mlp_dim": 256}
    config = NetworkConfig(
        **sizes, num_encoder_layers=1, num_decoder_layers=3, dropout_rate=0.0, disentangled_context=True
    )
    network = EncoderDecoder(config, nnx.Rngs(0))
    source, tokens = jnp.ones((1, 24), int), jnp.ones((3, 40), int)
    plan = network.plan(jnp.ones((1, 24, 64)), source, tokens)

    def run(tokens, plan, contexts):
        return network.logits(network.decode(with_mask(tokens, 300), plan.observing(contexts)).hidden)

    for prepare in (False, True):
        if prepare:
            for_decoding.prepare(network)
        lowered = jax.jit(run).lower(tokens, plan, jnp.ones((3, 40, 40), bool))
        found = lowered.compile().cost_analysis()["flops"]
        cost = flops.decoder_pass(config, 3, 40, 40, 24, sources=1)
        assert cost.flops <= found <= 1.15 * cost.flops
    plain = flops.decoder_pass(dataclasses.replace(config, disentangled_context=False), 3, 40, 40, 24, sources=1)
    # By hand, for each layer and row: MASK's key and value, twice its value by position; 40 queries of one key more.
    more = 3 * 3 * (3 * 2 * 64 * 64 + 3 * 2 * 40 * 64)
    assert cost.flops - plain.flops == more and cost.weights == plain.weights


def test_a_causal_decoder_cannot_be_disentangled():
    with pytest.raises(PadirError, match="disentangled_context needs a parallel decoder; set causal=False"):
        NetworkConfig(causal=True, positional_attention=False, disentangled_context=True)
