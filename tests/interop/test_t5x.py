"""T5X parameters become our models: the release's numbers, every size, every kind of misfit."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numerics import assert_close

from padir.decoding.refinement import Refinement
from padir.decoding.replacement import ReplaceWithPrevious
from padir.errors import PadirError
from padir.interop import t5x
from padir.models.autoregressive import AutoregressiveModel
from padir.models.padir import PadirModel
from padir.nn.length import prepend_length_token
from padir.nn.network import NetworkConfig
from padir.types import TokenIds

TINY = NetworkConfig(
    vocab_size=128, embed_dim=16, num_heads=2, head_dim=4, mlp_dim=24, num_encoder_layers=1, num_decoder_layers=2
)
AR = dataclasses.replace(TINY, causal=True, positional_attention=False)


def drawn(model) -> dict[str, np.ndarray]:
    """Random parameters under T5X's names."""
    rng = np.random.default_rng(0)
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in t5x.shapes(model).items()}


def assert_same(params, other):
    jax.tree.map(np.testing.assert_array_equal, params, other)


class TestRelease:
    """The T5X release's checkpoint, with no word about its size."""

    @pytest.fixture
    def release(self, golden):
        return golden("padir_tiny_tied.npz")

    @pytest.fixture
    def loaded(self, t5x_checkpoint):
        return t5x.load(t5x_checkpoint)

    def test_parameters(self, loaded, release):
        flat = t5x.flat_params(*loaded)
        expected = {name.removeprefix("params/"): release[name] for name in release if name.startswith("params/")}
        assert flat.keys() == expected.keys()
        for name, array in expected.items():
            np.testing.assert_array_equal(flat[name], array, err_msg=name)
        assert sum(leaf.size for leaf in jax.tree.leaves(loaded.params)) == 62_528

    def test_model(self, loaded):
        network = NetworkConfig(
            vocab_size=128,
            embed_dim=32,
            num_heads=2,
            head_dim=16,
            mlp_dim=64,
            num_encoder_layers=2,
            num_decoder_layers=2,
        )
        model = PadirModel(ids=TokenIds(28), network=network, max_source_length=16, max_target_length=16)
        assert loaded.model == model
        assert (model.ids.mask_id, model.ids.length_id) == (127, 125)

    def test_forward_pass(self, loaded, release):
        model, params = loaded
        network = model.module(params).network
        source, target = (jnp.asarray(release[f"{side}_input_tokens"]) for side in ("encoder", "decoder"))
        encoded, length_logits = model.encode(params, source)
        hidden = network.decode(target, network.plan(encoded, source, target)).hidden
        assert_close(encoded, release["encoder_output"], 1e-5)
        assert_close(length_logits, release["length_logits"], 3e-6)
        assert_close(network.logits(hidden), release["decoder_logits"], 1e-5)
        whole = network.encode(prepend_length_token(source, model.ids.length_id))
        assert_close(whole[:, 0], release["length_embeddings"], 1e-5)

    @pytest.mark.parametrize("run, steps, hypotheses", [("forced/MASK_PREVIOUS_TOKENS_k3_it4_stutter1", 4, 3)])
    def test_an_untied_head_of_the_same_numbers_decodes_the_same(self, golden, run, steps, hypotheses):
        """Tied logits are divided by sqrt(E), those of a head are not."""
        arrays = golden("padir_tiny_tied_forced_lengths.npz")
        flat = {name.removeprefix("params/"): arrays[name] for name in arrays if name.startswith("params/")}
        flat[t5x.LOGITS] = flat[t5x.EMBEDDING].T / np.float32(np.sqrt(32))
        model, params = t5x.model_from_params(flat)
        assert not model.network.tied_logits and params["network"]["logits_dense"]["weight"].shape == (128, 32)
        config = Refinement(num_steps=steps, num_hypotheses=hypotheses, replace=ReplaceWithPrevious(), t5x_compat=True)
        lengths = np.asarray(arrays[f"forced_lengths_k{hypotheses}"], np.int32)
        source, key = arrays["encoder_input_tokens"], jax.random.key(0)
        found = jax.jit(model.decode, static_argnums=3)(params, source, key, config, lengths=lengths)
        np.testing.assert_array_equal(found.tokens[:, ::-1], arrays[f"{run}/decodes"])
        assert_close(found.scores[:, ::-1], arrays[f"{run}/scores"], 1e-5)


