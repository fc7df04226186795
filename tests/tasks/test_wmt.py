"""The WMT tasks on tiny sets with the published features, names and versions, written by tensorflow_datasets itself."""

import pytest

from padir.data.manifest import PrepareSettings, TaskConfig
from padir.data.records import PreparedSet
from padir.errors import PadirError

PAIRS = {
    "train": [("ab", "cd"), ("ba ab", "dc"), ("", "d"), (" b ", "c c"), ("abba", "cddc")],
    "validation": [("a b", "c d")],
    "test": [("b a", "d c"), ("a", "c")],
}
KEPT = [("ab", "cd"), ("ba ab", "dc"), ("b", "c c"), ("abba", "cddc")]


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    """Returns build('wmt14_de_en') -> folder where tensorflow_datasets finds that data set, made of PAIRS."""
    import tensorflow as tf
    import tensorflow_datasets as tfds

    from tasks.wmt import DATASETS

    folder = tmp_path_factory.mktemp("tfds")

    def build(dataset):
        published = tfds.builder(DATASETS[dataset], data_dir=str(folder))
        foreign, english = published.builder_config.language_pair
        if not published.is_prepared():
            tfds.dataset_builders.store_as_tfds_dataset(
                name=published.name,
                config=published.builder_config.name,
                version=str(published.version),
                data_dir=str(folder),
                features=published.info.features,
                split_datasets={
                    name: tf.data.Dataset.from_tensor_slices(
                        {foreign: [source for source, _ in pairs], english: [target for _, target in pairs]}
                    )
                    for name, pairs in PAIRS.items()
                },
            )
        return folder

    return build


def registered(folder, **options):
    from tasks import wmt

    return wmt.register("wmt", "unused.model", data_dir=str(folder), **options)


@pytest.mark.parametrize("dataset, foreign", [("wmt14_de_en", "de"), ("wmt16_ro_en", "ro"), ("wmt17_zh_en", "zh")])
def test_both_directions_of_every_split(build, dataset, foreign):
    folder = build(dataset)
    forth = registered(folder, dataset=dataset)
    back = registered(folder, dataset=dataset, reverse=True)
    assert (forth.source_language, forth.target_language) == (foreign, "en")
    assert (back.source_language, back.target_language) == ("en", foreign)
    for split, pairs in {**PAIRS, "train": KEPT}.items():
        # tensorflow_datasets shuffles while it builds; the order on disk is the order of every reading.
        found = list(forth.pairs[split])
        assert sorted(found) == sorted(pairs)
        assert found == list(forth.pairs[split]) == [(source, target) for target, source in back.pairs[split]]
    assert (forth.pairs["train"].total, forth.pairs["train"].skipped) == (4, 1)
    assert (forth.pairs["test"].total, forth.pairs["test"].skipped) == (2, 0)


def test_features(build, run_task):
    from tasks import wmt

    found = run_task(
        wmt, "train", num_pieces=8, dataset="wmt14_de_en", reverse=True, data_dir=str(build("wmt14_de_en"))
    )
    assert sorted(found, key=lambda row: row["targets_pretokenized"])[0] == {
        "inputs": ["▁", "c", "d", "</s>"],
        "targets": ["▁", "a", "b", "</s>"],
        "inputs_pretokenized": "cd",
        "targets_pretokenized": "ab",
    }


def test_prepared(build, tmp_path):
    from padir.data.prepare import prepare
    from padir.files.checksums import file_hash

    folder = build("wmt16_ro_en")
    task = TaskConfig("tasks.wmt", "wmt16", {"dataset": "wmt16_ro_en", "data_dir": str(folder), "limit_train": 3})
    manifest = prepare(task, tmp_path / "out", PrepareSettings(num_pieces=8))
    train = manifest.splits["train"]
    assert train.num_examples + train.skipped_empty == 3
    assert {name: split.num_examples for name, split in manifest.splits.items() if name != "train"} == {
        "validation": 1,
        "test": 2,
    }
    described = folder / "wmt16_translate" / "ro-en" / "1.0.0" / "dataset_info.json"
    assert manifest.source_files == {str(described): file_hash(described)}
    assert (manifest.source_language, manifest.target_language) == ("ro", "en")
    validation = PreparedSet.open(tmp_path / "out").split("validation")[0]
    assert (validation.source_text, validation.target_text) == PAIRS["validation"][0]


def test_a_set_that_is_not_there_says_how_to_build_it(tmp_path):
    command = (
        f'wmt17_translate/zh-en/1.0.0 does not exist; build it with: python -c "import tensorflow_datasets as tfds; '
        f"tfds.builder('wmt17_translate/zh-en', data_dir='{tmp_path}').download_and_prepare()\""
    )
    with pytest.raises(PadirError) as raised:
        registered(tmp_path, dataset="wmt17_zh_en")
    assert str(raised.value) == f"task wmt: {tmp_path}/{command}"


def test_bad_options(tmp_path):
    with pytest.raises(PadirError, match="option dataset='wmt19' must be one of wmt14_de_en, wmt16_ro_en, wmt17_zh_en"):
        registered(tmp_path, dataset="wmt19")
    with pytest.raises(PadirError, match="option limit_train=0 must be at least 1"):
        registered(tmp_path, dataset="wmt14_de_en", limit_train=0)
