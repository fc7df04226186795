"""The scores of a split are those of the hypotheses that are written beside them."""

import dataclasses
import gzip
import json
import shutil
from html import escape
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import padir
from padir.data.records import PreparedSet
from padir.data.synthetic import is_valid
from padir.decoding.refinement import Refinement
from padir.decoding.verified import Verified
from padir.errors import PadirError
from padir.evaluation.evaluate import decode_examples, evaluate, score
from padir.evaluation.evaluation_set import open_set
from padir.evaluation.report import summary
from padir.evaluation.tables import tables
from padir.inference.translator import Translation, Translator
from padir.metrics.bootstrap import paired_bootstrap
from padir.metrics.counts import count_sentences
from padir.metrics.quality import evaluate_hypotheses
from padir.metrics.randomization import approximate_randomization
from padir.metrics.stutter import stutter_per_100_tokens, token_stutter, word_stutter

EVALUATE = "padir.evaluation.evaluate"
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
        with pytest.raises(PadirError, match=r"lengths have shape .*; give one for each of the 2 sources"):
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


def test_stutter_of_output_and_reference(tiny, results, examples):
    lines, stored = read(results, "padir")
    references = [example.target_text for example in examples]
    vocabulary = PreparedSet.open(tiny.data).vocabulary()
    by_unit = {
        "words": word_stutter(lines, references),
        "tokens": token_stutter(vocabulary.encode_batch(lines), [e.target_ids for e in examples]),
    }
    for unit, rates in by_unit.items():
        assert stored[f"stutter_per_100_{unit}"] == rates.excess
        assert stored[f"repeats_per_100_{unit}"] == rates.output
        assert stored[f"reference_repeats_per_100_{unit}"] == rates.reference
        baseline = {f"{name}_per_100_{unit}" for name in ("stutter", "repeats", "reference_repeats")}
        assert baseline <= stored["baseline_stutter"].keys()
    other, _ = read(results, "ar")
    assert stored["baseline_stutter"]["repeats_per_100_words"] == word_stutter(other, references).output


def test_buckets_of_source_lengths(results, examples):
    lines, stored = read(results, "padir")
    buckets = stored["by_source_length"]
    assert sum(bucket["n"] for bucket in buckets) == 40
    for bucket in buckets:
        last = bucket["to"] or 10**9
        rows = [row for row, e in enumerate(examples) if bucket["from"] <= len(e.source_ids) <= last]
        expected = evaluate_hypotheses([lines[row] for row in rows], [examples[row].target_text for row in rows])
        assert bucket["n"] == len(rows) > 0
        assert bucket["bleu"] == pytest.approx(expected.bleu)
        assert bucket["chrf"] == pytest.approx(expected.chrf)
        assert bucket["stutter_per_100_words"] == pytest.approx(expected.stutter_per_100_words)
    others = stored["baseline_by_source_length"]
    assert [bucket["n"] for bucket in others] == [bucket["n"] for bucket in buckets]
    assert others == read(results, "ar")[1]["by_source_length"]


def test_approximate_randomisation_against_the_baseline(results, examples):
    lines, stored = read(results, "padir")
    other, _ = read(results, "ar")
    references = [example.target_text for example in examples]
    tests = approximate_randomization(count_sentences(lines, references), count_sentences(other, references))
    assert stored["approximate_randomization"] == {metric: test.to_dict() for metric, test in tests.items()}
    differences = {metric: test["difference"] for metric, test in stored["against_baseline"].items()}
    for metric, test in tests.items():
        assert test.difference == pytest.approx(differences[metric])


def test_what_kind_of_system_was_evaluated(results):
    task = {"name": "tiny", "module": "tasks.synthetic", "source_language": "en", "target_language": "de"}
    _, padir_result = read(results, "padir")
    assert padir_result["task"] == task
    assert padir_result["system"] == {
        "kind": "parallel",
        "decoding": "padir",
        "steps": 2,
        "hypotheses": 1,
        "trained_on": "raw",
        "rescored": False,
        "compute_type": None,
    }
    _, ar_result = read(results, "ar")
    assert ar_result["system"]["decoding"] == "greedy" and ar_result["system"]["steps"] is None
    # An autoregressive model predicts no length.
    assert (ar_result["length_accuracy"], ar_result["length_error"]) == (None, None)
    assert "tok:intl" in ar_result["bleu_intl_signature"]


