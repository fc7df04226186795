"""The network against the T5X release and Hugging Face T5, and what its structure promises."""

import dataclasses
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from t5_float64 import Float64T5

from padir.decoding.autoregressive import generate
from padir.errors import PadirError
from padir.models.autoregressive import AutoregressiveModel
from padir.models.padir import PadirModel
from padir.nn.length import prepend_length_token
from padir.nn.network import EncoderDecoder, NetworkConfig
from padir.types import TokenIds

pytestmark = pytest.mark.usefixtures("optimised")

TOLERANCE = 1e-5
# Their random weights make attention so sharp that float32 says little: their own arrays are 1e-4 from float64
# (`TestHuggingFace.test_what_float32_is_worth_here`), and with softer attention ours are 1e-5 from it.
HUGGING_FACE_TOLERANCE = 5e-4
TINY = NetworkConfig(
    vocab_size=30,
    embed_dim=16,
    num_heads=2,
    head_dim=8,
    mlp_dim=32,
    num_encoder_layers=2,
    num_decoder_layers=2,
    dropout_rate=0.0,
)


def build(**changes) -> EncoderDecoder:
    return EncoderDecoder(dataclasses.replace(TINY, **changes), nnx.Rngs(params=jax.random.key(0)))


@nnx.jit
def encode(network, source):
    return network.encode(source)


@nnx.jit
def decode(network, encoded, source, target):
    return network.decode(target, network.plan(encoded, source, target))


def tokens(rows, length, seed=0):
    return jnp.asarray(np.random.default_rng(seed).integers(1, 30, (rows, length)), jnp.int32)


@pytest.fixture(scope="module")
def tiny(release):
    return release("padir_tiny_tied.npz")


@pytest.fixture(scope="module")
def output(tiny):
    source, target = tiny.arrays["encoder_input_tokens"], tiny.arrays["decoder_input_tokens"]
    encoded, _ = tiny.model.encode(tiny.params, source)
    return tiny.network.decode(target, tiny.network.plan(encoded, source, target))


class TestRelease:
    """Every array of the release's forward pass, at every position, padding included."""

    def test_encoder_output(self, tiny):
        source = jnp.asarray(tiny.arrays["encoder_input_tokens"])
        encoded = tiny.network.encode(prepend_length_token(source, tiny.model.ids.length_id))
        np.testing.assert_allclose(encoded[:, 1:], tiny.arrays["encoder_output"], atol=TOLERANCE)
        np.testing.assert_allclose(encoded[:, 0], tiny.arrays["length_embeddings"], atol=TOLERANCE)

    def test_decoder_embeddings(self, tiny, output):
        np.testing.assert_allclose(output.hidden, tiny.arrays["decoder_embeddings"], atol=TOLERANCE)

    def test_decoder_logits(self, tiny, output):
        logits = tiny.network.logits(output.hidden)
        np.testing.assert_allclose(logits, tiny.arrays["decoder_logits"], atol=TOLERANCE)

    def test_attentions(self, tiny, output):
        np.testing.assert_allclose(output.self_attentions, tiny.arrays["self_attentions"], atol=TOLERANCE)
        np.testing.assert_allclose(output.cross_attentions, tiny.arrays["cross_attentions"], atol=TOLERANCE)


def read_safetensors(path):
    """The format by hand: header length (8 bytes, little-endian), JSON header, raw data."""
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    header.pop("__metadata__", None)
    arrays = {}
    for name, entry in header.items():
        assert entry["dtype"] == "F32"
        first, last = entry["data_offsets"]
        arrays[name] = np.frombuffer(content[start + first : start + last], np.float32).reshape(entry["shape"])
    return arrays


