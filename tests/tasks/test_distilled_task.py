"""The task over a distilled set: its texts with any vocabulary, and what the set prepared from it still records."""

import pytest

from padir.data.manifest import PrepareSettings, TaskConfig
from padir.data.prepare import prepare
from padir.data.records import PreparedSet
from padir.errors import PadirError
from padir.inference.distill import distill
from tasks import distilled

SETTINGS = PrepareSettings(num_pieces=80, max_source_length=200, max_target_length=200)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """(a set of the embedded pair, the same with every train target in capitals as its translation)."""
    folder = tmp_path_factory.mktemp("distilled_task")
    sizes = {"num_train": 60, "num_validation": 5, "num_test": 7}
    prepare(TaskConfig("tasks.synthetic", "raw_pair", sizes), str(folder / "raw"), SETTINGS)
    made = folder / "translations.txt"
    made.write_text("".join(f"{target.upper()}\n" for _, target in texts(folder / "raw", "train")), encoding="utf-8")
    distill(data_dir=str(folder / "raw"), output_dir=str(folder / "made"), translations=str(made))
    return folder / "raw", folder / "made"


def texts(folder, split):
    examples = PreparedSet.open(folder).split(split)
    return [(example.source_text, example.target_text) for example in examples.read(range(len(examples)))]


def test_translations_to_train_on_and_references_elsewhere(folders, run_task):
    raw, made = folders
    assert texts(made, "train") == [(source, target.upper()) for source, target in texts(raw, "train")]
    pairs = distilled.register("read", "v", data_dir=str(made)).pairs
    assert {split: list(rows) for split, rows in pairs.items()} == {
        "train": texts(made, "train"),
        "validation": texts(raw, "validation"),
        "test": texts(raw, "test"),
    }
    examples = run_task(distilled, "train", num_pieces=100, data_dir=str(made))
    for example, pair in zip(examples, pairs["train"], strict=True):
        assert (example["inputs_pretokenized"], example["targets_pretokenized"]) == pair
        for side, text in zip(("inputs", "targets"), pair, strict=True):
            *pieces, last = example[side]
            assert last == "</s>" and "".join(pieces).replace("▁", " ").strip() == text


def test_prepared_again_with_another_vocabulary(folders, tmp_path):
    raw, made = folders
    task = TaskConfig("tasks.distilled", "again", {"data_dir": str(made)})
    manifest = prepare(task, str(tmp_path / "again"), PrepareSettings(num_pieces=100))
    assert texts(tmp_path / "again", "train") == texts(made, "train")
    assert manifest.vocabulary_hash != PreparedSet.open(made).manifest.vocabulary_hash
    assert manifest.checker == "padir.data.synthetic:is_valid"
    assert (manifest.source_language, manifest.target_language) == ("en", "de")
    assert manifest.is_distilled and manifest.original_task == PreparedSet.open(raw).manifest.task
    made.rename(tmp_path / "elsewhere")
    try:
        assert manifest.is_distilled and manifest.original_task == task
    finally:
        (tmp_path / "elsewhere").rename(made)


def test_a_set_that_was_not_distilled_is_refused(folders, tmp_path):
    raw, _ = folders
    with pytest.raises(PadirError, match=f"task x: option data_dir='{raw}' holds a set that was not made by `padir"):
        distilled.register("x", "v", data_dir=str(raw))
    with pytest.raises(PadirError, match="no prepared data set here"):
        distilled.register("x", "v", data_dir=str(tmp_path))
