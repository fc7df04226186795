"""A trained model gets a causal decoder of its own: how it starts, and that nothing else changes."""

import dataclasses

import jax
import numpy as np
import pytest

import padir
from padir.data.records import PreparedSet
from padir.data.vocabulary import Vocabulary
from padir.decoding.autoregressive import Autoregressive
from padir.decoding.refinement import Refinement
from padir.errors import PadirError
from padir.metrics.writers import read_metrics
from padir.models.causal_mode import causal_params
from padir.nn.layers import rebucketed
from padir.runs.convert import export_checkpoint, open_model
from padir.runtime.sharding import make_mesh
from padir.training.warm_start import start_from
from padir.types import TokenIds

ALL_ELSE = ("encoder", "decoder", "length_predictor")


def with_own_decoder(plain, layers=1, freeze=()):
    """A factory of the same model with a causal decoder."""
    return lambda ids: dataclasses.replace(plain(ids), causal_stage=True, causal_layers=layers, freeze=freeze)


@pytest.fixture(scope="module")
def vocabulary(tiny):
    return Vocabulary.load(tiny.data / "vocabulary.model")


@pytest.fixture(scope="module")
def run(tiny, tmp_path_factory):
    """The tiny PaDIR model whose causal decoder, and nothing else, was trained."""
    folder = tmp_path_factory.mktemp("runs") / "causal"
    model = with_own_decoder(tiny.model(), freeze=ALL_ELSE)
    tiny.train(folder, model=model, num_steps=60, initialize_from=str(tiny.padir))
    return folder


@pytest.fixture(scope="module")
def texts(tiny):
    test = PreparedSet.open(tiny.data).split("test")
    return [each.source_text for each in test.read(range(len(test))) if len(each.source_text.split()) < 12][:8]


def decoder_of(opened):
    return opened.params["network"]["decoder"]


@pytest.mark.parametrize("kind", ["padir", "ar"])
def test_it_starts_as_the_last_layer_of_the_decoder(tiny, vocabulary, kind):
    """Of a parallel decoder without positional attention, and with its biases in causal buckets."""
    model, mesh = with_own_decoder(tiny.model(), layers=2)(TokenIds(300)), make_mesh()
    source = getattr(tiny, kind)
    theirs = decoder_of(open_model(source, mesh))
    fresh = model.init(1)
    begun = start_from(fresh, str(source), vocabulary, mesh, network=model.network)["causal_decoder"]
    assert jax.tree.structure(begun) == jax.tree.structure(fresh["causal_decoder"])
    # The source has one layer: it becomes the last one, and the first is drawn.
    jax.tree.map(np.testing.assert_array_equal, begun["layers"][0], fresh["causal_decoder"]["layers"][0])
    expected = {name: theirs["layers"][0][name] for name in begun["layers"][1]}
    jax.tree.map(np.testing.assert_array_equal, begun["layers"][1], expected)
    np.testing.assert_array_equal(begun["decoder_norm"]["scale"], theirs["decoder_norm"]["scale"])
    biases = theirs["relpos_bias"]["rel_embedding"]
    expected = biases if kind == "ar" else rebucketed(biases, bidirectional=False)
    np.testing.assert_array_equal(begun["relpos_bias"]["rel_embedding"], expected)


def test_nothing_else_changes_and_it_ranks(tiny, run, texts):
    before, after = (open_model(folder, make_mesh()) for folder in (tiny.padir, run))
    jax.tree.map(np.testing.assert_array_equal, before.params["network"], after.params["network"])
    found = {name: values for name, values in _metrics(run).items() if "loss" in name}
    assert found.keys() == {"train/loss", "train/loss/causal"}
    assert found["train/loss"] == found["train/loss/causal"] and found["train/loss"][-1] < found["train/loss"][0] - 0.3
    one = Refinement(num_steps=2, target_buckets=(32,))
    plain, ranking = padir.load(tiny.padir), padir.load(run)
    assert [each.text for each in ranking.translate(texts, one)] == [each.text for each in plain.translate(texts, one)]
    five = dataclasses.replace(one, num_hypotheses=5)
    by_itself = ranking.translate(texts, dataclasses.replace(five, self_rescoring=True))
    assert [each.text for each in by_itself] != [each.text for each in ranking.translate(texts, five)]


def test_it_goes_on_in_models_of_both_kinds(tiny, vocabulary, run, texts):
    """An autoregressive model of as many layers starts as it; a PaDIR model with the same parts keeps all."""
    opened, mesh = open_model(run, make_mesh()), make_mesh()
    causal = tiny.model("ar")(TokenIds(300))
    begun = start_from(causal.init(1), str(run), vocabulary, mesh, network=causal.network)
    jax.tree.map(np.testing.assert_array_equal, begun, causal_params(opened.params))
    same = with_own_decoder(tiny.model())(TokenIds(300))
    begun = start_from(same.init(1), str(run), vocabulary, mesh, network=same.network)
    jax.tree.map(np.testing.assert_array_equal, begun, opened.params)
    more = with_own_decoder(tiny.model(), layers=2)(TokenIds(300))
    with pytest.raises(PadirError, match="its causal decoder has 1 layers; set PadirModel.causal_layers to 1 as well"):
        start_from(more.init(1), str(run), vocabulary, mesh, network=more.network)
    assert all(each.text for each in padir.load(run).translate(texts, Autoregressive()))


def test_it_is_exported_with_the_rest(run, texts, tmp_path):
    export_checkpoint(run_dir=str(run), output_dir=str(tmp_path / "model"), dtype="float32")
    exported, before = padir.load(tmp_path / "model"), padir.load(run)
    jax.tree.map(np.testing.assert_array_equal, exported.params, before.params)
    decode = Refinement(num_steps=2, num_hypotheses=3, self_rescoring=True, target_buckets=(32,))
    assert [each.text for each in exported.translate(texts, decode)] == [
        each.text for each in before.translate(texts, decode)
    ]


def _metrics(run_dir):
    lines = read_metrics(run_dir / "metrics" / "metrics.jsonl")
    names = {name for line in lines for name in line if name.startswith("train/")}
    return {name: [line[name] for line in lines if name in line] for name in names}