def test_the_pages_beside_the_result(results, examples):
    """The Markdown holds the result's figures, the HTML every sentence; without a baseline there is no HTML."""
    lines, stored = read(results, "padir")
    text = (results / "padir.md").read_text(encoding="utf-8")
    assert f"| padir | 40 | {stored['bleu']:.2f} | {stored['bleu_intl']:.2f} | {stored['chrf']:.2f} |" in text
    page = (results / "padir.html").read_text(encoding="utf-8")
    assert page.count("<tr data-number=") == 40 and escape(examples[39].source_text) in page
    assert not (results / "ar.html").exists()


def test_the_tokenizer_of_the_target_language(tiny, tmp_path):
    """A set whose targets claim to be Chinese is scored with sacreBLEU's zh, unless told otherwise."""
    data = tmp_path / "zh"
    shutil.copytree(tiny.data, data)
    manifest = PreparedSet.open(data).manifest
    dataclasses.replace(manifest, target_language="zh").save(data)
    arguments = {"run_dir": str(tiny.ar), "data_dir": str(data), "output_dir": str(tmp_path), "name": "zh"}
    result = evaluate(split="validation", **arguments)
    assert "tok:zh|" in result["bleu_signature"] and "asian:yes" in result["ter_signature"]
    result = evaluate(split="validation", tokenize="intl", **arguments)
    assert "tok:intl|" in result["bleu_signature"] and "asian:no" in result["ter_signature"]
    assert result["bleu"] == result["bleu_intl"]


def test_options_that_do_not_fit_are_refused_before_anything_is_decoded(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(f"{EVALUATE}.decode_examples", lambda *arguments, **options: pytest.fail("decoded"))
    arguments = {"run_dir": str(tiny.ar), "data_dir": str(tiny.data), "output_dir": str(tmp_path), "name": "x"}
    with pytest.raises(PadirError, match=r"length_buckets: \(20, 10\) must be ascending"):
        evaluate(length_buckets=(20, 10), **arguments)
    with pytest.raises(PadirError, match="tokenize='14a': sacreBLEU knows 13a, char"):
        evaluate(tokenize="14a", **arguments)
    with pytest.raises(PadirError, match=r"evaluate\.trained_on: unknown 'both'; choose raw or distilled"):
        evaluate(trained_on="both", **arguments)
    with pytest.raises(PadirError, match=r"trained_on: 'distilled', but .*ar was trained on raw data; leave it out"):
        evaluate(trained_on="distilled", **arguments)


def test_the_comparison_is_the_paired_bootstrap(results, examples):
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
        f"TER {stored['ter']:.2f}  ({stored['ter_signature']})",
        f"validity {stored['validity']:.2f}%",
        f"stutter {stored['stutter_per_100_words']:.2f} per 100 words",
        "40 sentences",
        f"length accuracy {stored['length_accuracy']:.2f}%, error {stored['length_error']:.2f} tokens "
        f"(bias {stored['length_bias']:+.2f}), {stored['mean_steps_run']:.1f} steps per sentence",
        *(
            f"{metric} against {results / 'ar.txt'}: {test['difference']:+.2f} (p = {test['p_value']:.3f}, "
            f"{test['signature']}; p = {stored['approximate_randomization'][metric]['p_value']:.4f} by approximate "
            "randomisation)"
            for metric, test in stored["against_baseline"].items()
        ),
    ]


def test_length_accuracy_and_steps_by_hand(examples):
    """One of three lengths right, 1 + 2 + 3 steps; the references themselves are perfect and valid."""
    right = [len(example.target_ids) for example in examples[:3]]
    translations = [
        Translation(example.target_text, 0.0, steps, length)
        for example, steps, length in zip(examples, (1, 2, 3), [right[0], right[1] + 1, right[2] - 3], strict=False)
    ]
    result = score(translations, examples[:3], "padir.data.synthetic:is_valid")
    # Errors of 0, +1 and -3 tokens.
    assert result["length_accuracy"] == pytest.approx(100 / 3)
    assert result["length_error"] == pytest.approx(4 / 3)
    assert result["length_bias"] == pytest.approx(-2 / 3)
    written = score(translations, examples[:3], None, predicts_length=False)
    assert [written[name] for name in ("length_accuracy", "length_error", "length_bias")] == [None] * 3
    assert result["mean_steps_run"] == 2.0
    assert (result["bleu"], result["validity"]) == (pytest.approx(100.0), 100.0)
    assert score(translations, examples[:3], None)["validity"] is None


