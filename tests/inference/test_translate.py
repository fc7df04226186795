"""Translating from Python and from files: order, batches, bad input, counts."""

import dataclasses
import gzip
import json
import os
import stat
import statistics
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import padir
from padir.data.records import PreparedSet
from padir.decoding.autoregressive import Autoregressive
from padir.decoding.beam import BeamSearch
from padir.decoding.initial import StartWithRandom
from padir.decoding.refinement import Refinement
from padir.decoding.verified import Verified
from padir.errors import PadirError
from padir.inference.decoder import SOURCE_BUCKETS, source_width
from padir.inference.translate import translate_files
from padir.inference.translator import Translation, Translator
from padir.models.rescoring import Rescorer
from padir.models.verification import Verifier
from padir.types import EOS_ID

# Two target buckets instead of eight: each is compiled anew for every shape of a batch.
DECODE = Refinement(num_steps=3, target_buckets=(16,))


@pytest.fixture(scope="module")
def translator(tiny):
    return padir.load(tiny.padir)


@pytest.fixture(scope="module")
def texts(tiny, translator):
    """Sources of the test split that fit the model, of many lengths, unsorted."""
    test = PreparedSet.open(tiny.data).split("test")
    every = [example.source_text for example in test.read(range(len(test)))]
    chosen = [text for text in every if len(translator.vocabulary.encode(text)) < 32][:20]
    lengths = [len(translator.vocabulary.encode(text)) for text in chosen]
    assert len(chosen) == 20 and lengths != sorted(lengths)
    assert len({source_width(translator.model, length + 1) for length in lengths}) > 1
    return chosen


@pytest.fixture(scope="module")
def translations(translator, texts):
    found = translator.translate(texts, DECODE)
    # The tests below tell orders apart by this.
    assert len({translation.text for translation in found}) > 5
    return found


def assert_same(ours, theirs):
    """Equal in everything, scores up to the rounding of another batch shape."""
    for one, other in zip(ours, theirs, strict=True):
        assert (one.text, one.steps_run, one.predicted_length) == (other.text, other.steps_run, other.predicted_length)
        assert one.score == pytest.approx(other.score, abs=1e-4)


def test_load_opens_the_newest_checkpoint_or_the_one_asked_for(tiny, translator, texts):
    assert translator.step == 120
    earlier = padir.load(tiny.padir, step=60)
    assert earlier.step == 60
    assert earlier.translate(texts[:1], DECODE)[0].score != translator.translate(texts[:1], DECODE)[0].score
    with pytest.raises(PadirError, match="no checkpoint of step 7; steps there: 60, 120"):
        padir.load(tiny.padir, step=7)


def test_batches_and_neighbours_change_nothing(translator, texts, translations):
    assert_same(translator.translate(texts, DECODE, batch_size=1), translations)
    assert_same(translator.translate(texts, DECODE, batch_size=7), translations)
    assert_same(translator.translate(texts[::-1], DECODE)[::-1], translations)


def test_autoregressive_batches_change_nothing(tiny, texts):
    translator = padir.load(tiny.ar)
    together = translator.translate(texts)
    assert len({translation.text for translation in together}) > 5
    assert_same(translator.translate(texts, batch_size=1), together)
    for translation in together:
        assert translation.steps_run == translation.predicted_length
        assert translation.hypotheses == ((translation.text, translation.score),)


def test_one_text_by_hand(translator, texts, translations):
    """The same, from the model's own decode and SentencePiece."""
    ids = [*translator.vocabulary.encode(texts[0]), EOS_ID]
    hypotheses = translator.decode_ids([ids], DECODE)
    assert translations[0].text == translator.vocabulary.decode(hypotheses.tokens[0, 0].tolist())
    assert translations[0].predicted_length == hypotheses.predicted_lengths[0, 0]
    assert 1 <= translations[0].steps_run <= 3
    # Eight devices share the rows; those beyond the first are padding.
    assert hypotheses.tokens.shape == (8, 1, 32)


def test_every_hypothesis_is_listed_best_first(translator, texts):
    for translation in translator.translate(texts[:5], Refinement(num_hypotheses=3, target_buckets=())):
        scores = [score for _, score in translation.hypotheses]
        assert len(scores) == 3 and scores == sorted(scores, reverse=True)
        assert translation.hypotheses[0] == (translation.text, translation.score)