def from_hugging_face(weights, *, layers, gated, tied):
    """Our parameter tree of a Hugging Face T5's weights."""

    def attention(prefix):
        names = {"query": "q", "key": "k", "value": "v", "out": "o"}
        return {ours: {"weight": weights[f"{prefix}.{theirs}.weight"]} for ours, theirs in names.items()}

    def norm(name):
        return {"scale": weights[f"{name}.weight"]}

    def mlp(prefix):
        names = ("wi_0", "wi_1", "wo") if gated else ("wi", "wo")
        return {name: {"weight": weights[f"{prefix}.DenseReluDense.{name}.weight"]} for name in names}

    def stack(name, layer):
        table = weights[f"{name}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"]
        return {
            "relpos_bias": {"rel_embedding": table.T},
            f"{name}_norm": norm(f"{name}.final_layer_norm"),
            "layers": {index: layer(f"{name}.block.{index}.layer") for index in range(layers)},
        }

    def encoder_layer(at):
        return {
            "pre_attention_layer_norm": norm(f"{at}.0.layer_norm"),
            "attention": attention(f"{at}.0.SelfAttention"),
            "pre_mlp_layer_norm": norm(f"{at}.1.layer_norm"),
            "mlp": mlp(f"{at}.1"),
        }

    def decoder_layer(at):
        return {
            "pre_self_attention_layer_norm": norm(f"{at}.0.layer_norm"),
            "self_attention": attention(f"{at}.0.SelfAttention"),
            "pre_cross_attention_layer_norm": norm(f"{at}.1.layer_norm"),
            "encoder_decoder_attention": attention(f"{at}.1.EncDecAttention"),
            "pre_mlp_layer_norm": norm(f"{at}.2.layer_norm"),
            "mlp": mlp(f"{at}.2"),
        }

    params = {
        "token_embedder": {"embedding": weights["shared.weight"]},
        "encoder": stack("encoder", encoder_layer),
        "decoder": stack("decoder", decoder_layer),
    }
    return params if tied else params | {"logits_dense": {"weight": weights["shared.weight"]}}


@pytest.fixture(scope="module", params=["t5_10", "t5_11"])
def name(request):
    return request.param


@pytest.fixture(scope="module")
def t5(name, golden):
    return t5_network(name, t5_weights(name)), golden(f"hf_t5/{name}.npz")


def t5_network(name, weights):
    """Our network with weights under Hugging Face's names."""
    gated = name == "t5_11"
    config = NetworkConfig(
        vocab_size=40,
        embed_dim=32,
        num_heads=2,
        head_dim=16,
        mlp_dim=64,
        num_encoder_layers=2,
        num_decoder_layers=2,
        mlp_activation="gated-gelu" if gated else "relu",
        tied_logits=not gated,
        causal=True,
        positional_attention=False,
        dropout_rate=0.0,
    )
    network = EncoderDecoder(config, nnx.Rngs(params=jax.random.key(0)))
    params = from_hugging_face(weights, layers=2, gated=gated, tied=not gated)
    ours = nnx.to_pure_dict(nnx.state(network, nnx.Param))
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, ours)
    nnx.update(network, nnx.State(jax.tree.map(lambda array: nnx.Param(jnp.asarray(array)), params)))
    return network


def t5_weights(name):
    return read_safetensors(Path(__file__).parents[1] / "golden" / "hf_t5" / f"{name}.safetensors")