class TestFiles:
    """A test set of two files, without preparation."""

    @pytest.fixture
    def files(self, examples, tmp_path):
        """Writes the test split as two files; returns their paths."""
        paths = {"sources": tmp_path / "t.src.gz", "references": tmp_path / "t.tgt"}
        with gzip.open(paths["sources"], "wt", encoding="utf-8") as file:
            file.writelines(f"{example.source_text}\n" for example in examples)
        paths["references"].write_text("".join(f"{example.target_text}\n" for example in examples))
        return {name: str(path) for name, path in paths.items()}

    def test_the_scores_are_those_of_the_prepared_split(self, tiny, results, examples, files, tmp_path):
        given = {"run_dir": str(tiny.padir), "output_dir": str(tmp_path), "name": "files"}
        found = evaluate(**given, **files, decode=DECODE)
        prepared = json.loads((results / "padir.json").read_text(encoding="utf-8"))
        tokens = PreparedSet.open(tiny.data).vocabulary().encode_batch([example.source_text for example in examples])
        # Preparation cuts the same sources.
        assert found["n"] == 40 and found["cut_sources"] == sum(len(ids) + 1 > 32 for ids in tokens) > 0
        same = ("bleu", "chrf", "ter", "mean_steps_run", "stutter_per_100_words")
        assert {name: found[name] for name in same} == {name: prepared[name] for name in same}
        assert (found["data_dir"], found["split"]) == ("t.src.gz, t.tgt", "lines")
        assert found["task"]["name"] == "t.src.gz, t.tgt" and found["validity"] is None

    def test_of_a_long_source_the_beginning_is_translated(self, tiny, files, tmp_path, capsys):
        Path(files["references"]).write_text("eins\nzwei\n")
        with gzip.open(files["sources"], "wt") as file:
            file.write("Peter helps a big dog.\n" + "Peter helps a big dog. " * 30 + "\n")
        given = {"run_dir": str(tiny.padir), "output_dir": str(tmp_path), "name": "long"}
        assert evaluate(**given, **files)["cut_sources"] == 1
        assert "1 of 2 sources have more than the 32 tokens that the model allows" in capsys.readouterr().err
        assert len((tmp_path / "long.txt").read_text().splitlines()) == 2

    def test_of_a_prepared_set_that_is_longer_than_the_model_likewise(self, tiny, capsys):
        """It is said before anything is decoded; at the end, the longest batch would be an error."""
        translator = SimpleNamespace(vocabulary=PreparedSet.open(tiny.data).vocabulary(), longest_source=9)
        found = open_set(translator, "run", str(tiny.data), "test")
        whole = PreparedSet.open(tiny.data).split("test").read(range(40))
        cut = [example for example in whole if len(example.source_ids) > 9]
        assert found.cut_sources == len(cut) > 0
        assert (
            f"split test of {tiny.data}: {len(cut)} of 40 sources have more than the 9 tokens"
            in capsys.readouterr().err
        )
        for one, other in zip(found.examples, whole, strict=True):
            ids = other.source_ids
            np.testing.assert_array_equal(one.source_ids, ids if len(ids) <= 9 else [*ids[:8], 1])
            assert one.source_text == other.source_text

    def test_what_is_missing_is_named(self, tiny, files, tmp_path):
        given = {"run_dir": str(tiny.padir), "output_dir": str(tmp_path), "name": "x"}
        with pytest.raises(PadirError, match="evaluate.references: give --sources and --references, or neither"):
            evaluate(**given, sources=files["sources"])
        with pytest.raises(PadirError, match="evaluate.data_dir: give a prepared set, or two files"):
            evaluate(**given)
        Path(files["references"]).write_text("eins\n\n")
        with pytest.raises(PadirError, match=r"t\.tgt:2: empty target"):
            evaluate(**given, **files)
        Path(files["references"]).write_text("eins\nzwei\n")
        nothing = tmp_path / "nothing"
        nothing.write_text("a dog\n\u200b\n", encoding="utf-8")
        with pytest.raises(PadirError, match=r"nothing:2: '\\u200b' has no character that the model knows; remove"):
            evaluate(**given, sources=str(nothing), references=files["references"])
        with pytest.raises(PadirError, match=r"t\.src\.gz has 40 lines but .*t\.tgt has 2"):
            evaluate(**given, **files)
        assert not (tmp_path / "x.json").exists()