def test_a_trace_tells_how_each_hypothesis_came_about(translator, texts):
    decode = Refinement(num_steps=3, num_hypotheses=2, target_buckets=(), return_trace=True, drop_repeats=False)
    for translation in translator.translate(texts[:3], decode, batch_size=2):
        assert translation.trace.proposals.shape == (3, 2, 32) and translation.trace.self_attentions is None
        written = [translator.vocabulary.decode(tokens.tolist()) for tokens in translation.trace.proposals[-1]]
        finished = translation.trace.log_probs[-1].any(-1)
        assert finished[0] or translation.steps_run < 3
        for (text, _), last, ran in zip(translation.hypotheses, written, finished, strict=True):
            assert text == last or not ran
    assert translator.translate(texts[:1], DECODE)[0].trace is None


class TestRescoring:
    DECODE = Refinement(num_steps=2, num_hypotheses=3, target_buckets=())

    def test_the_teacher_ranks_the_students_hypotheses(self, tiny, translator, texts):
        """The same hypotheses; scores are the teacher's mean log-probability of what the student wrote."""
        plain = translator.translate(texts, self.DECODE)
        rescored = padir.load(tiny.padir, rescore_with=tiny.ar).translate(texts, self.DECODE, batch_size=5)
        teacher = padir.load(tiny.ar)
        rescorer = Rescorer(teacher.model, teacher.params)
        score = jax.jit(lambda source, tokens: rescorer.reader(source)(tokens))
        changed = 0
        for text, ours, theirs in zip(texts, plain, rescored, strict=True):
            assert sorted(text for text, _ in ours.hypotheses) == sorted(text for text, _ in theirs.hypotheses)
            changed += ours.text != theirs.text
            ids = translator.tokenize(text)
            tokens = translator.decode_ids([ids], self.DECODE).tokens[:1]
            # All of one width: one program.
            source = np.zeros((1, 32), np.int32)
            source[0, : len(ids)] = ids
            found = np.array(score(source, tokens))[0]
            expected = sorted((found.sum(-1) / (tokens[0] != 0).sum(-1)).tolist(), reverse=True)
            np.testing.assert_allclose([score for _, score in theirs.hypotheses], expected, atol=1e-4)
        assert changed, "the two models should disagree on some order"

    def test_files(self, tiny, texts, tmp_path):
        (tmp_path / "in.txt").write_text(texts[0] + "\n")
        options = {"run_dir": str(tiny.padir), "rescore_with": str(tiny.ar), "decode": self.DECODE}
        translate_files(inputs=[str(tmp_path / "in.txt")], output=str(tmp_path / "out.txt"), **options)
        expected = padir.load(tiny.padir, rescore_with=tiny.ar).translate(texts[:1], self.DECODE)[0].text
        assert (tmp_path / "out.txt").read_text() == expected + "\n"

    def test_what_cannot_rescore_is_refused(self, tiny):
        with pytest.raises(
            PadirError, match="^rescore_with: .*: rescoring needs an autoregressive model; this is a PadirModel"
        ):
            padir.load(tiny.padir, rescore_with=tiny.padir)
        with pytest.raises(PadirError, match="hypotheses of a parallel model, but this model is autoregressive"):
            padir.load(tiny.ar, rescore_with=tiny.ar)
        with pytest.raises(PadirError, match="rescorer: the release has none; set Refinement.t5x_compat to False"):
            padir.load(tiny.padir, rescore_with=tiny.ar).translate(["a dog"], Refinement(t5x_compat=True))


