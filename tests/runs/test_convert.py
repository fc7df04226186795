"""Checkpoints from elsewhere become run directories and translators, ours go out, and training starts from them."""

import dataclasses
import json
import re
import shutil
import zipfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

import padir
from padir.cli import main as cli
from padir.data import vocabulary as vocabulary_lib
from padir.data.vocabulary import Vocabulary
from padir.decoding.autoregressive import Autoregressive
from padir.errors import PadirError
from padir.interop import huggingface, t5x
from padir.interop.matching import fill_rows
from padir.models.autoregressive import AutoregressiveModel
from padir.models.padir import PadirModel
from padir.nn.layers import rebucketed
from padir.nn.network import NetworkConfig
from padir.runs import pretrained
from padir.runs.convert import export_checkpoint, import_checkpoint, open_model
from padir.runtime import sharding
from padir.training.warm_start import start_from
from padir.types import TokenIds

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
ALPHABET = "abcdefghijklmnopqrstuvwx"


def make_vocabulary(folder, letters) -> str:
    """A model of exactly pad, EOS, UNK, the space, and `letters`."""
    folder.mkdir(exist_ok=True)
    path = folder / "spiece.model"
    vocabulary_lib.train([" ".join(letters)] * 20, path, num_pieces=4 + len(letters), model_type="bpe")
    return str(path)


@pytest.fixture(scope="module")
def pieces(tmp_path_factory):
    """The vocabulary of the tiny models, 28 pieces, which with 100 extra ids are 128."""
    path = make_vocabulary(tmp_path_factory.mktemp("vocabulary"), ALPHABET)
    assert Vocabulary.load(path).num_pieces == 28
    return path


@pytest.fixture
def t5x_folder(tmp_path):
    with zipfile.ZipFile(GOLDEN / "t5x_checkpoint_0.zip") as archive:
        archive.extractall(tmp_path / "checkpoint_0")
    return str(tmp_path / "checkpoint_0")


@pytest.fixture
def t5_folder(tmp_path):
    """A T5 1.0 of Hugging Face, 40 token ids, without a vocabulary."""
    folder = tmp_path / "t5"
    folder.mkdir()
    shutil.copyfile(GOLDEN / "hf_t5" / "t5_10.config.json", folder / "config.json")
    shutil.copyfile(GOLDEN / "hf_t5" / "t5_10.safetensors", folder / "model.safetensors")
    return str(folder)


@pytest.fixture
def mesh():
    return sharding.make_mesh()


def assert_same(params, other):
    jax.tree.map(np.testing.assert_array_equal, params, other)


def assert_rounded(params, exact):
    """Each array is `exact` up to half a level of the coarsest row; one with a single axis is equal."""
    for found, wanted in zip(jax.tree.leaves(params), jax.tree.leaves(exact), strict=True):
        level = float(np.abs(wanted).max()) / 127 if wanted.ndim > 1 else 0.0
        np.testing.assert_allclose(found, wanted, rtol=0, atol=0.51 * level)