def test_a_baseline_of_another_split(tiny, tmp_path):
    (tmp_path / "other.txt").write_text("eins\nzwei\n")
    arguments = {"run_dir": str(tiny.padir), "data_dir": str(tiny.data), "output_dir": str(tmp_path), "name": "x"}
    message = rf"other\.txt: has 2 hypotheses, but split test of {tiny.data} has 40 references; compare"
    with pytest.raises(PadirError, match=message):
        evaluate(baseline=str(tmp_path / "other.txt"), **arguments)
    with pytest.raises(PadirError, match=r"none\.txt: cannot read the baseline's hypotheses"):
        evaluate(baseline=str(tmp_path / "none.txt"), **arguments)
    with pytest.raises(PadirError, match="no split 'dev'; it has train, validation, test"):
        evaluate(split="dev", **arguments)
    assert not (tmp_path / "x.json").exists()


def test_what_would_be_replaced_is_not_read(tiny, tmp_path):
    (tmp_path / "x.txt").write_text("eins\n" * 40)
    arguments = {"run_dir": str(tiny.padir), "output_dir": str(tmp_path), "name": "x"}
    message = r"evaluate\.{}: .*x\.txt would be replaced by this result; choose another name or output_dir"
    with pytest.raises(PadirError, match=message.format("baseline")):
        evaluate(baseline=f"{tmp_path}/./x.txt", data_dir=str(tiny.data), **arguments)
    (tmp_path / "references").write_text("one\n" * 40)
    with pytest.raises(PadirError, match=message.format("sources")):
        evaluate(sources=str(tmp_path / "x.txt"), references=str(tmp_path / "references"), **arguments)
    assert (tmp_path / "x.txt").read_text() == "eins\n" * 40


@pytest.mark.parametrize("begin", ["", "\ufeff"])
def test_a_baseline_whose_lines_hold_unicode_line_separators(tiny, tmp_path, results, begin):
    """Only a newline ends a line of hypotheses: our own writer lets U+2028 through. A byte order mark is no text."""
    lines, _ = read(results, "ar")
    lines[3] = "ein\u2028Satz"
    (tmp_path / "other.txt").write_text(begin + "".join(f"{line}\n" for line in lines), encoding="utf-8")
    arguments = {"run_dir": str(tiny.ar), "data_dir": str(tiny.data), "output_dir": str(tmp_path), "name": "x"}
    found = evaluate(baseline=str(tmp_path / "other.txt"), **arguments)
    assert found["n"] == 40 and "\ufeff" not in (tmp_path / "x.html").read_text(encoding="utf-8")


def test_the_seed_is_that_of_the_translator(tiny, tmp_path, monkeypatch):
    """What a seed changes is tested where translators are."""

    def load(run_dir, seed, **options):
        raise PadirError(f"seed {seed} of {run_dir}")

    monkeypatch.setattr(f"{EVALUATE}.load", load)
    with pytest.raises(PadirError, match=f"seed 7 of {tiny.padir}"):
        evaluate(run_dir=str(tiny.padir), data_dir=str(tiny.data), output_dir=str(tmp_path), name="x", seed=7)


def test_a_set_of_another_vocabulary(tiny, tmp_path):
    from padir.data import vocabulary as vocabulary_lib

    vocabulary_lib.train(["ab"] * 20, tmp_path / "vocabulary.model", num_pieces=6)
    manifest = PreparedSet.open(tiny.data).manifest
    other = vocabulary_lib.Vocabulary.load(tmp_path / "vocabulary.model").hash
    dataclasses.replace(manifest, vocabulary_hash=other).save(tmp_path)
    message = f"vocabulary hash {other[:12]} differs from {manifest.vocabulary_hash[:12]}, the hash of the vocabulary"
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


def test_verified_by_the_teacher(tiny, examples, tmp_path):
    common = {"data_dir": str(tiny.data), "output_dir": str(tmp_path)}
    decode = Verified(target_buckets=())
    result = evaluate(run_dir=str(tiny.padir), verify_with=str(tiny.ar), decode=decode, name="verified", **common)
    teacher = evaluate(run_dir=str(tiny.ar), name="ar", **common)
    assert (tmp_path / "verified.txt").read_bytes() == (tmp_path / "ar.txt").read_bytes()
    assert result["verify_with"] == str(tiny.ar) and teacher["verify_with"] is None
    assert result["system"]["decoding"] == "verified"
    assert 1 <= result["mean_rounds"] < result["mean_steps_run"]
    assert result["mean_draft_passes"] == pytest.approx(result["mean_steps_run"] - result["mean_rounds"])
    assert result["tokens_per_round"] >= 1 and "mean_rounds" not in teacher


