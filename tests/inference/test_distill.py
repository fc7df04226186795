"""A distilled set: the teacher's translations re-encoded as targets, everything else as it was."""

import gzip
import json
import shutil
from collections import Counter

import numpy as np
import pytest

import padir
from padir.data.records import Example, PreparedSet
from padir.decoding.autoregressive import Autoregressive
from padir.decoding.beam import BeamSearch
from padir.decoding.refinement import Refinement
from padir.errors import PadirError
from padir.files.locks import alone_in
from padir.inference import distill as distillation
from padir.inference.distill import distill
from padir.inference.distill_filters import DistillFilters, most_repeats
from padir.inference.translator import Translator
from padir.types import EOS_ID

LIMIT = 48
# How an autoregressive teacher decodes unless told otherwise.
BEAM = BeamSearch(beam_size=5, num_hypotheses=1)


def read_jsonl(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def distilled(tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("distilled") / "set"
    manifest = distill(run_dir=str(tiny.ar), data_dir=str(tiny.data), output_dir=str(folder), limit=LIMIT)
    made = PreparedSet.open(folder)
    assert made.manifest.splits["train"] == manifest.splits["train"]
    return made


def test_targets_are_the_teachers_translations(tiny, distilled):
    originals = PreparedSet.open(tiny.data).split("train").read(range(LIMIT))
    teacher = padir.load(tiny.ar)
    translations = teacher.translate_ids([example.source_ids for example in originals], BEAM)
    vocabulary = distilled.vocabulary()
    kept, left_out = [], []
    for example, translation in zip(originals, translations, strict=True):
        tokens = len(vocabulary.encode(translation.text))
        whole = 1 <= tokens <= 31 and not translation.cut_off
        (kept if whole else left_out).append((example, translation))
    train = distilled.split("train")
    assert len(train) == len(kept) >= 3
    for made, (example, translation) in zip(train.read(range(len(train))), kept, strict=True):
        assert made.source_ids.tolist() == example.source_ids.tolist()
        assert made.source_text == example.source_text
        assert made.target_text == translation.text
        assert made.target_ids.tolist() == [*vocabulary.encode(translation.text), EOS_ID]
    for name, pairs in (("train.jsonl", kept), ("left_out.jsonl", left_out)):
        lines = read_jsonl(distilled.directory / name)
        assert [line["source"] for line in lines] == [example.source_text for example, _ in pairs]
        assert [line["target"] for line in lines] == [translation.text for _, translation in pairs]
        assert [line["score"] for line in lines] == pytest.approx([t.score for _, t in pairs], abs=1e-4)
    counted = distilled.manifest.task.options["left_out"]
    assert sum(counted.values()) == len(left_out) == LIMIT - len(kept)
    assert counted.get("cut_off", 0) == sum(t.cut_off and bool(t.text) for _, t in left_out)
    assert not (distilled.directory / "translations").exists()


def test_the_other_splits_are_copied(tiny, distilled):
    original = PreparedSet.open(tiny.data)
    assert list(distilled.manifest.splits) == ["train", "validation", "test"]
    for name in ("validation", "test"):
        assert distilled.manifest.splits[name] == original.manifest.splits[name]
        files = [*(file for file, _ in original.manifest.splits[name].shards), f"{name}.lengths.npy"]
        for file in files:
            assert (distilled.directory / file).read_bytes() == (original.directory / file).read_bytes()


def test_vocabulary_checker_and_provenance(tiny, distilled):
    original = PreparedSet.open(tiny.data).manifest
    manifest = distilled.manifest
    assert distilled.vocabulary().hash == original.vocabulary_hash == manifest.vocabulary_hash
    assert manifest.checker == "padir.data.synthetic:is_valid"
    assert (manifest.task.module, manifest.task.name) == ("padir.distill", "tiny_distilled")
    options = manifest.task.options
    assert (options["teacher"], options["teacher_step"]) == (str(tiny.ar), 120)
    assert (options["split"], options["limit"], options["decode"]) == ("train", LIMIT, repr(BEAM))
    assert options["source_task"]["name"] == "tiny"
    assert options["filters"] == {"cut_off": True, "max_length_ratio": None, "identical": False, "max_repeats": None}


def test_a_parallel_teacher_decodes_as_it_does_by_default(tiny, tmp_path):
    made = distill(run_dir=str(tiny.padir), data_dir=str(tiny.data), output_dir=str(tmp_path / "set"), limit=4)
    assert made.task.options["decode"] == repr(Refinement())


def test_another_set_is_not_touched(tiny, distilled, tmp_path):
    with pytest.raises(
        PadirError, match=r"already holds another prepared set \(.*limit: \d+ there, None now.*\); choose"
    ):
        distill(run_dir=str(tiny.ar), data_dir=str(tiny.data), output_dir=str(distilled.directory))
    shutil.copytree(tiny.data, tmp_path / "prepared")
    with pytest.raises(PadirError, match=r"already holds another prepared set \(it was not distilled\)"):
        distill(run_dir=str(tiny.ar), data_dir=str(tiny.data), output_dir=str(tmp_path / "prepared"))


def test_a_finished_set_is_finished_although_the_job_was_killed_at_its_very_end(tiny, tmp_path, capsys):
    request = {"run_dir": str(tiny.ar), "data_dir": str(tiny.data), "output_dir": str(tmp_path / "set"), "limit": 4}
    made = distill(**request)
    (tmp_path / "set" / "translations").mkdir()
    capsys.readouterr()
    assert distill(**request) == made
    assert "set: already distilled" in capsys.readouterr().err
    assert not (tmp_path / "set" / "translations").exists()
    with pytest.raises(PadirError, match="filters.max_repeats: None there, 3 now"):
        distill(**request, filters=DistillFilters(max_repeats=3))
    (tmp_path / "set" / "train.lengths.npy").unlink()
    with pytest.raises(PadirError, match=r"train\.lengths\.npy"):
        distill(**request)


def test_what_cannot_be_decoded(tiny, tmp_path):
    given = {"run_dir": str(tiny.ar), "data_dir": str(tiny.data), "output_dir": str(tmp_path / "x")}
    with pytest.raises(PadirError, match="distill.limit: 0 must be at least 1, or None for all"):
        distill(**given, limit=0)
    with pytest.raises(PadirError, match="distill.chunk_size: 0 must be at least 1$"):
        distill(**given, chunk_size=0)
    with pytest.raises(PadirError, match="no split 'dev'; it has train, validation, test"):
        distill(**given, split="dev")
    elsewhere = {"run_dir": None, "translations": "x"}
    for changes in (
        {"run_dir": None},
        {"translations": "x"},
        elsewhere | {"decode": 1},
        elsewhere | {"compute_type": "int8"},
    ):
        with pytest.raises(PadirError, match="distill: give either run_dir .* or translations"):
            distill(**given | changes)
    assert not (tmp_path / "x").exists()


def test_the_seed_is_that_of_the_teacher(tiny, tmp_path, monkeypatch):
    def load(run_dir, seed, compute_type):
        raise PadirError(f"seed {seed} of {run_dir}, {compute_type}")

    monkeypatch.setattr("padir.inference.distill.load", load)
    with pytest.raises(PadirError, match=f"seed 7 of {tiny.ar}, int8"):
        given = {"run_dir": str(tiny.ar), "data_dir": str(tiny.data), "output_dir": str(tmp_path / "x")}
        distill(**given, compute_type="int8", seed=7)


class Killed(Exception):
    """Stands for the end of the process."""


def test_a_killed_job_goes_on_and_ends_the_same(tiny, tmp_path, monkeypatch, capfd):
    """Killed after two of three chunks: only the third is decoded again, and every file is the same to the byte."""
    arguments = {"run_dir": str(tiny.ar), "data_dir": str(tiny.data), "limit": LIMIT, "chunk_size": 20}
    distill(**arguments, output_dir=str(tmp_path / "straight"))

    decoded = []
    translate_ids = Translator.translate_ids

    def counting(self, sources, *rest, **options):
        decoded.append(len(sources))
        if len(decoded) == 3:
            raise Killed
        return translate_ids(self, sources, *rest, **options)

    monkeypatch.setattr(Translator, "translate_ids", counting)
    killed = tmp_path / "killed"
    with pytest.raises(Killed):
        distill(**arguments, output_dir=str(killed))
    assert decoded == [20, 20, 8]
    assert not (killed / "manifest.json").exists()
    # What another request left there is not taken for this one's.
    for changes, message in (
        ({"decode": BeamSearch(alpha=0.5)}, r"holds the beginning of another distillation \(decode: .*alpha=1.0"),
        ({"compute_type": "int8"}, r"another distillation \(compute_type: None there, 'int8' now\)"),
        ({"limit": 47}, r"another distillation \(limit: 48 there, 47 now; sentences: 48 there, 47 now\); choose"),
    ):
        with pytest.raises(PadirError, match=message):
            distill(**arguments | changes, output_dir=str(killed))
    # Nor are translations of other data that look alike, or of a teacher that was trained again.
    manifest = json.loads((tiny.data / "manifest.json").read_text())
    shutil.copytree(tiny.data, tmp_path / "data")
    (tmp_path / "data" / "manifest.json").write_text(json.dumps(manifest | {"source_files": {"x": "0" * 64}}))
    with pytest.raises(PadirError, match=r"another distillation \(data_sha256: "):
        distill(**arguments | {"data_dir": str(tmp_path / "data")}, output_dir=str(killed))
    with monkeypatch.context() as patch, pytest.raises(PadirError, match=r"distillation \(teacher_sha256: .* '0' now"):
        patch.setattr("padir.inference.distill.params_sha256", lambda _: "0")
        distill(**arguments, output_dir=str(killed))
    capfd.readouterr()

    distill(**arguments, output_dir=str(killed))
    assert decoded == [20, 20, 8, 8]
    assert f"{killed}: resuming; 40 of 48 sentences are translated" in capfd.readouterr().err
    names = sorted(path.name for path in (tmp_path / "straight").iterdir())
    assert names == sorted(path.name for path in killed.iterdir())
    for name in names:
        assert (killed / name).read_bytes() == (tmp_path / "straight" / name).read_bytes(), name


def test_what_another_job_has_finished_meanwhile_is_left_alone(tiny, tmp_path, monkeypatch):
    """Both decode; the slower one finds the set, and takes nothing of it away."""
    arguments = {"run_dir": str(tiny.ar), "data_dir": str(tiny.data), "output_dir": str(tmp_path / "set"), "limit": 4}
    decode = distillation._decode

    def both(*job):
        decode(*job)
        monkeypatch.setattr(distillation, "_decode", decode)
        distill(**arguments)

    monkeypatch.setattr(distillation, "_decode", both)
    made = distill(**arguments)
    data = PreparedSet.open(tmp_path / "set").split("train")
    assert len(list(data.read(range(len(data))))) == made.splits["train"].num_examples > 0
    assert not (tmp_path / "set" / "translations").exists()


def test_a_set_is_written_by_one_job_at_a_time(tiny, tmp_path):
    arguments = {"run_dir": str(tiny.ar), "data_dir": str(tiny.data), "output_dir": str(tmp_path / "set"), "limit": 4}
    (tmp_path / "set").mkdir()
    with alone_in(tmp_path / "set", "x"), pytest.raises(PadirError, match="another process is writing this set; wait"):
        distill(**arguments)
    assert distill(**arguments).splits["train"].num_examples > 0


def test_a_damaged_chunk_is_named(tiny, tmp_path, monkeypatch):
    arguments = {"run_dir": str(tiny.ar), "data_dir": str(tiny.data), "output_dir": str(tmp_path), "limit": 4}
    # Translated, and no set written of it yet.
    monkeypatch.setattr("padir.inference.distill._write_set", lambda *arguments: None)
    with pytest.raises(PadirError, match="no prepared data set here"):
        distill(**arguments)
    monkeypatch.undo()
    (chunk,) = (tmp_path / "translations").glob("*.jsonl")
    whole = chunk.read_text(encoding="utf-8")
    for text in (whole[: whole.index("\n") + 1], whole[:-5], "{}\n" * 4, "[{}]\n" * 4, "[]\n" * 4):
        chunk.write_text(text, encoding="utf-8")
        message = r"translations/00000\.jsonl: damaged \(.*\); delete it and run the same command again"
        with pytest.raises(PadirError, match=message):
            distill(**arguments)


def test_what_was_cut_off_is_counted_or_kept(tiny, tmp_path, capfd):
    """Room for two tokens: every translation that is not empty is cut off."""
    arguments = {"run_dir": str(tiny.ar), "data_dir": str(tiny.data), "split": "validation"}
    arguments["decode"] = Autoregressive(max_length_ratio=0, max_length_offset=2)
    with pytest.raises(PadirError, match=r"no translation is left to learn from; left out: \d+ cut_off"):
        distill(**arguments, output_dir=str(tmp_path / "without"))
    made = distill(**arguments, output_dir=str(tmp_path / "with"), filters=DistillFilters(cut_off=False))
    assert "cut_off" not in made.task.options["left_out"]
    without = read_jsonl(tmp_path / "without" / "left_out.jsonl")
    cut_off = [record["target"] for record in without if record["reason"] == "cut_off"]
    assert [record["target"] for record in read_jsonl(tmp_path / "with" / "train.jsonl")] == cut_off
    assert made.splits["train"].num_examples == len(cut_off) > 16
    assert f"distill: kept {len(cut_off)} translations of 32 targets; left out: " in capfd.readouterr().err


def test_all_hypotheses_of_a_source_and_its_original(tiny, tmp_path, capfd):
    """What the student learns from, in order: the teacher's hypotheses, best first, and the target that was there."""
    beam = BeamSearch(beam_size=3)
    request = {"run_dir": str(tiny.ar), "data_dir": str(tiny.data), "limit": 8, "decode": beam, "chunk_size": 5}
    made = distill(**request, output_dir=str(tmp_path / "set"), all_hypotheses=True, with_originals=True)
    originals = PreparedSet.open(tiny.data).split("train").read(range(8))
    translations = padir.load(tiny.ar).translate_ids([example.source_ids for example in originals], beam)
    expected, left_out = [], Counter()
    for example, translation in zip(originals, translations, strict=True):
        learned = []
        for (text, _), cut_off in zip(translation.hypotheses, translation.hypotheses_cut_off, strict=True):
            reason = "duplicate" if text in learned else "empty" if not text else "cut_off" if cut_off else ""
            left_out.update([reason] if reason else [])
            learned += [] if reason else [text]
        original = example.target_text not in learned
        left_out.update([] if original else ["duplicate"])
        expected += [(example.source_text, text) for text in [*learned, *[example.target_text] * original]]
    assert len(expected) > 10
    assert made.task.options["left_out"] == dict(left_out)
    lines = read_jsonl(tmp_path / "set" / "train.jsonl")
    assert [(line["source"], line["target"]) for line in lines] == expected
    train = PreparedSet.open(tmp_path / "set").split("train")
    assert [(e.source_text, e.target_text) for e in train.read(range(len(train)))] == expected
    kept = sum(line["score"] is not None for line in lines)
    told = f"kept {kept} translations and {len(lines) - kept} originals of 32 targets; left out: "
    assert told in capfd.readouterr().err
    # Asked for once more it stays; without the originals it would be another set.
    distill(**request, output_dir=str(tmp_path / "set"), all_hypotheses=True, with_originals=True)
    with pytest.raises(PadirError, match=r"already holds another prepared set \(with_originals: True there, None now"):
        distill(**request, output_dir=str(tmp_path / "set"), all_hypotheses=True)


def test_an_original_keeps_the_ids_that_it_had(tiny, tmp_path):
    """Its text may be longer than its ids. It is not filtered, and a text that is there already is not repeated."""
    data = PreparedSet.open(tiny.data)
    examples = data.split("validation").read(range(32))
    whole = [[*data.vocabulary().encode(example.target_text), EOS_ID] for example in examples]
    cut = [row for row in range(32) if len(whole[row]) > len(examples[row].target_ids)]
    same = next(row for row in range(32) if row not in cut)
    lines = [example.source_text for example in examples]
    lines[same] = examples[same].target_text
    (tmp_path / "given").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    request = {"data_dir": str(tiny.data), "split": "validation", "output_dir": str(tmp_path / "set")}
    filters = DistillFilters(identical=True)
    distill(**request, translations=str(tmp_path / "given"), filters=filters, with_originals=True)
    made = PreparedSet.open(tmp_path / "set").split("train")
    assert cut and len(made) == 32
    for example, before in zip(made.read(range(32)), examples, strict=True):
        assert (example.source_text, example.target_text) == (before.source_text, before.target_text)
        assert example.target_ids.tolist() == before.target_ids.tolist()
    left_out = PreparedSet.open(tmp_path / "set").manifest.task.options["left_out"]
    assert left_out["duplicate"] == 1 and left_out["identical"] + left_out["over_long"] == 31


def test_several_hypotheses_where_there_are_none(tiny, tmp_path):
    request = {"run_dir": str(tiny.ar), "data_dir": str(tiny.data), "output_dir": str(tmp_path / "set")}
    for decode in (BEAM, Autoregressive(), None):
        with pytest.raises(
            PadirError, match=r"distill\.all_hypotheses: this \w+ returns one hypothesis of each source"
        ):
            distill(**request, decode=decode, all_hypotheses=True)
    request |= {"run_dir": None, "translations": "lines.txt"}
    with pytest.raises(
        PadirError, match=r"distill\.all_hypotheses: a file of translations has only one of each source"
    ):
        distill(**request, all_hypotheses=True)


def test_translations_made_elsewhere(tiny, tmp_path):
    """A file with a line an example becomes the same kind of set; what is filtered is counted by reason."""
    examples = PreparedSet.open(tiny.data).split("validation").read(range(32))
    lines = [example.target_text for example in examples]
    vocabulary = PreparedSet.open(tiny.data).vocabulary()
    # Validation texts are whole where their ids were cut: some fit no bucket.
    over_long = [index for index, line in enumerate(lines) if len(vocabulary.encode(line)) > 31]
    fitting = [index for index in range(32) if index not in over_long]
    assert 1 <= len(over_long) <= 20
    empty, identical, padded = fitting[:3]
    lines[empty], lines[identical], lines[padded] = "", examples[identical].source_text, f"  {lines[padded]} "
    (tmp_path / "given.gz").write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode()))
    arguments = {"data_dir": str(tiny.data), "split": "validation", "filters": DistillFilters(identical=True)}
    made = distill(
        **arguments, output_dir=str(tmp_path / "set"), translations=str(tmp_path / "given.gz"), chunk_size=10
    )
    assert made.task.options["left_out"] == {
        "empty": 1,
        "identical": 1,
        "over_long": len(over_long),
    }
    assert made.task.options["translations"] == str(tmp_path / "given.gz")
    assert (made.splits["train"].skipped_empty, made.splits["train"].dropped) == (1, len(over_long))
    kept = [examples[index] for index in fitting if index not in (empty, identical)]
    train = PreparedSet.open(tmp_path / "set").split("train")
    for found, example in zip(train.read(range(len(train))), kept, strict=True):
        assert (found.source_text, found.target_text) == (example.source_text, example.target_text)
        assert found.target_ids.tolist() == [*vocabulary.encode(example.target_text), EOS_ID]
    assert {record["score"] for record in read_jsonl(tmp_path / "set" / "train.jsonl")} == {None}

    (tmp_path / "short").write_text("eins\nzwei\n")
    message = rf"short: has 2 lines, but split validation of {tiny.data} has 32 examples; line n must translate"
    with pytest.raises(PadirError, match=message):
        distill(**arguments, output_dir=str(tmp_path / "y"), translations=str(tmp_path / "short"))
    with pytest.raises(PadirError, match="none: no such file of translations"):
        distill(**arguments, output_dir=str(tmp_path / "y"), translations=str(tmp_path / "none"))


