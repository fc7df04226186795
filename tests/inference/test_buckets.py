"""Batch inference on gs:// addresses: the same lines, each once, after kills, with damage, and when storage fails."""

import gzip
import json
import os
import random
import signal
import time

import pytest
from sharded_jobs import Corpus, Starts, read_jsonl
from stand_in import sentence, translated

from padir.cli import main as cli
from padir.errors import PadirError, StorageError
from padir.files.paths import as_path, files_below
from padir.inference import shards as translate_shards
from padir.inference.lines import Counts
from padir.inference.translate import translate_files

SHARDS = 7


@pytest.fixture
def corpus(bucket):
    return Corpus(f"{bucket}/in", 600)


def sharded(corpus, output, **options):
    given = {"run_dir": "run", "inputs": corpus.inputs, "output": f"{output}", "shards": SHARDS}
    return translate_files(**given | options)


def test_shards_and_a_stream_are_what_local_ones_are(stand_in, corpus, bucket, tmp_path, capfd):
    total = sharded(corpus, f"{bucket}/out")
    assert total == corpus.check(f"{bucket}/out", SHARDS) == Counts(600, 594, 6)
    assert capfd.readouterr().err == (
        f"read 600 lines: 594 translated, 6 rejected; rejects in {bucket}/out/rejects.jsonl\n"
    )
    assert sorted(files_below(as_path(f"{bucket}/out") / "work")) == sorted(
        ["host-00000.json"]
        + [f"shard-{shard:05d}.json" for shard in range(SHARDS)]
        + [f"shard-{shard:05d}.rejects.jsonl" for shard in rejecting(bucket)]
    )
    one = f"{bucket}/one.gz"
    translate_files(run_dir="run", inputs=corpus.inputs, output=one)
    assert gzip.decompress(as_path(one).read_bytes()).decode().split("\n") == [*corpus.written, ""]
    rejects = read_jsonl(as_path(f"{one}.rejects.jsonl"))
    assert [(record["file"], record["line"], record["reason"]) for record in rejects] == corpus.rejects
    # Rejects of an earlier job with the same output are removed.
    as_path(f"{bucket}/good").write_text(sentence(1))
    translate_files(run_dir="run", inputs=[f"{bucket}/good"], output=one)
    assert gzip.decompress(as_path(one).read_bytes()).decode() == f"{translated(sentence(1))}\n"
    assert not as_path(f"{one}.rejects.jsonl").exists()


def rejecting(bucket):
    """The shards with rejects."""
    counts = json.loads(as_path(f"{bucket}/out/counts.json").read_text())["shards"]
    return [shard for shard, name in enumerate(sorted(counts)) if counts[name]["rejected"]]


def test_json_lines_compressed(stand_in, bucket):
    given = [f'{{"id": {n}, "text": "{sentence(n)}"}}' for n in range(40)]
    as_path(f"{bucket}/in.jsonl").write_text("\n".join(given))
    options = {"input_format": "jsonl", "output_format": "jsonl", "compress": True, "shards": 3}
    counts = translate_files(run_dir="run", inputs=[f"{bucket}/in.jsonl"], output=f"{bucket}/out", **options)
    assert counts == Counts(40, 40, 0)
    files = sorted(as_path(f"{bucket}/out").glob("shard-*"))
    assert [file.name for file in files] == [f"shard-{n:05d}-of-00003.jsonl.gz" for n in range(3)]
    found = b"".join(gzip.decompress(file.read_bytes()) for file in files).decode().splitlines()
    for number, line in enumerate(found):
        record = json.loads(line)
        assert (record["file"], record["line"]) == (f"{bucket}/in.jsonl", number + 1)
        assert record["text"] == translated(sentence(number)) and record["input"] == json.loads(given[number])


