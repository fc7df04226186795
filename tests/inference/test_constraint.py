"""A constraint on tiny trained models: files, commands, reports, and outputs that all obey."""

import json

import pytest

import padir
from padir.data.records import PreparedSet
from padir.decoding.autoregressive import Autoregressive
from padir.decoding.beam import BeamSearch
from padir.decoding.refinement import Refinement
from padir.decoding.sampling import Sampling
from padir.decoding.verified import Verified
from padir.errors import PadirError
from padir.evaluation.evaluate import evaluate
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
    constraint = translator.constraint.constraint
    demanded = [constraint.demanded(example.source_text) for example in examples]
    assert any(demanded)
    for example, translation in zip(examples, together, strict=True):
        assert translation.constraint_met
        assert not translation.failed
        assert all(constraint.met(example.source_text, text) for text, _ in translation.hypotheses if text)
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
    sharded = translate_files(**given, inputs=[str(source)], output=str(tmp_path / "shards"), shards=2)
    assert sharded == counts
    result = evaluate(
        **given, data_dir=str(tiny.data), split="validation", output_dir=str(tmp_path), name="terms", batch_size=32
    )
    assert result["constraint_met"] == 100.0
    assert "100.00% meet the constraint" in capsys.readouterr().out


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


def test_what_does_not_go_together_is_refused(tiny):
    translator = padir.load(tiny.padir, constraint={"forbidden": ["a"]})
    with pytest.raises(PadirError, match="Refinement.sampling: does not go with a constraint"):
        translator.checked(Refinement(sampling=Sampling(1.0)))
    verified = padir.load(tiny.padir, verify_with=tiny.ar, constraint={"forbidden": ["a"]})
    with pytest.raises(PadirError, match="constraint: does not go with Verified"):
        verified.checked(Verified())
    with pytest.raises(PadirError, match="constraint: required: no piece of the vocabulary has '☃'"):
        padir.load(tiny.ar, constraint={"required": ["☃"]})