def test_products_of_fewer_bits(tiny, examples, tmp_path):
    decode = Refinement(num_steps=1, target_buckets=())
    common = {"data_dir": str(tiny.data), "output_dir": str(tmp_path), "decode": decode, "name": "padir"}
    result = evaluate(run_dir=str(tiny.padir), compute_type="int8", **common)
    assert result["system"]["compute_type"] == "int8"
    translator = padir.load(tiny.padir, compute_type="int8")
    expected = decode_examples(translator, examples, decode, batch_size=64, label="again")
    written = (tmp_path / "padir.txt").read_text(encoding="utf-8")
    assert written == "".join(translation.text + "\n" for translation in expected)


def test_a_result_of_evaluate_can_be_laid_out(results, tmp_path):
    """What `padir evaluate` writes is what `padir tables` reads."""
    output = tables(results=[str(results)], output_dir=str(tmp_path))
    assert [entry["reason"] for entry in output["unplaced"]] == [
        "task tiny of tasks.synthetic (en_de) is not in the paper's tables"
    ] * 2


def test_learned_metrics(tiny, tmp_path, monkeypatch):
    """Means times 100 of the scores of all sentences; the two libraries are tested where they are called."""
    asked = {}

    def bleurt(checkpoint, references, candidates):
        asked["bleurt"] = (checkpoint, references, candidates)
        return [0.5] * 31 + [0.82]

    def comet(python, model, sources, hypotheses, references):
        asked["comet"] = (python, model, sources, hypotheses, references)
        return [0.25] * 32

    monkeypatch.setattr(f"{EVALUATE}.check_bleurt", lambda folder: SimpleNamespace(name=f"name of {folder}"))
    monkeypatch.setattr(f"{EVALUATE}.bleurt_scores", bleurt)
    monkeypatch.setattr(f"{EVALUATE}.check_comet", lambda python: None)
    monkeypatch.setattr(f"{EVALUATE}.comet_scores", comet)
    arguments = {"run_dir": str(tiny.ar), "data_dir": str(tiny.data), "output_dir": str(tmp_path), "name": "x"}
    learned = {"bleurt": "BLEURT-20", "comet": "some/model", "comet_python": "comet/bin/python"}
    result = evaluate(split="validation", **arguments, **learned)
    assert result["bleurt"] == pytest.approx(51.0) and result["comet"] == 25.0
    assert (result["bleurt_signature"], result["comet_signature"]) == ("name of BLEURT-20", "some/model")
    pairs = PreparedSet.open(tiny.data).split("validation").read(range(32))
    sources, references = [e.source_text for e in pairs], [e.target_text for e in pairs]
    lines = (tmp_path / "x.txt").read_text(encoding="utf-8").splitlines()
    assert asked["bleurt"] == ("BLEURT-20", references, lines)
    assert asked["comet"] == ("comet/bin/python", "some/model", sources, lines, references)
    assert "BLEURT 51.00  (name of BLEURT-20)" in summary(result).splitlines()
    assert " | BLEURT | COMET |" in (tmp_path / "x.md").read_text(encoding="utf-8")


def test_learned_metrics_that_are_not_there_are_named_before_anything_is_decoded(tiny, tmp_path):
    arguments = {"run_dir": str(tiny.ar), "data_dir": str(tiny.data), "output_dir": str(tmp_path), "name": "x"}
    with pytest.raises(PadirError, match=r"none/bleurt_config\.json: No such file or directory; give the unzipped"):
        evaluate(bleurt=str(tmp_path / "none"), **arguments)
    with pytest.raises(PadirError, match=r"evaluate\.comet: no value for comet_python; COMET needs an environment"):
        evaluate(comet="some/model", **arguments)
    with pytest.raises(PadirError, match=r"evaluate\.comet_python: is for COMET; give --comet, too, or leave it out"):
        evaluate(comet_python="python", **arguments)
    assert not (tmp_path / "x.txt").exists()