def test_a_host_reads_its_shards_and_no_more(stand_in, bucket, emulator, monkeypatch):
    """Once the lines are counted, a host of many fetches its share of a large object."""
    monkeypatch.setattr("padir.files.streams.FIRST_BYTES", 1000)
    monkeypatch.setattr("padir.files.streams.LARGEST_BYTES", 1000)
    text = "".join(f"{sentence(number)}\n" for number in range(2000)).encode()
    as_path(f"{bucket}/in").write_bytes(text)
    given = {"run_dir": "run", "inputs": [f"{bucket}/in"], "output": f"{bucket}/out", "shards": 20, "num_hosts": 20}
    translate_files(**given, host_index=4)
    with emulator.faults.happen(lambda request: None) as requests:
        counts = translate_files(**given, host_index=5)
    reads = [request for request in requests if request.path.startswith("/download") and request.path.endswith("/in")]
    # 1/20 of the bytes, and the line that begins before them.
    assert len(reads) <= len(text) / 20 / 1000 + 3
    written = as_path(f"{bucket}/out/shard-00005-of-00020.txt").read_text().splitlines()
    assert counts == Counts(len(written), len(written), 0)
    first = text[: len(text) * 5 // 20 - 1].count(b"\n") + 1
    assert written == [translated(sentence(number)) for number in range(first, first + len(written))]


def test_killed_five_times(vocabulary, bucket):
    """The real command; real SIGKILLs at random moments, the first soon after it starts."""
    corpus, output, shards = Corpus(f"{bucket}/in", 6_000), as_path(f"{bucket}/out"), 40
    arguments = ["--inputs", *corpus.inputs, f"--output={output}", f"--shards={shards}"]
    whole, moments = {}, random.Random(4)

    def there():
        return {path.name: path.described().generation for path in output.glob("shard-*.txt")}

    with Starts(vocabulary, *arguments) as starts:
        for kill in range(5):
            process, until = starts.start(), time.monotonic() + 120
            enough = len(whole) + moments.randint(1, 3) if kill else 0
            # Seldom, since it is this process that serves the bucket.
            while len(list(output.glob("shard-*.txt"))) < enough:
                assert time.monotonic() < until
                time.sleep(0.2)
            time.sleep(moments.uniform(0, 0.1 if kill else 0.5))
            os.kill(process, signal.SIGKILL)
            assert starts.ended() == -signal.SIGKILL
            found = there()
            # What was whole is not written again.
            assert whole.items() <= found.items() and enough <= len(found)
            # On a fast machine the last two kills may come too late.
            assert len(found) < shards or kill > 2
            whole = found
            if len(found) == shards:
                break
        starts.start()
        assert starts.ended() == 0
    assert len(whole) >= 4 and whole.items() <= there().items()
    corpus.check(output, shards)


def test_two_hosts_that_do_not_know_of_one_another(stand_in, corpus, bucket, monkeypatch):
    """Both find no manifest; the second writes its own when the first is done, and the first one's stays."""
    number_lines, started = translate_shards.number_lines, []

    def meanwhile(parts):
        if not started:
            started.append(True)
            sharded(corpus, f"{bucket}/out", host_index=0, num_hosts=2)
            started.append(as_path(f"{bucket}/out/manifest.json").described().generation)
        return number_lines(parts)

    monkeypatch.setattr(translate_shards, "number_lines", meanwhile)
    total = sharded(corpus, f"{bucket}/out", host_index=1, num_hosts=2)
    assert total == corpus.check(f"{bucket}/out", SHARDS)
    assert as_path(f"{bucket}/out/manifest.json").described().generation == started[1]


def test_an_input_that_was_replaced_is_another_job(stand_in, corpus, bucket):
    sharded(corpus, f"{bucket}/out", host_index=0, num_hosts=2)
    path = as_path(corpus.inputs[0])
    before = path.described().generation
    path.write_bytes(path.read_bytes())
    now = path.described().generation
    with pytest.raises(PadirError, match=rf"inputs.1.generation: {before} there, {now} now\); choose another output"):
        sharded(corpus, f"{bucket}/out")


def run_command(corpus, output):
    return cli.main(["translate", "--run_dir=run", "--inputs", *corpus.inputs, f"--output={output}", "--shards=7"])


def test_what_is_damaged_is_named_and_made_again(stand_in, corpus, bucket, capfd):
    output = as_path(f"{bucket}/out")
    assert run_command(corpus, output) == 0
    assert (output / "translate.gin").read_text().count("translate.shards = 7") == 1
    whole = {path: path.read_bytes() for path in output.glob("shard-*")}
    first, second, third = sorted(whole)[:3]
    counts = output / "work/shard-00001.json"
    first.write_bytes(whole[first][:-1])
    counts.unlink()
    size = len(whole[first])
    for shard, message in (
        (first, f"{first}: damaged, it has {size - 1} bytes instead of {size}; delete it and run the same command"),
        (second, f"{counts}: cannot be used ([Errno 2] No such object: '{counts}'); delete {second} and run the same"),
    ):
        capfd.readouterr()
        assert run_command(corpus, output) == 2
        assert message in capfd.readouterr().err.splitlines()[-1]
        shard.unlink()
    before = third.described().generation
    assert run_command(corpus, output) == 0
    corpus.check(output, SHARDS)
    assert third.described().generation == before
    assert {path: path.read_bytes() for path in output.glob("shard-*")} == whole


@pytest.mark.parametrize("fault", ["drop", "truncate", "lose", "slow", 503, 429])
def test_requests_that_fail_now_and_then(stand_in, corpus, bucket, emulator, quick_retries, fault):
    chance = random.Random(1)
    with emulator.faults.happen(lambda request: fault if chance.random() < 0.15 else None):
        total = sharded(corpus, f"{bucket}/out")
    assert total == corpus.check(f"{bucket}/out", SHARDS)


def test_a_storage_that_does_not_come_back(stand_in, corpus, bucket, emulator, quick_retries, capfd):
    """Status 74 in the middle; the lines of the shard stay here; what was whole stays, and the same command ends it."""
    output = as_path(f"{bucket}/out")

    written = []

    def fails(request):
        if request.method == "POST" and "/out/shard-" in request.query.get("name", ""):
            written.append(request)
        return 503 if len(written) > 3 else None

    with emulator.faults.happen(fails):
        assert run_command(corpus, output) == 74
    said = capfd.readouterr().err.splitlines()
    assert said[-1].endswith("the storage did not answer after several tries (status 503 on demand, 503)")
    there = {path.name: path.described().generation for path in output.glob("shard-*")}
    assert len(there) == 3
    assert run_command(corpus, output) == 0
    found = {path.name: path.described().generation for path in output.glob("shard-*")}
    assert there.items() <= found.items()
    corpus.check(output, SHARDS)


def test_what_an_interrupted_stream_wrote_is_kept_and_goes_with_success(
    stand_in, corpus, bucket, emulator, quick_retries
):
    output = f"{bucket}/one"
    decode = stand_in.decode_ids

    def interrupted(*arguments):
        if len(stand_in.batches) > 40:
            raise KeyboardInterrupt
        return decode(*arguments)

    stand_in.decode_ids = interrupted
    with pytest.raises(KeyboardInterrupt):
        translate_files(run_dir="run", inputs=corpus.inputs, output=output, batch_size=4)
    assert not as_path(output).exists()
    # Groups of 64 lines: the first two were written.
    assert as_path(f"{output}.partial").read_text() == "".join(f"{line}\n" for line in corpus.written[:128])
    stand_in.decode_ids = decode
    translate_files(run_dir="run", inputs=corpus.inputs, output=output)
    assert as_path(output).read_text().split("\n") == [*corpus.written, ""]
    assert not as_path(f"{output}.partial").exists()


def test_what_a_user_must_do(stand_in, bucket):
    with pytest.raises(PadirError, match=rf"^{bucket}/in: no such input file$"):
        translate_files(run_dir="run", inputs=[f"{bucket}/in"], output=f"{bucket}/out")
    as_path(f"{bucket}/in").write_text("a\n")
    with pytest.raises(PadirError, match="^gs://no-such-bucket: no such bucket; create it with"):
        translate_files(run_dir="run", inputs=[f"{bucket}/in"], output="gs://no-such-bucket/out", shards=2)


def test_an_input_replaced_while_it_is_read(stand_in, bucket, monkeypatch):
    monkeypatch.setattr("padir.files.streams.FIRST_BYTES", 1000)
    path = as_path(f"{bucket}/in")
    path.write_text("".join(f"{sentence(number)}\n" for number in range(2000)))
    decode = stand_in.decode_ids

    def replacing(*arguments):
        path.write_text("other\n")
        return decode(*arguments)

    stand_in.decode_ids = replacing
    with pytest.raises(StorageError, match="in: was replaced or removed while it was read"):
        translate_files(run_dir="run", inputs=[str(path)], output=f"{bucket}/out", batch_size=2)
    assert not as_path(f"{bucket}/out").exists()
