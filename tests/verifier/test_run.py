"""`padir verifier` with a tiny model: examples, features, what is saved, what is refused."""

import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from uploads import upload

import padir
from padir.data.manifest import MANIFEST_NAME
from padir.data.records import PreparedSet
from padir.data.synthetic import valid_translations
from padir.decoding.autoregressive import START_ID
from padir.decoding.backtracking import Backtracking
from padir.decoding.guided import Guided
from padir.decoding.sampling import Sampling
from padir.decoding.stepwise import judged_by, save_examples
from padir.decoding.verifiers import AlwaysAccept
from padir.errors import PadirError
from padir.models.prefixes import prefix_steps
from padir.runs.saved_verifier import load_verifier
from padir.types import EOS_ID
from padir.verifier.run import train_verifier
from padir.verifier.samples import collect, padded_lists, prefix_features, sampled, token_sequences
from padir.verifier.training import ProbeTraining

PLAIN = Guided(sampler=Backtracking(quota=0), num_samples=3)


@pytest.fixture(scope="module")
def translator(tiny):
    return padir.load(tiny.ar, verifier=AlwaysAccept())


@pytest.fixture(scope="module")
def examples(tiny):
    return PreparedSet.open(tiny.data).split("train").read(range(96))


@pytest.fixture(scope="module")
def collected(translator, examples):
    return collect(translator, examples, valid_translations, PLAIN, batch_size=32, seed=0)


@pytest.fixture(scope="module")
def verifier(tiny, tmp_path_factory):
    """A verifier of the tiny model, and what was said of it."""
    folder = tmp_path_factory.mktemp("verifier")
    options = {"run_dir": str(tiny.ar), "data_dir": str(tiny.data), "num_sources": 96, "num_samples": 3}
    return folder, train_verifier(**options, output_dir=str(folder), training=ProbeTraining(epochs=5), batch_size=32)


def test_samples_are_the_models_own(translator, examples):
    """In the order of the sources, whatever the batches; what is sampled twice is the same."""
    sources = [example.source_ids.tolist() for example in examples[:10]]
    found = sampled(translator, sources, PLAIN, batch_size=4)
    again = sampled(translator, sources[::-1], PLAIN, batch_size=10)[::-1]
    assert [sorted(samples) for samples in found] == [sorted(samples) for samples in again]
    assert len({tuple(sample) for samples in found for sample in samples}) > 15
    assert all(EOS_ID not in sample[:-1] for samples in found for sample in samples)


def test_features_are_those_of_generation(translator, examples):
    """What a sampler's verifier is given at a prefix, token by token with a cache."""
    source = examples[3].source_ids.tolist()
    prefix = examples[3].target_ids.tolist()[:5]
    model, params = translator.model, translator.decoding_params

    @jax.jit
    def walk():
        step, cache = prefix_steps(model, params, jnp.array([source]), jnp.zeros((1, 0), jnp.int32), 8)
        features = []
        for position, token in enumerate([START_ID, *prefix]):
            _, hidden, cache = step(jnp.array([token]), jnp.array([position]), cache)
            features.append(hidden[0])
        return jnp.stack(features)

    expected = np.asarray(walk())
    prefixes = [prefix[:length] for length in (5, 1, 3)]
    found = prefix_features(translator, [source, source, source], prefixes, batch_size=2)
    np.testing.assert_allclose(found, expected[[5, 1, 3]], atol=2e-5)


def test_labels_follow_the_grammar(translator, examples, collected):
    """Counts and labels, against a plain search through the valid translations."""
    sources = [example.source_ids.tolist() for example in examples]
    samples = sampled(translator, sources, PLAIN, batch_size=32)
    valid = [token_sequences(valid_translations(each.source_text), translator.vocabulary) for each in examples]
    pairs = [(sample, outputs) for own, outputs in zip(samples, valid, strict=True) for sample in own]
    counts = collected.counts
    assert (counts["sources"], counts["samples"]) == (96, 288)
    assert counts["valid_samples"] == sum(sample in outputs for sample, outputs in pairs)
    wrong = sum(not any(output[: len(sample)] == sample for output in outputs) for sample, outputs in pairs)
    assert counts["samples_with_an_error"] == wrong > 100
    labels = collected.labels
    assert counts["prefixes"] == len(labels) == 2 * labels.sum() >= 20
    assert collected.features.shape == (len(labels), 32) and len(np.unique(collected.groups)) > 5


