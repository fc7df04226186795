"""A distilled set: the teacher's translations re-encoded as targets, everything else as it was."""

import json

import pytest

import padir
from padir.data.records import PreparedSet
from padir.decoding.autoregressive import Autoregressive
from padir.distill import distill
from padir.errors import PadirError
from padir.types import EOS_ID

LIMIT = 48


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
    translations = teacher.translate_ids([example.source_ids for example in originals])
    vocabulary = distilled.vocabulary()
    kept = [
        (example, translation)
        for example, translation in zip(originals, translations, strict=True)
        if 1 <= len(vocabulary.encode(translation.text)) <= 31
    ]
    train = distilled.split("train")
    assert len(train) == len(kept) >= 3
    assert distilled.manifest.splits["train"].dropped + distilled.manifest.splits["train"].skipped_empty == LIMIT - len(
        kept
    )
    for made, (example, translation) in zip(train.read(range(len(train))), kept, strict=True):
        assert made.source_ids.tolist() == example.source_ids.tolist()
        assert made.source_text == example.source_text
        assert made.target_text == translation.text
        assert made.target_ids.tolist() == [*vocabulary.encode(translation.text), EOS_ID]
    lines = [
        json.loads(line) for line in (distilled.directory / "train.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    assert [line["source"] for line in lines] == [example.source_text for example, _ in kept]
    assert [line["target"] for line in lines] == [translation.text for _, translation in kept]
    assert [line["score"] for line in lines] == pytest.approx([t.score for _, t in kept], abs=1e-4)


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
    assert (options["split"], options["limit"], options["decode"]) == ("train", LIMIT, repr(Autoregressive()))
    assert options["source_task"]["name"] == "tiny"


def test_an_existing_set_is_not_touched(tiny, distilled):
    with pytest.raises(PadirError, match="already holds a prepared set; choose another output_dir or delete this one"):
        distill(run_dir=str(tiny.ar), data_dir=str(tiny.data), output_dir=str(distilled.directory))


def test_what_cannot_be_decoded(tiny, tmp_path):
    with pytest.raises(PadirError, match="distill.limit: 0 must be at least 1, or None for all"):
        distill(run_dir=str(tiny.ar), data_dir=str(tiny.data), output_dir=str(tmp_path / "x"), limit=0)
    with pytest.raises(PadirError, match="no split 'dev'; it has train, validation, test"):
        distill(run_dir=str(tiny.ar), data_dir=str(tiny.data), output_dir=str(tmp_path / "x"), split="dev")


def test_the_command_needs_no_tensorflow(tiny, run_python, tmp_path):
    code = (
        "import sys\nfrom padir import cli\n"
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
