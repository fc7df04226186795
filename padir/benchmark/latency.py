"""`padir benchmark latency`: measures how long several systems take for the same requests."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from padir.benchmark import pictures
from padir.benchmark.facts import run_facts
from padir.benchmark.measure import Timing, take_turns
from padir.benchmark.systems import Opened, System, open_systems
from padir.benchmark.work import decode_cost, target_width, verified_cost
from padir.benchmark.workloads import Request, TextWorkload, Workload
from padir.decoding.refinement import Refinement
from padir.decoding.verified import Verified
from padir.errors import PadirError
from padir.files.atomic import write_text
from padir.files.paths import as_path, local_path
from padir.inference.decoder import source_width
from padir.inference.translator import Translator
from padir.models.kinds import DecodeConfig
from padir.nn import flops
from padir.runs.directory import check_vocabulary

Batch = tuple[Request, ...]


@dataclass
class Asked:
    """A system with a record of what it did for each batch of requests.

    Attributes:
      name: the system's name.
      system: the opened system.
      steps: decoder passes that were run for each batch. For requests in text these are the steps of the best
        hypotheses.
      rounds: of verified decoding, the passes of the verifier among them.
    """

    name: str
    system: Opened
    steps: dict[Batch, int] = field(default_factory=dict)
    rounds: dict[Batch, int] = field(default_factory=dict)

    def __call__(self, batch: Batch) -> None:
        """Answers a batch, from text to text or from ids to ids, and returns when the answer is on the host."""
        decoder, decode = self.system.decoder, self.system.decode
        if batch[0].text is not None:
            translator = self.system.translator(self.name)
            found = translator.translate([request.text for request in batch], decode, batch_size=len(batch))
            self.steps[batch] = max(translation.steps_run for translation in found)
            if isinstance(decode, Verified):
                self.rounds[batch] = max(translation.rounds for translation in found)
            return
        lengths = [request.target_length for request in batch]
        if isinstance(decode, Refinement):
            # All hypotheses get the length that the request asks for.
            lengths = [[length] * decode.num_hypotheses for length in lengths]
        found = decoder.decode_ids([request.source for request in batch], decode, lengths)
        self.steps[batch] = int(found.batch_steps)

    def cost(self, batch: Batch) -> flops.Cost:
        """FLOPs and bytes of the computation for a batch, padding included; see `decode_cost` and `verified_cost`."""
        if isinstance(self.system.decode, Verified):
            verifier, source = self.system.decoder.helper, self.source_width(batch)
            reading = verifier.model
            room = self.system.decode.max_length(source, reading.max_target_length)
            return verified_cost(
                self.system.model,
                reading,
                self.system.decode,
                encodes_once=verifier.is_own,
                rows=self.system.decoder.padded_rows(len(batch)),
                source=source,
                target=min(room, self.target_width(batch)),
                room=room,
                rounds=self.rounds[batch],
            )
        return decode_cost(
            self.system.model,
            self.system.decode,
            rows=self.system.decoder.padded_rows(len(batch)),
            source=self.source_width(batch),
            target=self.target_width(batch),
            steps=self.steps[batch],
            hypotheses=self.system.hypotheses,
            rescorer=self.system.rescorer,
        )

    def source_width(self, batch: Batch) -> int:
        """The number of source tokens that a batch is padded to."""
        return source_width(self.system.model, max(len(request.source) for request in batch))

    def target_width(self, batch: Batch) -> int:
        """The number of target tokens that a batch is padded to.

        For requests in text the target length is not known, so the source length is used as an estimate.
        """
        longest = max(request.target_length or len(request.source) for request in batch)
        return target_width(self.system.model, self.system.decode, self.source_width(batch), longest)


def latency(
    *,
    systems: Sequence[System],
    workload: Workload,
    output: str,
    batch_size: int = 1,
    repeats: int = 3,
    num_pieces: int = 32_000,
    seed: int = 0,
) -> dict[str, Any]:
    """Measures how long requests take on each system, prints a table, and writes JSON and figures.

    The time of a request runs from host to host: from text to text for a workload of text, else from ids to ids.
    Compilation happens before and is reported separately.

    Args:
      systems: the systems to compare. Speed-ups are relative to the first one.
      workload: the requests.
      output: the JSON file to write. The figures `<stem>_<figure>.png` are written beside it.
      batch_size: sentences in a request.
      repeats: how often each request is timed on each system.
      num_pieces: vocabulary size of untrained models.
      seed: random seed of the order in which systems take turns.

    Returns:
      The contents of the JSON file.

    Raises:
      PadirError: a system cannot be opened or cannot answer the workload, or a count is below 1.
    """
    if min(batch_size, repeats) < 1:
        raise PadirError(f"benchmark latency: batch_size {batch_size} and repeats {repeats} must be at least 1")
    facts = run_facts()
    asked = ask(systems, workload, num_pieces)
    batches = batched(workload, asked, batch_size)
    timings = take_turns(asked, batches, repeats=repeats, seed=seed, shape=shape_of(asked))
    result = {
        "facts": facts | {"load_average_after": list(os.getloadavg())},
        "workload": repr(workload),
        "batch_size": batch_size,
        "requests": describe_requests(batches),
        "systems": describe_systems(systems, asked, batches, timings),
    }
    write_text(output, json.dumps(result, indent=2) + "\n")
    stem = local_path(output).with_suffix("")
    pictures.distributions(Path(f"{stem}_cdf.png"), {name: timing.samples for name, timing in timings.items()})
    longest = [max(request.target_length or len(request.source) for request in batch) for batch in batches]
    if len(set(longest)) > 1:
        side = "target" if all(request.target_length for batch in batches for request in batch) else "source"
        pictures.by_length(Path(f"{stem}_length.png"), np.array(longest), timings, side)
    if any("bleu" in system for system in result["systems"].values()):
        pictures.quality_against_latency(Path(f"{stem}_quality.png"), result["systems"])
    print(latency_table(result))
    return result


def ask(systems: Sequence[System], workload: Workload, num_pieces: int) -> dict[str, Asked]:
    """Opens systems for a workload.

    Args:
      systems: the systems to open.
      workload: the requests they will answer.
      num_pieces: vocabulary size of untrained models.

    Returns:
      The opened systems, by name.

    Raises:
      PadirError: a system cannot be opened, or its vocabulary is not the one of the workload's text.
    """
    opened = open_systems(systems, num_pieces)
    for name, system in opened.items():
        if isinstance(system.decode, Verified) and not isinstance(workload, TextWorkload):
            raise PadirError(
                f"system {name!r}: verified decoding ends where its verifier ends a text; use the workload "
                "PreparedText or SourceText"
            )
    if isinstance(workload, TextWorkload):
        vocabulary = workload.vocabulary()
        for name, system in opened.items():
            check_vocabulary(vocabulary, system.translator(name).vocabulary.hash, name)
    return {name: Asked(name, system) for name, system in opened.items()}


def batched(workload: Workload, asked: dict[str, Asked], batch_size: int) -> list[Batch]:
    """The workload's requests in batches of `batch_size`.

    Requests that do not fill a last batch are left out. If there are fewer requests than `batch_size`, they are
    repeated to fill one batch.

    Args:
      workload: the requests.
      asked: the systems that must answer them, by name.
      batch_size: requests in a batch.

    Raises:
      PadirError: no request is short enough for every system, or an id exceeds a system's vocabulary.
    """
    models = [system.system.model for system in asked.values()]
    requests = workload.requests(min(min(model.max_source_length, model.max_target_length) for model in models))
    if not requests:
        raise PadirError(f"{workload}: has no request that is short enough for every system")
    largest, pieces = max(max(request.source) for request in requests), min(model.ids.num_pieces for model in models)
    if largest >= pieces:
        raise PadirError(
            f"{workload}: contains id {largest}, but a system has only {pieces} pieces; lower the workload's num_pieces"
        )
    if len(requests) < batch_size:
        requests = [requests[index % len(requests)] for index in range(batch_size)]
    return grouped(requests, batch_size)


def grouped(requests: Sequence[Request], batch_size: int) -> list[Batch]:
    """Requests in batches of `batch_size`; those that do not fill a last batch are left out."""
    whole = len(requests) // batch_size * batch_size
    return [tuple(requests[start : start + batch_size]) for start in range(0, whole, batch_size)]


def shape_of(asked: dict[str, Asked]) -> Callable[[Batch], tuple[tuple[int, int], ...]]:
    """A function that maps a batch to its padded lengths under each system, for `take_turns`.

    Batches with the same padded source length need the same compiled programs. The padded target length counts, too:
    a program has a branch for each target bucket, and a branch is slower the first time it runs. For requests in text
    the target lengths are estimates.
    """
    return lambda batch: tuple((system.source_width(batch), system.target_width(batch)) for system in asked.values())


def describe_requests(batches: Sequence[Batch]) -> dict[str, Any]:
    """Number of requests, and their mean and maximum lengths in tokens; None where target lengths are not known."""
    requests = [request for batch in batches for request in batch]
    targets = [request.target_length for request in requests if request.target_length is not None]
    return {
        "count": len(requests),
        "mean_source_tokens": float(np.mean([len(request.source) for request in requests])),
        "max_source_tokens": max(len(request.source) for request in requests),
        "mean_target_tokens": float(np.mean(targets)) if targets else None,
        "max_target_tokens": max(targets, default=None),
    }


def describe_systems(
    systems: Sequence[System], asked: dict[str, Asked], batches: Sequence[Batch], timings: dict[str, Timing]
) -> dict[str, dict[str, Any]]:
    """The facts about each system that a result holds.

    Args:
      systems: as they were given; speed-ups are relative to the first one.
      asked: the opened systems, by name.
      batches: the batches that they answered.
      timings: the measured times, by name.

    Returns:
      For each system: how it decodes, model size and types, latency in ms, speed-up, steps, shares of padding, GFLOPs
      and gigabytes per batch, and BLEU if it is known.
    """
    first = np.median(timings[systems[0].name].samples)
    described = {}
    for system in systems:
        it, timing = asked[system.name], timings[system.name]
        costs = [it.cost(batch) for batch in batches]
        described[system.name] = {
            "decode": repr(it.system.decode),
            "run_dir": system.run_dir,
            "verify_with": system.verify_with,
            "rescore_with": system.rescore_with,
            "parameters": it.system.model.parameter_count(),
            "dtype": it.system.model.network.dtype,
            "compute_type": it.system.decoder.compute_type,
            "latency_ms": timing.to_dict(),
            "request_ms": timing.by_request(),
            "speed_up": float(first / np.median(timing.samples)),
            "steps_per_batch": float(np.mean([it.steps[batch] for batch in batches])),
            "source_padding": _waste(batches, it.source_width, lambda request: len(request.source)),
            "gflops": float(np.mean([cost.flops for cost in costs])) / 1e9,
            "gigabytes": float(np.mean([it.system.bytes(cost) for cost in costs])) / 1e9,
        }
        if batches[0][0].target_length is not None and not it.system.is_autoregressive:
            waste = _waste(batches, it.target_width, lambda request: request.target_length)
            described[system.name]["target_padding"] = waste
        if isinstance(it.system.decoder, Translator) and batches[0][0].text is not None:
            described[system.name]["text_ms"] = text_times(it.system.decoder, it.system.decode, batches)
        if it.rounds:
            described[system.name]["rounds_per_batch"] = float(np.mean([it.rounds[batch] for batch in batches]))
        if system.quality is not None:
            described[system.name]["bleu"] = _bleu(system.quality)
    return described


def text_times(
    translator: Translator, decode: DecodeConfig, batches: Sequence[Batch], repeats: int = 20
) -> dict[str, float]:
    """Median milliseconds for tokenising a batch and for detokenising its translations.

    Both are part of the latency of a request in text.

    Args:
      translator: the trained model.
      decode: how to decode.
      batches: the batches to time.
      repeats: how often each batch is timed.

    Returns:
      {'tokenise': ms, 'detokenise': ms}.
    """
    texts = [[request.text for request in batch] for batch in batches]
    found = [translator.decode_ids([request.source for request in batch], decode) for batch in batches]
    ids = [each.tokens[: len(batch), 0].tolist() for each, batch in zip(found, batches, strict=True)]
    steps = {
        "tokenise": lambda index: [translator.tokenize(text) for text in texts[index]],
        "detokenise": lambda index: [translator.vocabulary.decode(each) for each in ids[index]],
    }
    found = {}
    for name, step in steps.items():
        samples = []
        for index in range(len(batches)):
            for _ in range(repeats):
                began = time.perf_counter()
                step(index)
                samples.append(1e3 * (time.perf_counter() - began))
        found[name] = float(np.median(samples))
    return found


def _waste(batches: Sequence[Batch], width: Callable[[Batch], int], length: Callable[[Request], int]) -> float:
    """The share of the computed positions that are padding."""
    computed = sum(len(batch) * width(batch) for batch in batches)
    return 1.0 - sum(length(request) for batch in batches for request in batch) / computed


def _bleu(path: str) -> float:
    try:
        return float(json.loads(as_path(path).read_text(encoding="utf-8"))["bleu"])
    except PadirError:
        raise
    except (OSError, ValueError, KeyError) as error:
        raise PadirError(f"System.quality: {path} is not a JSON file of padir evaluate: {error}") from error


def latency_table(result: dict[str, Any]) -> str:
    """A result as a Markdown table."""
    lines = [
        "| system | median ms | 95% interval | p90 | p99 | n | speed-up | steps | GFLOP | compile s |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name, system in result["systems"].items():
        found = system["latency_ms"]
        low, high = found["median_ci95"]
        lines.append(
            f"| {name} | {found['median']:.2f} | {low:.2f}–{high:.2f} | {found['p90']:.2f} | {found['p99']:.2f} | "
            f"{found['n']} | {system['speed_up']:.2f}x | {system['steps_per_batch']:.1f} | {system['gflops']:.2f} | "
            f"{found['compile_seconds']:.1f} |"
        )
    late = sum(system["latency_ms"]["late_compilations"] for system in result["systems"].values())
    return "\n".join(lines) + (f"\nWARNING: {late} programs were compiled while measuring" if late else "")
