"""Batch inference: killed, divided among hosts, refused; every line exactly once."""

import gzip
import itertools
import json
import os
import random
import signal
import time
import tracemalloc

import pytest
from sharded_jobs import Corpus, Starts, read_jsonl
from stand_in import sentence, translated

from padir.cli import main as cli
from padir.errors import PadirError
from padir.inference import shards as translate_shards
from padir.inference.lines import Counts, LineTranslator
from padir.inference.translate import translate_files


@pytest.fixture
def corpus(tmp_path):
    return Corpus(tmp_path, 600)


def sharded(corpus, output, **options):
    """Through the library, with a stand-in for the model."""
    return translate_files(**{"run_dir": "run", "inputs": corpus.inputs, "output": str(output), "shards": 7} | options)


def test_shards_are_what_one_stream_writes(stand_in, corpus, tmp_path, capfd):
    assert sharded(corpus, tmp_path / "out", batch_size=4) == corpus.check(tmp_path / "out", 7)
    message = f"read 600 lines: 594 translated, 6 rejected; rejects in {tmp_path / 'out' / 'rejects.jsonl'}\n"
    assert capfd.readouterr().err == message
    # A batch has like lengths: within 64 lines no source is shorter than one of an earlier batch.
    sizes = [batch for batch in stand_in.batches if len(batch) == 4]
    assert len(sizes) > 100 and all(max(batch) - min(batch) <= 12 for batch in sizes)
    translate_files(run_dir="run", inputs=corpus.inputs, output=str(tmp_path / "one"))
    assert (tmp_path / "one").read_text(encoding="utf-8").split("\n") == [*corpus.written, ""]


def test_json_in_and_out_compressed(stand_in, tmp_path, capfd):
    """Records name their line in the whole file; the input stands in them as it was."""
    given = [f'{{"id": 1.50{n}, "text": "{sentence(n)}", "odd": "\\ud800"}}' for n in range(40)]
    given[3:7] = ["{", "[1]", '{"text": 5}', '{"text": "\\ud800"}']
    given[9] = "[" * 100_000
    (tmp_path / "in.jsonl").write_text("\n".join(given))
    options = {"run_dir": "run", "inputs": [str(tmp_path / "in.jsonl")], "input_format": "jsonl"}
    options |= {"output_format": "jsonl", "batch_size": 2}
    counts = translate_files(output=str(tmp_path / "out"), shards=6, compress=True, **options)
    assert counts == Counts(40, 35, 5)
    files = sorted((tmp_path / "out").glob("shard-*"))
    assert [file.name for file in files] == [f"shard-{n:05d}-of-00006.jsonl.gz" for n in range(6)]
    found = b"".join(gzip.decompress(file.read_bytes()) for file in files).decode().splitlines()
    good = [n for n in range(40) if n not in (3, 4, 5, 6, 9)]
    for number, line in zip(good, found, strict=True):
        record = json.loads(line)
        assert (record["file"], record["line"]) == (options["inputs"][0], number + 1)
        assert record["text"] == translated(sentence(number))
        assert line.endswith(f', "input": {given[number]}}}')
    rejects = read_jsonl(tmp_path / "out" / "rejects.jsonl")
    assert [record["line"] for record in rejects] == [4, 5, 6, 7, 10]
    reasons = [record["reason"] for record in rejects]
    assert reasons[0].startswith("not JSON: Expecting property name") and reasons[4].startswith("not JSON: ")
    assert reasons[1:3] == ["no text field 'text' in this JSON line"] * 2
    assert reasons[3] == "holds half of a surrogate pair, which is no character"
    # One stream of the same writes the same.
    translate_files(output=str(tmp_path / "one.gz"), **options)
    assert gzip.decompress((tmp_path / "one.gz").read_bytes()).decode().splitlines() == found


def test_a_line_beyond_all_bounds_is_rejected_without_being_held(stand_in, tmp_path):
    text = sentence(5).encode()
    (tmp_path / "in").write_bytes(text + b"\n" + b"x" * (5 << 20) + b"\n" + text)
    counts = translate_files(run_dir="run", inputs=[str(tmp_path / "in")], output=str(tmp_path / "out"), shards=4)
    assert counts == Counts(3, 2, 1)
    (record,) = read_jsonl(tmp_path / "out" / "rejects.jsonl")
    assert (record["line"], record["reason"]) == (2, "line of more than 1048576 bytes; split it")
    assert len(record["text"]) == (1 << 20) + 1


