"""The scores of a split are those of the hypotheses that are written beside them."""

import dataclasses
import json

import pytest

import padir
from padir.data.records import PreparedSet
from padir.data.synthetic import is_valid
from padir.decoding.refinement import Refinement
from padir.errors import PadirError
from padir.evaluate import decode_examples, evaluate, score, summary
from padir.metrics.quality import evaluate_hypotheses, paired_bootstrap
from padir.metrics.stutter import stutter_per_100_tokens
from padir.translator import Translation, Translator

DECODE = Refinement(num_steps=2, target_buckets=(16,))


@pytest.fixture(scope="module")
def examples(tiny):
    test = PreparedSet.open(tiny.data).split("test")
    return test.read(range(len(test)))


@pytest.fixture(scope="module")
def results(tiny, tmp_path_factory):
    """Folder with the AR model's evaluation, then PaDIR's against it."""
    folder = tmp_path_factory.mktemp("results")
    common = {"data_dir": str(tiny.data), "output_dir": str(folder)}
    evaluate(run_dir=str(tiny.ar), name="ar", **common)
    given = evaluate(
        run_dir=str(tiny.padir),
        name="padir",
        decode=DECODE,
        baseline=str(folder / "ar.txt"),
        **common,
    )
    assert json.loads((folder / "padir.json").read_text(encoding="utf-8")) == given
    return folder


def test_an_oracle_is_told_the_lengths_of_the_references(tiny, examples):
    vocabulary = PreparedSet.open(tiny.data).vocabulary()
    model = dataclasses.replace(tiny.model()(vocabulary.ids), length_predictor="oracle", relative_length=False)
    oracle = Translator(model, model.init(0), vocabulary, step=0)
    found = decode_examples(oracle, examples, DECODE, batch_size=16, label="oracle")
    assert [translation.predicted_length for translation in found] == [len(e.target_ids) for e in examples]
    with pytest.raises(PadirError, match="length predictor 'oracle' needs the lengths of its targets"):
        oracle.translate(["Peter helps a dog."], DECODE)


def test_lengths_of_another_number(tiny):
    translator = padir.load(tiny.ar)
    for lengths in ([3], [[3, 4], [3, 4]]):
        with pytest.raises(PadirError, match=r"lengths of shape .* are not one for each of 2 sources"):
            translator.decode_ids([[5, 1], [6, 1]], translator.checked(None), lengths)


def read(folder, name):
    lines = (folder / f"{name}.txt").read_text(encoding="utf-8").split("\n")
    assert lines.pop() == ""
    return lines, json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))


def test_scores_are_those_of_the_written_lines(results, examples):
    for name in ("ar", "padir"):
        lines, stored = read(results, name)
        expected = evaluate_hypotheses(
            lines,
            [example.target_text for example in examples],
            sources=[example.source_text for example in examples],
            checker=is_valid,
        )
        assert {key: stored[key] for key in expected.to_dict()} == expected.to_dict()
        assert stored["n"] == 40
        assert stored["bleu_signature"].startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")


def test_lines_are_the_translations_in_order(tiny, results, examples):
    lines, stored = read(results, "padir")
    translations = padir.load(tiny.padir).translate_ids([e.source_ids for e in examples], DECODE)
    assert lines == [translation.text for translation in translations]
    right = sum(t.predicted_length == len(e.target_ids) for t, e in zip(translations, examples, strict=True))
    assert stored["length_accuracy"] == 100 * right / 40
    assert stored["mean_steps_run"] == sum(t.steps_run for t in translations) / 40 <= 2
    encoded = [PreparedSet.open(tiny.data).vocabulary().encode(line) for line in lines]
    assert stored["stutter_per_100_tokens"] == stutter_per_100_tokens(encoded, [e.target_ids for e in examples])


def test_what_was_evaluated_is_recorded(tiny, results):
    _, stored = read(results, "padir")
    assert (stored["name"], stored["split"]) == ("padir", "test")
    assert (stored["run_dir"], stored["data_dir"]) == (str(tiny.padir), str(tiny.data))
    assert stored["decode"] == repr(DECODE)
    assert "against_baseline" not in read(results, "ar")[1]


def test_the_comparison_is_sacrebleus_paired_bootstrap(results, examples):
    lines, stored = read(results, "padir")
    other, other_stored = read(results, "ar")
    expected = paired_bootstrap(lines, other, [example.target_text for example in examples])
    assert stored["against_baseline"] == {metric: value.to_dict() for metric, value in expected.items()}
    against = stored["against_baseline"]["bleu"]
    assert against["score"] == pytest.approx(stored["bleu"])
    assert against["baseline_score"] == pytest.approx(other_stored["bleu"])
    assert against["difference"] == pytest.approx(stored["bleu"] - other_stored["bleu"])
    assert stored["baseline"] == str(results / "ar.txt")


