"""Parameters as decoding reads them: fewer and turned, the same numbers coming out."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_models
from flax.traverse_util import flatten_dict
from numerics import assert_close, assert_same
from tiny_models import AR, PADIR

from padir.decoding.autoregressive import Autoregressive
from padir.decoding.beam import BeamSearch
from padir.decoding.refinement import Refinement
from padir.decoding.stopping import StopNever
from padir.inference.decoder import Decoder
from padir.nn import for_decoding
from padir.nn.network import NetworkConfig
from padir.runtime import platforms

SOURCE = tiny_models.rows(3, 7)
TARGET = tiny_models.rows(3, 9, seed=1)
NETWORKS = {
    "tied, ReLU": {},
    "untied, gated GELU": {"tied_logits": False, "mlp_activation": "gated-gelu"},
    "bfloat16": {"dtype": "bfloat16"},
    "no positional attention": {"positional_attention": False},
}


def with_network(model, **options):
    return dataclasses.replace(model, network=NetworkConfig(**tiny_models.SIZES, max_positions=24, **options))


def turns_up_to(size, monkeypatch):
    how = dataclasses.replace(platforms.OF_PLATFORM["cpu"], turned_weight_size=size)
    monkeypatch.setitem(platforms.OF_PLATFORM, "cpu", how)


def params_of(model):
    return tiny_models.sharpen(model.init(3))


def names(params):
    return {"/".join(map(str, path)): leaf for path, leaf in flatten_dict(params).items()}


@pytest.mark.parametrize("tied", [True, False])
def test_weights_are_kept_in_the_type_they_are_multiplied_in(tied, monkeypatch):
    turns_up_to(0, monkeypatch)
    model = with_network(PADIR, dtype="bfloat16", tied_logits=tied)
    prepared = names(model.for_decoding(params_of(model)).params)
    wide = {name.rsplit("/", 2)[-2] for name, leaf in prepared.items() if leaf.dtype == jnp.float32}
    # The positional table is of logits, the length predictor no part of the network.
    assert {name for name in wide if "norm" not in name} <= {"relpos_bias", "decoder", "length_embed", "sum"}
    narrow = [name for name, leaf in prepared.items() if leaf.dtype == jnp.bfloat16]
    assert "network/token_embedder/embedding" in narrow
    assert ("network/logits_dense/weight" in narrow) is not tied
    assert "network/decoder/layers/0/mlp/wi/for_products/weight" in narrow


@pytest.mark.first(8)
@pytest.mark.parametrize("limits", ["as they are", "nothing small", "too many positions", "on GPU", "on TPU"])
@pytest.mark.parametrize("options", NETWORKS.values(), ids=NETWORKS)
def test_prepared_parameters_say_the_same(options, limits, monkeypatch):
    """Encoder output, attention by position, hidden states and logits."""
    if limits.startswith("on "):
        monkeypatch.setitem(platforms.OF_PLATFORM, "cpu", platforms.OF_PLATFORM[limits[3:].lower()])
    if limits == "nothing small":
        turns_up_to(0, monkeypatch)
    if limits == "too many positions":
        monkeypatch.setattr(for_decoding, "_LARGEST_POSITIONAL_TABLE", 2 * 24**2 - 1)
    model = with_network(PADIR, **options)
    params = params_of(model)

    def outputs(params):
        network = model.module(params).network
        encoded = network.encode(SOURCE)
        plan = network.plan(encoded, SOURCE, TARGET)
        hidden = network.decode(TARGET, plan).hidden
        return encoded, plan.positional_weights, hidden, network.logits(hidden)

    expected = jax.jit(outputs)(params)
    found = jax.jit(outputs)(model.for_decoding(params))
    # Of bfloat16, one rounding of the last place more or less.
    exact = model.network.dtype == "float32" and limits != "on TPU"
    assert_close(found, expected, 3e-5 if exact else 0.02)
    assert float(jnp.std(expected[-1])) > 0.1


@pytest.mark.first(3)
@pytest.mark.parametrize(
    ("model", "config"),
    [
        (PADIR, Refinement(num_steps=4, num_hypotheses=2, stop=StopNever())),
        (
            PADIR,
            Refinement(
                num_steps=4, num_hypotheses=2, candidates=3, keep_hypotheses=1, active_positions=4, stop=StopNever()
            ),
        ),
        (AR, Autoregressive()),
        (AR, BeamSearch(beam_size=3)),
    ],
    ids=["refinement", "shortcuts", "greedy", "beam"],
)
def test_prepared_parameters_give_the_same_translations(model, config):
    params = params_of(model)
    decode = jax.jit(model.decode, static_argnums=3)
    key = jax.random.key(0)
    expected = decode(params, SOURCE, key, config)
    assert_same(decode(model.for_decoding(params), SOURCE, key, config), expected)


def test_what_is_put_in_the_place_of_what():
    """All weights of the tiny model are small, 2 heads × 24² positions few."""
    model = with_network(PADIR)
    params = params_of(model)
    trained, prepared = names(params), names(model.for_decoding(params).params)
    gone, new = trained.keys() - prepared.keys(), prepared.keys() - trained.keys()
    layer, encoder = "network/decoder/layers/0", "network/encoder/layers/0"
    replaced = {
        *(f"{layer}/positional_attention/{name}/weight" for name in ("query", "key")),
        f"{layer}/pre_positional_attention_layer_norm/scale",
        "network/decoder/abs_pos_embed/embedding",
    }
    joined = {
        f"{layer}/self_attention/joined": [f"{layer}/self_attention/{part}" for part in ("query", "key", "value")],
        f"{encoder}/attention/joined": [f"{encoder}/attention/{part}" for part in ("query", "key", "value")],
        "network/decoder/joined_source": [f"{layer}/encoder_decoder_attention/{part}" for part in ("key", "value")],
    }
    turned = {name.removesuffix("/for_products/weight") for name in new if name.endswith("/for_products/weight")}
    table = "network/decoder/positional_table"
    assert new == {table, *(f"{name}/for_products/weight" for name in turned), *(f"{name}/weight" for name in joined)}
    alone = {f"{name}/weight" for name in turned - {"network/token_embedder"}}
    assert gone - replaced == alone | {f"{part}/weight" for parts in joined.values() for part in parts}
    assert f"{layer}/mlp/wi" in turned and f"{encoder}/attention/out" in turned
    np.testing.assert_array_equal(prepared[f"{layer}/mlp/wi/for_products/weight"], trained[f"{layer}/mlp/wi/weight"].T)
    for name, parts in joined.items():
        expected = np.concatenate([trained[f"{part}/weight"] for part in parts]).T
        np.testing.assert_array_equal(prepared[f"{name}/weight"], expected)
    assert prepared[table].shape == (1, 2, 24, 24)
    # The table of tokens is still looked up by row.
    assert prepared["network/token_embedder/embedding"] is trained["network/token_embedder/embedding"]


def test_large_weights_are_the_very_same_arrays(monkeypatch):
    """So that they are not held twice."""
    turns_up_to(16 * 16, monkeypatch)
    model = with_network(PADIR)
    params = params_of(model)
    trained, prepared = names(params), names(model.for_decoding(params).params)
    wide, table = "network/decoder/layers/0/mlp/wi", "network/token_embedder"
    assert trained[f"{wide}/weight"].shape == (32, 16)
    assert prepared[f"{wide}/for_products/weight"] is trained[f"{wide}/weight"]
    assert prepared[f"{table}/for_products/weight"] is trained[f"{table}/embedding"]
    assert prepared[f"{table}/embedding"] is trained[f"{table}/embedding"]


def test_a_decoder_keeps_the_parameters_as_they_were_trained():
    """Their hash goes into the records of batch inference."""
    params = params_of(PADIR)
    kept = Decoder(PADIR, params).params
    assert jax.tree.structure(kept) == jax.tree.structure(params)
    assert all(np.array_equal(*pair) for pair in zip(jax.tree.leaves(kept), jax.tree.leaves(params), strict=True))


def test_a_tpu_stores_weights_as_its_matrix_unit_reads_them(monkeypatch):
    """Rounded once, unless the user asks for true float32. What is looked up or added stays as it was trained."""
    monkeypatch.setitem(platforms.OF_PLATFORM, "cpu", platforms.OF_PLATFORM["tpu"])
    params = params_of(PADIR)
    prepared = names(PADIR.for_decoding(params).params)
    assert prepared["network/decoder/layers/0/self_attention/query/for_products/weight"].dtype == jnp.bfloat16
    assert prepared["network/token_embedder/for_products/weight"].dtype == jnp.bfloat16
    assert prepared["network/token_embedder/embedding"].dtype == jnp.float32
    with jax.default_matmul_precision("highest"):
        prepared = names(PADIR.for_decoding(params).params)
    assert {leaf.dtype for leaf in prepared.values()} == {jnp.dtype("float32")}


@pytest.mark.first(2)
@pytest.mark.parametrize("compute_type", [None, "int8"])
@pytest.mark.parametrize("decode", [Autoregressive(), BeamSearch(beam_size=3)], ids=["greedy", "beam"])
def test_a_tpu_writes_the_same_tokens(decode, compute_type, monkeypatch):
    """A causal decoder masks heads there instead of separating them; with true float32 nothing else differs."""

    def translations():
        prepared = AR.for_decoding(params, compute_type)
        return jax.jit(lambda prepared: AR.decode(prepared, SOURCE, tiny_models.KEY, decode))(prepared), prepared

    params = params_of(AR)
    with jax.default_matmul_precision("highest"):
        expected, _ = translations()
        monkeypatch.setitem(platforms.OF_PLATFORM, "cpu", platforms.OF_PLATFORM["tpu"])
        found, prepared = translations()
        cache = AR.module(prepared).network.empty_cache(2, 5)
    assert cache.layers[0].self_attention.key.shape == (2, 5, AR.network.num_heads * AR.network.head_dim)
    np.testing.assert_array_equal(found.tokens, expected.tokens)
    assert_close(found.scores, expected.scores, 1e-4)
