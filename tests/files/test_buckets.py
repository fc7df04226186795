"""Objects through the emulator: paths, streams, whole writes, and what goes wrong."""

import gzip
import io
import os
import re
import threading

import pytest

from padir.errors import PadirError, StorageError
from padir.files import atomic, checksums, lines, shards, streams
from padir.files.paths import as_path, files_below, is_bucket, version_of
from padir.files.reading import local_file, open_for_reading


def test_kinds_of_paths(bucket):
    assert as_path("gs:/a") == as_path("gs:/a/") and not is_bucket("gs:/a") and is_bucket("gs://a")
    path = as_path(f"{bucket}/x//y.txt/")
    assert str(path) == os.fspath(path) == f"{bucket}/x/y.txt"
    assert (path.name, path.suffix, str(path.parent), str(path / "z")) == ("y.txt", ".txt", f"{bucket}/x", f"{path}/z")
    assert path.resolve() == path == as_path(path)
    for other in ("s3://b/x", "hf://m"):
        with pytest.raises(PadirError, match="is not supported, because Orbax cannot save checkpoints there; give a"):
            as_path(other)


def test_a_folder_exists_while_something_is_in_it(bucket):
    folder = as_path(bucket)
    atomic.make_folder(folder / "sub")
    assert not folder.exists() and not folder.is_dir()
    with pytest.raises(FileNotFoundError):
        list(folder.iterdir())
    atomic.write_text(folder / "sub" / "a.txt", "á\n")
    atomic.write_bytes(folder / "b-1.txt", b"1\r\n2")
    assert folder.is_dir() and folder.exists() and not folder.is_file()
    assert (folder / "b-1.txt").is_file() and not (folder / "b-1.txt").is_dir() and not (folder / "b").exists()
    assert [path.name for path in folder.iterdir()] == ["b-1.txt", "sub"]
    assert [path.name for path in folder.glob("b-[0-9]*")] == ["b-1.txt"]
    assert [str(path) for path in folder.glob("*/*.txt")] == [f"{folder}/sub/a.txt"]
    assert files_below(folder) == ["b-1.txt", "sub/a.txt"]
    assert (folder / "sub" / "a.txt").read_text() == "á\n" and (folder / "b-1.txt").read_text() == "1\n2"
    assert (folder / "b-1.txt").stat().st_size == version_of(folder / "b-1.txt")["bytes"] == 4
    atomic.rename_folder(folder / "sub", folder / "moved")
    assert files_below(folder) == ["b-1.txt", "moved/a.txt"]
    (folder / "b-1.txt").unlink()
    with pytest.raises(FileNotFoundError):
        (folder / "b-1.txt").unlink()
    (folder / "b-1.txt").unlink(missing_ok=True)
    atomic.remove_folder(folder)
    assert not folder.exists()


def test_listings_of_many_pages(bucket, emulator, monkeypatch):
    # The emulator has no pages, so the client's answers are cut into some.
    from padir.files import objects

    client, asked = objects._client(), []

    class Paged:
        def call(self, *arguments, pageToken=None, **options):
            found = client.call(*arguments, **options)
            asked.append(pageToken)
            first = int(pageToken or 0)
            page = {"items": found["items"][first : first + 2]}
            return page | ({"nextPageToken": str(first + 2)} if first + 2 < len(found["items"]) else {})

    for number in range(5):
        objects.write(f"{bucket}/{number}", b"")
    monkeypatch.setattr(objects, "_client", Paged)
    assert files_below(as_path(bucket)) == list("01234") and asked == [None, "2", "4"]


