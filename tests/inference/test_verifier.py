"""`verifier=` of `padir.load`, `padir translate` and `padir evaluate`."""

import json

import jax
import numpy as np
import pytest

import padir
from padir.data.records import PreparedSet
from padir.decoding.autoregressive import Autoregressive
from padir.decoding.backtracking import Backtracking
from padir.decoding.guided import Guided
from padir.decoding.listed import Listed
from padir.decoding.rejection import LocallyConstrained, TokenwiseRejection
from padir.decoding.sampling import Sampling
from padir.decoding.value_guided import ValueGuided
from padir.decoding.verifiers import AlwaysAccept, Probe
from padir.errors import PadirError
from padir.evaluation.evaluate import evaluate
from padir.inference.translate import translate_files
from padir.runs.saved_verifier import save_verifier
from padir.types import EOS_ID
from padir.verifier.samples import padded_lists, token_sequences

GREEDY = Sampling()


@pytest.fixture(scope="module")
def texts(tiny):
    return [example.source_text for example in PreparedSet.open(tiny.data).split("test").read(range(5))]


@pytest.fixture(scope="module")
def folder(tiny, tmp_path_factory):
    """A verifier that nobody has trained, but for this model."""
    folder = tmp_path_factory.mktemp("verifier")
    probe = Probe.fresh((32,), jax.random.key(3))
    save_verifier(folder, probe, padir.load(tiny.ar).params, {})
    return folder


@pytest.fixture(scope="module")
def translator(tiny, folder):
    return padir.load(tiny.ar, verifier=folder)


def account(translation):
    return vars(translation.queries)


def test_backtracking_is_the_default_and_tells_its_cost(translator, texts):
    found = translator.translate(texts)
    assert found == translator.translate(texts, Guided(sampler=Backtracking()))
    for translation in found:
        spent = account(translation)
        assert spent["queries"] == translation.predicted_length + spent["erased"]
        assert spent["decoder_passes"] == translation.steps_run >= spent["queries"]
        assert spent["verifier_calls"] > 0 and spent["backtracks"] <= 4 and not translation.failed
    # It had something to object to.
    assert sum(account(translation)["backtracks"] for translation in found) > 0
    assert translator.translate(texts[::-1], batch_size=4)[::-1] == found


def test_what_is_always_accepted_is_what_the_model_says(tiny, texts):
    found = padir.load(tiny.ar, verifier=AlwaysAccept()).translate(texts, Guided(sampler=Backtracking(sampling=GREEDY)))
    plain = padir.load(tiny.ar).translate(texts, Autoregressive())
    assert [each.text for each in found] == [each.text for each in plain]
    assert all(each.queries is None and not each.failed for each in plain)


def test_samples_of_a_text_are_paid_together(translator, texts):
    several = translator.translate(texts[:2], Guided(num_samples=3))
    assert all(len(each.hypotheses) == 3 for each in several)
    assert [score for _, score in several[0].hypotheses] == sorted((s for _, s in several[0].hypotheses), reverse=True)
    for translation in several:
        assert account(translation)["queries"] > 1.5 * translation.predicted_length


def test_one_of_some_outputs(tiny, texts):
    """Any pytree that judges will do, such as a list of what may be said at all."""
    plain = padir.load(tiny.ar)
    allowed = ["der Hund schläft.", "Anna sieht ein Haus."]
    outputs = padded_lists([token_sequences(allowed, plain.vocabulary)])
    judge = Listed(np.asarray(outputs), plain.model.ids.vocab_size)
    found = padir.load(tiny.ar, verifier=judge).translate(texts, Guided(sampler=LocallyConstrained()))
    assert {each.text for each in found} <= {plain.vocabulary.decode(ids) for ids in outputs[0].tolist()}
    # Nothing can be said, which is no endless loop.
    nothing = padir.load(tiny.ar, verifier=Listed(np.zeros_like(outputs), judge.vocab_size))
    failed = nothing.translate(texts[:1], Guided(sampler=TokenwiseRejection(max_trials=7)))[0]
    assert failed.failed and not failed.cut_off and failed.text == "" and account(failed)["queries"] == 7


def test_translate_writes_the_account(tiny, folder, translator, texts, tmp_path):
    (tmp_path / "in.txt").write_text("".join(f"{text}\n" for text in texts))
    options = {"run_dir": str(tiny.ar), "inputs": [str(tmp_path / "in.txt")], "verifier": str(folder)}
    translate_files(**options, output=str(tmp_path / "out.jsonl"), output_format="jsonl")
    records = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    for record, expected in zip(records, translator.translate(texts), strict=True):
        assert record["text"] == expected.text and record["failed"] is False
        assert {name: record[name] for name in account(expected)} == account(expected)
    # Another verifier is another job.
    translate_files(**options, output=str(tmp_path / "shards"), shards=2)
    with pytest.raises(PadirError, match="verifier_sha256"):
        translate_files(**options | {"verifier": None}, output=str(tmp_path / "shards"), shards=2)


def test_evaluate_tells_the_cost_beside_the_quality(tiny, folder, tmp_path, capsys):
    options = {"run_dir": str(tiny.ar), "data_dir": str(tiny.data), "output_dir": str(tmp_path), "batch_size": 40}
    result = evaluate(**options, name="guided", verifier=str(folder))
    assert result == json.loads((tmp_path / "guided.json").read_text())
    assert result["verifier"] == str(folder) and result["system"]["decoding"] == "guided"
    assert result["mean_queries"] == pytest.approx(result["mean_steps_run"], abs=6)
    test = PreparedSet.open(tiny.data).split("test")
    sources = [example.source_ids for example in test.read(range(len(test)))]
    found = padir.load(tiny.ar, verifier=folder).translate_ids(sources, batch_size=40)
    spent = sum(account(each)["queries"] for each in found)
    assert result["queries_per_token"] == pytest.approx(spent / sum(each.predicted_length for each in found))
    assert result["queries_per_token"] > 1.0 and result["mean_backtracks"] > 0 and result["failed"] == 0
    said = f"{result['mean_queries']:.1f} queries ({result['queries_per_token']:.2f} per output token), "
    assert said in capsys.readouterr().out and said in (tmp_path / "guided.md").read_text()


def test_what_does_not_fit_is_refused(tiny, folder, translator, texts):
    with pytest.raises(PadirError, match="this verifier reads the hidden states of the model with params_sha256"):
        padir.load(tiny.ar, step=60, verifier=folder)
    with pytest.raises(PadirError, match="there is no verifier here"):
        padir.load(tiny.ar, verifier=tiny.ar)
    with pytest.raises(PadirError, match="Autoregressive takes no verifier of prefixes; use Guided"):
        translator.translate(texts, Autoregressive())
    with pytest.raises(PadirError, match="there is none; give --verifier=DIR"):
        padir.load(tiny.ar).translate(texts, Guided())
    with pytest.raises(PadirError, match="ValueGuided.children = 'all' weighs every next token"):
        translator.translate(texts, Guided(sampler=ValueGuided(children="all")))
    with pytest.raises(PadirError, match="Backtracking writes until EOS"):
        translator.translate_ids([[5, EOS_ID]], lengths=[4])
    with pytest.raises(PadirError, match="Guided does not fit a PadirModel"):
        padir.load(tiny.padir, verifier=AlwaysAccept()).translate(texts)