class TestImport:
    def test_t5x(self, t5x_folder, pieces, tmp_path, mesh, capsys):
        import_checkpoint(source=t5x_folder, output_dir=str(tmp_path / "run"), vocabulary=pieces)
        assert "PadirModel of 62,528 parameters" in capsys.readouterr().err
        opened = open_model(tmp_path / "run", mesh)
        model, params = t5x.load(t5x_folder)
        assert (opened.model, opened.step) == (model, 0)
        assert opened.vocabulary.path == tmp_path / "run" / "vocabulary.model"
        assert opened.vocabulary.hash == Vocabulary.load(pieces).hash
        assert_same(opened.params, params)

    def test_hugging_face_translates_the_same_from_the_folder_and_from_the_run(self, t5_folder, pieces, tmp_path):
        shutil.copyfile(pieces, Path(t5_folder) / "spiece.model")
        import_checkpoint(source=t5_folder, output_dir=str(tmp_path / "run"))
        texts = ["a b", "x w v u t"]
        short = Autoregressive(max_length_ratio=0, max_length_offset=5)
        direct, run = (padir.load(path).translate(texts, short) for path in (t5_folder, tmp_path / "run"))
        assert direct == run
        # What the model says of those ids, without our text on either side.
        model, params = huggingface.load(t5_folder, num_pieces=28)
        vocabulary = Vocabulary.load(pieces)
        ids = [[*vocabulary.encode(text), 1] for text in texts]
        source = np.array([row + [0] * (len(ids[1]) - len(row)) for row in ids], np.int32)
        found = model.decode(params, source, jax.random.key(0), short)
        assert [one.text for one in direct] == [vocabulary.decode(row[0].tolist()) for row in found.tokens]

    def test_a_vocabulary_is_needed(self, t5x_folder, t5_folder, tmp_path):
        for folder in (t5x_folder, t5_folder):
            with pytest.raises(PadirError, match=rf"^{folder}: contains no vocabulary; give the SentencePiece"):
                import_checkpoint(source=folder, output_dir=str(tmp_path / "run"))
            with pytest.raises(PadirError, match="contains no vocabulary"):
                padir.load(folder)
        assert not (tmp_path / "run").exists()

    def test_a_vocabulary_that_cannot_be(self, t5_folder, pieces, tmp_path):
        large = make_vocabulary(tmp_path / "large", ALPHABET + "0123456789yzäöü")
        with pytest.raises(PadirError, match="the vocabulary has 43 pieces, but .* only 40 token ids"):
            padir.load(t5_folder, vocabulary=large)
        shutil.copyfile(pieces, Path(t5_folder) / "spiece.model")
        other = make_vocabulary(tmp_path / "other", ALPHABET.upper())
        with pytest.raises(PadirError, match=rf"^{other}: vocabulary hash .* differs"):
            padir.load(t5_folder, vocabulary=other)

    def test_what_is_no_source_or_no_place(self, t5x_folder, pieces, tmp_path):
        run = str(tmp_path / "run")
        import_checkpoint(source=t5x_folder, output_dir=run, vocabulary=pieces)
        with pytest.raises(PadirError, match=rf"^{run}: holds a run; choose another output_dir"):
            import_checkpoint(source=t5x_folder, output_dir=run, vocabulary=pieces)
        with pytest.raises(PadirError, match=rf"^{run}: is already a run directory"):
            import_checkpoint(source=run, output_dir=str(tmp_path / "other"))
        with pytest.raises(PadirError, match="^nowhere: no trained model found here; give a run directory"):
            import_checkpoint(source="nowhere", output_dir=str(tmp_path / "other"), vocabulary=pieces)
        with pytest.raises(PadirError, match=rf"no trained model found here; .*; inside are {run}$"):
            import_checkpoint(source=str(tmp_path), output_dir=str(tmp_path / "other"), vocabulary=pieces)
        with pytest.raises(PadirError, match=rf"^{pieces}: no trained model found here; give a run directory"):
            import_checkpoint(source=pieces, output_dir=str(tmp_path / "other"), vocabulary=pieces)
        with pytest.raises(PadirError, match=rf"^{pieces}/run: this folder cannot be created \(Not a directory\); cho"):
            import_checkpoint(source=t5x_folder, output_dir=f"{pieces}/run", vocabulary=pieces)
        with pytest.raises(PadirError, match="has only one checkpoint; leave out step=3, which is for run dir"):
            padir.load(t5x_folder, step=3, vocabulary=pieces)