@pytest.mark.parametrize(
    "model",
    [
        PadirModel(TokenIds(28), dataclasses.replace(TINY, tied_logits=False, max_positions=20), 9, 9),
        PadirModel(
            TokenIds(28), dataclasses.replace(TINY, positional_attention=False, mlp_activation="gated-gelu"), 7, 7
        ),
        AutoregressiveModel(TokenIds(128, extra_ids=0), AR, 512, 512),
        AutoregressiveModel(
            TokenIds(128, extra_ids=0),
            dataclasses.replace(AR, tied_logits=False, num_encoder_layers=12, num_decoder_layers=1, num_heads=4),
            512,
            512,
        ),
    ],
    ids=["untied", "gated, no positions", "ar", "ar 12-1"],
)
def test_any_size_is_read_off_the_parameters(model):
    flat = drawn(model)
    found, params = t5x.model_from_params(flat)
    assert found == model
    again = t5x.flat_params(found, params)
    assert again.keys() == flat.keys()
    for name, array in flat.items():
        np.testing.assert_array_equal(again[name], array)
    # A configuration that is given makes the same of them, whether of the network or of all.
    for config in (model.network, model):
        other, other_params = t5x.model_from_params(flat, config)
        assert other == model
        assert_same(params, other_params)


def test_names_of_untied_logits_and_layers():
    names = set(t5x.shapes(AutoregressiveModel(TokenIds(28), dataclasses.replace(AR, tied_logits=False))))
    assert {"decoder/logits_dense/kernel", "token_embedder/embedding", "encoder/relpos_bias/rel_embedding"} <= names
    assert {"decoder/layers_1/encoder_decoder_attention/out/kernel", "encoder/layers_0/mlp/wi/kernel"} <= names
    assert not [name for name in names if re.search(r"network|layers/", name)]


def test_kernels_by_head():
    """[E, H, D] and [H, D, E] hold the same numbers in the same order as [E, H·D] and [H·D, E]."""
    model = AutoregressiveModel(TokenIds(28), AR)
    flat = drawn(model)
    by_head = {
        name: array.reshape(2, 4, 16)
        if name.endswith("out/kernel")
        else array.reshape(16, 2, 4)
        if re.search("(query|key|value)/kernel$", name)
        else array
        for name, array in flat.items()
    }
    assert sum(array.ndim == 3 for array in by_head.values()) == 4 * (1 + 2 * 2)
    # The width of a head is read off 3-D kernels, too.
    assert t5x.config_from_params(by_head) == AR
    assert_same(t5x.model_from_params(by_head, model).params, t5x.model_from_params(flat, model).params)
    name = "decoder/layers_0/self_attention/query/kernel"
    with pytest.raises(PadirError, match=rf"{name} is \[16, 4, 2\] there, \[16, 8\] in the model"):
        t5x.model_from_params(by_head | {name: flat[name].reshape(16, 4, 2)}, model)


def test_bfloat16_becomes_float32():
    model = AutoregressiveModel(TokenIds(28), AR)
    flat = {name: jnp.asarray(array, jnp.bfloat16) for name, array in drawn(model).items()}
    _, params = t5x.model_from_params(flat, model)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("float32")}
    np.testing.assert_array_equal(
        params["network"]["token_embedder"]["embedding"], flat["token_embedder/embedding"].astype(jnp.float32)
    )


