"""The encoder of a run as arrays, and `padir analyze topics` of a run."""

import json

import jax
import numpy as np
import pytest
from tiny_models import AR, PADIR, rows, sharpen

from padir.data.records import PreparedSet
from padir.errors import PadirError
from padir.inference.translator import load
from padir.topics import encoders
from padir.topics.analysis import analyze_topics


@pytest.mark.parametrize("model", [PADIR, AR])
def test_attention_is_that_of_the_formula(model):
    params = sharpen(model.init(0))
    tokens = rows(3, 6)
    weights = np.asarray(model.module(params).network.encoder_attentions(tokens))
    assert weights.shape == (3, 1, 2, 6, 6)
    real = np.asarray(tokens) != 0
    np.testing.assert_allclose(weights.sum(axis=-1), 1.0, atol=1e-6)
    layer, embedder = params["network"]["encoder"]["layers"][0], params["network"]["token_embedder"]
    x = np.asarray(embedder["embedding"])[np.asarray(tokens)]
    normed = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-6)
    normed = normed * np.asarray(layer["pre_attention_layer_norm"]["scale"])
    queries, keys = (
        (normed @ np.asarray(layer["attention"][name]["weight"]).T).reshape(3, 6, 2, 8) for name in ("query", "key")
    )
    bias = np.asarray(model.module(params).network.encoder.relpos_bias(6))
    logits = np.einsum("bqhd,bkhd->bhqk", queries, keys) + bias
    logits = np.where(real[:, None, None, :], logits, -1e10)
    expected = np.exp(logits - logits.max(axis=-1, keepdims=True))
    expected /= expected.sum(axis=-1, keepdims=True)
    for row in range(3):
        of_real = expected[row][:, real[row]]
        np.testing.assert_allclose(weights[row, 0][:, real[row]], of_real, rtol=2e-4, atol=1e-6)
        assert not weights[row, 0][:, real[row]][..., ~real[row]].any()


def test_sentences_of_a_run(tiny, tmp_path, monkeypatch):
    translator = load(tiny.padir)
    text = tmp_path / "source.txt"
    sources = _sources(tiny, translator)
    text.write_text("\n".join([sources[0], "", " ".join(sources), *sources[1:6]]) + "\n")
    sentences, left_out = encoders.sentences_of(translator, [str(text)], None)
    assert [line.split(": ")[0] for line in left_out] == [f"{text}:2", f"{text}:3"]
    prefix = [translator.model.ids.length_id] * translator.model.source_prefix
    for source, (tokens, weights) in zip(sources[:6], sentences, strict=True):
        assert tokens.tolist() == [*prefix, *translator.tokenize(source)]
        assert weights.shape == (1, 2, len(tokens), len(tokens))
        np.testing.assert_allclose(weights.sum(axis=-1), 1.0, atol=1e-5)
    # Alone, a sentence has the attention that it has among others.
    monkeypatch.setattr(encoders, "_ROWS", 1)
    jax.clear_caches()
    alone, _ = encoders.sentences_of(translator, [str(text)], 2)
    for (tokens, weights), (there, expected) in zip(alone, sentences, strict=False):
        assert tokens.tolist() == there.tolist()
        np.testing.assert_allclose(weights, expected, atol=1e-5)


def test_topics_of_a_run(tiny, tmp_path, capsys):
    translator = load(tiny.padir)
    text = tmp_path / "source.txt"
    text.write_text("\n".join(_sources(tiny, translator)) + "\n")
    pieces = [translator.vocabulary.pieces([index])[0] for index in range(translator.vocabulary.num_pieces)]
    words = [piece[1:] for piece in pieces if piece.startswith("▁") and len(piece) > 2][:12]
    assert len(words) == 12
    topics = tmp_path / "topics.json"
    topics.write_text(json.dumps({"topics": {"a": [*words[:6], "two words"], "b": words[6:]}}))
    given = {"topics": str(topics), "run_dir": str(tiny.padir), "output": str(tmp_path / "out.json")}
    result = analyze_topics(**given, inputs=[str(text)])
    assert result["words"] == 12 and result["words left out"] == ["two words"] and result["lines left out"] == []
    vectors = encoders.embedding_of(translator).astype(np.float64)
    ids = [translator.vocabulary.encode(word)[0] for word in words]
    unit = vectors[ids] / np.linalg.norm(vectors[ids], axis=1, keepdims=True)
    cosines = unit @ unit.T
    same = (cosines[:6, :6].sum() - 6 + cosines[6:, 6:].sum() - 6) / 60
    assert result["cosine"]["ratio"] == pytest.approx(same / cosines[:6, 6:].mean(), rel=1e-5)
    assert np.shape(result["attention"]["ratio by head"]) == (1, 2)
    assert "take no part: two words" in capsys.readouterr().out
    # Ids stand for the same words, and without a text there is no attention.
    topics.write_text(json.dumps({"vocabulary": len(pieces), "topics": {"a": ids[:6], "b": ids[6:]}}))
    again = analyze_topics(**given)
    assert again["cosine"] == result["cosine"] and "attention" not in again


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"embedding": "e.npy"}, "analyze_topics.run_dir: has embeddings and attention of its own"),
        ({"run_dir": None, "inputs": ["x"]}, "analyze_topics.inputs: is for the attention of a run"),
        ({"num_examples": 5}, "analyze_topics.num_examples: counts sentences of --inputs"),
        ({"inputs": ["empty.txt"], "num_examples": 0}, "num_examples: 0 is not a whole number of at least 1"),
        ({"inputs": ["empty.txt"]}, "analyze_topics.inputs: empty.txt: no sentence to read"),
        ({"vocabulary": 7}, "V is 7; the run's vocabulary has"),
    ],
)
def test_bad_input(tiny, tmp_path, monkeypatch, change, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.txt").touch()
    written = {"topics": {"a": [3], "b": [4]}} | {name: change[name] for name in ("vocabulary",) if name in change}
    (tmp_path / "t.json").write_text(json.dumps(written))
    options = {name: value for name, value in change.items() if name != "vocabulary"}
    with pytest.raises(PadirError, match=message):
        analyze_topics(**{"topics": "t.json", "output": "out.json", "run_dir": str(tiny.padir)} | options)


def _sources(tiny, translator):
    """Sentences that the model can read."""
    texts = [example.source_text for example in PreparedSet.open(tiny.data).split("test").read(range(40))]
    return [text for text in texts if len(translator.vocabulary.encode(text)) < translator.longest_source]
