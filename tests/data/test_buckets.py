"""Preparing into a bucket from files in it, going on after a failure, and reading with and without a local cache."""

import gzip
import json

import numpy as np
import pytest
from failing_commands import KILL

from padir.data import prepare as prepare_lib
from padir.data.manifest import PrepareSettings, TaskConfig
from padir.data.records import PreparedSet
from padir.errors import PadirError, StorageError
from padir.files.atomic import copy_file, write_bytes
from padir.files.paths import as_path, files_below

SOURCES = ["ab", "ba ab", "b", "a a a a a a", "abab"]
TARGETS = ["cd", "dc", "c c", "d", "cdcdcdcdcd"]
SETTINGS = PrepareSettings(num_pieces=8, records_per_shard=2)


def texts(lines):
    return "".join(f"{line}\n" for line in lines).encode()


def task(folder):
    files = {"train": ("src.gz", "tgt"), "validation": ("src.gz", "tgt")}
    return TaskConfig("tasks.text_files", "toy", {"folder": str(folder)} | files)


@pytest.fixture
def corpora(bucket, tmp_path):
    """A folder with the same text in a bucket and on disk."""
    places = as_path(f"{bucket}/text"), tmp_path / "text"
    (tmp_path / "text").mkdir()
    for place in places:
        write_bytes(place / "src.gz", gzip.compress(texts(SOURCES), mtime=0))
        write_bytes(place / "tgt", texts(TARGETS))
    return places


def test_a_set_in_a_bucket_is_the_same_as_on_disk(corpora, bucket, tmp_path):
    there, here = (
        prepare_lib.prepare(task(corpus), place, SETTINGS)
        for corpus, place in zip(corpora, (f"{bucket}/set", tmp_path / "set"), strict=True)
    )
    assert there.splits == here.splits and there.vocabulary_hash == here.vocabulary_hash
    assert list(there.source_files) == [f"{corpora[0]}/src.gz", f"{corpora[0]}/tgt"]
    assert list(there.source_files.values()) == list(here.source_files.values())
    names = files_below(as_path(f"{bucket}/set"))
    # The lock and the marks of parts are gone.
    assert names == [name for name in files_below(tmp_path / "set") if name != ".lock"]
    for name in set(names) - {"manifest.json"}:
        assert as_path(f"{bucket}/set/{name}").read_bytes() == (tmp_path / "set" / name).read_bytes(), name
    expected = PreparedSet.open(tmp_path / "set").split("train").read(range(5))
    for cache in (None, tmp_path / "cache"):
        found = PreparedSet.open(f"{bucket}/set", cache).split("train").read(range(5))
        for ours, theirs in zip(found, expected, strict=True):
            assert ours[2:] == theirs[2:] and all(map(np.array_equal, ours[:2], theirs[:2]))


@pytest.mark.parametrize("kind", ["tsv", "jsonl"])
def test_pairs_of_one_file(corpora, bucket, tmp_path, kind):
    """Tables and JSON lines, compressed or not, from a bucket as from disk."""
    pairs = list(zip(SOURCES, TARGETS, strict=True))
    if kind == "tsv":
        lines = [f"{target}\t{source}" for source, target in pairs]
    else:
        lines = [json.dumps({"to": target, "from": source}) for source, target in pairs]
    fields = (1, 0) if kind == "tsv" else ("from", "to")
    found = []
    for corpus, place in zip(corpora, (f"{bucket}/set", tmp_path / "set"), strict=True):
        write_bytes(corpus / "train.gz", gzip.compress(texts(lines), mtime=0))
        write_bytes(corpus / "validation", texts(lines[:3]))
        files = {"train": "train.gz", "validation": "validation", "format": kind, "fields": fields}
        config = TaskConfig("tasks.text_files", "toy", {"folder": str(corpus)} | files)
        found.append(prepare_lib.prepare(config, place, SETTINGS))
        read = PreparedSet.open(place).split("train").read(range(5))
        assert [(example.source_text, example.target_text) for example in read] == pairs
    there, here = found
    assert there.splits == here.splits and there.vocabulary_hash == here.vocabulary_hash
    assert list(there.source_files.values()) == list(here.source_files.values())


def uploaded(requests):
    """The names of the objects that were sent, but for the lock, which may be renewed at any time."""
    names = [request.query["name"].split("/")[-1] for request in requests if request.query.get("uploadType")]
    return [name for name in names if name != ".lock"]