class TestHuggingFace:
    """The causal network against Hugging Face's T5 1.0 and 1.1."""

    def test_what_float32_is_worth_here(self, name, golden):
        """NumPy in float64 is 1e-5 to 2e-4 from their arrays: no float32 program could be held to 1e-5 of them."""
        arrays = golden(f"hf_t5/{name}.npz")
        source, target = arrays["encoder_input_tokens"], arrays["decoder_input_tokens"]
        exact = Float64T5(t5_weights(name), layers=2, gated=name == "t5_11")
        seen = source != 0
        np.testing.assert_allclose(arrays["encoder_output"][seen], exact.encode(source)[seen], atol=2e-5)
        apart = np.abs(arrays["logits"] - exact.logits(source, target)).max()
        assert 5e-5 < apart < 2e-4

    def test_softer_attention_is_exact(self, name, golden):
        """Queries ten times smaller: what is left is the formula, and it is T5's to 1e-5."""
        arrays = golden(f"hf_t5/{name}.npz")
        source, target = arrays["encoder_input_tokens"], arrays["decoder_input_tokens"]
        weights = {
            key: np.float32(0.1) * array if key.endswith(".q.weight") else array
            for key, array in t5_weights(name).items()
        }
        exact, network = Float64T5(weights, layers=2, gated=name == "t5_11"), t5_network(name, weights)
        encoded, seen = network.encode(source), source != 0
        np.testing.assert_allclose(encoded[seen], exact.encode(source)[seen], atol=TOLERANCE)
        logits = network.logits(network.decode(target, network.plan(encoded, source, target.shape[1])).hidden)
        np.testing.assert_allclose(logits, exact.logits(source, target), atol=TOLERANCE, rtol=1e-6)

    def test_encoder_output(self, t5):
        network, arrays = t5
        source = arrays["encoder_input_tokens"]
        # What they compute at padding positions is of no consequence, and differs.
        seen = source != 0
        np.testing.assert_allclose(
            network.encode(source)[seen], arrays["encoder_output"][seen], atol=HUGGING_FACE_TOLERANCE
        )

    def test_teacher_forced_logits(self, t5):
        network, arrays = t5
        source, target = arrays["encoder_input_tokens"], arrays["decoder_input_tokens"]
        plan = network.plan(network.encode(source), source, target.shape[1])
        logits = network.logits(network.decode(target, plan).hidden)
        np.testing.assert_allclose(logits, arrays["logits"], atol=HUGGING_FACE_TOLERANCE)

    def test_cached_decoding_equals_teacher_forcing(self, t5):
        network, arrays = t5
        source, target = arrays["encoder_input_tokens"], arrays["decoder_input_tokens"]
        plan = network.plan(network.encode(source), source, target.shape[1])
        cache, hidden = network.empty_cache(*target.shape), []
        # Steps of one position, and of several at once.
        for start, stop in [(0, 1), (1, 2), (2, 6), (6, 10)]:
            output = network.decode(target[:, start:stop], plan, cache)
            cache = output.cache
            hidden.append(output.hidden)
            assert cache.position == stop
        logits = network.logits(jnp.concatenate(hidden, axis=1))
        np.testing.assert_allclose(logits, arrays["logits"], atol=HUGGING_FACE_TOLERANCE)

    def test_greedy_tokens(self, t5):
        network, arrays = t5
        source, expected = arrays["encoder_input_tokens"], arrays["greedy"][:, 1:]  # without the start token
        rows, length = expected.shape
        plan = network.plan(network.encode(source), source, length)

        def step(last, cache):
            output = network.decode(last[:, None], plan, cache)
            return network.logits(output.hidden)[:, 0], output.cache

        state = generate(step, network.empty_cache(rows, length), jnp.ones(rows, bool), jnp.full(rows, length), length)
        np.testing.assert_array_equal(state.tokens, expected)


@pytest.mark.parametrize(
    ("model", "network", "count"),
    [
        (PadirModel, NetworkConfig(), 66_997_760),
        (PadirModel, NetworkConfig(tied_logits=False), 83_447_296),
        (AutoregressiveModel, NetworkConfig(causal=True, positional_attention=False), 60_506_624),
        (AutoregressiveModel, NetworkConfig(causal=True, positional_attention=False, tied_logits=False), 76_956_160),
    ],
)
def test_parameter_counts_of_the_base_size(model, network, count):
    assert model(TokenIds(32_000), network, max_target_length=128).parameter_count() == count


def test_source_padding_changes_nothing():
    network = build()
    source = tokens(2, 6)
    wide = jnp.pad(source, ((0, 0), (0, 5)))
    target = tokens(2, 4, seed=1)
    encoded, wide_encoded = encode(network, source), encode(network, wide)
    np.testing.assert_allclose(wide_encoded[:, :6], encoded, atol=TOLERANCE)
    hidden = decode(network, encoded, source, target).hidden
    wide_output = decode(network, wide_encoded, wide, target)
    np.testing.assert_allclose(wide_output.hidden, hidden, atol=TOLERANCE)
    assert (wide_output.cross_attentions[..., 6:] == 0).all()


