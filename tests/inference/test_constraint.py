"""A constraint on tiny trained models: files, commands, reports, and outputs that all obey."""

import json

import pytest

import padir
from padir.data.constraints import Constraint
from padir.data.records import PreparedSet
from padir.decoding import automaton
from padir.decoding.autoregressive import Autoregressive
from padir.decoding.backtracking import Backtracking
from padir.decoding.beam import BeamSearch
from padir.decoding.guided import Guided
from padir.decoding.refinement import Refinement
from padir.decoding.sampling import Sampling
from padir.decoding.verified import Verified
from padir.decoding.verifiers import RandomVerifier
from padir.errors import PadirError
from padir.evaluation.evaluate import evaluate
from padir.inference import constraint
from padir.inference.translate import translate_files

DECODES = {
    "greedy": ("ar", Autoregressive()),
    "samples": ("ar", Autoregressive(sampling=Sampling(1.0), num_samples=2)),
    "beam": ("ar", BeamSearch(beam_size=3)),
    "refinement": ("padir", Refinement(num_hypotheses=2, target_buckets=())),
}


@pytest.fixture(scope="module")
def examples(tiny):
    # Text of examples that were cut when the set was prepared is too long to be translated.
    every = PreparedSet.open(tiny.data).split("validation").read(range(32))
    return [example for example in every if len(example.source_ids) < 24][:12]


@pytest.fixture(scope="module")
def terms(examples):
    """Terms of which each is in force for some sources; the targets are words that the vocabulary can write."""
    sources = [word for example in examples[:3] for word in example.source_text.split()[-1:]]
    targets = [word for example in examples[3:6] for word in example.target_text.strip(".?!").split()[:1]]
    return {source.strip(".?!"): target for source, target in zip(sources, targets, strict=True)}


@pytest.mark.parametrize("name", DECODES)
def test_a_terminology_is_obeyed_in_every_output_and_batch(tiny, examples, terms, name):
    kind, decode = DECODES[name]
    translator = padir.load(getattr(tiny, kind), constraint={"terms": terms, "forbidden": ["xyzzy"]})
    sources = [example.source_ids for example in examples]
    together = translator.translate_ids(sources, decode, batch_size=len(sources))
    asked = translator.constraint.constraint
    demanded = [asked.demanded(example.source_text) for example in examples]
    assert any(demanded)
    for example, translation in zip(examples, together, strict=True):
        assert translation.constraint_met
        assert not translation.failed
        assert all(asked.met(example.source_text, text) for text, _ in translation.hypotheses if text)
    alone = translator.translate_ids(sources[:2], decode, batch_size=2)
    assert [each.text for each in alone] == [each.text for each in together[:2]]


def test_files_are_translated_and_evaluated_under_a_constraint(tiny, examples, terms, tmp_path, capsys):
    path = tmp_path / "terms.json"
    path.write_text(json.dumps({"terms": terms}), encoding="utf-8")
    source = tmp_path / "in.txt"
    source.write_text("".join(example.source_text + "\n" for example in examples), encoding="utf-8")
    given = {"run_dir": str(tiny.ar), "constraint": str(path)}
    counts = translate_files(**given, inputs=[str(source)], output=str(tmp_path / "o.jsonl"), output_format="jsonl")
    assert (counts.translated, counts.unmet) == (12, 0)
    assert "12 translated, 0 rejected; 0 do not meet the constraint" in capsys.readouterr().err
    records = [json.loads(line) for line in (tmp_path / "o.jsonl").read_text(encoding="utf-8").splitlines()]
    assert all(record["constraint_met"] is True for record in records)
    # Some shards have no lines.
    sharded = translate_files(**given, inputs=[str(source)], output=str(tmp_path / "shards"), shards=20)
    assert sharded == counts
    result = evaluate(
        **given, data_dir=str(tiny.data), split="validation", output_dir=str(tmp_path), name="terms", batch_size=32
    )
    assert (result["constraint_met"], result["failed"], result["queries_per_token"]) == (100.0, 0, 1.0)
    concerned = result["constraint_concerns"]
    assert 0 < concerned < 32
    assert (
        f"1.00 queries per output token; 100.00% meet the constraint, which concerns {concerned}, "
        "0 of 32 sentences failed" in capsys.readouterr().out
    )
    # Without it the same is counted of what the model writes by itself.
    path = tmp_path / "check.json"
    path.write_text(json.dumps({"terms": terms}), encoding="utf-8")
    common = {"run_dir": str(tiny.ar), "data_dir": str(tiny.data), "split": "validation", "output_dir": str(tmp_path)}
    plain = evaluate(**common, check=str(path), name="plain", batch_size=32)
    assert plain["constraint_concerns"] == concerned and plain["check"] == str(path)
    texts = (tmp_path / "plain.txt").read_text(encoding="utf-8").splitlines()
    data = PreparedSet.open(tiny.data)
    # Some texts go on beyond what the model reads.
    sources = [data.vocabulary().decode(example.source_ids) for example in data.split("validation").read(range(32))]
    met = [Constraint.read(path).met(*both) for both in zip(sources, texts, strict=True)]
    assert plain["constraint_met"] == 100.0 * sum(met) / 32 < 100.0
    assert (plain["failed"], plain["queries_per_token"]) == (0, 1.0)
    with pytest.raises(PadirError, match="evaluate.check: translations are held against their constraint anyway"):
        evaluate(**common, check=str(path), constraint=str(path), name="both")


