"""Products with rounded factors: against the same rounding written plainly, and how far they are from exact ones."""

import dataclasses

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import tiny_models
from flax.traverse_util import flatten_dict
from numerics import assert_close, assert_same
from tiny_models import AR, PADIR

from padir.benchmark.systems import System, open_systems
from padir.decoding.autoregressive import Autoregressive
from padir.decoding.beam import BeamSearch
from padir.decoding.refinement import Refinement
from padir.decoding.stopping import StopNever
from padir.errors import PadirError
from padir.inference.decoder import Decoder
from padir.nn import weights
from padir.nn.network import NetworkConfig

FLOAT32, BFLOAT16 = jnp.dtype("float32"), jnp.dtype("bfloat16")
SOURCE = tiny_models.rows(3, 7)
KEY = jax.random.key(0)
RNG = np.random.default_rng(0)
# Few rows, which `project` multiplies the weight with first, many, and one, of which it makes eight.
ROWS = (2, 3), (70,), (1, 1)
DECODES = {
    "greedy": (AR, Autoregressive()),
    "refinement": (PADIR, Refinement(num_steps=4, num_hypotheses=2, stop=StopNever())),
    "shortcuts": (
        PADIR,
        Refinement(num_steps=4, num_hypotheses=2, candidates=3, keep_hypotheses=1, active_positions=4),
    ),
    "beam": (AR, BeamSearch(beam_size=3)),
}


def params_of(model):
    return tiny_models.sharpen(model.init(3))


def int8_by_hand(x):
    """The integers (as float64) and the scale of each row."""
    scale = np.abs(x).max(axis=-1, keepdims=True) / np.float32(127)
    return np.rint(x / scale).astype(np.float64), scale


class TestInt8:
    @pytest.mark.parametrize("rows", ROWS)
    def test_is_a_product_of_integers_with_a_scale_a_row(self, rows):
        x = RNG.standard_normal((*rows, 16), np.float32) * 10.0 ** RNG.integers(-3, 3, (*rows, 1)).astype(np.float32)
        weight = RNG.standard_normal((5, 16), np.float32) * np.float32([[1e-3], [1.0], [10.0], [100.0], [3.0]])
        (left, x_scale), (right, scale) = int8_by_hand(x), int8_by_hand(weight)
        assert np.abs(left).max() == np.abs(right).max() == 127
        expected = left @ right.T * x_scale * scale[:, 0]
        found = weights.Int8(jnp.asarray(weight))(jnp.asarray(x), FLOAT32)
        assert found.dtype == FLOAT32
        np.testing.assert_allclose(found, expected, rtol=2e-6)

    def test_small_example(self):
        """Of 2, 1, -4 and its scale 4/127: 63.5 is rounded to the even 64."""
        product = weights.Int8(jnp.array([[2.0, 1.0, -4.0]]))
        assert product.weight[...].tolist() == [[64, 32, -127]]
        assert product.weight[...].dtype == jnp.int8
        np.testing.assert_allclose(product.scale[...], [4 / 127])
        np.testing.assert_allclose(product(jnp.array([1.0, 0.0, 0.0]), FLOAT32), [64 * 127 * 4 / 127 / 127], rtol=1e-6)

    def test_zeros(self):
        product = weights.Int8(jnp.zeros((2, 4)).at[1].set(1.0))
        assert product(jnp.ones((1, 4)), FLOAT32).tolist() == [[0.0, 4.0]]
        assert product(jnp.zeros((1, 4)), FLOAT32).tolist() == [[0.0, 0.0]]

    def test_what_is_not_a_number_does_not_pass_for_one(self):
        product = weights.Int8(jnp.ones((2, 4)))
        found = product(jnp.array([[1.0, jnp.nan, 1.0, 1.0], [1.0, jnp.inf, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0]]), FLOAT32)
        assert np.isnan(found[:2]).all() and found[2].tolist() == [4.0, 4.0]

    def test_of_bfloat16_activations(self):
        product = weights.Int8(jnp.asarray(RNG.standard_normal((5, 16), np.float32)))
        x = jnp.asarray(RNG.standard_normal((3, 16), np.float32)).astype(BFLOAT16)
        found = product(x, BFLOAT16)
        assert found.dtype == BFLOAT16
        np.testing.assert_array_equal(found, product(x.astype(FLOAT32), FLOAT32).astype(BFLOAT16))


@pytest.mark.parametrize("rows", ROWS)
def test_bfloat16_rounds_both_factors_and_not_the_sum(rows):
    x, weight = RNG.standard_normal((*rows, 64), np.float32), RNG.standard_normal((5, 64), np.float32)
    left, right = (factor.astype(ml_dtypes.bfloat16).astype(np.float64) for factor in (x, weight))
    found = weights.Bfloat16(jnp.asarray(weight))(jnp.asarray(x), FLOAT32)
    assert_close(found, left @ right.T, 1e-5)
    assert np.abs(found - x.astype(np.float64) @ weight.T).max() > 1e-3