class TestExport:
    def test_a_run_of_each_kind(self, t5x_folder, t5_folder, pieces, tmp_path, mesh):
        for name, source in (("padir", t5x_folder), ("ar", t5_folder)):
            run, out = tmp_path / name, tmp_path / f"{name}_out"
            import_checkpoint(source=source, output_dir=str(run), vocabulary=pieces)
            export_checkpoint(run_dir=str(run), output_dir=str(out))
            expected, opened = open_model(run, mesh), open_model(out, mesh)
            assert opened.model == expected.model
            assert_same(opened.params, expected.params)
            assert opened.vocabulary.path == out / "spiece.model"
            assert opened.vocabulary.hash == expected.vocabulary.hash
            with pytest.raises(PadirError, match=rf"^{out}/config.json: exists"):
                export_checkpoint(run_dir=str(run), output_dir=str(out))
            halved = tmp_path / f"{name}_halved"
            export_checkpoint(run_dir=str(run), output_dir=str(halved), dtype="bfloat16")
            rounded = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16).astype(jnp.float32), expected.params)
            assert_same(open_model(halved, mesh).params, rounded)
            sizes = [(folder / "model.safetensors").stat().st_size for folder in (halved, out)]
            assert sizes[0] < 0.6 * sizes[1]
            quartered = tmp_path / f"{name}_quartered"
            export_checkpoint(run_dir=str(run), output_dir=str(quartered), dtype="int8")
            opened = open_model(quartered, mesh)
            assert opened.model == expected.model and opened.vocabulary.hash == expected.vocabulary.hash
            assert_rounded(opened.params, expected.params)
            assert (quartered / "model.safetensors").stat().st_size < 0.35 * (out / "model.safetensors").stat().st_size
            # Transformers must not take it for a T5.
            assert json.loads((quartered / "config.json").read_text())["model_type"] == "padir"
            with pytest.raises(PadirError, match="^dtype: unknown 'float16'; choose one of float32, bfloat16, int8"):
                export_checkpoint(run_dir=str(run), output_dir=str(tmp_path / "third"), dtype="float16")
        # What Transformers needs to open the second, as version 5.23 did by hand.
        assert json.loads((tmp_path / "ar_out" / "config.json").read_text())["model_type"] == "t5"


def test_rows_of_int8_by_hand():
    table = np.array([[127.0, -63.6, 1.0], [0.0, 0.0, 0.0], [-2.54, 1.27, 0.01]], np.float32)
    narrow = huggingface._narrowed({"table": table, "norm": np.array([0.5, 2.0], np.float32)})
    assert narrow["table"].dtype == np.int8
    assert narrow["table"].tolist() == [[127, -64, 1], [0, 0, 0], [-127, 64, 0]]
    np.testing.assert_allclose(narrow["table.scale"], [1.0, 1.0, 0.02], rtol=1e-6)
    wide = huggingface._widened(narrow, Path("folder"))
    assert set(wide) == {"table", "norm"} and wide["norm"].tolist() == [0.5, 2.0]
    np.testing.assert_allclose(wide["table"], [[127, -64, 1], [0, 0, 0], [-2.54, 1.28, 0]], rtol=1e-5)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"table.scale": np.ones((2,), np.float32)}, r"table.scale of shape \[2\] is no scale for the rows of table"),
        ({"table.scale": np.ones((3, 1), np.float32)}, r"table.scale of shape \[3, 1\] is no scale"),
        ({"table": np.ones((3, 3), np.float32)}, r"the rows of table, float32 \[3, 3\]"),
    ],
)
def test_scales_that_do_not_fit_are_refused(change, message):
    narrow = huggingface._narrowed({"table": np.eye(3, dtype=np.float32)})
    with pytest.raises(PadirError, match=message):
        huggingface._widened(narrow | change, Path("folder"))


def test_int8_without_its_scales_is_refused(t5_folder, pieces, tmp_path, mesh):
    import_checkpoint(source=t5_folder, output_dir=str(tmp_path / "run"), vocabulary=pieces)
    export_checkpoint(run_dir=str(tmp_path / "run"), output_dir=str(tmp_path / "out"), dtype="int8")
    path = tmp_path / "out" / "model.safetensors"
    tensors = safetensors.numpy.load_file(path)
    safetensors.numpy.save_file({name: each for name, each in tensors.items() if not name.endswith(".scale")}, path)
    with pytest.raises(PadirError, match="holds int8, not floating-point numbers"):
        open_model(tmp_path / "out", mesh)


class TestPretrained:
    """Models by name, from a package beside padir."""

    @pytest.fixture
    def package(self, t5_folder, pieces, tmp_path, monkeypatch):
        """An installed package with the pretrained model 'small_ar'."""
        run, folder = tmp_path / "run", tmp_path / "site" / pretrained.PACKAGE
        folder.mkdir(parents=True)
        import_checkpoint(source=t5_folder, output_dir=str(run), vocabulary=pieces)
        export_checkpoint(run_dir=str(run), output_dir=str(folder / "small_ar"))
        monkeypatch.syspath_prepend(folder.parent)
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        return folder

    def test_it_is_found_by_its_name_from_anywhere(self, package, mesh):
        assert pretrained.find("small_ar") == package / "small_ar"
        named, there = open_model("small_ar", mesh), open_model(package / "small_ar", mesh)
        assert_same(named.params, there.params)
        assert isinstance(padir.load("small_ar").model, AutoregressiveModel)

    def test_a_path_goes_before_a_name(self, package):
        Path("small_ar").mkdir()
        assert pretrained.find("small_ar") is None
        for path in ("./small_ar", package / "small_ar", "large_ar"):
            assert pretrained.find(path) is None

    def test_messages_name_what_there_is(self, package, mesh):
        with pytest.raises(PadirError, match="^large_ar: no trained model found here; .* pretrained model: .*small_ar"):
            open_model("large_ar", mesh)