def test_lists_are_padded():
    lists = padded_lists([[[5, 1], [6, 7, 1]], [], [[8, 1]]])
    assert lists.tolist() == [[[5, 1, 0], [6, 7, 1]], [[0, 0, 0], [0, 0, 0]], [[8, 1, 0], [0, 0, 0]]]


def test_what_is_saved(tiny, translator, verifier, collected):
    folder, record = verifier
    assert json.loads((folder / "verifier.json").read_text()) == record
    assert record["examples"]["prefixes"] == collected.counts["prefixes"] == len(collected.labels)
    assert record["training_examples"] + record["validation_examples"] == len(collected.labels)
    assert record["sizes"] == [32, 1] and record["step"] == 120 and record["sampling"]["temperature"] == 1.0
    at_half = record["by_threshold"]["0.5"]
    assert 0.0 <= at_half["fine_prefixes_rejected"] <= 1.0
    # Accuracy is what both rates come to.
    probe = load_verifier(folder, translator.params).probe
    said = np.asarray(probe(None, None, collected.features)) >= 0.5
    assert record["training"]["epochs"] == 5
    share = (said == collected.labels).mean()
    both = record["accuracy"] * record["validation_examples"], record["training_accuracy"] * record["training_examples"]
    assert share == pytest.approx(sum(both) / len(collected.labels), abs=1e-6)