class TestVerification:
    DECODE = Verified(target_buckets=(), window=4)

    def test_the_output_is_the_teachers(self, tiny, texts):
        expected = padir.load(tiny.ar).translate(texts)
        translator = padir.load(tiny.padir, verify_with=tiny.ar)
        found = translator.translate(texts, self.DECODE, batch_size=5)
        for ours, theirs in zip(found, expected, strict=True):
            assert (ours.text, ours.cut_off) == (theirs.text, theirs.cut_off)
            assert ours.score == pytest.approx(theirs.score, abs=1e-5)
            assert 1 <= ours.rounds <= ours.predicted_length == theirs.predicted_length
            assert ours.rounds < ours.steps_run and theirs.rounds is None
        assert translator.default_decode == Verified()

    def test_files(self, tiny, texts, tmp_path):
        (tmp_path / "in.txt").write_text(texts[0] + "\n")
        options = {"run_dir": str(tiny.padir), "verify_with": str(tiny.ar), "decode": self.DECODE}
        options |= {"inputs": [str(tmp_path / "in.txt")], "output_format": "jsonl"}
        translate_files(output=str(tmp_path / "out.jsonl"), **options)
        record = json.loads((tmp_path / "out.jsonl").read_text())
        assert record["text"] == padir.load(tiny.ar).translate(texts[:1])[0].text
        assert 1 <= record["rounds"] < record["steps_run"]

    def test_a_source_must_suit_both_models(self, tiny):
        teacher = padir.load(tiny.ar)
        shorter = dataclasses.replace(teacher.model, max_source_length=4)
        student = padir.load(tiny.padir)
        verifier = Verifier(shorter, teacher.params)
        translator = Translator(student.model, student.params, student.vocabulary, step=1, helper=verifier)
        with pytest.raises(PadirError, match="source of .* tokens is longer than the 4 that the model allows"):
            translator.tokenize("a dog " * 5)
        with pytest.raises(PadirError, match="a source of 5 tokens is longer than the 4 that the model allows"):
            translator.decode_ids([[5, 5, 5, 5, EOS_ID]], self.DECODE)

    def test_what_cannot_verify_is_refused(self, tiny):
        with pytest.raises(
            PadirError, match="^verify_with: .*: verification needs an autoregressive model; this is a PadirModel"
        ):
            padir.load(tiny.padir, verify_with=tiny.padir)
        with pytest.raises(PadirError, match="verify_with: .* of a parallel model, but this model is autoregressive"):
            padir.load(tiny.ar, verify_with=tiny.ar)
        with pytest.raises(PadirError, match="rescore_with: what is verified has one hypothesis"):
            padir.load(tiny.padir, rescore_with=tiny.ar, verify_with=tiny.ar)
        with pytest.raises(PadirError, match="decode: Verified needs an autoregressive model .*; give verify_with"):
            padir.load(tiny.padir).translate(["a dog"], Verified())
        with pytest.raises(PadirError, match="decode: Refinement verifies nothing; use Verified, or leave verify_with"):
            padir.load(tiny.padir, verify_with=tiny.ar).translate(["a dog"], Refinement())


class TestComputeType:
    """Products of fewer bits change translations a little, and those of files as those of texts."""

    DECODE = Refinement(num_steps=3, target_buckets=())

    def test_files_and_texts(self, tiny, texts, translator, tmp_path):
        (tmp_path / "in.txt").write_text("".join(text + "\n" for text in texts))
        options = {"inputs": [str(tmp_path / "in.txt")], "output": str(tmp_path / "out.jsonl"), "decode": self.DECODE}
        translate_files(run_dir=str(tiny.padir), compute_type="int8", output_format="jsonl", **options)
        rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
        rounded = padir.load(tiny.padir, compute_type="int8")
        assert (rounded.compute_type, rounded.product_type, translator.product_type) == ("int8", "int8", "float32")
        expected = rounded.translate(texts, self.DECODE)
        assert [row["text"] for row in rows] == [translation.text for translation in expected]
        exact = translator.translate(texts, self.DECODE)
        differences = [abs(ours.score - theirs.score) for ours, theirs in zip(expected, exact, strict=True)]
        assert max(differences) > 1e-5 and statistics.median(differences) < 0.05

    def test_an_unknown_one_is_refused_before_anything_is_opened(self):
        with pytest.raises(PadirError, match="compute_type: unknown 'int4'; choose bfloat16, int8, auto or None"):
            padir.load("nowhere", compute_type="int4")


def test_nothing_to_translate(translator):
    assert translator.translate([]) == []
    with pytest.raises(PadirError, match="batch_size: -1 is not at least 1"):
        translator.translate(["a dog"], batch_size=-1)