def test_preparation_goes_on_where_it_was_killed(corpora, bucket, emulator, failing, tmp_path, monkeypatch, capsys):
    """While a part is sent; the lock of whoever was killed is taken over."""
    train, validation = "('src.gz', 'tgt')", "('src.gz', 'tgt')"
    (tmp_path / "run.gin").write_text(
        "prepare.task = @TaskConfig()\n"
        "prepare.settings = @PrepareSettings()\n"
        "TaskConfig.module = 'tasks.text_files'\n"
        "TaskConfig.name = 'toy'\n"
        f"TaskConfig.options = {{'folder': '{corpora[0]}', 'train': {train}, 'validation': {validation}}}\n"
        "PrepareSettings.num_pieces = 8\n"
        "PrepareSettings.records_per_shard = 2\n"
    )
    command = ["prepare", f"--gin_file={tmp_path / 'run.gin'}", f"--output_dir={bucket}/set"]
    failing(command, "/set/train-00001.array_record", KILL)
    names = files_below(as_path(f"{bucket}/set"))
    assert ".lock" in names and "train-00000.array_record" in names and "manifest.json" not in names
    monkeypatch.setattr("padir.files.locks.LEASE_SECONDS", 1.0)
    with emulator.faults.happen(lambda request: None) as requests:
        prepare_lib.prepare(task(corpora[0]), f"{bucket}/set", SETTINGS)
    assert "waiting for it" in capsys.readouterr().err
    sent = uploaded(requests)
    assert not {"vocabulary.model", "train-00000.array_record"} & set(sent) and sent[-1] == "manifest.json"
    prepare_lib.prepare(task(corpora[1]), tmp_path / "set", SETTINGS)
    names = [name for name in files_below(as_path(f"{bucket}/set")) if name != "prepare.gin"]
    assert names == [name for name in files_below(tmp_path / "set") if name != ".lock"]
    for name in set(names) - {"manifest.json"}:
        assert as_path(f"{bucket}/set/{name}").read_bytes() == (tmp_path / "set" / name).read_bytes(), name


def test_preparation_goes_on_where_it_failed(corpora, bucket, emulator):
    place = f"{bucket}/set"

    def full(request):
        return 403 if request.query.get("name", "").endswith("train-00001.array_record") else None

    with emulator.faults.happen(full), pytest.raises(PadirError, match="train-00001.array_record: permission denied"):
        prepare_lib.prepare(task(corpora[0]), place, SETTINGS)
    assert "manifest.json" not in files_below(as_path(place))
    with pytest.raises(PadirError, match="no prepared data set here"):
        PreparedSet.open(place)
    with emulator.faults.happen(lambda request: None) as requests:
        manifest = prepare_lib.prepare(task(corpora[0]), place, SETTINGS)
    sent = uploaded(requests)
    # The vocabulary and the first part were whole.
    assert not {"vocabulary.model", "train-00000.array_record"} & set(sent)
    assert "train-00001.array_record" in sent and sent[-1] == "manifest.json"
    assert manifest.splits["train"].num_examples == 5


def test_a_failing_storage_is_not_taken_for_another_preparation(corpora, bucket, emulator, quick_retries):
    place = f"{bucket}/set"
    with (
        emulator.faults.happen(lambda request: 403 if "train-00001" in request.query.get("name", "") else None),
        pytest.raises(PadirError),
    ):
        prepare_lib.prepare(task(corpora[0]), place, SETTINGS)
    before = files_below(as_path(place))
    with (
        emulator.faults.happen(lambda request: 503 if request.path.endswith("unfinished.json") else None),
        pytest.raises(StorageError),
    ):
        prepare_lib.prepare(task(corpora[0]), place, SETTINGS)
    assert files_below(as_path(place)) == before


@pytest.fixture
def prepared(tiny, bucket):
    """The tiny set, copied to a bucket."""
    for name in files_below(tiny.data):
        copy_file(tiny.data / name, f"{bucket}/{name}")
    return as_path(bucket)