def test_features_of_the_users_own(tiny, tmp_path, bucket):
    generator = np.random.default_rng(0)
    features = generator.normal(size=(1500, 32))
    labels = features[:, 3] > 0
    features[:, 3] += np.where(labels, 3, -3)
    save_examples(tmp_path / "own.npz", features, labels, np.arange(1500) // 2)
    record = train_verifier(run_dir=str(tiny.ar), output_dir=str(tmp_path / "own"), features=str(tmp_path / "own.npz"))
    assert record["accuracy"] == 1.0 and record["validation_examples"] == 150
    assert record["by_threshold"]["0.5"] == {"wrong_prefixes_rejected": 1.0, "fine_prefixes_rejected": 0.0}
    there = upload(tmp_path, bucket) / "own.npz"
    assert train_verifier(output_dir=str(tmp_path / "there"), features=str(there), layer=1)["accuracy"] == 1.0
    # Without a model of ours; it then serves no model of ours.
    foreign = train_verifier(output_dir=str(tmp_path / "foreign"), features=str(tmp_path / "own.npz"), layer=27)
    assert foreign["accuracy"] == 1.0 and (foreign["layer"], foreign["generator_params_sha256"]) == (27, None)
    probe, layer, _ = load_verifier(tmp_path / "foreign", None)
    one = judged_by(probe)
    assert layer == 27 and [one([], row) > 0.5 for row in features[:50]] == labels[:50].tolist()
    np.testing.assert_allclose([one([], row) for row in features[:50]], probe(None, None, features[:50]), atol=1e-5)
    with pytest.raises(PadirError, match="the model with params_sha256 None…, but this model has "):
        padir.load(tiny.ar, verifier=tmp_path / "foreign")
    save_examples(tmp_path / "narrow.npz", features[:, :7], labels, np.arange(1500))
    (tmp_path / "text.npz").write_text("no archive")
    np.savez(tmp_path / "other.npz", features=features)
    with (tmp_path / "array.npz").open("wb") as file:
        np.save(file, features)
    (tmp_path / "empty.npz").touch()
    for name, message in (
        ("narrow", r"shape \[1500, 7\] are not \[n, 32\]"),
        ("text", "is no .npz file with features, labels, group"),
        ("other", "is no .npz file with features, labels, group"),
        ("array", "is no .npz file with features, labels, group"),
        ("empty", "is no .npz file with features, labels, group"),
        ("absent", "is no .npz file"),
    ):
        with pytest.raises(PadirError, match=message):
            train_verifier(run_dir=str(tiny.ar), output_dir=str(tmp_path), features=str(tmp_path / f"{name}.npz"))


def test_a_layer_and_a_threshold(tiny, tmp_path, translator, examples):
    """A probe of the first layer translates with the features that it was trained on."""
    options = {"run_dir": str(tiny.ar), "data_dir": str(tiny.data), "num_sources": 96, "batch_size": 32}
    chosen = {"layer": 1, "threshold": 0.25, "training": ProbeTraining(epochs=5)}
    record = train_verifier(**options, **chosen, output_dir=str(tmp_path))
    assert (record["features"], record["layer"], record["threshold"]) == ("decoder, layer 1", 1, 0.25)
    judge = padir.load(tiny.ar, verifier=tmp_path).judge
    assert (judge.layer, judge.threshold) == (1, 0.25)
    found = collect(translator, examples, valid_translations, PLAIN, batch_size=32, seed=0, layer=1)
    other = collect(translator, examples, valid_translations, PLAIN, batch_size=32, seed=0)
    np.testing.assert_array_equal(found.labels, other.labels)
    assert np.abs(found.features - other.features).max() > 0.1
    with pytest.raises(PadirError, match="layer: 5 is none of the decoder's, 1 to 1"):
        train_verifier(**options, output_dir=str(tmp_path / "no"), layer=5)
    with pytest.raises(PadirError, match=r"threshold: 2.0 is not in \[0, 1\]"):
        train_verifier(**options, output_dir=str(tmp_path / "no"), threshold=2.0)


def never(source):
    return frozenset()


def test_what_cannot_be_trained_is_refused(tiny, tmp_path):
    options = {"run_dir": str(tiny.ar), "output_dir": str(tmp_path / "out"), "num_sources": 4, "batch_size": 4}
    with pytest.raises(PadirError, match="features are labelled already; leave out --valid_outputs or --features"):
        train_verifier(features="f.npz", valid_outputs="m:f", output_dir=str(tmp_path))
    with pytest.raises(PadirError, match="give either --data_dir"):
        train_verifier(**options)
    with pytest.raises(PadirError, match="give --run_dir, whose translations go wrong, or --features"):
        train_verifier(output_dir=str(tmp_path), data_dir=str(tiny.data))
    with pytest.raises(PadirError, match="Guided does not fit a PadirModel"):
        train_verifier(**options | {"run_dir": str(tiny.padir), "data_dir": str(tiny.data)})
    # Of a task without a known grammar.
    other = tmp_path / "data"
    shutil.copytree(tiny.data, other)
    manifest = json.loads((other / MANIFEST_NAME).read_text())
    (other / MANIFEST_NAME).write_text(json.dumps(manifest | {"checker": None}))
    with pytest.raises(PadirError, match=r"--valid_outputs=module:function, .* --features=FILE.npz"):
        train_verifier(**options, data_dir=str(other))
    # If nothing is valid, every first token is wrong, and no prefix is fine.
    with pytest.raises(PadirError, match="16 of 16 samples have an error, and no pair"):
        train_verifier(**options, data_dir=str(other), valid_outputs=f"{__name__}:never")
    assert not (tmp_path / "out").exists()


def test_greedy_samples_are_allowed(tiny, tmp_path):
    """The first errors of greedy decoding; the samples of a source are then all equal, so few prefixes are left."""
    options = {"run_dir": str(tiny.ar), "data_dir": str(tiny.data), "num_sources": 200, "num_samples": 1}
    record = train_verifier(**options, output_dir=str(tmp_path), sampling=Sampling(), batch_size=32)
    assert record["examples"]["samples"] == 200 and record["sampling"]["temperature"] == 0.0
