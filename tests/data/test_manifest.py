"""When a prepared set is the one that is asked for, and what it is told apart by."""

import dataclasses

import pytest

from padir.data import vocabulary
from padir.data.manifest import Manifest, PrepareSettings, TaskConfig, difference, recorded_settings
from padir.errors import PadirError
from padir.files.checksums import file_hash

TASK = TaskConfig("tasks.text_files", "toy", {"train": ("a", "b"), "limit_train": 5})
SETTINGS = PrepareSettings(num_pieces=900, splits=("train",))


def manifest(settings=None, **changes):
    stored = Manifest(
        task=TaskConfig("tasks.text_files", "toy", {"train": ["a", "b"], "limit_train": 5}),
        settings=recorded_settings(SETTINGS) if settings is None else settings,
        vocabulary_hash="0",
        num_pieces=900,
        splits={},
    )
    return dataclasses.replace(stored, **changes)


@pytest.fixture
def models(tmp_path):
    """Two SentencePiece models."""
    for size in (22, 23):
        vocabulary.train(["the old dog sleeps", "der alte Hund schläft"], tmp_path / f"{size}.model", num_pieces=size)
    return tmp_path


def test_the_task_that_a_distilled_set_was_made_from():
    raw = manifest()
    assert not raw.is_distilled and raw.original_task == raw.task
    once = TaskConfig("padir.distill", "toy_distilled", {"source_task": dataclasses.asdict(raw.task), "split": "train"})
    twice = TaskConfig("padir.distill", "toy_distilled_distilled", {"source_task": dataclasses.asdict(once)})
    for task in (once, twice):
        distilled = manifest(task=task)
        assert distilled.is_distilled and distilled.original_task == raw.task


def test_the_same_task_and_settings_differ_in_nothing():
    assert difference(manifest(), TASK, SETTINGS) == ""
    # How records are split over files changes nothing that a reader sees.
    assert difference(manifest(), TASK, dataclasses.replace(SETTINGS, records_per_shard=1)) == ""


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_pieces": 1000}, "num_pieces=900, now asked for 1000"),
        ({"character_coverage": 1.0}, "character_coverage=None, now asked for 1.0"),
        ({"vocabulary_seed": 3}, "vocabulary_seed=0, now asked for 3"),
        ({"max_target_length": 64}, "max_target_length=256, now asked for 64"),
        ({"splits": ("train", "test")}, "splits=['train'], now asked for ['train', 'test']"),
        ({"splits": None}, "splits=['train'], now asked for None"),
    ],
)
def test_a_changed_setting_is_named(changes, message):
    assert difference(manifest(), TASK, dataclasses.replace(SETTINGS, **changes)) == f"prepared with {message}"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"module": "tasks.synthetic"}, "task module='tasks.text_files', now asked for 'tasks.synthetic'"),
        ({"name": "other"}, "task name='toy', now asked for 'other'"),
        (
            {"options": {**TASK.options, "train": ("a", "c")}},
            "task option train=['a', 'b'], now asked for ['a', 'c']",
        ),
        ({"options": {"train": ("a", "b")}}, "task option limit_train=5, now asked for None"),
        ({"options": {**TASK.options, "limit_test": 2}}, "task option limit_test=None, now asked for 2"),
    ],
)
def test_a_changed_task_is_named(changes, message):
    task = dataclasses.replace(TASK, **changes)
    assert difference(manifest(), task) == difference(manifest(), task, SETTINGS) == f"prepared with {message}"


def test_settings_that_nobody_gives_are_not_compared():
    assert difference(manifest(), TASK) == ""


def test_a_set_older_than_a_setting_has_its_default():
    stored = recorded_settings(SETTINGS)
    for name in ("character_coverage", "vocabulary_seed"):
        del stored[name]
    assert difference(manifest(stored), TASK, SETTINGS) == ""
    changed = dataclasses.replace(SETTINGS, vocabulary_seed=1)
    assert difference(manifest(stored), TASK, changed) == "prepared with vocabulary_seed=0, now asked for 1"


def test_a_given_vocabulary_is_told_by_its_hash(models):
    first, second = (str(models / f"{size}.model") for size in (22, 23))
    given = dataclasses.replace(SETTINGS, vocabulary=first)
    stored = recorded_settings(given)
    assert stored["vocabulary"] == file_hash(first)
    # The settings of training play no part beside it.
    assert (stored["num_pieces"], stored["model_type"], stored["vocabulary_seed"]) == (None, None, None)
    assert difference(manifest(stored), TASK, dataclasses.replace(given, num_pieces=77, model_type="bpe")) == ""
    hashes = file_hash(first), file_hash(second)
    assert difference(manifest(stored), TASK, dataclasses.replace(given, vocabulary=second)) == (
        "prepared with vocabulary={!r}, now asked for {!r}".format(*hashes)
    )
    assert difference(manifest(), TASK, given) == f"prepared with vocabulary=None, now asked for {hashes[0]!r}"


def test_a_prepared_set_outlives_its_vocabulary_file(models):
    given = dataclasses.replace(SETTINGS, vocabulary=str(models / "22.model"))
    stored = manifest(recorded_settings(given))
    (models / "22.model").unlink()
    assert difference(stored, TASK, given) == ""
    with pytest.raises(PadirError, match="22.model: cannot read the vocabulary"):
        recorded_settings(given)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_pieces": 3}, "num_pieces=3 must be above 3, because pad, EOS and UNK take three pieces"),
        ({"character_coverage": 0.5}, "character_coverage=0.5 must be from 0.98 to 1, or None"),
        ({"character_coverage": 1.01}, "character_coverage=1.01 must be from 0.98 to 1, or None"),
        ({"vocabulary_sentences": 0}, "vocabulary_sentences=0 must be at least 1"),
        ({"records_per_shard": 0}, "records_per_shard=0 must be at least 1"),
        ({"model_type": "word"}, "model_type='word' must be one of unigram, bpe"),
    ],
)
def test_settings_that_make_no_sense(options, message):
    with pytest.raises(PadirError) as raised:
        PrepareSettings(**options)
    assert str(raised.value) == message