def test_killed_ten_times(vocabulary, tmp_path):
    """20,000 lines through the real command; ten real SIGKILLs at random moments, the first soon after it starts."""
    corpus, output, shards = Corpus(tmp_path, 20_000), tmp_path / "out", 60
    whole = {}
    moments = random.Random(4)
    arguments = ["--inputs", *corpus.inputs, f"--output={output}", f"--shards={shards}"]
    with Starts(vocabulary, *arguments) as starts:
        for kill in range(10):
            process, until = starts.start(), time.monotonic() + 60
            enough = len(whole) + moments.randint(1, 3) if kill else 0
            while len(list(output.glob("shard-*.txt"))) < enough:
                assert time.monotonic() < until
                time.sleep(0.01)
            time.sleep(moments.uniform(0, 0.04 if kill else 0.3))
            os.kill(process, signal.SIGKILL)
            assert starts.ended() == -signal.SIGKILL
            found = {file: file.stat().st_mtime_ns for file in output.glob("shard-*.txt")}
            # What was whole is not written again.
            assert whole.items() <= found.items() and enough <= len(found) < shards
            whole = found
        starts.start()
        assert starts.ended() == 0
    assert len(whole) >= 9 and all(file.stat().st_mtime_ns == when for file, when in whole.items())
    corpus.check(output, shards)


def test_two_hosts_that_do_not_know_of_one_another(stand_in, corpus, tmp_path, capfd):
    output = tmp_path / "out"
    done = sharded(corpus, output, host_index=1, num_hosts=2)
    assert sorted(int(file.name[6:11]) for file in output.glob("shard-*")) == [1, 3, 5]
    assert done.read == sum(file.read_bytes().count(b"\n") for file in output.glob("shard-*"))
    others = "4 shards of other hosts are not done: the host that finishes last checks all counts"
    assert capfd.readouterr().err == f"host 1 of 2: {done}; {others}\n"
    assert not (output / "counts.json").exists()
    total = sharded(corpus, output, host_index=0, num_hosts=2)
    assert total == corpus.check(output, 7)
    assert f"{total}; rejects in" in capfd.readouterr().err
    for host, shards in ((0, 4), (1, 3)):
        report = json.loads((output / "work" / f"host-{host:05d}.json").read_text())
        assert (report["host"], report["hosts"]) == (host, 2)
        assert report["shards_done"] == report["shards"] == shards
        assert report["read"] == report["translated"] + report["rejected"]
    assert report["read"] == done.read
    # Started again, by one host, it finds all there, and checks it.
    assert sharded(corpus, output) == total
    assert f"{output}: resuming; 7 of 7 shards of host 0 are done\n{total}; " in capfd.readouterr().err


def test_how_far_a_host_has_come(stand_in, corpus, tmp_path, monkeypatch):
    """The report after each group of lines; a.txt alone, whose lines are counted beforehand."""
    monkeypatch.setattr(translate_shards, "_REPORT_SECONDS", 0.0)
    seen = []
    write_text = translate_shards.write_text
    monkeypatch.setattr(
        translate_shards, "write_text", lambda path, text: (seen.append(json.loads(text)), write_text(path, text))
    )
    sharded(corpus, tmp_path / "out", inputs=corpus.inputs[:1], shards=2, batch_size=8)
    # Two shards of about 180 lines, 128 at a time; a report at the beginning and at the end of each shard, too.
    assert [report["shards_done"] for report in seen] == [0, 0, 0, 1, 1, 1, 2]
    first = seen[2]["read"]
    assert [report["read"] for report in seen] == [0, 128, first, first, first + 128, 360, 360]
    assert all(report["lines"] == 360 for report in seen)
    assert seen[0]["seconds_left"] is None and seen[1]["seconds_left"] >= 0 == seen[-1]["seconds_left"]
    assert seen[-1]["rejected"] == 3


