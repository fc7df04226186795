"""Batch inference: translates files of any size in shards, which hosts share and which a restart does not repeat.

Layout::

    <output>/shard-00003-of-00016.txt  translations in input order (.jsonl, .gz); the file exists once it is complete
    <output>/rejects.jsonl             the rejected lines of all shards, written at the end
    <output>/counts.json               the checked counts of all shards, written at the end
    <output>/manifest.json             the inputs, the settings and the start of each shard; a restart must match it
    <output>/work/shard-00003.json     the counts of a shard
    <output>/work/shard-00003.rejects.jsonl   the rejects of a shard
    <output>/work/host-00000.json      the progress of a host

The shards in order are equal to the output of one stream. A killed job loses at most one shard per host.
"""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from padir.errors import PadirError, StorageError
from padir.files.atomic import make_folder, replacing, write_by_any, write_text
from padir.files.lines import Rejects, count_lines, writing
from padir.files.paths import is_bucket, version_of
from padir.files.shards import Part, lines_of_parts, number_lines, split_inputs
from padir.inference.lines import Counts, LineTranslator
from padir.progress import progress
from padir.runs.describe import hashes, params_sha256
from padir.runs.directory import differences
from padir.runtime.distributed import first_process, wait_for_all

MANIFEST_FILE, COUNTS_FILE, REJECTS_FILE = "manifest.json", "counts.json", "rejects.jsonl"
WORK_FOLDER = "work"

# The interval at which a host updates its progress file.
_REPORT_SECONDS = 5.0
# A message lists at most this many differences or missing shards.
_NAMED = 5
# Shards of a bucket whose counts are read at once.
_AT_ONCE = 16


@dataclass(frozen=True)
class Hosts:
    """The hosts that share a job. Host i translates shards i, i + count, …

    Attributes:
      index: the index of this host, from 0 to count - 1.
      count: the number of hosts.
      joined: whether the hosts are the processes of one `jax.distributed` job and wait for one another.
    """

    index: int
    count: int
    joined: bool

    @classmethod
    def given(cls, index: int | None, count: int | None) -> Hosts:
        """Returns the given hosts or, if both numbers are None, the processes of the `jax.distributed` job.

        Raises:
          PadirError: only one of the numbers is given, or the index is not below the count.
        """
        if index is None and count is None:
            return cls(jax.process_index(), jax.process_count(), joined=True)
        if index is None or count is None or not 0 <= index < count:
            raise PadirError(
                f"translate: host_index={index}, num_hosts={count}; give both, with 0 ≤ host_index < num_hosts"
            )
        return cls(index, count, joined=False)


def translate_shards(
    lines: LineTranslator,
    inputs: Sequence[str],
    output: Path,
    *,
    shards: int,
    compress: bool,
    hosts: Hosts,
    seed: int,
) -> Counts:
    """Translates the missing shards of this host, then checks and prints the counts of all shards.

    Hosts of one `jax.distributed` job wait for one another, and the first one checks the counts. Otherwise, the host
    that finishes last checks them.

    Args:
      lines: translates the lines. Its `batch_size` may differ when a job is restarted.
      inputs: text files, plain or .gz, which all hosts can read.
      output: the folder of the shards, which all hosts share.
      shards: the number of shards.
      compress: whether to compress shards with gzip.
      hosts: the hosts that share the job.
      seed: the seed of `lines.translator`.

    Returns:
      The counts of all shards. If other hosts have not finished, the counts of this host's shards.

    Raises:
      PadirError: `output` holds another job (the message names the differences), a shard is damaged or missing, counts
        do not add up, or an input has changed.
    """
    request = _request(lines, inputs, shards, compress, seed)
    _claim(output, request, inputs, shards)
    job = _Job.open(output, request)
    own = range(hosts.index, shards, hosts.count)
    left = {*job.missing()}
    done = [shard for shard in own if shard not in left]
    if done:
        print(f"{output}: resuming; {len(done)} of {len(own)} shards of host {hosts.index} are done", file=sys.stderr)
    with _Report(job, hosts, own, done) as report:
        for shard in sorted({*own} - {*done}):
            job.translate(shard, lines, report.add)
            report.finished()
    if not hosts.joined and (missing := job.missing()):
        print(
            f"host {hosts.index} of {hosts.count}: {report.counts}; {len(missing)} shards of other hosts are not done: "
            "the host that finishes last checks all counts",
            file=sys.stderr,
        )
        return report.counts
    wait_for_all()
    _finish(job)
    counted = json.loads((output / COUNTS_FILE).read_text(encoding="utf-8"))
    del counted["shards"]
    return Counts(**counted)


