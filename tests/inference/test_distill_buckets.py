"""Distillation on gs:// addresses: the same set as on disk, after kills too; one process at a time writes it."""

import dataclasses
import gzip
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import quick_compilation
from stand_in import StandIn, sentence, translated
from uploads import upload

from padir.data.manifest import VOCABULARY_NAME, Manifest, PrepareSettings, TaskConfig, recorded_settings
from padir.data.records import PreparedSet, SplitWriter
from padir.data.vocabulary import Vocabulary
from padir.errors import PadirError, StorageError
from padir.files.atomic import copy_file
from padir.files.paths import as_path, files_below
from padir.inference import distill as distill_module
from padir.inference.distill import distill
from padir.inference.distill_filters import DistillFilters
from padir.types import EOS_ID

TESTS = Path(__file__).resolve().parents[1]
COUNT = 300


@pytest.fixture(scope="session")
def prepared(vocabulary, tmp_path_factory):
    """A local set of sentences and their numbers: 300 in train, 20 in test."""
    folder = tmp_path_factory.mktemp("sentences")
    model = Vocabulary.load(copy(vocabulary, folder / VOCABULARY_NAME))
    splits = {}
    for name, first, count in (("train", 0, COUNT), ("test", COUNT, 20)):
        writer = SplitWriter(folder, name, 128)
        for number in range(first, first + count):
            texts = sentence(number), f"no {number}"
            writer.write(
                *(np.array([*model.encode(text), EOS_ID], np.int32) for text in texts), *map(str.encode, texts)
            )
        splits[name] = writer.close(dropped=0, truncated=0, skipped_empty=0)
    settings = recorded_settings(PrepareSettings(max_source_length=40, max_target_length=80))
    task = TaskConfig("tasks.numbers", "numbers", {})
    Manifest(task, settings, model.hash, model.num_pieces, splits).save(folder)
    return folder


def copy(source, target):
    copy_file(source, target)
    return target


@pytest.fixture
def teacher(vocabulary, monkeypatch):
    made = StandIn(vocabulary)
    monkeypatch.setattr(distill_module, "load", lambda run_dir, **options: made)
    return made


@pytest.fixture(scope="module")
def expected(prepared, vocabulary, tmp_path_factory):
    """The files of the local set, by name."""
    folder = tmp_path_factory.mktemp("distilled") / "set"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distill_module, "load", lambda run_dir, **options: StandIn(vocabulary))
        run(prepared, folder)
    return contents(folder)


def contents(folder):
    return {name: (as_path(folder) / name).read_bytes() for name in files_below(as_path(folder))}


def run(data, output, **options):
    return distill(run_dir="run", data_dir=f"{data}", output_dir=f"{output}", chunk_size=20, **options)


def test_the_same_set_as_on_disk(prepared, expected, teacher, bucket, tmp_path, emulator):
    data = upload(prepared, f"{bucket}/data")
    with emulator.faults.happen(lambda request: None) as requests:
        run(data, f"{bucket}/set", data_cache=f"{tmp_path}/cache")
    # Three shards and their lengths are fetched whole, and only once.
    fetched = [request.path for request in requests if request.method == "GET" and "/data/train" in request.path]
    assert len([path for path in fetched if path.startswith("/download")]) == 4
    assert contents(f"{bucket}/set") == expected
    split = PreparedSet.open(f"{bucket}/set").split("train")
    assert [example.target_text for example in split.read(range(COUNT))] == [
        translated(sentence(number)) for number in range(COUNT)
    ]
    lines = as_path(f"{bucket}/set/train.jsonl").read_text().splitlines()
    assert [json.loads(line)["target"] for line in lines] == [translated(sentence(number)) for number in range(COUNT)]
    assert run(data, f"{bucket}/set") == PreparedSet.open(f"{bucket}/set").manifest
    with pytest.raises(PadirError, match=r"set: already holds another prepared set \(limit: None there, 5 now"):
        run(data, f"{bucket}/set", limit=5)


SERVER = """
import os, sys
from padir.files import locks, objects
from padir.inference import distill
from stand_in import StandIn
path, data, output, cache = sys.argv[1:]
distill.load = lambda run_dir, **options: StandIn(path, seconds_per_batch=0.02)
locks.LEASE_SECONDS = 1.0
for line in sys.stdin:
    process = os.fork()
    if not process:
        distill.distill(run_dir="run", data_dir=data, output_dir=output, chunk_size=20, data_cache=cache)
        os._exit(0)
    print(process, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)
"""