def test_what_is_printed(tiny, results):
    _, stored = read(results, "padir")
    assert summary(stored).splitlines() == [
        f"padir on test of {tiny.data}",
        f"BLEU {stored['bleu']:.2f}  ({stored['bleu_signature']})",
        f"chrF {stored['chrf']:.2f}  ({stored['chrf_signature']})",
        f"validity {stored['validity']:.2f}%",
        f"stutter {stored['stutter_per_100_words']:.2f} per 100 words",
        "40 sentences",
        f"length accuracy {stored['length_accuracy']:.2f}%, {stored['mean_steps_run']:.1f} steps a sentence",
        *(
            f"{metric} against {results / 'ar.txt'}: {test['difference']:+.2f} (p = {test['p_value']:.3f}, "
            f"{test['signature']})"
            for metric, test in stored["against_baseline"].items()
        ),
    ]


def test_length_accuracy_and_steps_by_hand(examples):
    """Two of three lengths right, 1 + 2 + 3 steps; the references themselves are perfect and valid."""
    right = [len(example.target_ids) for example in examples[:3]]
    translations = [
        Translation(example.target_text, 0.0, steps, length)
        for example, steps, length in zip(examples, (1, 2, 3), [right[0], right[1] + 1, right[2]], strict=False)
    ]
    result = score(translations, examples[:3], "padir.data.synthetic:is_valid")
    assert result["length_accuracy"] == pytest.approx(200 / 3)
    assert result["mean_steps_run"] == 2.0
    assert (result["bleu"], result["validity"]) == (pytest.approx(100.0), 100.0)
    assert score(translations, examples[:3], None)["validity"] is None


def test_a_baseline_of_another_split(tiny, tmp_path):
    (tmp_path / "other.txt").write_text("eins\nzwei\n")
    arguments = {"run_dir": str(tiny.padir), "data_dir": str(tiny.data), "output_dir": str(tmp_path), "name": "x"}
    message = r"other\.txt: has 2 hypotheses where the evaluated split has 40 examples"
    with pytest.raises(PadirError, match=message):
        evaluate(baseline=str(tmp_path / "other.txt"), **arguments)
    with pytest.raises(PadirError, match=r"none\.txt: cannot read the baseline's hypotheses"):
        evaluate(baseline=str(tmp_path / "none.txt"), **arguments)
    with pytest.raises(PadirError, match="no split 'dev'; it has train, validation, test"):
        evaluate(split="dev", **arguments)
    assert not (tmp_path / "x.json").exists()


def test_a_baseline_whose_lines_hold_unicode_line_separators(tiny, tmp_path, results):
    """Only a newline ends a line of hypotheses: our own writer lets U+2028 through."""
    lines, _ = read(results, "ar")
    lines[3] = "ein\u2028Satz"
    (tmp_path / "other.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    arguments = {"run_dir": str(tiny.ar), "data_dir": str(tiny.data), "output_dir": str(tmp_path), "name": "x"}
    assert evaluate(baseline=str(tmp_path / "other.txt"), **arguments)["n"] == 40


def test_the_seed_is_that_of_the_translator(tiny, tmp_path, monkeypatch):
    """What a seed changes is tested where translators are."""

    def load(run_dir, seed, rescore_with):
        raise PadirError(f"seed {seed} of {run_dir}")

    monkeypatch.setattr("padir.evaluate.load", load)
    with pytest.raises(PadirError, match=f"seed 7 of {tiny.padir}"):
        evaluate(run_dir=str(tiny.padir), data_dir=str(tiny.data), output_dir=str(tmp_path), name="x", seed=7)


def test_a_set_of_another_vocabulary(tiny, tmp_path):
    from padir.data import vocabulary as vocabulary_lib

    vocabulary_lib.train(["ab"] * 20, tmp_path / "vocabulary.model", num_pieces=6)
    manifest = PreparedSet.open(tiny.data).manifest
    other = vocabulary_lib.Vocabulary.load(tmp_path / "vocabulary.model").hash
    dataclasses.replace(manifest, vocabulary_hash=other).save(tmp_path)
    message = f"vocabulary hash {other[:12]} differs from {manifest.vocabulary_hash[:12]}, which the model in"
    with pytest.raises(PadirError, match=message):
        evaluate(run_dir=str(tiny.padir), data_dir=str(tmp_path), output_dir=str(tmp_path), name="x")


def test_rescored_by_the_teacher(tiny, examples, tmp_path):
    decode = Refinement(num_steps=1, num_hypotheses=3, target_buckets=())
    common = {"data_dir": str(tiny.data), "output_dir": str(tmp_path), "decode": decode, "name": "padir"}
    result = evaluate(run_dir=str(tiny.padir), rescore_with=str(tiny.ar), **common)
    assert result["rescore_with"] == str(tiny.ar)
    translator = padir.load(tiny.padir, rescore_with=tiny.ar)
    expected = decode_examples(translator, examples, decode, batch_size=64, label="again")
    written = (tmp_path / "padir.txt").read_text(encoding="utf-8")
    assert written == "".join(translation.text + "\n" for translation in expected)