CHANGES = {
    "output_format": ({"output_format": "jsonl"}, "output_format: 'lines' there, 'jsonl' now"),
    "shards": ({"shards": 8}, "shards: 7 there, 8 now"),
    "compress": ({"compress": True}, "compress: False there, True now"),
    "seed": ({"seed": 3}, "seed: 0 there, 3 now"),
    "format": ({"input_format": "jsonl"}, "input_field: None there, 'text' now; input_format: 'lines' there, 'jsonl'"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_another_job_is_refused(stand_in, corpus, tmp_path, name):
    sharded(corpus, tmp_path / "out", host_index=0, num_hosts=4)
    changes, message = CHANGES[name]
    with pytest.raises(PadirError) as error:
        sharded(corpus, tmp_path / "out", **changes)
    assert str(error.value).startswith(f"{tmp_path / 'out'}: holds another translation ({message}")
    assert str(error.value).endswith("choose another output, or delete this one")


def test_another_model_or_input_is_refused_and_another_batch_size_is_not(stand_in, corpus, tmp_path):
    sharded(corpus, tmp_path / "out", host_index=0, num_hosts=4)
    stand_in.step = 8
    with pytest.raises(PadirError, match=r"holds another translation \(model.step: 7 there, 8 now\)"):
        sharded(corpus, tmp_path / "out")
    stand_in.step = 7
    stand_in.params["weights"] += 1
    with pytest.raises(PadirError, match=r"another translation \(model.params_sha256: '\w+' there, '\w+' now\)"):
        sharded(corpus, tmp_path / "out")
    stand_in.params["weights"] -= 1
    stand_in.compute_type = "int8"
    with pytest.raises(PadirError, match=r"another translation \(compute_type: None there, 'int8' now\)"):
        sharded(corpus, tmp_path / "out")
    stand_in.compute_type = None
    with pytest.raises(PadirError, match=rf"inputs\.3: {{'file': '{corpus.inputs[2]}', .* there, None now\)"):
        sharded(corpus, tmp_path / "out", inputs=corpus.inputs[:2])
    when = os.stat(corpus.inputs[0]).st_mtime_ns
    os.utime(corpus.inputs[0], ns=(when, when + 1))
    with pytest.raises(PadirError, match=rf"inputs.1.modified_ns: {when} there, {when + 1} now\)"):
        sharded(corpus, tmp_path / "out")
    os.utime(corpus.inputs[0], ns=(when, when))
    sharded(corpus, tmp_path / "out", batch_size=5)
    corpus.check(tmp_path / "out", 7)


def run_command(corpus, output, *more):
    return cli.main(["translate", "--run_dir=run", "--inputs", *corpus.inputs, f"--output={output}", *more])


def damage(output, name):
    """Does something to a finished job; returns what is said of it."""
    shard, counts = output / "shard-00002-of-00007.txt", output / "work" / "shard-00002.json"
    again = "delete this shard and run the same command again"
    if name == "cut":
        size = shard.stat().st_size
        shard.write_bytes(shard.read_bytes()[:-1])
        return f"{shard}: damaged, it has {size - 1} bytes instead of {size}; delete it and run the same command again"
    if name == "no counts":
        counts.unlink()
        return f"delete {shard} and run the same command again"
    if name == "other job":
        counts.write_text(json.dumps(json.loads(counts.read_text()) | {"job": "0" * 64}))
        return f"{shard}: belongs to another translation; delete it and run the same command again"
    if name == "rejects":
        rejects = output / "work" / "shard-00002.rejects.jsonl"
        assert len(read_jsonl(rejects)) == 1
        rejects.unlink()
        return f"{shard}: the counts do not add up: 1 rejects expected, 0 found; {again}"
    record = json.loads(counts.read_text())
    record["read"] += 1
    if name == "read":
        record["translated"] += 1
        counts.write_text(json.dumps(record))
        return f"{record['read'] - 1} lines of input expected, {record['read']} found; {again}"
    assert name == "translated"
    record["read"] -= 1
    record["translated"] -= 1
    counts.write_text(json.dumps(record))
    return f"{record['read']} lines translated or rejected expected, {record['read'] - 1} found; {again}"


@pytest.mark.parametrize("name", ["cut", "no counts", "other job", "rejects", "read", "translated"])
def test_counts_that_do_not_add_up_end_the_command(stand_in, corpus, tmp_path, capfd, name):
    output = tmp_path / "out"
    assert run_command(corpus, output, "--shards=7") == 0
    assert (output / "translate.gin").exists()
    message = damage(output, name)
    capfd.readouterr()
    assert run_command(corpus, output, "--shards=7") == 2
    assert message in capfd.readouterr().err.splitlines()[-1]
    # What it says helps.
    (output / "shard-00002-of-00007.txt").unlink()
    assert run_command(corpus, output, "--shards=7") == 0
    corpus.check(output, 7)


def test_a_shard_that_vanishes_ends_the_command(stand_in, corpus, tmp_path, capfd, monkeypatch):
    write = translate_shards._Job.translate

    def losing(self, shard, *rest):
        write(self, shard, *rest)
        if shard == 3:
            self.path(shard).unlink()

    with monkeypatch.context() as patch:
        patch.setattr(translate_shards._Job, "translate", losing)
        assert run_command(corpus, tmp_path / "out", "--shards=7") == 2
    expected = f"{tmp_path / 'out'}: shard-00003-of-00007.txt missing; run the same command again"
    assert capfd.readouterr().err.splitlines()[-1] == f"padir translate: {expected}"
    assert run_command(corpus, tmp_path / "out", "--shards=7") == 0
    corpus.check(tmp_path / "out", 7)


@pytest.mark.parametrize(
    "losing, message", [("_written", "lines of output expected"), ("translate", "lines of input expected")]
)
def test_a_line_that_gets_lost_leaves_no_shard(stand_in, corpus, tmp_path, capfd, monkeypatch, losing, message):
    """A translation that is not written, a line that is not read."""
    original = getattr(LineTranslator, losing)
    changes = {
        "_written": lambda self, result, line: "" if line.number == 200 else original(self, result, line),
        "translate": lambda self, lines, *rest: original(self, itertools.islice(lines, 50), *rest),
    }
    monkeypatch.setattr(LineTranslator, losing, changes[losing])
    assert run_command(corpus, tmp_path / "out", "--shards=3") == 2
    assert message in capfd.readouterr().err
    assert not (tmp_path / "out" / "counts.json").exists()
    assert len(list((tmp_path / "out").glob("shard-*.txt"))) < 3


BAD_OPTIONS = {
    "no shards": ({"shards": 0}, "translate.shards: 0 is not at least 1; None writes one stream"),
    "standard input": ({"inputs": ["-"]}, "translate.shards: needs files as --inputs and a folder as --output"),
    "standard output": ({"output": "-"}, "needs files as --inputs and a folder as --output"),
    "rejects": ({"rejects": "x"}, "translate.rejects: leave it out; with shards, rejects go to out/rejects.jsonl"),
    "one number": ({"host_index": 1}, "host_index=1, num_hosts=None; give both, with 0 ≤ host_index < num_hosts"),
    "index": ({"host_index": 2, "num_hosts": 2}, "host_index=2, num_hosts=2; give both"),
    "stream": ({"shards": None, "compress": True}, "need shards; give the number of shards"),
    "input format": ({"input_format": "tsv"}, "translate.input_format: unknown 'tsv'; choose lines or jsonl"),
}


@pytest.mark.parametrize("name", BAD_OPTIONS)
def test_options_that_contradict_each_other(stand_in, corpus, name):
    changes, message = BAD_OPTIONS[name]
    with pytest.raises(PadirError) as error:
        sharded(corpus, **({"output": "out"} | changes))
    assert message in str(error.value)


def peak(lines, folder):
    """Bytes of Python's own that a job over so many lines holds at most."""
    folder.mkdir()
    path = folder / "in"
    with path.open("w") as stream:
        stream.writelines(f"{sentence(number) if number % 10 else ''}\n" for number in range(lines))
    tracemalloc.start()
    translate_files(run_dir="run", inputs=[str(path)], output=str(folder / "out"), shards=4, batch_size=2)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return most


def test_memory_does_not_grow_with_the_input(stand_in, tmp_path, monkeypatch):
    monkeypatch.setattr(stand_in, "batches", type("Forgetful", (list,), {"append": lambda self, item: None})())
    peak(600, tmp_path / "first")
    small, large = peak(600, tmp_path / "small"), peak(20_000, tmp_path / "large")
    # When garbage is collected changes either by some 100,000 bytes; a held line alone takes more than 50.
    assert large < small + 19_400 * 20


def test_hosts_started_at_the_same_time_make_one_manifest(stand_in, corpus, tmp_path, monkeypatch):
    """The second finds none, and before it has written its own the first is at work."""
    number_lines, started = translate_shards.number_lines, []

    def meanwhile(parts):
        if not started:
            started.append(True)
            sharded(corpus, tmp_path / "out", host_index=0, num_hosts=2)
            assert len(list((tmp_path / "out").glob("shard-*"))) == 4
        return number_lines(parts)

    monkeypatch.setattr(translate_shards, "number_lines", meanwhile)
    total = sharded(corpus, tmp_path / "out", host_index=1, num_hosts=2)
    assert total == corpus.check(tmp_path / "out", 7)
