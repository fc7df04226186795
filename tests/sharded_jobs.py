"""Jobs of `padir translate --shards` with a stand-in for the model: inputs, what must come out, real processes."""

import gzip
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import quick_compilation
from stand_in import sentence, translated

from padir.files.paths import as_path, files_below
from padir.inference.lines import Counts

TESTS = Path(__file__).resolve().parent
BAD = {
    b"": "empty text: there is nothing to translate",
    b"no \xff": "invalid UTF-8 at byte 4",
    b"q " * 60: "source of 121 tokens is longer than the 40 that the model allows; split it",
}


class Corpus:
    """Numbered sentences in three files, one of them compressed; every 97th line cannot be translated.

    Attributes:
      inputs: their names.
      written: what 'lines' output must hold.
      rejects: (file, line, reason) of those left out.
    """

    def __init__(self, folder, count):
        """`folder` is where the files are written; it may be in a bucket."""
        self.inputs = [str(as_path(folder) / name) for name in ("a.txt", "b.txt.gz", "c.txt")]
        self.written, self.rejects = [], []
        bad = itertools.cycle(BAD)
        shares = (count * 6 // 10, count // 10, count - count * 6 // 10 - count // 10)
        number = 0
        for name, share in zip(self.inputs, shares, strict=True):
            lines = []
            for line in range(1, share + 1):
                number += 1
                text = sentence(number)
                if number % 97:
                    self.written.append(translated(text))
                    lines.append(text.encode())
                else:
                    self.written.append("")
                    lines.append(next(bad))
                    self.rejects.append((name, line, BAD[lines[-1]]))
            # No end of the last line of one.
            content = b"\n".join(lines) + b"\n" * (name != self.inputs[0])
            as_path(name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)

    def check(self, output, shards):
        """What is in the folder is all of it, once, in order."""
        output = as_path(output)
        files = sorted(output.glob("shard-*"))
        assert [file.name for file in files] == [f"shard-{n:05d}-of-{shards:05d}.txt" for n in range(shards)]
        found = "".join(file.read_text(encoding="utf-8") for file in files)
        assert found.split("\n") == [*self.written, ""]
        rejects = read_jsonl(output / "rejects.jsonl")
        assert [(record["file"], record["line"], record["reason"]) for record in rejects] == self.rejects
        counts = json.loads((output / "counts.json").read_text())
        expected = Counts(len(self.written), len(self.written) - len(self.rejects), len(self.rejects))
        assert Counts(counts["read"], counts["translated"], counts["rejected"]) == expected
        for file in files:
            assert counts["shards"][file.name]["read"] == file.read_bytes().count(b"\n")
        assert not [name for name in files_below(output) if name.endswith(".partial")]
        return expected


def read_jsonl(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


# Starts `padir translate` anew, by a fork after the imports, each time it is told to; says its process and its end.
SERVER = """
import os, sys
from padir.cli import main as cli
from padir.inference import translate
from stand_in import StandIn
path, *arguments = sys.argv[1:]
if any("gs://" in argument for argument in arguments):
    from padir.files import objects
translate.load = lambda run_dir, **options: StandIn(path, seconds_per_batch=0.001)
for line in sys.stdin:
    process = os.fork()
    if not process:
        os._exit(cli.main(arguments))
    print(process, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)
"""


class Starts:
    """Processes of one `padir translate` command, one after another."""

    def __init__(self, vocabulary, *arguments):
        paths = f"{TESTS.parent}{os.pathsep}{TESTS}"
        environment = os.environ | {"PYTHONPATH": paths, "XLA_FLAGS": quick_compilation.child_flags()}
        command = [sys.executable, "-c", SERVER, vocabulary, "translate", "--run_dir=run", *arguments]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self._server = subprocess.Popen(command, env=environment, text=True, bufsize=1, **pipes)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self._server.communicate()

    def start(self):
        """Returns the process."""
        self._server.stdin.write("start\n")
        return int(self._server.stdout.readline())

    def ended(self):
        """Waits for it; returns its status, below 0 for a signal."""
        return int(self._server.stdout.readline())