def test_a_storage_that_refuses_a_shard_does_not_make_it_damaged(prepared, emulator):
    split = PreparedSet.open(prepared).split("test")
    shard = prepared / "test-00000.array_record"
    for code, what in ((401, "no valid credentials"), (403, "permission denied")):
        for reading in (lambda: PreparedSet.open(prepared).split("test"), lambda: split.read_records([3])):
            with (
                emulator.faults.happen(lambda request, code=code: code if "array_record" in request.path else None),
                pytest.raises(PadirError, match=f"^{shard}: {what}"),
            ):
                reading()
    ours = []

    def until_we_ask(request):
        if "array_record" not in request.path:
            return None
        # ArrayRecord asks for the content at once.
        if "alt" not in request.query:
            ours.append(request)
        return None if ours else 403

    with emulator.faults.happen(until_we_ask):
        assert PreparedSet.open(prepared).split("test").read_records([3]) == split.read_records([3])
    assert ours
    shard.write_bytes(shard.read_bytes()[:-9])
    with pytest.raises(PadirError, match=f"^{shard}: damaged .*run `padir prepare` again"):
        PreparedSet.open(prepared).split("test")
    shard.unlink()
    with pytest.raises(PadirError, match=f"^{shard}: damaged .*run `padir prepare` again"):
        PreparedSet.open(prepared).split("test")


@pytest.mark.parametrize(
    ("said", "kind", "means"),
    [
        ("Retry policy exhausted, with a last message of 503", StorageError, "the storage did not answer"),
        # It was refused for a moment.
        ("Permanent error, with a last message of 403", StorageError, "the storage did not answer"),
        ("Failed hash check", PadirError, "damaged"),
    ],
)
def test_what_array_record_says_of_a_storage_that_answers_again(prepared, said, kind, means):
    """It tries for a quarter of an hour before it says so, so it is not waited for."""

    class Fails:
        def read(self, first, last):
            raise RuntimeError(said)

    split = PreparedSet.open(prepared).split("test")
    split._readers = [Fails()]
    with pytest.raises(PadirError, match=rf"test-00000\.array_record: {means}.*{said}") as caught:
        split.read_records([0])
    assert type(caught.value) is kind


def test_a_cache_is_filled_whole_once_and_anew_for_another_set(prepared, tiny, tmp_path, emulator, capsys):
    expected = PreparedSet.open(tiny.data).split("test")

    def opened():
        with emulator.faults.happen(lambda request: None) as requests:
            split = PreparedSet.open(prepared, tmp_path / "cache").split("test")
            assert split.read_records(range(40)) == expected.read_records(range(40))
        return sum(request.path.startswith("/download") for request in requests)

    first = opened()
    (folder,) = (tmp_path / "cache").iterdir()
    assert sorted(path.name for path in folder.iterdir()) == ["test-00000.array_record", "test.lengths.npy"]
    assert "copying 2 files of 0.1 MB to" in capsys.readouterr().err
    # Only the manifest is read again.
    assert first == 3 and opened() == 1
    # A copy that was cut is copied again; a set that was replaced is another one.
    (folder / "test.lengths.npy").write_bytes(b"cut")
    assert opened() == 2
    copy_file(tiny.data / "test.lengths.npy", prepared / "test.lengths.npy")
    assert opened() == 3 and len(list((tmp_path / "cache").iterdir())) == 2


def test_a_copy_that_does_not_arrive_whole_is_not_used(prepared, tmp_path, monkeypatch):
    from padir.files import cache

    def cut(source, target):
        target.write_bytes(source.read_bytes()[:-1] + b"?")

    monkeypatch.setattr(cache, "copy_file", cut)
    with pytest.raises(StorageError, match="did not arrive whole"):
        PreparedSet.open(prepared, tmp_path).split("test")
    (folder,) = tmp_path.iterdir()
    assert list(folder.iterdir()) == []
    with pytest.raises(PadirError, match="a data cache must be a local folder"):
        PreparedSet.open(prepared, "gs://somewhere/else").split("test")


def test_what_is_missing_or_damaged_is_named(prepared):
    (prepared / "test.lengths.npy").write_bytes(b"cut")
    with pytest.raises(PadirError, match=r"test\.lengths\.npy: damaged"):
        PreparedSet.open(prepared).split("test")
    (prepared / "validation-00000.array_record").unlink()
    with pytest.raises(PadirError, match=r"validation-00000\.array_record: damaged"):
        PreparedSet.open(prepared).split("validation")
    content = (prepared / "train-00000.array_record").read_bytes()
    (prepared / "train-00000.array_record").write_bytes(content[: len(content) // 2])
    with pytest.raises(PadirError, match=r"train-00000\.array_record: damaged"):
        PreparedSet.open(prepared).split("train")
    (prepared / "manifest.json").write_text("{")
    with pytest.raises(PadirError, match=r"manifest\.json: damaged"):
        PreparedSet.open(prepared)
