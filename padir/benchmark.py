"""Latency, measured the same way for every system, in one process (layer 8)."""

from __future__ import annotations

import json
import os
import platform
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import numpy as np

from padir.data.records import Example, PreparedSet
from padir.data.vocabulary import Vocabulary
from padir.errors import PadirError
from padir.models import DecodeConfig
from padir.progress import progress
from padir.run_directory import check_vocabulary, write_text
from padir.translate import Translator, load


@dataclass(frozen=True)
class System:
    """One line of a benchmark: a trained model and how it decodes.

    Attributes:
      name: what tables call it.
      run_dir: the trained model.
      decode: how it decodes; the model's default if None.
    """

    name: str
    run_dir: str
    decode: DecodeConfig | None = None


@dataclass(frozen=True)
class Latency:
    """Milliseconds per request, from text on the host to text on the host.

    Attributes:
      samples: [n], in the order measured.
      warm_up_seconds: spent before, on translating every text once; not part of any sample. It is mostly
        compilation, which falls on the first of the systems that share a program.
    """

    samples: np.ndarray
    warm_up_seconds: float

    def to_dict(self) -> dict[str, float]:
        """Median, mean, p90, p99 and n."""
        return {
            "median": float(np.median(self.samples)),
            "mean": float(np.mean(self.samples)),
            "p90": float(np.percentile(self.samples, 90)),
            "p99": float(np.percentile(self.samples, 99)),
            "n": len(self.samples),
            "warm_up_seconds": self.warm_up_seconds,
        }


def measure_latency(
    systems: dict[str, tuple[Translator, DecodeConfig | None]],
    texts: Sequence[str],
    *,
    repeats: int = 3,
    seed: int = 0,
) -> dict[str, Latency]:
    """Times batch-1 requests, systems taking turns in a random order on every sentence.

    Every system first translates every text once, which compiles whatever shapes it needs; that time is
    reported apart. A sample is one call of `Translator.translate` with one text: tokenise, encode, predict
    the length, decode, detokenise, and wait for the result.

    Args:
      systems: by name, a translator and its decode configuration.
      texts: the requests.
      repeats: how often each is timed on each system.
      seed: of the order.

    Returns:
      By name, len(texts) · repeats samples.
    """
    warm_up_seconds = {}
    for name, (translator, decode) in systems.items():
        began = time.perf_counter()
        for text in texts:
            translator.translate([text], decode)
        warm_up_seconds[name] = time.perf_counter() - began
    order = random.Random(seed)
    samples: dict[str, list[float]] = {name: [] for name in systems}
    with progress(label="latency", unit="requests", total=repeats * len(texts) * len(systems)) as bar:
        for _ in range(repeats):
            for text in order.sample(list(texts), len(texts)):
                # Turn by turn on the same text: whatever slows the machine for a while slows all alike.
                for name in order.sample(list(systems), len(systems)):
                    translator, decode = systems[name]
                    began = time.perf_counter()
                    translator.translate([text], decode)
                    samples[name].append(1e3 * (time.perf_counter() - began))
                bar.update(len(systems))
    return {name: Latency(np.asarray(samples[name]), warm_up_seconds[name]) for name in systems}


def fitting_texts(examples: Sequence[Example], vocabulary: Vocabulary, longest: int) -> list[str]:
    """Sources, uncut, of at most `longest` tokens, EOS counted; says how many are passed over."""
    texts = [example.source_text for example in examples]
    fitting = [text for text, ids in zip(texts, vocabulary.encode_batch(texts), strict=True) if len(ids) < longest]
    if len(fitting) < len(texts):
        print(f"latency: passed over {len(texts) - len(fitting)} sources of over {longest} tokens", file=sys.stderr)
    return fitting


def benchmark(
    *,
    systems: Sequence[System],
    data_dir: str,
    output: str,
    split: str = "test",
    num_sentences: int = 100,
    repeats: int = 3,
    seed: int = 0,
) -> dict[str, Any]:
    """Measures batch-1 latency of trained systems side by side; prints a table and writes JSON.

    Args:
      systems: what to compare; the first is what speed-ups are relative to.
      data_dir: prepared set to take sentences from.
      output: JSON file to write.
      split: of `data_dir`.
      num_sentences: the first so many sentences of the split are the requests.
      repeats: how often each is timed.
      seed: of the order in which systems take turns.

    Returns:
      What was written: facts of the run, and per system its latency in ms and its speed-up.
    """
    if not systems:
        raise PadirError("benchmark.systems: name at least one system")
    if len({system.name for system in systems}) < len(systems):
        raise PadirError("benchmark.systems: two systems have the same name")
    if num_sentences < 1 or repeats < 1:
        raise PadirError(f"benchmark: num_sentences {num_sentences} and repeats {repeats} must be at least 1")
    data = PreparedSet.open(data_dir)
    opened: dict[str, Translator] = {}
    for system in systems:
        if system.run_dir not in opened:
            opened[system.run_dir] = load(system.run_dir)
            check_vocabulary(data.vocabulary(), opened[system.run_dir].vocabulary.hash, system.run_dir)
    prepared = data.split(split)
    longest = min(translator.model.max_source_length for translator in opened.values())
    texts = fitting_texts(prepared.read(range(len(prepared))), data.vocabulary(), longest)[:num_sentences]
    named = {system.name: (opened[system.run_dir], system.decode) for system in systems}
    latencies = measure_latency(named, texts, repeats=repeats, seed=seed)

    first = np.median(latencies[systems[0].name].samples)
    result = {
        "facts": run_facts(),
        "data_dir": str(data_dir),
        "split": split,
        "batch_size": 1,
        "systems": {
            name: {
                "decode": repr(named[name][0].checked(named[name][1])),
                "latency_ms": latency.to_dict(),
                "speed_up": float(first / np.median(latency.samples)),
            }
            for name, latency in latencies.items()
        },
    }
    write_text(output, json.dumps(result, indent=2) + "\n")
    print(latency_table(result))
    return result


def latency_table(result: dict[str, Any]) -> str:
    """A benchmark's result as a Markdown table."""
    lines = ["| system | median ms | p99 ms | n | speed-up | warm-up s |", "|---|---:|---:|---:|---:|---:|"]
    for name, system in result["systems"].items():
        latency = system["latency_ms"]
        lines.append(
            f"| {name} | {latency['median']:.2f} | {latency['p99']:.2f} | {latency['n']} | "
            f"{system['speed_up']:.2f} | {latency['warm_up_seconds']:.1f} |"
        )
    return "\n".join(lines)


def run_facts() -> dict[str, Any]:
    """What a figure depends on besides the code: device, versions, commit, load."""
    return {
        "commit": _commit(),
        "device": jax.devices()[0].device_kind,
        "device_count": jax.device_count(),
        "cpu_count": os.cpu_count(),
        "load_average": list(os.getloadavg()),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: metadata.version(name) for name in ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint")},
        "command": " ".join(sys.argv),
    }


def _commit() -> str:
    """The commit of the checkout this code runs from, '+changes' if it differs; '' outside a checkout."""
    root = Path(__file__).resolve().parent.parent

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", root, *arguments], capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+changes" if git("status", "--porcelain") else "")
    except (OSError, subprocess.CalledProcessError):
        return ""