def test_texts_that_cannot_be_translated_name_their_position(translator):
    with pytest.raises(PadirError, match="^text 2: empty text: there is nothing to translate$"):
        translator.translate(["a dog", "  "])
    with pytest.raises(PadirError, match="^text 1: holds half of a surrogate pair, which is no character$"):
        translator.translate(["a dog \ud800"])
    with pytest.raises(PadirError, match=r"^text 1: source of \d+ tokens is longer than the 32 that the model allows"):
        translator.translate(["a dog " * 40])


def test_the_longest_source_the_model_allows(translator):
    word = "the "
    pieces = len(translator.vocabulary.encode(word * 5))
    assert pieces == 5, "this word should be one piece"
    assert len(translator.tokenize(word * 31)) == 32
    assert translator.translate([word * 31], DECODE)[0].predicted_length <= 32
    with pytest.raises(PadirError, match="source of 33 tokens is longer than the 32 that the model allows; split it"):
        translator.tokenize(word * 32)


def test_a_decode_configuration_of_the_other_kind(tiny, translator):
    with pytest.raises(PadirError, match="Autoregressive does not fit a PadirModel; use Refinement"):
        translator.translate(["a dog"], Autoregressive())
    teacher = padir.load(tiny.ar)
    with pytest.raises(PadirError, match="Refinement does not fit a AutoregressiveModel; use Autoregressive or Beam"):
        teacher.translate(["a dog"], Refinement())
    assert teacher.checked(None) == Autoregressive()
    assert teacher.checked(BeamSearch()) == BeamSearch()


@pytest.mark.parametrize(
    "length, longest, prefix, width",
    [
        *((1, 32, 0, 8), (8, 32, 0, 8), (9, 32, 0, 16), (25, 32, 0, 32), (33, 40, 0, 40), (600, 700, 0, 700)),
        # With [LENGTH] before it the source fills the bucket.
        *((7, 32, 1, 7), (8, 32, 1, 15), (31, 32, 1, 31), (32, 32, 1, 32)),
    ],
)
def test_source_widths(length, longest, prefix, width):
    model = SimpleNamespace(max_source_length=longest, source_prefix=prefix)
    assert source_width(model, length) == width
    assert tuple(sorted(SOURCE_BUCKETS)) == SOURCE_BUCKETS


BAD = [b"", b"\xff\xfe Hund", b"a dog " * 40]
REASONS = [
    "empty text: there is nothing to translate",
    "invalid UTF-8 at byte 1",
    "source of 81 tokens is longer than the 32 that the model allows; split it",
]


@pytest.fixture
def files(tmp_path, texts):
    """Two inputs, the second compressed; the first has three bad lines between good ones."""
    first = [texts[0].encode(), BAD[0], texts[1].encode(), BAD[1], BAD[2]]
    (tmp_path / "a.txt").write_bytes(b"\n".join(first) + b"\n")
    # Line ends of Windows, and none after the last line.
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress("\r\n".join(texts[2:20]).encode()))
    return [str(tmp_path / "a.txt"), str(tmp_path / "b.txt.gz")]


def test_files_to_lines(tiny, files, tmp_path, translations, capfd):
    output = tmp_path / "out.txt"
    counts = translate_files(run_dir=str(tiny.padir), inputs=files, output=str(output), decode=DECODE, batch_size=2)
    assert (counts.read, counts.translated, counts.rejected) == (23, 20, 3)
    rejects = f"{output}.rejects.jsonl"
    assert f"read 23 lines: 20 translated, 3 rejected; rejects in {rejects}\n" in capfd.readouterr().err
    expected = [translation.text for translation in translations]
    # Line n translates line n: rejected lines leave empty ones.
    assert output.read_text(encoding="utf-8").split("\n") == [expected[0], "", expected[1], "", "", *expected[2:], ""]
    records = [json.loads(line) for line in Path(rejects).read_text(encoding="utf-8").splitlines()]
    assert [(record["file"], record["line"]) for record in records] == [(files[0], 2), (files[0], 4), (files[0], 5)]
    assert [record["reason"] for record in records[:2]] == REASONS[:2]
    assert records[2]["reason"].endswith("tokens is longer than the 32 that the model allows; split it")
    assert [record["text"] for record in records] == ["", "\\xff\\xfe Hund", BAD[2].decode()]
    assert not list(tmp_path.glob("*.partial"))