class TestStartFrom:
    """`train.initialize_from`: a PaDIR model begins with what a T5 has learnt."""

    NETWORK = NetworkConfig(
        embed_dim=32, num_heads=2, head_dim=16, mlp_dim=64, num_encoder_layers=2, num_decoder_layers=2
    )

    @staticmethod
    def named(params):
        leaves = jax.tree_util.tree_leaves_with_path(params)
        return {t5x.t5x_name(path): np.asarray(leaf) for path, leaf in leaves}

    def test_a_padir_model_from_hugging_face(self, t5_folder, pieces, mesh, capsys):
        params = PadirModel(TokenIds(28), self.NETWORK, 16, 16).init(0)
        begun = start_from(params, t5_folder, Vocabulary.load(pieces), mesh, network=self.NETWORK)
        started, fresh = self.named(begun), self.named(params)
        theirs = self.named(huggingface.load(t5_folder).params)
        own = {name for name in fresh if re.search("positional_attention|abs_pos_embed|length_predictor", name)}
        assert own == fresh.keys() - theirs.keys() and len(own) == 2 * 5 + 2
        bias = "decoder/relpos_bias/rel_embedding"
        theirs[bias] = rebucketed(theirs[bias], bidirectional=True)
        # Of 28 pieces and 12 more rows; ours have 100 ids on top of the pieces.
        assert theirs[t5x.EMBEDDING].shape == (40, 32)
        theirs[t5x.EMBEDDING] = fill_rows(theirs[t5x.EMBEDDING], 128)
        for name, array in started.items():
            np.testing.assert_array_equal(array, (fresh if name in own else theirs)[name], err_msg=name)
        assert f"starting from {t5_folder}; 12 parameters are initialized randomly (" in capsys.readouterr().err

    @pytest.mark.slow
    def test_by_one_gin_line(self, t5_folder, pieces, tmp_path, mesh):
        """With a learning rate of nothing, what `padir train` ends with is what it began with."""
        lines = [f"{'abc'[: n % 4]} de\t{'h' * n} fg" for n in range(1, 9)]
        pairs = tmp_path / "pairs.tsv"
        pairs.write_text("\n".join(lines) + "\n")
        (tmp_path / "run.gin").write_text(f"""
            include 'models/tiny.gin'
            include 'runs/base.gin'
            DATA_DIR = '{tmp_path / "data"}'
            RUN_DIR = '{tmp_path / "run"}'
            MAX_LENGTH = 16
            TaskConfig.module = 'tasks.text_files'
            TaskConfig.name = 'letters'
            TaskConfig.options = {{'train': '{pairs}', 'validation': '{pairs}', 'format': 'tsv'}}
            PrepareSettings.vocabulary = '{pieces}'
            NetworkConfig.embed_dim = 32
            NetworkConfig.num_heads = 2
            NetworkConfig.head_dim = 16
            NetworkConfig.mlp_dim = 64
            NetworkConfig.max_positions = 16
            train.num_steps = 2
            train.batch_size = 8
            train.buckets = (16,)
            OptimizerConfig.warmup_steps = 1
            OptimizerConfig.peak_learning_rate = 1e-30
            OptimizerConfig.floor_learning_rate = 1e-30
            train.initialize_from = '{t5_folder}'
        """)
        assert cli.main(["train", f"--gin_file={tmp_path / 'run.gin'}"]) == 0
        begun = self.named(open_model(tmp_path / "run", mesh).params)
        theirs = self.named(huggingface.load(t5_folder).params)
        bias = "decoder/relpos_bias/rel_embedding"
        theirs[bias] = rebucketed(theirs[bias], bidirectional=True)
        # Of 28 pieces and 12 more rows; ours have 100 ids on top of the pieces.
        assert theirs[t5x.EMBEDDING].shape == (40, 32)
        theirs[t5x.EMBEDDING] = fill_rows(theirs[t5x.EMBEDDING], 128)
        assert len(theirs) > 20 and theirs.keys() < begun.keys()
        for name, array in theirs.items():
            np.testing.assert_array_equal(begun[name], array, err_msg=name)

    def test_from_t5x(self, t5x_folder, pieces, mesh, capsys):
        """An autoregressive model begins with the release's parallel one; what it has no place for is said."""
        causal = NetworkConfig(**{**vars(self.NETWORK), "causal": True, "positional_attention": False})
        params = AutoregressiveModel(TokenIds(28), causal, 16, 16).init(0)
        started = self.named(start_from(params, t5x_folder, Vocabulary.load(pieces), mesh, network=causal))
        theirs = self.named(t5x.load(t5x_folder).params)
        bias = "decoder/relpos_bias/rel_embedding"
        theirs[bias] = rebucketed(theirs[bias], bidirectional=False)
        for name, array in started.items():
            np.testing.assert_array_equal(array, theirs[name], err_msg=name)
        assert "0 parameters are initialized randomly (); 12 parameters there are unused (" in capsys.readouterr().err

    def test_another_size(self, t5_folder, pieces, mesh):
        network = NetworkConfig(**{**vars(self.NETWORK), "mlp_dim": 32})
        params = PadirModel(TokenIds(28), network, 16, 16).init(0)
        message = r"mlp/wi/weight has shape \(64, 32\), this model's has \(32, 32\); choose NetworkConfig's sizes"
        with pytest.raises(PadirError, match=message):
            start_from(params, t5_folder, Vocabulary.load(pieces), mesh, network=self.NETWORK)

    def test_a_shorter_table_of_another_width_is_refused(self, t5_folder, pieces, mesh):
        network = dataclasses.replace(self.NETWORK, embed_dim=64)
        params = PadirModel(TokenIds(28), network, 16, 16).init(0)
        with pytest.raises(PadirError, match=r"has shape \(.*\), this model's has \(.*\)"):
            start_from(params, t5_folder, Vocabulary.load(pieces), mesh, network=network)

    def test_another_vocabulary(self, t5_folder, pieces, tmp_path, mesh):
        large = Vocabulary.load(make_vocabulary(tmp_path / "large", ALPHABET + "0123456789yzäöü"))
        params = PadirModel(TokenIds(large.num_pieces), self.NETWORK, 16, 16).init(0)
        with pytest.raises(PadirError, match=r"has 43 pieces, but .*\(for data: PrepareSettings.vocabulary\)"):
            start_from(params, t5_folder, large, mesh, network=self.NETWORK)
        shutil.copyfile(pieces, Path(t5_folder) / "spiece.model")
        other = Vocabulary.load(make_vocabulary(tmp_path / "other", ALPHABET.upper()))
        with pytest.raises(PadirError, match="use the data set or vocabulary file of that run"):
            start_from(params, t5_folder, other, mesh, network=self.NETWORK)

    def test_more_ids_than_the_vocabulary_explains(self, tmp_path, pieces, mesh):
        """A table of 300 rows cannot be that of 28 pieces and 100 extra ids."""
        network = NetworkConfig(**{**vars(self.NETWORK), "causal": True, "positional_attention": False})
        model = AutoregressiveModel(TokenIds(300, extra_ids=0), network)
        huggingface.save(tmp_path / "t5", model, model.init(0))
        config = json.loads((tmp_path / "t5" / "config.json").read_text())
        del config["padir"]
        (tmp_path / "t5" / "config.json").write_text(json.dumps(config))
        params = PadirModel(TokenIds(28), self.NETWORK, 16, 16).init(0)
        message = (
            r"has shape \(384, 32\), this model's has \(128, 32\); prepare the data with the vocabulary it was tra"
        )
        with pytest.raises(PadirError, match=message):
            start_from(params, str(tmp_path / "t5"), Vocabulary.load(pieces), mesh, network=self.NETWORK)