def test_a_short_table_is_padded_for_an_autoregressive_model():
    model = AutoregressiveModel(TokenIds(28), dataclasses.replace(AR, tied_logits=False))
    flat = drawn(model)
    flat["token_embedder/embedding"] = flat["token_embedder/embedding"][:30]
    flat["decoder/logits_dense/kernel"] = flat["decoder/logits_dense/kernel"][:, :30]
    network = t5x.model_from_params(flat, model).params["network"]
    table, weight = network["token_embedder"]["embedding"], network["logits_dense"]["weight"]
    assert table.shape == (128, 16) and weight.shape == (128, 16)
    np.testing.assert_array_equal(table[:30], flat["token_embedder/embedding"])
    np.testing.assert_array_equal(weight[:30], flat["decoder/logits_dense/kernel"].T)
    np.testing.assert_array_equal(table[30:], np.tile(flat["token_embedder/embedding"][:1], (98, 1)))
    np.testing.assert_array_equal(weight[30:], np.tile(flat["decoder/logits_dense/kernel"][:, :1].T, (98, 1)))


def test_a_parallel_model_is_not_given_a_mask_that_nobody_learnt():
    model = PadirModel(TokenIds(28), TINY, 9, 9)
    flat = drawn(model)
    flat["token_embedder/embedding"] = flat["token_embedder/embedding"][:120]
    with pytest.raises(PadirError, match=r"token_embedder/embedding is \[120, 16\] there, \[128, 16\] in the model"):
        t5x.model_from_params(flat, model)


class TestMisfits:
    @pytest.fixture
    def model(self):
        return AutoregressiveModel(TokenIds(28), AR)

    def test_missing_unexpected_and_shapes_in_one_error(self, model):
        flat = drawn(model)
        del flat["decoder/decoder_norm/scale"], flat["encoder/layers_0/mlp/wo/kernel"]
        flat["decoder/abs_pos_embed/embedding"] = flat["surprise"] = np.zeros(3)
        flat["encoder/encoder_norm/scale"] = np.zeros(17, np.float32)
        with pytest.raises(PadirError) as error:
            t5x.model_from_params(flat, model, source="somewhere")
        assert str(error.value) == (
            "somewhere: parameters do not fit the model; "
            "2 missing: decoder/decoder_norm/scale, encoder/layers_0/mlp/wo/kernel; "
            "2 unexpected: decoder/abs_pos_embed/embedding, surprise; "
            "1 of another shape: encoder/encoder_norm/scale is [17] there, [16] in the model"
        )

    def test_a_layer_left_out(self, model):
        flat = {name: array for name, array in drawn(model).items() if "decoder/layers_0/" not in name}
        with pytest.raises(PadirError, match=r"13 missing: decoder/layers_0/encoder_decoder_attention/key/kernel, "):
            t5x.model_from_params(flat)

    def test_size_that_cannot_be_told(self, model):
        flat = drawn(model)
        del flat["encoder/relpos_bias/rel_embedding"]
        flat["token_embedder/embedding"] = flat["token_embedder/embedding"][0]
        expected = "missing, or no matrix: token_embedder/embedding, encoder/relpos_bias/rel_embedding"
        with pytest.raises(PadirError, match=expected):
            t5x.model_from_params(flat)

    def test_scanned_layers(self, model):
        flat = drawn(model) | {"encoder/layers/mlp/wi/kernel": np.zeros((16, 2, 24))}
        with pytest.raises(PadirError, match=r"1 parameters are of scanned layers \(encoder/layers/mlp/wi/kernel, …\)"):
            t5x.model_from_params(flat, model)

    def test_integers(self, model):
        flat = drawn(model)
        flat["encoder/encoder_norm/scale"] = np.ones(16, np.int8)
        with pytest.raises(PadirError, match="encoder/encoder_norm/scale holds int8, not floating-point numbers"):
            t5x.model_from_params(flat, model)

    def test_parameters_of_another_model_are_not_written(self, model):
        params = t5x.model_from_params(drawn(model), model).params
        deeper = dataclasses.replace(model, network=dataclasses.replace(AR, num_encoder_layers=2))
        with pytest.raises(PadirError, match=r"params: .* 8 missing: encoder/layers_1/attention/key/kernel"):
            t5x.flat_params(deeper, params)