@pytest.mark.parametrize(
    "ids, repeats",
    [
        ([5, 7, 8, 7, 8, 7, 8, 9, 1], 3),
        ([4, 4, 4, 4, 1], 4),
        ([4, 5, 6, 4, 5, 1], 1),
        ([4, 5, 6, 4, 5, 6, 1], 2),
        ([2, 3, 4, 5, 2, 3, 4, 5, 2, 3, 4, 1], 2),
        ([2, 3, 4, 5, 6, 2, 3, 4, 5, 6, 1], 1),
        ([1], 1),
    ],
)
def test_most_repeats(ids, repeats):
    assert most_repeats(ids) == repeats


def test_reasons_by_hand():
    example = Example(np.asarray([5, 6, 7, EOS_ID]), np.asarray([1]), "a  dog", "")

    def reason(text, *ids, longest=12, cut_off=False, **filters):
        return DistillFilters(**filters).reason(example, text, [*ids, EOS_ID], longest=longest, cut_off=cut_off)

    assert reason("ein Hund", 4, 4) is None
    assert reason("") == "empty"
    assert reason("x", 4, cut_off=True) == "cut_off"
    assert DistillFilters(cut_off=False).reason(example, "x", [4, EOS_ID], longest=12, cut_off=True) is None
    assert (reason("x", *range(4, 15)), reason("x", *range(4, 16))) == (None, "over_long")
    # 4 tokens to 8 and to 9, and to 2 and 1 on the shorter side.
    assert reason("x", *range(4, 11), max_length_ratio=2.0) is None
    assert reason("x", *range(4, 12), max_length_ratio=2.0) == "length_ratio"
    assert reason("x", 4, max_length_ratio=2.0) is None
    assert reason("x", 4, max_length_ratio=1.9) == "length_ratio"
    assert (reason("a dog", 4), reason("a dog", 4, identical=True)) == (None, "identical")
    assert (reason("x", 4, 4, 4, max_repeats=3), reason("x", 4, 4, 4, max_repeats=2)) == (None, "repetition")
    # The first that applies.
    assert reason("a dog", *[4] * 12, cut_off=True, identical=True, max_repeats=1) == "cut_off"