def test_files_to_jsonl(tiny, files, tmp_path, translations):
    output = tmp_path / "out.jsonl"
    rejects = tmp_path / "bad"
    translate_files(
        run_dir=str(tiny.padir),
        inputs=files,
        output=str(output),
        output_format="jsonl",
        rejects=str(rejects),
        decode=DECODE,
    )
    records = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    places = [(files[0], 1), (files[0], 3), *((files[1], number) for number in range(1, 19))]
    assert [(record.pop("file"), record.pop("line")) for record in records] == places
    assert all(set(record) == {"text", "score", "steps_run", "predicted_length"} for record in records)
    assert_same([Translation(**record) for record in records], translations)
    assert len(rejects.read_text().splitlines()) == 3


def test_jsonl_has_every_hypothesis(translator, tiny, files, texts, tmp_path):
    output, decode = tmp_path / "out.jsonl", Refinement(num_steps=2, num_hypotheses=3, target_buckets=())
    options = {"output_format": "jsonl", "decode": decode, "batch_size": 8}
    translate_files(run_dir=str(tiny.padir), inputs=files[1:], output=str(output), **options)
    records = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    found = [tuple(each["text"] for each in record["hypotheses"]) for record in records]
    assert found == [
        tuple(text for text, _ in translation.hypotheses)
        for translation in translator.translate(texts[2:20], decode, batch_size=8)
    ]
    assert {len(every) for every in found} == {3}
    for record in records:
        assert record["hypotheses"][0] == {"text": record["text"], "score": record["score"]}


def test_without_rejects_there_is_no_rejects_file(tiny, files, tmp_path, capfd):
    output = tmp_path / "out.txt"
    stale = tmp_path / "out.txt.rejects.jsonl"
    stale.write_text("of an earlier job\n")
    counts = translate_files(run_dir=str(tiny.padir), inputs=files[1:], output=str(output), decode=DECODE)
    assert (counts.read, counts.translated, counts.rejected) == (18, 18, 0)
    assert capfd.readouterr().err.endswith("read 18 lines: 18 translated, 0 rejected\n")
    assert not stale.exists()


def test_rejects_may_go_to_a_pipe(stand_in, tmp_path):
    """It stays what it is: only a file of an earlier job is removed."""
    pipe, inputs = tmp_path / "pipe", tmp_path / "in.txt"
    os.mkfifo(pipe)
    inputs.write_text("no 1\n \n")
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    translate_files(run_dir="any", inputs=[str(inputs)], output=str(tmp_path / "out"), rejects=str(pipe))
    assert json.loads(os.read(reader, 1000))["line"] == 2 and stat.S_ISFIFO(pipe.stat().st_mode)
    os.close(reader)


def test_an_empty_file(tiny, tmp_path):
    (tmp_path / "empty").write_bytes(b"")
    counts = translate_files(run_dir=str(tiny.padir), inputs=[str(tmp_path / "empty")], output=str(tmp_path / "out"))
    assert (counts.read, counts.translated, counts.rejected) == (0, 0, 0)
    assert (tmp_path / "out").read_bytes() == b""


def test_nothing_but_rejects(tiny, tmp_path):
    (tmp_path / "in").write_bytes(b"\n\n")
    with pytest.raises(PadirError, match="none of the lines could be translated; the rejects say why"):
        translate_files(run_dir=str(tiny.padir), inputs=[str(tmp_path / "in")], output=str(tmp_path / "out"))
    assert (tmp_path / "out").read_bytes() == b"\n\n"
    assert len((tmp_path / "out.rejects.jsonl").read_text(encoding="utf-8").splitlines()) == 2


def test_a_text_without_a_score_is_still_json(stand_in, tmp_path):
    """Where a constraint leaves no room for a translation, its score is -inf, which JSON cannot say."""
    (tmp_path / "in").write_text("no 1\n")
    decode_ids = stand_in.decode_ids
    stand_in.decode_ids = lambda *given: dataclasses.replace(decode_ids(*given), scores=np.array([[-np.inf]]))
    output = tmp_path / "out.jsonl"
    translate_files(run_dir="any", inputs=[str(tmp_path / "in")], output=str(output), output_format="jsonl")
    (line,) = output.read_text(encoding="utf-8").splitlines()
    assert json.loads(line, parse_constant=pytest.fail)["score"] is None


