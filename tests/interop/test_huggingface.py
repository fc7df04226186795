"""Hugging Face's T5 computes the same in our network, and what we write is a T5 of theirs."""

import json

import jax
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from padir.decoding.autoregressive import Autoregressive
from padir.decoding.beam import BeamSearch
from padir.errors import PadirError
from padir.interop import huggingface, t5x
from padir.models.autoregressive import AutoregressiveModel
from padir.models.base import LossConfig
from padir.models.padir import PadirModel
from padir.nn.network import NetworkConfig
from padir.types import TokenIds

pytestmark = pytest.mark.usefixtures("optimised")

# As in tests/nn/test_network.py: their random weights make attention very sharp.
TOLERANCE = 5e-4


SIZES = {
    "embed_dim": 16,
    "num_heads": 2,
    "head_dim": 8,
    "mlp_dim": 32,
    "num_encoder_layers": 1,
    "num_decoder_layers": 1,
}


def rewrite_config(folder, **changes):
    """Changes keys of config.json; None removes one."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


def rewrite_tensors(folder, **changes):
    """Changes tensors by name; None removes one."""
    path = folder / "model.safetensors"
    tensors = load_file(path) | changes
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, path)


def assert_same(found, expected):
    assert found.model == expected.model
    jax.tree.map(np.testing.assert_array_equal, found.params, expected.params)


class TestTheirNumbers:
    """Arrays that Transformers computed."""

    @pytest.fixture(params=["t5_10", "t5_11"])
    def name(self, request):
        return request.param

    @pytest.fixture
    def loaded(self, name, hugging_face):
        return huggingface.load(hugging_face(name))

    def test_model(self, name, loaded):
        gated = name == "t5_11"
        network = NetworkConfig(
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
        assert loaded.model == AutoregressiveModel(TokenIds(40, extra_ids=0, rows=40), network, 512, 512)

    def test_encoder_output_and_logits(self, name, loaded, golden):
        model, params = loaded
        arrays = golden(f"hf_t5/{name}.npz")
        network = model.module(params).network
        source, target = arrays["encoder_input_tokens"], arrays["decoder_input_tokens"]
        encoded = network.encode(source)
        seen = source != 0
        np.testing.assert_allclose(encoded[seen], arrays["encoder_output"][seen], atol=TOLERANCE)
        logits = network.logits(network.decode(target, network.plan(encoded, source, target.shape[1])).hidden)
        np.testing.assert_allclose(logits, arrays["logits"], atol=TOLERANCE)

    def test_greedy_tokens(self, name, loaded, golden):
        model, params = loaded
        arrays = golden(f"hf_t5/{name}.npz")
        config = Autoregressive(max_length_ratio=0, max_length_offset=12)
        found = model.decode(params, arrays["encoder_input_tokens"], jax.random.key(0), config)
        np.testing.assert_array_equal(found.tokens[:, 0, :12], arrays["greedy"][:, 1:])

    @pytest.mark.first(2)
    @pytest.mark.parametrize("alpha", [0.0, 1.0])
    @pytest.mark.parametrize("early_exit", ["exact", "current_length"])
    def test_beam_5(self, name, loaded, golden, alpha, early_exit):
        model, params = loaded
        arrays = golden(f"hf_t5/{name}.npz")
        expected = arrays[f"beam5_lp{alpha}_sequences"].reshape(4, 5, 13)[..., 1:]  # without the start token
        # After EOS they go on with whatever their padding is.
        expected = np.where(np.cumsum(expected == 1, axis=-1) - (expected == 1) > 0, 0, expected)
        config = BeamSearch(alpha=alpha, early_exit=early_exit, max_length_ratio=0.0, max_length_offset=12)
        found = model.decode(params, arrays["encoder_input_tokens"], jax.random.key(0), config)
        np.testing.assert_array_equal(found.tokens[..., :12], expected)
        scores = arrays[f"beam5_lp{alpha}_scores"].reshape(4, 5)
        # Their logits carry rounding of their own (see tests/nn/test_network.py), which adds up over 12 tokens.
        np.testing.assert_allclose(found.scores, scores, atol=2e-3 if alpha == 0.0 else 5e-4)


class TestRoundTrip:
    def test_everybody_may_read_what_may_be_read(self, tmp_path):
        """The library that writes the weights does so for its owner alone."""
        network = NetworkConfig(**SIZES, causal=True, positional_attention=False)
        model = AutoregressiveModel(TokenIds(20), network, 8, 8)
        huggingface.save(tmp_path, model, model.init(0))
        assert len({path.stat().st_mode for path in tmp_path.iterdir()}) == 1
        assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]

    def test_other_numbers_of_buckets(self, tmp_path):
        network = NetworkConfig(**SIZES, causal=True, positional_attention=False, relative_buckets=48)
        model = AutoregressiveModel(TokenIds(20), network, 8, 8)
        huggingface.save(tmp_path, model, model.init(0))
        rewrite_config(tmp_path, padir=None)
        loaded = huggingface.load(tmp_path)
        assert loaded.model.network.relative_buckets == 48
        assert loaded.params["network"]["encoder"]["relpos_bias"]["rel_embedding"].shape == (2, 48)
        assert t5x.config_from_params(t5x.flat_params(*loaded)).relative_buckets == 48

    def test_theirs(self, hugging_face, tmp_path):
        """A tied T5 comes out as it came in: names, shapes, bits, and a configuration that says the same."""
        folder = hugging_face("t5_10")
        loaded = huggingface.load(folder)
        huggingface.save(tmp_path / "out", *loaded)
        theirs, ours = load_file(folder / "model.safetensors"), load_file(tmp_path / "out" / "model.safetensors")
        assert ours.keys() == theirs.keys()
        for name, tensor in theirs.items():
            np.testing.assert_array_equal(ours[name], tensor, err_msg=name)
        their_config, config = (json.loads((at / "config.json").read_text()) for at in (folder, tmp_path / "out"))
        assert {key for key in config if config[key] != their_config.get(key)} == {"padir"}
        assert_same(huggingface.load(tmp_path / "out"), loaded)

    def test_one_unscaled_table_becomes_two(self, hugging_face, tmp_path):
        folder = hugging_face("t5_11")
        loaded = huggingface.load(folder)
        huggingface.save(tmp_path / "out", *loaded)
        theirs, ours = load_file(folder / "model.safetensors"), load_file(tmp_path / "out" / "model.safetensors")
        assert ours.keys() - theirs.keys() == {"lm_head.weight"} and theirs.keys() <= ours.keys()
        np.testing.assert_array_equal(ours["lm_head.weight"], theirs["shared.weight"])
        for name, tensor in theirs.items():
            np.testing.assert_array_equal(ours[name], tensor, err_msg=name)
        # What Transformers 4 and 5 read from it: no copies, no scaling.
        config = json.loads((tmp_path / "out" / "config.json").read_text())
        assert (config["tie_word_embeddings"], config["scale_decoder_outputs"]) == (False, False)
        assert (config["feed_forward_proj"], config["vocab_size"]) == ("gated-gelu", 40)
        assert_same(huggingface.load(tmp_path / "out"), loaded)

    @pytest.mark.parametrize("tied", [True, False])
    def test_ours_autoregressive(self, tmp_path, tied):
        """Trained rows beyond the vocabulary are kept; ids, lengths and loss come back."""
        network = NetworkConfig(
            embed_dim=16, num_heads=4, head_dim=8, mlp_dim=24, num_encoder_layers=3, num_decoder_layers=1,
            tied_logits=tied, causal=True, positional_attention=False, dtype="bfloat16", dropout_rate=0.25,
        )  # fmt: skip
        model = AutoregressiveModel(TokenIds(20, extra_ids=10), network, 30, 40, LossConfig(label_smoothing=0.1))
        imported = t5x.model_from_params(random_params(model), model)
        huggingface.save(tmp_path / "out", *imported)
        tensors = load_file(tmp_path / "out" / "model.safetensors")
        assert tensors["shared.weight"].shape == (128, 16)
        assert tensors["encoder.block.2.layer.0.SelfAttention.q.weight"].shape == (32, 16)
        assert ("lm_head.weight" in tensors) is not tied
        assert_same(huggingface.load(tmp_path / "out"), imported)

    def test_ours_parallel(self, tmp_path):
        network = NetworkConfig(
            embed_dim=16, num_heads=2, head_dim=8, mlp_dim=24, num_encoder_layers=1, num_decoder_layers=2
        )
        model = PadirModel(TokenIds(28), network, 12, 10, num_stages=3, relative_length=True)
        imported = t5x.model_from_params(random_params(model), model)
        huggingface.save(tmp_path / "out", *imported)
        tensors = load_file(tmp_path / "out" / "model.safetensors")
        assert tensors.keys() == t5x.shapes(model).keys()
        assert tensors["length_predictor/length_embed/embedding"].shape == (10, 16)
        assert_same(huggingface.load(tmp_path / "out"), imported)

    def test_nothing_is_overwritten(self, hugging_face):
        folder = hugging_face("t5_10")
        with pytest.raises(PadirError, match=rf"^{folder}/config.json: exists; choose another folder"):
            huggingface.save(folder, *huggingface.load(folder))

    def test_what_an_interrupted_export_left_is_replaced_and_a_file_of_others_is_not(self, hugging_face, tmp_path):
        others = hugging_face("t5_10")
        found, folder = huggingface.load(others), tmp_path / "out"
        huggingface.save(folder, *found)
        (folder / "config.json").unlink()
        huggingface.save(folder, *found)
        assert_same(huggingface.load(folder), found)
        (folder / "config.json").unlink()
        weights = folder / "model.safetensors"
        theirs = (others / "model.safetensors").read_bytes()
        for content in (theirs, b"\xff" * 20, b""):
            weights.write_bytes(content)
            with pytest.raises(PadirError, match=rf"^{weights}: exists; choose another folder"):
                huggingface.save(folder, *found)
            assert weights.read_bytes() == content


def random_params(model) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in t5x.shapes(model).items()}


class TestVariants:
    """What folders of other models and other versions of Transformers hold."""

    @pytest.fixture
    def folder(self, hugging_face):
        return hugging_face("t5_10")

    def test_shards(self, folder):
        expected = huggingface.load(folder)
        tensors = load_file(folder / "model.safetensors")
        names = sorted(tensors)
        shards = {"model-1.safetensors": names[:10], "model-2.safetensors": names[10:]}
        for file, part in shards.items():
            save_file({name: tensors[name] for name in part}, folder / file)
        index = {"metadata": {}, "weight_map": {name: file for file, part in shards.items() for name in part}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        (folder / "model.safetensors").unlink()
        assert_same(huggingface.load(folder), expected)
        (folder / "model-2.safetensors").unlink()
        with pytest.raises(PadirError, match=rf"^{folder}/model-2.safetensors: no such file$"):
            huggingface.load(folder)

    def test_bfloat16(self, folder):
        expected = huggingface.load(folder)
        tensors = load_file(folder / "model.safetensors")
        rewrite_tensors(folder, **{name: tensor.astype(ml_dtypes.bfloat16) for name, tensor in tensors.items()})
        rounded = jax.tree.map(lambda leaf: leaf.astype(ml_dtypes.bfloat16).astype(np.float32), expected.params)
        assert_same(huggingface.load(folder), expected._replace(params=rounded))

    def test_copies_and_a_table_never_used_are_left_out(self, folder):
        expected = huggingface.load(folder)
        shared = load_file(folder / "model.safetensors")["shared.weight"]
        copies = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")
        unused = {
            "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight": np.ones((32, 2), np.float32)
        }
        rewrite_tensors(folder, **dict.fromkeys(copies, shared), **unused)
        assert_same(huggingface.load(folder), expected)
        rewrite_tensors(folder, **{"shared.weight": None})
        assert_same(huggingface.load(folder), expected)
        rewrite_tensors(folder, **{"shared.weight": shared, "encoder.embed_tokens.weight": shared + 1})
        with pytest.raises(PadirError, match="encoder.embed_tokens.weight differs from shared.weight"):
            huggingface.load(folder)

    @pytest.mark.parametrize(
        "keys",
        [
            {"tie_word_embeddings": False, "scale_decoder_outputs": None},
            {"tie_word_embeddings": True, "scale_decoder_outputs": False},
        ],
        ids=["Transformers 4", "Transformers 5"],
    )
    def test_logits_of_their_own(self, folder, keys):
        table = np.random.default_rng(0).normal(size=(40, 32)).astype(np.float32)
        rewrite_config(folder, **keys)
        rewrite_tensors(folder, **{"lm_head.weight": table})
        model, params = huggingface.load(folder)
        assert not model.network.tied_logits
        np.testing.assert_array_equal(params["network"]["logits_dense"]["weight"][:40], table)

    def test_logits_of_their_own_that_are_not_there(self, folder):
        rewrite_config(folder, tie_word_embeddings=False, scale_decoder_outputs=None)
        with pytest.raises(PadirError, match="1 missing: lm_head.weight$"):
            huggingface.load(folder)

    def test_scaled_logits_of_their_own(self, folder):
        rewrite_tensors(folder, **{"lm_head.weight": np.zeros((40, 32), np.float32)})
        with pytest.raises(PadirError, match=r"lm_head.weight differs from shared.weight, of which config.json makes"):
            huggingface.load(folder)

    def test_lengths_and_depths(self, folder):
        rewrite_config(folder, n_positions=64, num_decoder_layers=None)
        model, _ = huggingface.load(folder)
        assert (model.max_source_length, model.max_target_length) == (64, 64)
        assert model.network.num_decoder_layers == 2

    def test_with_a_vocabulary(self, folder):
        model, params = huggingface.load(folder, num_pieces=28)
        assert model.ids == TokenIds(28, extra_ids=12, rows=40)
        assert_same(huggingface.load(folder)._replace(model=model), huggingface.Imported(model, params))
        with pytest.raises(PadirError, match="has 41 pieces, but the checkpoint has embeddings of only 40"):
            huggingface.load(folder, num_pieces=41)


class TestMisfits:
    @pytest.fixture
    def folder(self, hugging_face):
        return hugging_face("t5_10")

    def test_names_and_shapes_are_theirs(self, folder):
        changes = {
            "decoder.final_layer_norm.weight": None,
            "encoder.block.1.layer.1.DenseReluDense.wo.weight": None,
            "adapter.weight": np.zeros(1, np.float32),
            "shared.weight": np.zeros((41, 32), np.float32),
        }
        rewrite_tensors(folder, **changes)
        with pytest.raises(PadirError) as error:
            huggingface.load(folder)
        assert str(error.value) == (
            f"{folder}: parameters do not fit the model; "
            "2 missing: decoder.final_layer_norm.weight, encoder.block.1.layer.1.DenseReluDense.wo.weight; "
            "1 unexpected: adapter.weight; "
            "1 of another shape: shared.weight is [41, 32] there, [40, 32] in the model"
        )

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"model_type": "longt5"}, "model_type 'longt5' is not supported; only t5, mt5"),
            (
                {"feed_forward_proj": "gated-silu"},
                "feed_forward_proj 'gated-silu' is not supported; only relu, gated-gelu",
            ),
            (
                {"relative_attention_max_distance": 64},
                "relative_attention_max_distance 64 is not supported; only 128",
            ),
            ({"layer_norm_epsilon": 1e-5}, "layer_norm_epsilon 1e-05 is not supported; only 1e-06"),
            ({"decoder_start_token_id": 3}, "decoder_start_token_id 3 is not supported; only 0"),
            ({"d_ff": None}, "has no 'd_ff'"),
            ({"padir": {"kind": "padir"}}, "padir: damaged, or written by another version of padir"),
        ],
    )
    def test_other_architectures(self, folder, changes, message):
        rewrite_config(folder, **changes)
        with pytest.raises(PadirError, match=rf"^{folder}/config.json: {message}"):
            huggingface.load(folder)

    def test_gated_configuration_of_plain_weights(self, folder):
        rewrite_config(folder, feed_forward_proj="gated-gelu")
        with pytest.raises(PadirError, match=r"8 missing: decoder.block.0.*wi_0.weight, .*4 unexpected: .*wi.weight"):
            huggingface.load(folder)

    def test_damaged_files(self, folder):
        path = folder / "model.safetensors"
        content = path.read_bytes()
        path.write_bytes(content[:-7])
        with pytest.raises(PadirError, match=rf"^{path}: damaged safetensors file \("):
            huggingface.load(folder)
        path.write_bytes(b"\xff" * 100)
        with pytest.raises(PadirError, match=rf"^{path}: damaged safetensors file \("):
            huggingface.load(folder)
        path.unlink()
        with pytest.raises(PadirError, match=rf"^{path}: no such file$"):
            huggingface.load(folder)
        (folder / "pytorch_model.bin").write_bytes(b"")
        with pytest.raises(PadirError, match=r"no such file; Transformers makes one of pytorch_model.bin: save_pretr"):
            huggingface.load(folder)
        (folder / "config.json").write_text("{")
        with pytest.raises(PadirError, match=rf"^{folder}/config.json: damaged, no JSON"):
            huggingface.load(folder)
        with pytest.raises(
            PadirError, match="nowhere/config.json: cannot be read .*; is this a folder of Hugging Face"
        ):
            huggingface.load(folder / "nowhere")


def test_their_names():
    """Every kind of name once, from the published T5."""
    assert {
        t5x_name: huggingface.hugging_face_name(t5x_name)
        for t5x_name in (
            "token_embedder/embedding",
            "decoder/logits_dense/kernel",
            "encoder/encoder_norm/scale",
            "decoder/relpos_bias/rel_embedding",
            "encoder/layers_11/attention/out/kernel",
            "encoder/layers_0/pre_mlp_layer_norm/scale",
            "decoder/layers_3/pre_cross_attention_layer_norm/scale",
            "decoder/layers_3/encoder_decoder_attention/value/kernel",
            "decoder/layers_3/mlp/wi_1/kernel",
        )
    } == {
        "token_embedder/embedding": "shared.weight",
        "decoder/logits_dense/kernel": "lm_head.weight",
        "encoder/encoder_norm/scale": "encoder.final_layer_norm.weight",
        "decoder/relpos_bias/rel_embedding": "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
        "encoder/layers_11/attention/out/kernel": "encoder.block.11.layer.0.SelfAttention.o.weight",
        "encoder/layers_0/pre_mlp_layer_norm/scale": "encoder.block.0.layer.1.layer_norm.weight",
        "decoder/layers_3/pre_cross_attention_layer_norm/scale": "decoder.block.3.layer.1.layer_norm.weight",
        "decoder/layers_3/encoder_decoder_attention/value/kernel": "decoder.block.3.layer.1.EncDecAttention.v.weight",
        "decoder/layers_3/mlp/wi_1/kernel": "decoder.block.3.layer.2.DenseReluDense.wi_1.weight",
    }


def test_a_parallel_model_that_does_not_fit_its_description(tmp_path):
    network = NetworkConfig(embed_dim=8, num_heads=1, head_dim=8, mlp_dim=8, num_encoder_layers=1, num_decoder_layers=1)
    model = PadirModel(TokenIds(28), network, 6, 6)
    huggingface.save(tmp_path, *t5x.model_from_params(random_params(model), model))
    config = json.loads((tmp_path / "config.json").read_text())
    config["padir"]["max_target_length"] = 7
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(PadirError, match=r"length_predictor/length_embed/embedding is \[6, 8\] there, \[7, 8\]"):
        huggingface.load(tmp_path)