def test_filters_that_make_no_sense():
    with pytest.raises(PadirError, match=r"DistillFilters.max_length_ratio: 0\.5 is below 1; None sets no limit"):
        DistillFilters(max_length_ratio=0.5)
    with pytest.raises(PadirError, match=r"DistillFilters.max_repeats: 0 is not at least 1; None sets no limit"):
        DistillFilters(max_repeats=0)


def test_the_command_needs_no_tensorflow(tiny, run_python, tmp_path):
    code = (
        "import sys\nfrom padir.cli import main as cli\n"
        "assert cli.main(sys.argv[1:]) == 0\n"
        "assert not {'tensorflow', 'seqio', 'tensorflow_text'} & set(sys.modules)"
    )
    folder = tmp_path / "out"
    arguments = [f"--run_dir={tiny.ar}", f"--data_dir={tiny.data}", f"--output_dir={folder}", "--limit=3"]
    done = run_python(code, "distill", *arguments, "--split=validation")
    assert done.returncode == 0, done.stderr.decode()
    made = PreparedSet.open(folder)
    assert 1 <= len(made.split("train")) <= 3
    # The split that was decoded has become the train split; the task's own train split is not the set's.
    assert set(made.manifest.splits) == {"train", "test"}
    first = PreparedSet.open(tiny.data).split("validation").read(range(3))
    assert made.split("train")[0].source_text in {example.source_text for example in first}
    assert "distill.split = 'validation'" in (folder / "distill.gin").read_text()