def _request(lines: LineTranslator, inputs: Sequence[str], shards: int, compress: bool, seed: int) -> dict[str, Any]:
    """Returns everything that decides the content of the shards, as JSON values."""
    translator = lines.translator
    helper = translator.helper
    request = {
        "inputs": {str(number): {"file": name, **version_of(name)} for number, name in enumerate(inputs, 1)},
        "shards": shards,
        "compress": compress,
        "input_format": lines.input_format,
        "input_field": lines.input_field if lines.input_format == "jsonl" else None,
        "output_format": lines.output_format,
        "decode": repr(lines.decode),
        "compute_type": translator.compute_type,
        "seed": seed,
        "model": {"step": translator.step, **hashes(translator.model, translator.params)},
        "vocabulary": translator.vocabulary.hash,
        "rescorer": None,
    }
    if helper is not None:
        request[helper.role] = hashes(helper.model, helper.params)
    if translator.judge is not None:
        request["verifier_sha256"] = params_sha256(translator.judge)
    if translator.constraint is not None:
        request["constraint"] = {**vars(translator.constraint.constraint), "name": None}
    return json.loads(json.dumps(request))


@first_process
def _claim(output: Path, request: dict[str, Any], inputs: Sequence[str], shards: int) -> None:
    """Writes the manifest, with the number of the first line of each part, unless it exists."""
    if (output / MANIFEST_FILE).exists():
        return
    make_folder(output / WORK_FOLDER)
    parts = number_lines(split_inputs(inputs, shards))
    described = {"request": request, "shards": [[dataclasses.asdict(part) for part in shard] for shard in parts]}
    write_by_any(output / MANIFEST_FILE, json.dumps(described, indent=1).encode())


def _own_suffix() -> str:
    """Of a file that several independent hosts may write at the same time with the same content."""
    return f".{os.uname().nodename}-{os.getpid()}"