@pytest.mark.parametrize("rejects", [None, "out.txt.rejects.jsonl", "folder/../out.txt.rejects.jsonl"])
def test_rejects_do_not_replace_an_input(stand_in, tmp_path, monkeypatch, rejects):
    monkeypatch.chdir(tmp_path)
    inputs = tmp_path / "out.txt.rejects.jsonl"
    inputs.write_text('{"text": "no 1"}\n')
    given = {"run_dir": "any", "input_format": "jsonl", "output": "out.txt", "rejects": rejects}
    with pytest.raises(PadirError, match=r"out\.txt\.rejects\.jsonl is an input, which would be lost; give --rejects="):
        translate_files(**given, inputs=[str(inputs)])
    assert inputs.exists() and not (tmp_path / "out.txt").exists()


@pytest.mark.parametrize("name", ["out.txt", "out.txt.partial"])
def test_the_output_does_not_replace_an_input(stand_in, tmp_path, monkeypatch, name):
    """Neither at the end, nor while it is written."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text("no 1\n")
    with pytest.raises(PadirError, match=rf"translate\.output: {name} is an input, which would be lost; give another"):
        translate_files(run_dir="any", inputs=[f"./{name}"], output="out.txt")
    assert (tmp_path / name).read_text() == "no 1\n"


def test_rejects_do_not_replace_the_output(stand_in, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.txt").write_text("no 1\n\n")
    (tmp_path / "out.txt").write_text("of before")
    with pytest.raises(PadirError, match=r"translate.rejects: \./out\.txt is the output, too; give --rejects=FILE"):
        translate_files(run_dir="any", inputs=["in.txt"], output="out.txt", rejects="./out.txt")
    assert (tmp_path / "out.txt").read_text() == "of before"


def test_bad_arguments(tiny, tmp_path, files):
    out = str(tmp_path / "out")
    with pytest.raises(PadirError, match=r"nowhere\.txt: no such input file"):
        translate_files(run_dir=str(tiny.padir), inputs=[*files, "nowhere.txt"], output=out)
    with pytest.raises(PadirError, match=r"translate\.output_format: unknown 'csv'; choose lines or jsonl"):
        translate_files(run_dir=str(tiny.padir), inputs=files, output=out, output_format="csv")
    with pytest.raises(PadirError, match="batch_size: 0 is not at least 1"):
        translate_files(run_dir=str(tiny.padir), inputs=files, output=out, batch_size=0)
    with pytest.raises(PadirError, match="Autoregressive does not fit a PadirModel"):
        translate_files(run_dir=str(tiny.padir), inputs=files, output=out, decode=Autoregressive())
    with pytest.raises(PadirError, match="no trained model found here; give a run directory of `padir train`"):
        translate_files(run_dir=str(tmp_path), inputs=files, output=out)
    # Before the model is opened.
    with pytest.raises(PadirError, match=r"translate\.input_field: only JSON has fields; give --input_format=jsonl"):
        translate_files(run_dir="nowhere", inputs=files, output=out, input_field="text")
    with pytest.raises(PadirError, match=rf"^{tmp_path}: this is a folder; give the name of a file to write"):
        translate_files(run_dir="nowhere", inputs=files, output=str(tmp_path))
    with pytest.raises(PadirError, match=rf"translate\.rejects: {tmp_path}/none is no folder; create it"):
        translate_files(run_dir="nowhere", inputs=files, output=out, rejects=f"{tmp_path}/none/rejects")
    assert not (tmp_path / "out").exists()


def test_a_job_that_fails_keeps_what_is_done(tiny, files, tmp_path, texts, translations, capfd):
    """20 good lines, then a damaged file: of the chunks of 16 lines one was finished."""
    (tmp_path / "good.txt").write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    whole = (tmp_path / "b.txt.gz").read_bytes()
    (tmp_path / "b.txt.gz").write_bytes(whole[:-20])
    inputs, output = [str(tmp_path / "good.txt"), files[1]], tmp_path / "out"
    with pytest.raises(PadirError, match=r"b\.txt\.gz: cannot be read after line \d+: "):
        translate_files(run_dir=str(tiny.padir), inputs=inputs, output=str(output), decode=DECODE, batch_size=1)
    assert not output.exists()
    partial = tmp_path / "out.partial"
    assert partial.read_text(encoding="utf-8").splitlines()[:16] == [t.text for t in translations[:16]]
    assert f"{output}: not finished; the lines written so far are kept in {partial}" in capfd.readouterr().err


def test_several_devices_keep_their_rows(tiny, texts, translations):
    """Compact rows are for one device: on eight the same program runs, with the same result."""
    translator = padir.load(tiny.padir)
    assert translator.translate(texts, DECODE, batch_size=16)
    programs = dict(translator._programs)
    found = translator.translate(texts, dataclasses.replace(DECODE, compact_rows=True), batch_size=16)
    assert [t.text for t in found] == [t.text for t in translations]
    assert translator._programs == programs


def test_standard_input_to_standard_output(tiny, run_python, tmp_path, texts, translations):
    """Also on one device instead of eight."""
    code = "import sys\nfrom padir.cli import main as cli\nsys.exit(cli.main(sys.argv[1:]))"
    given = "\n".join([texts[0], "", texts[1]]).encode()
    bindings = [
        "--gin.translate.decode=@Refinement()",
        "--gin.Refinement.num_steps=3",
        "--gin.Refinement.target_buckets=(16,)",
    ]
    cache = ["--compilation_cache=kept"]
    done = run_python(code, "translate", f"--run_dir={tiny.padir}", *bindings, *cache, cwd=tmp_path, input=given)
    assert done.returncode == 0, done.stderr.decode()
    assert len(list((tmp_path / "kept").glob("jit_run-*-cache"))) == 1
    assert done.stdout.decode().split("\n") == [translations[0].text, "", translations[1].text, ""]
    messages = done.stderr.decode().splitlines()
    assert messages == ["read 3 lines: 2 translated, 1 rejected; rejects in rejects.jsonl"]
    assert json.loads((tmp_path / "rejects.jsonl").read_text())["line"] == 2


def test_a_random_start_depends_on_the_seed_alone(tiny, texts, tmp_path):
    """The seed is that of `padir.load` and of `padir translate`."""
    first = padir.load(tiny.padir)
    decode = Refinement(num_steps=1, start=StartWithRandom(), target_buckets=())
    scores = [t.score for t in first.translate(texts[:8], decode)]
    np.testing.assert_allclose([t.score for t in first.translate(texts[:8], decode)], scores)
    others = [t.score for t in padir.load(tiny.padir, seed=1).translate(texts[:8], decode)]
    assert others != scores

    (tmp_path / "in").write_text("".join(f"{text}\n" for text in texts[:8]), encoding="utf-8")
    translate_files(
        run_dir=str(tiny.padir),
        inputs=[str(tmp_path / "in")],
        output=str(tmp_path / "out"),
        output_format="jsonl",
        decode=decode,
        seed=1,
    )
    written = [json.loads(line)["score"] for line in (tmp_path / "out").read_text(encoding="utf-8").splitlines()]
    np.testing.assert_allclose(written, others, atol=1e-4)


def test_a_translation_is_cut_off_where_it_has_no_eos(tiny, translator, texts):
    """Room for 3 tokens: nothing but what ends in EOS by then is whole. A parallel decode is never cut off."""
    teacher = padir.load(tiny.ar)
    short = Autoregressive(max_length_ratio=0, max_length_offset=3)
    ids = [teacher.tokenize(text) for text in texts]
    tokens = teacher.decode_ids(ids, short).tokens[: len(texts), 0]
    expected = [EOS_ID not in row for row in tokens.tolist()]
    assert [t.cut_off for t in teacher.translate(texts, short)] == expected and any(expected)
    assert not any(translation.cut_off for translation in translator.translate(texts, DECODE))


def test_finished_batches_are_reported(translator, texts):
    reported = []
    ids = [translator.tokenize(text) for text in texts]
    translator.translate_ids(ids, DECODE, batch_size=8, done=reported.append)
    assert reported == [8, 8, 4]
