"""What an exported program does: `python benchmarks/program_start.py --texts=FILE --output=F`.

A run is exported as StableHLO for this CPU. The program and `padir translate` translate the same lines, and it is said
how many come out alike. Then, in turns, these start and translate one sentence, each in a process of its own: the
exported program, `padir translate`, and with --serve `padir serve`, which is asked as soon as it answers at all: long
before it has compiled everything. It is asked as clients do and, in other processes, as its page does, for a trace of
several lengths. Each starts without a compilation cache and with one that it has filled. Seconds count from the start
of the process to the first translation.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from padir.benchmark.facts import run_facts
from padir.files.lines import lines_of

_PADIR = [sys.executable, "-m", "padir.cli"]
# What a request has besides its text.
_FIELDS = {"padir serve, its page": {"trace": True, "steps": 6, "num_hypotheses": 4}}
# A server that has not answered, or translated, by then never will.
_PATIENCE = 600


def environment_with(cache: Path | None) -> dict[str, str]:
    """This process's environment with that compilation cache, or none."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX_COMPILATION_CACHE")}
    if cache is not None:
        environment |= {"JAX_COMPILATION_CACHE_DIR": str(cache), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    return environment


def translated(command: list[str], texts: list[str], cache: Path | None = None) -> list[str]:
    """The lines that a command makes of texts.

    Raises:
      RuntimeError: they are not as many.
    """
    given = "".join(f"{text}\n" for text in texts)
    done = subprocess.run(
        command, input=given, env=environment_with(cache), stdout=subprocess.PIPE, text=True, check=True
    )
    lines = done.stdout.splitlines()
    if len(lines) != len(texts) or not any(lines):
        raise RuntimeError(f"{' '.join(command)}: {len(texts)} texts, but {len(lines)} translations")
    return lines


def seconds(command: list[str], text: str, cache: Path | None, fields: Mapping[str, Any] | None = None) -> float:
    """Seconds that a command takes to start and to translate one text; one that serves is asked, for `fields`, too."""
    began = time.perf_counter()
    if "serve" not in command:
        translated(command, [text], cache)
        return time.perf_counter() - began
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    server = subprocess.Popen([*command, f"--port={port}"], env=environment_with(cache), stderr=subprocess.DEVNULL)
    try:
        address = f"http://127.0.0.1:{port}"
        while not _answered(f"{address}/health"):
            if server.poll() is not None or time.perf_counter() - began > _PATIENCE:
                raise RuntimeError(f"{' '.join(command)}: did not start")
            time.sleep(0.05)
        body = json.dumps({"q": text, **(fields or {})}).encode()
        asked = urllib.request.Request(f"{address}/translate", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(asked, timeout=_PATIENCE) as answer:
            if not json.load(answer)["translatedText"]:
                raise RuntimeError(f"{' '.join(command)}: no translation")
        return time.perf_counter() - began
    finally:
        server.terminate()
        server.wait()


def _answered(address: str) -> bool:
    """Whether a server answers, even if it is not ready."""
    try:
        with urllib.request.urlopen(address, timeout=5):
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False


def exported(folder: Path, run_dir: str) -> Path:
    """Exports the run below `folder`; returns the program's folder."""
    program = folder / "program"
    options = ["--platforms", "cpu", "--gin.export.batch_sizes=(1,)"]
    subprocess.run(
        [*_PADIR, "export", "--format=stablehlo", f"--run_dir={run_dir}", f"--output_dir={program}", *options],
        check=True,
    )
    return program


def commands_of(program: Path, run_dir: str, serve: bool) -> dict[str, list[str]]:
    """What is compared, by name; a server if `serve`."""
    commands = {
        "exported program": [sys.executable, str(program / "load_program.py")],
        "padir translate": [*_PADIR, "translate", f"--run_dir={run_dir}", "--batch_size=1"],
    }
    server = [*_PADIR, "serve", f"--run_dir={run_dir}"]
    return commands | (dict.fromkeys(("padir serve", *_FIELDS), server) if serve else {})


def measure(commands: dict[str, list[str]], folder: Path, text: str, repeats: int) -> dict[str, dict[str, float]]:
    """Times the commands, with caches below `folder`; returns median, least, greatest and n of each."""
    systems = {
        f"{name}, {with_cache}": (
            command,
            text,
            folder / f"cache {name}" if with_cache == "filled cache" else None,
            _FIELDS.get(name),
        )
        for name, command in commands.items()
        for with_cache in ("no cache", "filled cache")
    }
    for asked in systems.values():
        if asked[2] is not None:
            seconds(*asked)
    found: dict[str, list[float]] = {name: [] for name in systems}
    for _ in range(repeats):
        for name, asked in systems.items():
            found[name].append(seconds(*asked))
    return {
        name: {"median": statistics.median(each), "min": min(each), "max": max(each), "n": len(each)}
        for name, each in found.items()
    }


def main() -> None:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run_dir", default="tatoeba_de_en_padir")
    parser.add_argument("--text", default="Ich habe heute keine Zeit.")
    parser.add_argument("--texts", required=True, help="file of sentences that both must translate alike")
    parser.add_argument("--lines", type=int, default=1000, help="how many of them")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--serve", action="store_true", help="also start `padir serve`")
    parser.add_argument("--output", required=True, help="JSON file to write")
    options = parser.parse_args()
    facts = run_facts()
    texts = [line.raw.decode() for line in islice(lines_of(options.texts), options.lines)]
    with tempfile.TemporaryDirectory() as folder:
        commands = commands_of(exported(Path(folder), options.run_dir), options.run_dir, options.serve)
        ours, theirs = (translated(commands[name], texts) for name in ("exported program", "padir translate"))
        same = sum(here == there for here, there in zip(ours, theirs, strict=True))
        systems = measure(commands, Path(folder), options.text, options.repeats)
    result = {"facts": facts, "run_dir": options.run_dir, "text": options.text, "seconds": systems}
    result["alike"] = {"texts": len(texts), "same": same}
    Path(options.output).write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(f"{same} of {len(texts)} texts are translated alike")
    for name, each in systems.items():
        print(f"{name}: median {each['median']:.2f} s, {each['min']:.2f} to {each['max']:.2f} (n = {each['n']})")


if __name__ == "__main__":
    main()