class _Job:
    """The shards of an output folder.

    Attributes:
      output: the folder.
      parts: for each shard, the parts of the input files that it translates.
    """

    def __init__(self, output: Path, manifest: dict[str, Any]):
        self.output = output
        self.parts = [[Part(**part) for part in shard] for shard in manifest["shards"]]
        # Stored with the counts of a shard, so that counts of another job are not mistaken for this one's.
        self._hash = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
        request = manifest["request"]
        ending = {"lines": "txt", "jsonl": "jsonl"}[request["output_format"]]
        self._ending = f"{ending}.gz" if request["compress"] else ending
        self._is_text = request["output_format"] == "lines"
        self._is_constrained = "constraint" in request

    @classmethod
    def open(cls, output: Path, request: dict[str, Any]) -> _Job:
        """Reads the manifest; raises PadirError if it is missing, damaged, or of another request."""
        path = output / MANIFEST_FILE
        if not path.exists():
            raise PadirError(
                f"{path}: process 0 wrote this file, but this process does not see it; "
                "choose a folder that all hosts share"
            )
        manifest = _read_json(path, ("request", "shards"), f"choose another output, or delete {output}")
        changes = differences(manifest["request"], request)
        if changes:
            more = f"; and {len(changes) - _NAMED} more" if len(changes) > _NAMED else ""
            raise PadirError(
                f"{output}: holds another translation ({'; '.join(changes[:_NAMED])}{more}); "
                "choose another output, or delete this one"
            )
        return cls(output, manifest)

    def path(self, shard: int) -> Path:
        """Returns the file of a shard's translations."""
        return self.output / f"shard-{shard:05d}-of-{len(self.parts):05d}.{self._ending}"

    def rejects_path(self, shard: int) -> Path:
        """Returns the file of a shard's rejects."""
        return self.output / WORK_FOLDER / f"shard-{shard:05d}.rejects.jsonl"

    def _counts_path(self, shard: int) -> Path:
        return self.output / WORK_FOLDER / f"shard-{shard:05d}.json"

    def missing(self) -> list[int]:
        """Returns the shards that have not been translated."""
        there = {path.name for path in self.output.iterdir()}
        return [shard for shard in range(len(self.parts)) if self.path(shard).name not in there]

    def translate(self, shard: int, lines: LineTranslator, done: Callable[[Counts], object]) -> Counts:
        """Translates one shard and returns its counts. If it is interrupted, the shard's file does not exist."""
        path = self.path(shard)

        def whole(partial: Path) -> None:
            """Before the shard gets its name: all lines must be accounted for, and their counts are written."""
            self._check(shard, counts, rejects.count)
            lines_of_output = counts.read if self._is_text else counts.translated
            self._agree(shard, "lines of output", lines_of_output, count_lines([str(partial)]))
            if not rejects.count:
                # Of an attempt that was killed.
                self.rejects_path(shard).unlink(missing_ok=True)
            # The counts are written before the shard gets its name, so every existing shard has counts.
            with writing(str(self._counts_path(shard))) as out:
                json.dump({"job": self._hash, "bytes": partial.stat().st_size, **_stored(counts)}, out)

        with writing(str(path), whole=whole) as out, Rejects(str(self.rejects_path(shard))) as rejects:
            counts = lines.translate(lines_of_parts(self.parts[shard]), out, rejects, done)
        return counts

    def _check(self, shard: int, counts: Counts, rejects: int | None) -> None:
        """Raises PadirError unless the counts of a shard match its input and its file of rejects."""
        known = [part.lines for part in self.parts[shard]]
        if None not in known:
            self._agree(shard, "lines of input", sum(known), counts.read)
        self._agree(shard, "lines translated or rejected", counts.read, counts.translated + counts.rejected)
        self._agree(shard, "rejects", counts.rejected, rejects)

    def _agree(self, shard: int, what: str, expected: int, found: int | None) -> None:
        if found != expected:
            raise PadirError(
                f"{self.path(shard)}: the counts do not add up: {expected} {what} expected, {found} found; "
                "delete this shard and run the same command again"
            )

    def counts(self, shard: int) -> Counts:
        """Returns the counts of an existing shard; raises PadirError if it has changed since it was written."""
        path = self.path(shard)
        keys = ("job", "bytes", *_stored(Counts(unmet=0 if self._is_constrained else None)))
        again = "and run the same command again"
        record = _read_json(self._counts_path(shard), keys, f"delete {path} {again}")
        if record.pop("job") != self._hash:
            raise PadirError(f"{path}: belongs to another translation; delete it {again}")
        size, expected = path.stat().st_size, record.pop("bytes")
        if size != expected:
            raise PadirError(f"{path}: damaged, it has {size} bytes instead of {expected}; delete it {again}")
        return Counts(**record)

    def each(self, function: Callable[..., Any], *arguments: Iterable[Any]) -> list[Any]:
        """Calls a function that reads files; in a bucket, several at once."""
        if not is_bucket(self.output):
            return list(map(function, *arguments))
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return list(pool.map(function, *arguments))

    def checked_counts(self) -> list[Counts]:
        """Returns the counts of every shard; raises PadirError if one is missing or its counts do not add up."""
        if missing := self.missing():
            names = ", ".join(self.path(shard).name for shard in missing[:_NAMED])
            more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
            raise PadirError(f"{self.output}: {names}{more} missing; run the same command again")
        found = self.each(self.counts, range(len(self.parts)))
        there = {path.name for path in (self.output / WORK_FOLDER).iterdir()}

        def check(shard: int, counts: Counts) -> None:
            rejects = self.rejects_path(shard)
            self._check(shard, counts, count_lines([str(rejects)]) if rejects.name in there else 0)

        self.each(check, range(len(found)), found)
        return found