def test_a_file_of_many_parts_is_sent_and_read_whole(bucket, tmp_path, monkeypatch):
    monkeypatch.setattr("padir.files.objects._ONE_REQUEST_BYTES", 1000)
    monkeypatch.setattr("padir.files.objects._PART_BYTES", 1 << 18)
    content = os.urandom(700_000)
    (tmp_path / "a").write_bytes(content)
    # gcsfs itself sends less than 5 MiB at once.
    (tmp_path / "large").write_bytes(large := os.urandom(6 << 20))
    for name, expected in (("a", content), ("large", large)):
        atomic.copy_file(tmp_path / name, f"{bucket}/{name}")
        assert as_path(f"{bucket}/{name}").read_bytes() == expected
    atomic.copy_file(f"{bucket}/large", f"{bucket}/copy")
    atomic.copy_file(f"{bucket}/copy", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == large
    with local_file(f"{bucket}/copy") as local:
        assert local.name == "copy" and local.read_bytes() == large
    assert not local.exists()


def test_a_part_of_a_large_object_is_read_without_the_rest(bucket, emulator, monkeypatch):
    monkeypatch.setattr("padir.files.streams.FIRST_BYTES", 1000)
    monkeypatch.setattr("padir.files.streams.LARGEST_BYTES", 4000)
    content = b"".join(b"%09d\n" % number for number in range(100_000))
    as_path(f"{bucket}/text").write_bytes(content)
    with emulator.faults.happen(lambda request: None) as requests:
        part = shards.Part(f"{bucket}/text", 500_005, 510_000, 50_002)
        found = list(shards.lines_of_parts([part]))
    assert [line.raw for line in found] == [b"%09d" % number for number in range(50_001, 51_000)]
    assert found[0].number == 50_002
    # 10 kB in requests of 1000, 2000, 4000 … bytes, of a megabyte.
    assert len([request for request in requests if request.path.startswith("/download")]) <= 6
    with open_for_reading(f"{bucket}/text") as stream:
        assert stream.seek(-10, io.SEEK_END) == len(content) - 10 and stream.read() == content[-10:]
        stream.seek(0)
        assert stream.read(25) == content[:25] and stream.read() == content[25:] and stream.read(1) == b""


# Reads an object's lines; prints the bytes of the first line, what was asked for by then, and how far memory grew.
READER = """
import sys
from padir.files import objects
from padir.files.lines import lines_of
from padir.runtime.host_memory import peak_resident_bytes
asked, read = [], objects.read
def counted(uri, begin, end, **options):
    asked.append(end - begin)
    return read(uri, begin, end, **options)
objects.read = counted
lines = lines_of(sys.argv[1])
first = next(lines)
print(len(first.raw), *asked)
before = peak_resident_bytes()
print(sum(1 for line in lines), peak_resident_bytes() - before)
"""


@pytest.mark.parametrize("name", ["plain", "compressed.gz"])
def test_the_first_line_comes_soon_and_memory_stays_flat(bucket, run_python, name):
    """192 MiB, a multiple of what is in memory at a time: a block of 8 MiB, and the next one."""
    line, count = b"x" * 1023 + b"\n", 192 << 10
    # Level 0: as large as what it holds.
    content = line * count if name == "plain" else gzip.compress(line * count, 0)
    as_path(f"{bucket}/{name}").write_bytes(content)
    done = run_python(READER, f"{bucket}/{name}")
    as_path(f"{bucket}/{name}").unlink()  # The emulator holds it in memory.
    assert done.returncode == 0, done.stderr.decode()
    (size, *asked), (rest, grown) = (list(map(int, row.split())) for row in done.stdout.splitlines())
    assert size == 1023 and asked[0] == streams.FIRST_BYTES and sum(asked) <= 3 * streams.FIRST_BYTES
    assert rest == count - 1 and grown < 96 << 20


def test_an_object_that_is_replaced_while_it_is_read(bucket, monkeypatch):
    monkeypatch.setattr("padir.files.streams.FIRST_BYTES", 1000)
    path = as_path(f"{bucket}/text")
    path.write_bytes(b"a" * 10_000)
    with pytest.raises(StorageError, match="was replaced or removed while it was read"), path.open("rb") as stream:
        stream.read(1)
        path.write_bytes(b"b" * 10_000)
        stream.seek(9000)
        stream.read(1)


def test_lines_and_shards_of_compressed_and_plain_objects(bucket, tmp_path):
    with lines.writing(f"{bucket}/a.gz") as out:
        out.write("".join(f"{number}\n" for number in range(1000)))
    with lines.writing(f"{bucket}/b.txt") as out:
        out.write("é\nlast")
    inputs = [f"{bucket}/a.gz", f"{bucket}/b.txt"]
    assert lines.resolved_inputs(inputs) == inputs
    assert lines.count_lines(inputs) == 1002
    assert [line.raw for line in lines.lines_of_all(inputs)][-3:] == [b"999", "é".encode(), b"last"]
    parts = shards.number_lines(shards.split_inputs(inputs, 3))
    read = [line for shard in parts for line in shards.lines_of_parts(shard)]
    assert [(line.file, line.number) for line in read] == [
        (name, number) for name, count in zip(inputs, (1000, 2), strict=True) for number in range(1, count + 1)
    ]
    with pytest.raises(PadirError, match=r"c\.txt: no such input file"):
        lines.resolved_inputs([f"{bucket}/c.txt"])


def test_a_pattern_names_the_files_that_match(bucket):
    for name in ("text/part2.gz", "text/part10.gz", "text/part1.gz/inside", "other/part1.gz", "text/*.txt"):
        as_path(f"{bucket}/{name}").write_text("x")
    parts = [f"{bucket}/text/part{number}.gz" for number in (10, 2)]
    assert lines.resolved_inputs([f"{bucket}/text/part*.gz", "-"]) == [*parts, "-"]
    assert lines.resolved_inputs([f"{bucket}/*/part?.gz"]) == [f"{bucket}/other/part1.gz", f"{bucket}/text/part2.gz"]
    assert lines.resolved_inputs([f"{bucket}/text/*.txt"]) == [f"{bucket}/text/*.txt"], "a file of this name"
    for nothing in (f"{bucket}/text/part[3-9].gz", f"{bucket}/none*/a", f"{bucket}/text"):
        with pytest.raises(PadirError, match=f"^{re.escape(nothing)}: no such input file$"):
            lines.resolved_inputs([nothing])


def test_output_of_failed_work_is_kept_beside(bucket, capsys):
    with pytest.raises(RuntimeError), lines.writing(f"{bucket}/out") as out:
        out.write("one\n")
        raise RuntimeError
    assert files_below(as_path(bucket)) == ["out.partial"]
    assert as_path(f"{bucket}/out.partial").read_text() == "one\n"
    assert capsys.readouterr().err == (
        f"{bucket}/out: not finished; the lines written so far are kept in {bucket}/out.partial\n"
    )
    with lines.Rejects(f"{bucket}/rejects") as rejects:
        assert rejects.count == 0
    with lines.Rejects(f"{bucket}/rejects") as rejects:
        rejects.write(lines.Line("in", 3, b"x"), "too long")
    text = as_path(f"{bucket}/rejects").read_text()
    assert text == '{"file": "in", "line": 3, "reason": "too long", "text": "x"}\n'
    with pytest.raises(RuntimeError), as_path(f"{bucket}/open").open("w") as out:
        out.write("half")
        raise RuntimeError
    assert not as_path(f"{bucket}/open").exists()
    with as_path(f"{bucket}/open").open("w") as out:
        out.write("whole")
    assert as_path(f"{bucket}/open").read_text() == "whole"


def test_checksums_name_what_changed(bucket):
    folder = as_path(bucket)
    for name in ("p/a", "p/d/b", "q/c"):
        (folder / name).write_bytes(name.encode())
    checksums.write_checksums(folder, ["p", "q"])
    hashes = checksums.read_checksums(folder)
    assert list(hashes) == ["p/a", "p/d/b", "q/c"]
    checksums.check_files(folder, ["p", "q"], hashes)
    (folder / "p/d/b").write_bytes(b"other")
    with pytest.raises(ValueError, match="p/d/b has changed since it was saved"):
        checksums.check_files(folder, ["p"], hashes)
    (folder / "p/d/b").unlink()
    with pytest.raises(ValueError, match="p/d/b is missing"):
        checksums.check_files(folder, ["p"], hashes)


@pytest.mark.parametrize("fault", ["drop", "truncate", "lose", 429, 503])
def test_a_request_that_fails_is_tried_again(bucket, emulator, quick_retries, fault):
    path = as_path(f"{bucket}/a")
    with emulator.faults.happen(lambda request: fault if request.number < 3 else None) as requests:
        path.write_bytes(b"whole")
        assert path.read_bytes() == b"whole"
    assert len(requests) == 5
    assert [round(wait - 0.5) for wait in quick_retries] == [1, 2, 4]


def test_a_storage_that_does_not_come_back(bucket, emulator, quick_retries):
    path = as_path(f"{bucket}/a")
    path.write_bytes(b"before")
    with emulator.faults.happen(lambda request: 503) as requests, pytest.raises(StorageError) as caught:
        path.write_bytes(b"after")
    assert caught.value.status == 74
    assert str(caught.value) == (
        f"{bucket}/a: the storage did not answer after several tries (status 503 on demand, 503)"
    )
    assert len(requests) == 6 and path.read_bytes() == b"before"
    with emulator.faults.happen(lambda request: "drop"), pytest.raises(StorageError, match="did not answer"):
        path.exists()


def test_credentials_that_nobody_gives_and_credentials_that_nobody_answers_for():
    from google.auth import exceptions

    from padir.files import objects

    for error, kind, said in (
        (exceptions.TransportError("metadata server"), StorageError, "did not answer"),
        (exceptions.RefreshError("busy", retryable=True), StorageError, "did not answer"),
        (exceptions.RefreshError("revoked"), PadirError, "no valid credentials"),
        (exceptions.DefaultCredentialsError("none"), PadirError, "no valid credentials"),
    ):
        found = objects.explained("gs://bucket/a", error)
        assert type(found) is kind
        assert str(found).startswith("gs://bucket/a: ") and said in str(found) and str(error.args[0]) in str(found)


def test_an_upload_that_is_cut_leaves_nothing(bucket, emulator, tmp_path, quick_retries):
    (tmp_path / "large").write_bytes(os.urandom(12 << 20))

    def cut(request):
        # The first part arrives, and no further one.
        return "drop" if request.method == "POST" and "upload_id" in request.query else None

    with emulator.faults.happen(cut), pytest.raises(StorageError):
        atomic.copy_file(tmp_path / "large", f"{bucket}/large")
    assert not as_path(f"{bucket}/large").exists()


def test_what_a_user_must_do(bucket, emulator, monkeypatch):
    with pytest.raises(PadirError) as caught:
        as_path("gs://no-such-bucket/run").exists()
    assert str(caught.value) == (
        "gs://no-such-bucket: no such bucket; create it with `gcloud storage buckets create gs://no-such-bucket`, or "
        "correct the address"
    )
    with emulator.faults.happen(lambda request: 403), pytest.raises(PadirError, match="permission denied") as caught:
        as_path(f"{bucket}/a").read_bytes()
    assert caught.value.status == 2 and "\n" not in str(caught.value)
    with emulator.faults.happen(lambda request: 401), pytest.raises(PadirError, match="no valid credentials .*gcloud"):
        as_path(f"{bucket}/a").write_bytes(b"")
    with pytest.raises(PadirError, match="names no bucket"):
        as_path("gs://").exists()


def test_only_one_of_several_writers_creates_an_object(bucket, emulator):
    from padir.files import objects

    written, start = [], threading.Barrier(4)

    def create(number):
        start.wait()
        try:
            objects.write(f"{bucket}/one", b"%d" % number, generation=objects.ABSENT)
            written.append(number)
        except FileExistsError:
            pass

    threads = [threading.Thread(target=create, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(written) == 1 and as_path(f"{bucket}/one").read_bytes() == b"%d" % written[0]
    atomic.write_by_any(as_path(f"{bucket}/one"), b"later")
    assert as_path(f"{bucket}/one").read_bytes() == b"%d" % written[0]


def test_local_paths_import_no_client_of_buckets(run_python, tmp_path):
    code = (
        "import sys; import padir; from padir.files import atomic, lines, locks, segments, shards, checksums\n"
        "import padir.training.train, padir.inference.translate, padir.inference.distill, padir.runs.convert\n"
        f"atomic.write_text({str(tmp_path / 'a')!r}, 'x')\n"
        f"assert list(lines.lines_of({str(tmp_path / 'a')!r}))\n"
        "print([name for name in ('gcsfs', 'aiohttp', 'padir.files.objects', 'tensorflow') if name in sys.modules])"
    )
    done = run_python(code)
    assert (done.stdout, done.returncode) == (b"[]\n", 0), done.stderr.decode()