def test_target_padding_changes_nothing():
    network = build()
    source, target = tokens(2, 6), tokens(2, 4, seed=1)
    wide = jnp.pad(target, ((0, 0), (0, 3)))
    encoded = encode(network, source)
    hidden = decode(network, encoded, source, target).hidden
    wide_hidden = decode(network, encoded, source, wide).hidden
    np.testing.assert_allclose(wide_hidden[:, :4], hidden, atol=TOLERANCE)


def test_hypotheses_of_a_source_are_computed_as_if_alone():
    """Three hypotheses fold into the query axis of one source; the source is never copied."""
    network = build()
    source, target = tokens(2, 6), tokens(6, 5, seed=1)
    target = jnp.where(jnp.arange(5) < jnp.array([5, 3, 4, 2, 5, 1])[:, None], target, 0)
    encoded = encode(network, source)
    folded = decode(network, encoded, source, target)
    for row in range(6):
        own = slice(row // 3, row // 3 + 1)
        one = target[row : row + 1]
        alone = decode(network, encoded[own], source[own], one)
        np.testing.assert_allclose(folded.hidden[row], alone.hidden[0], atol=TOLERANCE)
        np.testing.assert_allclose(folded.cross_attentions[row], alone.cross_attentions[0], atol=TOLERANCE)


def test_a_parallel_decoder_sees_its_right_and_a_causal_one_does_not():
    source, target = tokens(1, 6), tokens(1, 5, seed=1)
    changed = target.at[0, 3].set(target[0, 3] % 29 + 1)

    def shift(network, plan_target):
        plan = network.plan(network.encode(source), source, plan_target)
        difference = network.decode(changed, plan).hidden - network.decode(target, plan).hidden
        return np.abs(difference).max(axis=-1)[0]

    assert (shift(build(), target) > 1e-3).all()
    causal = shift(build(causal=True, positional_attention=False), 5)
    np.testing.assert_array_equal(causal[:3], 0)
    assert (causal[3:] > 1e-3).all()


def test_positional_weights_depend_on_lengths_only():
    network = build()
    source, target = tokens(1, 6), tokens(1, 5, seed=1)
    encoded = network.encode(source)
    plan, other = (network.plan(encoded, source, x) for x in (target, tokens(1, 5, seed=2)))
    assert len(plan.positional_weights) == 2
    jax.tree.map(np.testing.assert_array_equal, plan.positional_weights, other.positional_weights)
    shorter = network.plan(encoded, source, target.at[0, 4].set(0)).positional_weights[0]
    assert (shorter[0, :, :4, 4] == 0).all() and (plan.positional_weights[0][0, :, :4, 4] > 0).all()


def test_bfloat16_keeps_parameters_attention_and_logits_in_float32():
    network = build(dtype="bfloat16")
    source, target = tokens(1, 6), tokens(1, 5, seed=1)
    encoded = network.encode(source)
    output = network.decode(target, network.plan(encoded, source, target))
    assert encoded.dtype == output.hidden.dtype == jnp.bfloat16
    assert output.self_attentions.dtype == network.logits(output.hidden).dtype == jnp.float32
    assert {leaf.dtype for leaf in jax.tree.leaves(nnx.state(network, nnx.Param))} == {jnp.dtype("float32")}


def test_untied_logits_of_a_bfloat16_network_are_not_rounded_to_bfloat16():
    network = build(dtype="bfloat16", tied_logits=False)
    hidden = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, 16)), jnp.bfloat16)
    logits = network.logits(hidden)
    weight = np.asarray(network.logits_dense.weight[...].astype(jnp.bfloat16), np.float64)
    np.testing.assert_allclose(logits, np.asarray(hidden, np.float64) @ weight.T, atol=1e-5)