def test_a_source_without_room_fails_and_is_counted(tiny, examples):
    words = examples[0].target_text.strip(".?!").split()
    # More tokens than a source may have in its target.
    translator = padir.load(tiny.ar, constraint={"pattern": ".*".join(words) + r"\w{9}.*"})
    short = Autoregressive(max_length_ratio=0.0, max_length_offset=2)
    found = translator.translate_ids([examples[0].source_ids], short)[0]
    assert found.failed
    assert found.constraint_met is False
    assert (found.text, found.score) == ("", float("-inf"))
    assert not found.cut_off


def test_a_source_with_too_many_terms_fails_alone(tiny, examples, capsys):
    """In a refinement, where each term is a state of its own."""
    kind, decode = DECODES["refinement"]
    letters = [letter for letter in "abcdefghijklmnoprstuvw" if letter not in examples[0].source_text.split()][:12]
    words = sorted({word.strip(".?!") for example in examples for word in example.target_text.split()}, key=len)[-12:]
    translator = padir.load(getattr(tiny, kind), constraint={"terms": dict(zip(letters, words, strict=True))})
    both = translator.translate([examples[0].source_text, " ".join(letters)], decode)
    assert "a source with 12 terms gets no translation: constraint: terms: " in capsys.readouterr().err
    assert both[0] == translator.translate([examples[0].source_text], decode)[0]
    assert both[0].text and both[0].constraint_met
    assert (both[1].text, both[1].failed, both[1].constraint_met) == ("", True, False)


def test_many_terms_of_one_source_are_written(tiny, examples, capsys):
    """Twelve of them, more than states could keep, in a batch with a source without any."""
    letters = [letter for letter in "abcdefghijklmnoprstuvw" if letter not in examples[0].source_text.split()][:12]
    words = sorted({word.strip(".?!") for example in examples for word in example.target_text.split()}, key=len)[:12]
    translator = padir.load(tiny.ar, constraint={"terms": dict(zip(letters, words, strict=True))})
    texts = [examples[0].source_text, " ".join(letters)]
    for decode in (
        Autoregressive(max_length_ratio=5.0),
        Autoregressive(sampling=Sampling(1.0), max_length_ratio=5.0),
        BeamSearch(beam_size=2, max_length_ratio=5.0),
    ):
        both = translator.translate(texts, decode)
        assert all(each.constraint_met and not each.failed for each in both), both
        assert all(word in both[1].text for word in words)
        assert both[0].text == translator.translate(texts[:1], decode)[0].text
    assert "no translation" not in capsys.readouterr().err
    short = translator.translate(texts, Autoregressive(max_length_ratio=1.0))
    assert short[1].failed and not short[0].failed


def test_verified_decoding_writes_what_constrained_greedy_writes(tiny, examples, terms):
    sources = [example.source_ids for example in examples]
    greedy = padir.load(tiny.ar, constraint={"terms": terms}).translate_ids(sources, Autoregressive())
    verified = padir.load(tiny.padir, verify_with=tiny.ar, constraint={"terms": terms})
    found = verified.translate_ids(sources, Verified(target_buckets=()))
    assert [each.text for each in found] == [each.text for each in greedy]
    assert all(each.constraint_met for each in found)


def test_generation_under_a_verifier_obeys(tiny, examples, terms):
    sources = [example.source_ids for example in examples]
    translator = padir.load(tiny.ar, constraint={"terms": terms}, verifier=RandomVerifier())
    found = translator.translate_ids(sources, Guided(sampler=Backtracking(threshold=0.2), num_samples=2))
    assert all(each.constraint_met for each in found) and sum(each.queries.backtracks for each in found) > 10


def test_batches_are_made_smaller_where_tables_are_large(tiny, examples, terms, monkeypatch):
    translator = padir.load(tiny.ar, constraint={"terms": terms})
    sources = [example.source_ids for example in examples]
    expected = translator.translate_ids(sources)
    sizes = []
    monkeypatch.setattr(automaton, "MOST_ENTRIES", 1 << 15)
    monkeypatch.setattr(constraint, "MOST_ENTRIES", 1 << 15)
    found = translator.translate_ids(sources, done=sizes.append)
    assert max(sizes) <= 8
    assert [each.text for each in found] == [each.text for each in expected]


def test_what_every_source_must_obey_is_brought_to_the_device_once(tiny):
    given = padir.load(tiny.ar, constraint={"forbidden": ["a"]}).constraint
    tables = given.tables([[5, 1], [6, 1], [7, 1]], Autoregressive())
    first = given.automaton(tables[:2], 2, (0, 0, 0))
    assert given.automaton(tables[2:], 2, (0, 0, 0)) is first
    assert given.automaton(tables, 4, (0, 0, 0)) is not first


def test_a_term_that_no_source_can_have_is_refused(tiny):
    with pytest.raises(PadirError, match=r"terms: 'a☃' becomes 'a ⁇' in this model's vocabulary"):
        padir.load(tiny.ar, constraint={"terms": {"a☃": "a"}})


def test_what_does_not_go_together_is_refused(tiny):
    translator = padir.load(tiny.padir, constraint={"forbidden": ["a"]})
    with pytest.raises(PadirError, match="Refinement.sampling: does not go with a constraint"):
        translator.checked(Refinement(sampling=Sampling(1.0)))
    with pytest.raises(PadirError, match="constraint: required: no piece of the vocabulary has '☃'"):
        padir.load(tiny.ar, constraint={"required": ["☃"]})
