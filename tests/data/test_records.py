"""Record encoding, random access, and every way a prepared folder can be wrong."""

import json
import threading

import numpy as np
import pytest

from padir.data import records, vocabulary
from padir.data.manifest import Manifest, TaskConfig
from padir.data.records import Example, PreparedSet, SplitWriter
from padir.errors import PadirError
from padir.files.checksums import file_hash

SENTENCES = ["the old dog sleeps", "der alte Hund schläft"] * 3


def ids(*values):
    return np.array(values, np.int32)


def pair(i):
    return ids(*range(3, 4 + i % 5), 1), ids(*range(10, 11 + i % 3), 1), f"source {i}", f"Satz {i} ü"


def write_set(directory, *, count=25, records_per_shard=7):
    """Writes a prepared set of `count` examples `pair(i)`, as prepare would."""
    directory.mkdir(exist_ok=True)
    vocabulary.train(SENTENCES, directory / "vocabulary.model", num_pieces=24)
    writer = SplitWriter(directory, "train", records_per_shard)
    for i in range(count):
        source, target, source_text, target_text = pair(i)
        writer.write(source, target, source_text.encode(), target_text.encode())
    manifest = Manifest(
        task=TaskConfig("tasks.text_files", "toy", {"train": ["a", "b"]}),
        settings={"over_long": "drop"},
        vocabulary_hash=file_hash(directory / "vocabulary.model"),
        num_pieces=24,
        splits={"train": writer.close(dropped=2, truncated=0, skipped_empty=1)},
        checker="padir.data.synthetic:is_valid",
    )
    manifest.save(directory)
    return manifest


@pytest.fixture
def prepared(tmp_path):
    write_set(tmp_path / "set")
    return tmp_path / "set"


def assert_same(example, expected):
    np.testing.assert_array_equal(example.source_ids, expected[0])
    np.testing.assert_array_equal(example.target_ids, expected[1])
    assert (example.source_text, example.target_text) == tuple(expected[2:])


def test_record_bytes_by_hand():
    record = records.encode_record(ids(5, 1), ids(258, 7, 1), b"ab", "ü".encode())
    assert (
        record
        == (
            b"\x02" + b"\x02\0\0\0" + b"\x03\0\0\0" + b"\x02\0\0\0"  # 2-byte ids, 2 source, 3 target, 2 text bytes
            b"\x05\0\x01\0" + b"\x02\x01\x07\0\x01\0" + b"ab" + b"\xc3\xbc"
        )
    )
    assert_same(records.decode_record(record), Example(ids(5, 1), ids(258, 7, 1), "ab", "ü"))


def test_ids_above_16_bits_take_four_bytes():
    record = records.encode_record(ids(5, 1), ids(65_536, 1), b"", b"")
    assert record[0] == 4 and len(record) == 13 + 16
    np.testing.assert_array_equal(records.decode_ids(record)[1], [65_536, 1])


def test_shards_lengths_and_counts(prepared):
    manifest = PreparedSet.open(prepared).manifest
    split = manifest.splits["train"]
    assert split.shards == (
        ("train-00000.array_record", 7),
        ("train-00001.array_record", 7),
        ("train-00002.array_record", 7),
        ("train-00003.array_record", 4),
    )
    assert (split.num_examples, split.dropped, split.truncated, split.skipped_empty) == (25, 2, 0, 1)
    assert split.max_lengths == (6, 4)
    assert split.source_length_histogram == {"8": 25}
    lengths = PreparedSet.open(prepared).split("train").lengths
    assert lengths.dtype == np.int32
    assert lengths.tolist() == [[2 + i % 5, 2 + i % 3] for i in range(25)]
    assert not list(prepared.glob("*.tmp"))


def test_histogram_bins_end_inclusively():
    assert records._histogram(np.array([1, 8, 9, 16, 17])) == {"8": 2, "16": 2, "24": 1}


def test_manifest_survives_saving(prepared, tmp_path):
    manifest = Manifest.load(prepared)
    assert manifest == write_set(tmp_path / "again")
    assert manifest.summary() == (
        "train: 25 pairs, longest 6 source and 4 target tokens, 2 dropped as too long, 1 skipped as empty"
    )


def test_read_keeps_the_order_asked_for_across_shards(prepared):
    split = PreparedSet.open(prepared).split("train")
    assert len(split) == 25
    wanted = [24, 0, 7, 6, 13, 7, 20]
    for example, i in zip(split.read(wanted), wanted, strict=True):
        assert_same(example, pair(i))
    assert split.read([]) == []
    assert_same(split[3], pair(3))
    assert_same(split[-1], pair(24))
    with pytest.raises(IndexError):
        split[25]