@pytest.mark.first(2)
@pytest.mark.parametrize(("compute_type", "bound"), [("bfloat16", 0.02), ("int8", 0.06)])
@pytest.mark.parametrize("tied", [True, False])
def test_a_network_with_rounded_products_is_near_the_trained_one(compute_type, bound, tied):
    network = NetworkConfig(**tiny_models.SIZES, max_positions=24, tied_logits=tied)
    model = dataclasses.replace(PADIR, network=network)
    params = params_of(model)

    @jax.jit
    def logits(params):
        network = model.module(params).network
        encoded = network.encode(SOURCE)
        target = tiny_models.rows(3, 9, seed=1)
        return network.logits(network.decode(target, network.plan(encoded, SOURCE, target)).hidden)

    exact, rounded = logits(params), logits(model.for_decoding(params, compute_type))
    error = float(jnp.sqrt(jnp.mean((rounded - exact) ** 2)) / jnp.std(exact))
    assert bound / 20 < error < bound


@pytest.mark.parametrize(("compute_type", "kept"), [("bfloat16", jnp.bfloat16), ("int8", jnp.int8)])
def test_which_weights_are_rounded(compute_type, kept):
    """All that activations are multiplied with; not what is looked up, added, or of the length predictor."""
    params = params_of(PADIR)
    prepared = PADIR.for_decoding(params, compute_type).params
    names = {"/".join(map(str, path)): leaf for path, leaf in flatten_dict(prepared).items()}
    rounded = {name.removesuffix("/for_products/weight") for name, leaf in names.items() if leaf.dtype == kept}
    layer = "network/decoder/layers/0"
    assert {name for name in rounded if name.startswith("network/decoder")} == {
        "network/decoder/joined_source/weight",
        *(f"{layer}/mlp/{name}" for name in ("wi", "wo")),
        *(f"{layer}/self_attention/{name}" for name in ("joined/weight", "out")),
        *(f"{layer}/encoder_decoder_attention/{name}" for name in ("query", "out")),
        *(f"{layer}/positional_attention/{name}" for name in ("value", "out")),
    }
    assert "network/token_embedder" in rounded and "network/encoder/layers/0/mlp/wo" in rounded
    assert names["network/token_embedder/embedding"] is params["network"]["token_embedder"]["embedding"]
    assert all(leaf.dtype in (kept, FLOAT32) for leaf in names.values())


def test_a_network_of_bfloat16_is_that_already():
    model = dataclasses.replace(PADIR, network=NetworkConfig(**tiny_models.SIZES, dtype="bfloat16"))
    params = params_of(model)
    same = model.for_decoding(params), model.for_decoding(params, "bfloat16")
    assert jax.tree.structure(same[0].params) == jax.tree.structure(same[1].params)
    assert Decoder(model, params, compute_type="bfloat16").product_type == "bfloat16"


@pytest.mark.first(2)
@pytest.mark.parametrize("name", DECODES)
def test_int8_decodes_what_the_same_rounding_in_float32_decodes(name, monkeypatch):
    """The plain path: factors are rounded, and multiplied as floats."""
    model, config = DECODES[name]
    params = model.for_decoding(params_of(model), "int8")

    def plainly(self, x, dtype):
        rounded, scale = weights.to_int8(x)
        product = jnp.einsum("...i,oi->...o", rounded.astype(FLOAT32), self.weight[...].astype(FLOAT32))
        return (product * scale * self.scale[...]).astype(dtype)

    found = jax.jit(model.decode, static_argnums=3)(params, SOURCE, KEY, config)
    monkeypatch.setattr(weights.Int8, "__call__", plainly)
    expected = jax.jit(lambda *arrays: model.decode(*arrays, config))(params, SOURCE, KEY)
    assert_same(found, expected)


def test_systems_of_two_types_decode_apart():
    systems = [
        System("plain", model=lambda ids: dataclasses.replace(PADIR, ids=ids)),
        System("rounded", model=lambda ids: dataclasses.replace(PADIR, ids=ids), compute_type="int8"),
        System("again", model=lambda ids: dataclasses.replace(PADIR, ids=ids), compute_type="int8"),
    ]
    opened = open_systems(systems, 20)
    assert opened["again"].decoder is opened["rounded"].decoder is not opened["plain"].decoder
    assert [opened[name].decoder.product_type for name in ("plain", "rounded")] == ["float32", "int8"]
    plain, rounded = opened["plain"].decoder, opened["rounded"].decoder
    assert all(map(np.array_equal, jax.tree.leaves(plain.params), jax.tree.leaves(rounded.params)))


def test_an_unknown_type():
    message = "compute_type: unknown 'int4'; choose bfloat16, int8, auto or None, as the model was trained"
    with pytest.raises(PadirError, match=message):
        Decoder(PADIR, {}, compute_type="int4")
    with pytest.raises(PadirError, match="System.compute_type of system 'x': unknown 'fp8'"):
        System("x", run_dir="runs/x", compute_type="fp8")