def test_killed_four_times(prepared, expected, vocabulary, bucket, tmp_path):
    """In the midst of decoding, three times, and while the set is written; whole chunks are not decoded again."""
    data, output = upload(prepared, f"{bucket}/data"), as_path(f"{bucket}/set")
    environment = os.environ | {
        "PYTHONPATH": f"{TESTS.parent}{os.pathsep}{TESTS}",
        "XLA_FLAGS": quick_compilation.child_flags(),
    }
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [sys.executable, "-c", SERVER, vocabulary, str(data), str(output), str(tmp_path)]

    def there():
        return {path.name: path.described().generation for path in output.glob("translations/0*.jsonl")}

    with subprocess.Popen(command, env=environment, text=True, bufsize=1, **pipes) as server:
        whole = {}
        for kill in range(5):
            server.stdin.write("start\n")
            process, until = int(server.stdout.readline()), time.monotonic() + 60
            if kill == 4:
                break
            while not (len(there()) >= min(15, 4 * (kill + 1)) and (kill < 3 or (output / ".distill.lock").exists())):
                assert time.monotonic() < until
                time.sleep(0.01)
            os.kill(process, signal.SIGKILL)
            assert int(server.stdout.readline()) == -signal.SIGKILL
            found = there()
            assert whole.items() <= found.items() and not (output / "manifest.json").exists()
            whole = found
        # It takes over the lease of the one that was killed.
        assert int(server.stdout.readline()) == 0
        _, said = server.communicate()
        assert f"{output}/.distill.lock: held by " in said and "resuming; 300 of 300 sentences are translated" in said
    assert len(whole) == 15
    assert contents(output) == expected


def test_a_process_that_was_taken_for_dead_changes_nothing(prepared, expected, teacher, bucket, monkeypatch):
    """Two decode, and both come to the end: the second waits, and finds the set."""
    monkeypatch.setattr("padir.files.locks._POLL_SECONDS", 0.01)
    wrote, write, start = [], distill_module._write_files, threading.Barrier(2)
    decode = distill_module._decode

    def decode_together(*arguments):
        decode(*arguments)
        start.wait()

    def writing(*arguments):
        wrote.append(threading.get_ident())
        write(*arguments)

    monkeypatch.setattr(distill_module, "_decode", decode_together)
    monkeypatch.setattr(distill_module, "_write_files", writing)
    made = []
    threads = [threading.Thread(target=lambda: made.append(run(prepared, f"{bucket}/set"))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(wrote) == 1 and made[0] == made[1]
    assert contents(f"{bucket}/set") == expected


def test_a_damaged_chunk_is_named(prepared, teacher, bucket, monkeypatch):
    output = as_path(f"{bucket}/set")
    monkeypatch.setattr(distill_module, "_write_set", lambda *arguments: None)
    with pytest.raises(PadirError, match="no prepared data set here"):
        run(prepared, output)
    monkeypatch.undo()
    monkeypatch.setattr(distill_module, "load", lambda run_dir, **options: teacher)
    chunk = output / "translations" / "00003.jsonl"
    chunk.write_bytes(chunk.read_bytes()[:-5])
    with pytest.raises(PadirError, match=rf"{chunk}: damaged \(.*\); delete it and run the same command again"):
        run(prepared, output)
    with pytest.raises(PadirError, match=r"holds the beginning of another distillation \(limit: None there, 40 now"):
        run(prepared, output, limit=40)
    chunk.unlink()
    teacher.batches.clear()
    run(prepared, output)
    assert sum(map(len, teacher.batches)) == 20


@pytest.mark.parametrize("fault", ["drop", "lose", 503])
def test_requests_that_fail_now_and_then(prepared, expected, teacher, bucket, emulator, monkeypatch, fault):
    import asyncio

    sleep = asyncio.sleep
    monkeypatch.setattr("gcsfs.retry.asyncio.sleep", lambda seconds, *rest: sleep(0))

    def fails(request):
        # Of what is written: records are read by another client.
        return fault if request.method == "POST" and request.number % 4 == 0 else None

    with emulator.faults.happen(fails):
        run(prepared, f"{bucket}/set")
    assert contents(f"{bucket}/set") == expected


def test_storage_that_fails_is_no_damage(prepared, teacher, bucket, emulator, monkeypatch):
    import asyncio

    sleep = asyncio.sleep
    monkeypatch.setattr("gcsfs.retry.asyncio.sleep", lambda seconds, *rest: sleep(0))

    def fails(request):
        return 503 if request.path.startswith("/download") and request.path.endswith(".jsonl") else None

    with emulator.faults.happen(fails), pytest.raises(StorageError, match="00000.jsonl: the storage did not answer"):
        run(prepared, f"{bucket}/set")
    assert not as_path(f"{bucket}/set/manifest.json").exists()


def test_translations_made_elsewhere(prepared, bucket):
    given = as_path(f"{bucket}/given.gz")
    texts = [translated(sentence(number)) for number in range(COUNT)]
    texts[5] = sentence(5)
    given.write_bytes(gzip.compress("".join(f"{text}\n" for text in texts).encode()))
    filters = DistillFilters(identical=True)
    made = distill(
        data_dir=str(prepared), output_dir=f"{bucket}/set", translations=str(given), filters=filters, chunk_size=20
    )
    assert made.task.options["left_out"] == {"identical": 1} and made.task.options["translations"] == str(given)
    assert made.splits["train"].num_examples == COUNT - 1
    assert dataclasses.asdict(made) == dataclasses.asdict(Manifest.load(f"{bucket}/set"))
    with pytest.raises(PadirError, match=f"^{bucket}/none: no such file of translations"):
        distill(data_dir=str(prepared), output_dir=f"{bucket}/other", translations=f"{bucket}/none")