def test_tied_logits_of_a_bfloat16_network_are_divided_after_the_product():
    """The square root of 32 is no power of two: hidden vectors divided by it would be rounded again."""
    network = build(dtype="bfloat16", embed_dim=32)
    hidden = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, 32)), jnp.bfloat16)
    logits = network.logits(hidden)
    table = np.asarray(network.token_embedder.embedding[...].astype(jnp.bfloat16), np.float64)
    expected = np.asarray(hidden, np.float64) @ table.T / np.sqrt(32)
    np.testing.assert_allclose(logits, expected, atol=1e-5)
    some = jnp.array([[3, 5], [4, 6]])
    candidates = network.candidate_logits(hidden, network.candidate_embeddings(some))
    np.testing.assert_allclose(candidates, np.stack([expected[0][:, [3, 5]], expected[1][:, [4, 6]]]), atol=1e-5)


def test_float32_attention_logits_make_no_difference_to_a_float32_network():
    source, target = tokens(2, 6), tokens(2, 5, seed=1)
    found = []
    for exact in (True, False):
        network = build(float32_attention_logits=exact)
        found.append(decode(network, encode(network, source), source, target))
    for one, other in zip(*map(jax.tree.leaves, found), strict=True):
        np.testing.assert_array_equal(one, other)


def test_float32_attention_logits_can_be_given_up_in_a_bfloat16_network():
    source, target = tokens(2, 6), tokens(2, 5, seed=1)
    exact, rounded = (build(dtype="bfloat16", float32_attention_logits=value) for value in (True, False))
    encoded = encode(exact, source)
    one, other = decode(exact, encoded, source, target), decode(rounded, encoded, source, target)
    for name in ("self_attentions", "cross_attentions"):
        assert getattr(other, name).dtype == jnp.float32
        difference = np.abs(getattr(other, name) - getattr(one, name)).max()
        # Bfloat16 keeps 8 bits: logits of a few units are off by up to 1/64.
        assert 1e-5 < difference < 0.05


def test_dropout_is_on_only_with_a_key():
    network = build(dropout_rate=0.5)
    source = tokens(1, 6)
    np.testing.assert_array_equal(network.encode(source), network.encode(source))
    noisy = network.encode(source, jax.random.key(0))
    np.testing.assert_array_equal(noisy, network.encode(source, jax.random.key(0)))
    assert not np.allclose(noisy, network.encode(source, jax.random.key(1)))


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"mlp_activation": "swish"}, r"mlp_activation: unknown 'swish'; choose one of relu, gated-gelu"),
        ({"dtype": "float16"}, r"dtype: unknown 'float16'; choose float32 or bfloat16"),
        ({"causal": True}, r"positional_attention needs a parallel decoder; set causal=False"),
        ({"dropout_rate": 1.0}, r"dropout_rate: 1.0 is not in \[0, 1\)"),
        ({"dropout_rate": -0.1}, r"dropout_rate: -0.1 is not in \[0, 1\)"),
        ({"num_heads": 0}, "NetworkConfig.num_heads: 0 is not a whole number of at least 1"),
        ({"embed_dim": 1.5}, "NetworkConfig.embed_dim: 1.5 is not a whole number of at least 1"),
        ({"num_decoder_layers": -1}, "NetworkConfig.num_decoder_layers: -1 is not a whole number of at least 1"),
    ],
)
def test_bad_options_are_refused(option, message):
    with pytest.raises(PadirError, match=message):
        NetworkConfig(**option)


def test_a_target_beyond_the_learnt_positions_is_refused():
    network = build(max_positions=4)
    source, encoded = tokens(1, 3), jnp.zeros((1, 3, 16))
    network.plan(encoded, source, tokens(1, 4))
    with pytest.raises(PadirError, match="target length 5 exceeds the 4 learnt positions"):
        network.plan(encoded, source, tokens(1, 5))