def test_threads_read_the_same_records(prepared):
    split = PreparedSet.open(prepared).split("train")
    wrong = []

    def read(seed):
        order = np.random.default_rng(seed).integers(0, 25, size=(200, 16))
        for indices in order:
            texts = [example.source_text for example in split.read(indices)]
            if texts != [f"source {i}" for i in indices]:
                wrong.append(indices)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert wrong == []


def test_one_shard_reads_the_same(tmp_path):
    write_set(tmp_path / "one", records_per_shard=1000)
    split = PreparedSet.open(tmp_path / "one").split("train")
    assert [example.source_text for example in split.read([9, 2])] == ["source 9", "source 2"]
    assert split.read([]) == []


def test_missing_manifest_names_the_command(tmp_path):
    with pytest.raises(PadirError, match=r"nowhere: no prepared data set here .*`padir prepare`"):
        PreparedSet.open(tmp_path / "nowhere")


def test_unreadable_manifest_and_other_version(prepared):
    path = prepared / "manifest.json"
    stored = json.loads(path.read_text())
    path.write_text(json.dumps(stored | {"format_version": 99}))
    message = r"manifest\.json: has format version 99, but this version of padir reads version 1"
    with pytest.raises(PadirError, match=message):
        PreparedSet.open(prepared)
    del stored["vocabulary_hash"]
    path.write_text(json.dumps(stored))
    with pytest.raises(PadirError, match=r"manifest\.json: damaged .*vocabulary_hash"):
        PreparedSet.open(prepared)
    for wrong in ({"splits": []}, {"splits": {"train": stored["splits"]["train"] | {"shards": [["a", 1, 2]]}}}):
        path.write_text(json.dumps(stored | {"vocabulary_hash": "x"} | wrong))
        with pytest.raises(PadirError, match=r"manifest\.json: damaged"):
            PreparedSet.open(prepared)
    path.write_text("{")
    with pytest.raises(PadirError, match=r"manifest\.json: damaged"):
        PreparedSet.open(prepared)


def test_another_vocabulary_is_named_by_both_hashes(prepared):
    kept = PreparedSet.open(prepared).vocabulary()
    vocabulary.train(SENTENCES, prepared / "vocabulary.model", num_pieces=23)
    other = file_hash(prepared / "vocabulary.model")
    with pytest.raises(PadirError, match=rf"vocabulary hash {other} differs from the manifest's {kept.hash}"):
        PreparedSet.open(prepared).vocabulary()


def test_unknown_split_lists_those_there_are(prepared):
    with pytest.raises(PadirError, match=r"no split 'valid'; it has train$"):
        PreparedSet.open(prepared).split("valid")


def test_damaged_files_are_named(prepared):
    shard = prepared / "train-00001.array_record"
    whole = shard.read_bytes()
    shard.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(PadirError, match=r"train-00001\.array_record: damaged"):
        PreparedSet.open(prepared).split("train")
    shard.unlink()
    with pytest.raises(PadirError, match=r"train-00001\.array_record: damaged"):
        PreparedSet.open(prepared).split("train")
    np.save(prepared / "train.lengths.npy", np.zeros((3, 2), np.int32))
    with pytest.raises(PadirError, match=r"train\.lengths\.npy: damaged \(3 rows, not 25\)"):
        PreparedSet.open(prepared).split("train")
    (prepared / "train.lengths.npy").write_bytes(b"")
    with pytest.raises(PadirError, match=r"train\.lengths\.npy: damaged"):
        PreparedSet.open(prepared).split("train")


def test_a_full_disk_is_named(tmp_path):
    """/dev/full fails every write, as a full disk does; ArrayRecord notices when it flushes."""
    (tmp_path / "train-00000.array_record.tmp").symlink_to("/dev/full")
    writer = SplitWriter(tmp_path, "train", 2)
    source, target, source_text, target_text = pair(0)
    message = r"train-00000\.array_record: cannot be written \(.*No space left on device"
    with pytest.raises(PadirError, match=message):
        for _ in range(2):
            writer.write(source, target, source_text.encode(), target_text.encode())
    assert not (tmp_path / "train-00000.array_record").exists()


def test_task_options_must_be_json():
    with pytest.raises(PadirError, match="task toy: options must be plain JSON values"):
        TaskConfig("tasks.text_files", "toy", {"train": object()})