def _stored(counts: Counts) -> dict[str, int]:
    """Counts as JSON; those that a job does not have are left out."""
    return {name: count for name, count in dataclasses.asdict(counts).items() if count is not None}


@first_process
def _finish(job: _Job) -> None:
    """Checks the counts of all shards, writes and prints them, and collects the rejects in one file."""
    found = job.checked_counts()
    total = sum(found, Counts())
    rejects = job.output / REJECTS_FILE
    if total.rejected:
        with replacing(rejects, _own_suffix(), sync=True) as own, own.open("w", encoding="utf-8") as out:
            for shard, counts in enumerate(found):
                if counts.rejected:
                    with job.rejects_path(shard).open(encoding="utf-8") as stream:
                        shutil.copyfileobj(stream, out)
    shards = {job.path(shard).name: _stored(counts) for shard, counts in enumerate(found)}
    with replacing(job.output / COUNTS_FILE, _own_suffix(), sync=True) as own:
        own.write_text(json.dumps({**_stored(total), "shards": shards}, indent=1), encoding="utf-8")
    print(f"{total}{f'; rejects in {rejects}' if total.rejected else ''}", file=sys.stderr)


class _Report:
    """Reports the progress of a host in a file, and as a progress bar on a terminal."""

    def __init__(self, job: _Job, hosts: Hosts, own: Sequence[int], done: Sequence[int]):
        self._path = job.output / WORK_FOLDER / f"host-{hosts.index:05d}.json"
        self._hosts, self._shards, self._done = hosts, len(own), len(done)
        known = [part.lines for shard in own for part in job.parts[shard]]
        # Unknown if there are compressed files.
        self._lines = None if None in known else sum(known)
        self.counts = self._before = sum(job.each(job.counts, done), Counts())
        self._began = time.monotonic()
        self._bar = progress(
            label="translate", unit="lines", total=self._lines, initial=self.counts.read, active=hosts.index == 0
        )

    def __enter__(self) -> _Report:
        self._write()
        return self

    def add(self, counts: Counts) -> None:
        """Adds the counts of lines that have been written."""
        self.counts += counts
        self._bar.update(counts.read)
        if time.monotonic() - self._written >= _REPORT_SECONDS:
            self._write()

    def finished(self) -> None:
        """Counts a shard as done."""
        self._done += 1
        self._write()

    def _write(self) -> None:
        self._written = time.monotonic()
        rate = (self.counts.read - self._before.read) / max(self._written - self._began, 1e-9)
        left = None if self._lines is None or not rate else round((self._lines - self.counts.read) / rate)
        record = {
            "host": self._hosts.index,
            "hosts": self._hosts.count,
            "shards_done": self._done,
            "shards": self._shards,
            **_stored(self.counts),
            "lines": self._lines,
            "lines_per_second": round(rate, 1),
            "seconds_left": left,
            "written": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        }
        write_text(self._path, json.dumps(record, indent=1) + "\n")

    def __exit__(self, *exception: object) -> None:
        self._bar.close()


def _read_json(path: Path, keys: Sequence[str], remedy: str) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(found, dict) and found.keys() == set(keys):
            return found
        reason = f"its fields must be {', '.join(keys)}"
    except StorageError:
        raise
    except (OSError, ValueError) as error:
        reason = str(error)
    raise PadirError(f"{path}: cannot be used ({reason}); {remedy}")
