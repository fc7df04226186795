"""`padir benchmark serve`: what running servers do with requests that do not wait for one another."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from padir.benchmark import pictures
from padir.benchmark.facts import run_facts
from padir.benchmark.http_client import HttpClient
from padir.errors import PadirError
from padir.files.atomic import write_text
from padir.files.lines import lines_of_all, resolved_inputs
from padir.files.paths import local_path


@dataclass
class Load:
    """What became of the requests of one rate.

    Attributes:
      rate: requests per second that were scheduled.
      scheduled: the number of requests.
      statuses: how many were answered with each HTTP status; 0 stands for no answer.
      latencies: seconds from the time that each translated request was scheduled for to its answer. What a request
        waits because the generator or the server is behind counts, so no omission is coordinated with the server.
      delays: seconds by which each request was sent later than scheduled.
      last_due: seconds from the start to the last request.
      seconds: from the start to the last answer, or for which requests were scheduled, if that is longer.
    """

    rate: float
    scheduled: int
    last_due: float = 0.0
    statuses: Counter = field(default_factory=Counter)
    latencies: list[float] = field(default_factory=list)
    delays: list[float] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def saturated(self) -> bool:
        """Whether the server translated less than nine tenths of what it was asked for, or took longer by a ninth.

        How long the soonest answer took is not counted: so long takes an answer of a server that does nothing else.
        """
        behind = self.seconds - self.last_due - min(self.latencies, default=0.0)
        return len(self.latencies) < 0.9 * self.scheduled or behind > max(1.0, self.last_due / 9)

    def to_dict(self) -> dict[str, Any]:
        """Returns rates per second, statuses, and latencies in milliseconds as JSON values."""
        latencies = 1e3 * np.array(self.latencies)
        quantiles = {"p50": 50, "p90": 90, "p99": 99, "max": 100}
        return {
            "rate": self.rate,
            "scheduled": self.scheduled,
            "statuses": {str(status): count for status, count in sorted(self.statuses.items())},
            "translated_per_second": len(latencies) / self.seconds,
            "latency_ms": {
                name: float(np.percentile(latencies, q)) if len(latencies) else None for name, q in quantiles.items()
            },
            "sent_late_ms_p99": float(np.percentile(1e3 * np.array(self.delays), 99)) if self.delays else None,
        }


def serve_load(
    *,
    inputs: Sequence[str],
    output: str,
    servers: Sequence[str] = ("http://127.0.0.1:8000",),
    rates: Sequence[float] = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512),
    seconds: float = 20.0,
    model: str | None = None,
    wait_ready_seconds: float = 600.0,
    seed: int = 0,
) -> dict[str, Any]:
    """Sends requests to servers at rising rates, prints tables, and writes JSON and a figure.

    Requests of one text each arrive by a Poisson process, whether or not earlier ones have been answered (open loop).
    At each rate all servers are asked in turn, for the same texts at the same times. A server that translates less than
    nine tenths of what it is asked for is saturated, and is not asked at higher rates.

    Args:
      inputs: files with a text on each line, from which the texts are drawn.
      output: the JSON file to write. The figure `<stem>_load.png` is written beside it.
      servers: URLs, or NAME=URL, of `padir serve` or of others that know LibreTranslate's `/translate`.
      rates: requests per second, ascending.
      seconds: how long requests arrive at each rate.
      model: the name of the model; each server's first if None.
      wait_ready_seconds: how long to wait until a server's `/health` says that it is ready.
      seed: of the arrivals and of the choice of texts.

    Returns:
      The contents of the JSON file.

    Raises:
      PadirError: there is no text, a server cannot be reached or does not become ready, or a number or name is wrong.
    """
    if seconds <= 0 or not rates or min(rates) <= 0:
        raise PadirError("benchmark serve: seconds and all rates must be above 0")
    if list(rates) != sorted(set(rates)):
        raise PadirError("benchmark_serve.rates: must ascend, because a server that is saturated is not asked for more")
    named = _named(servers)
    texts = _texts(inputs)
    facts = run_facts()
    fields = {} if model is None else {"model": model}
    loads = asyncio.run(_loads(named, texts, fields, rates, seconds, wait_ready_seconds, seed))
    result = {
        "facts": facts,
        "model": model,
        "seconds": seconds,
        "texts": len(texts),
        "servers": {name: {"url": named[name], **_summary(of_server)} for name, of_server in loads.items()},
    }
    output = local_path(output)
    write_text(output, json.dumps(result, indent=2) + "\n")
    by_name = {name: found["loads"] for name, found in result["servers"].items()}
    pictures.load(output.with_name(f"{output.stem}_load.png"), by_name)
    for name, found in by_name.items():
        print(f"{name}\n\n{load_table(found)}\n")
    return result


def _texts(inputs: Sequence[str]) -> list[str]:
    """The lines of the inputs that are not blank."""
    inputs = resolved_inputs(inputs)
    lines = (line.raw.decode("utf-8", "replace").strip() for line in lines_of_all(inputs) if line is not None)
    if not (texts := [line for line in lines if line]):
        raise PadirError(f"{', '.join(inputs)}: no text")
    return texts


def _named(servers: Sequence[str]) -> dict[str, str]:
    """URL by name; a server without a name is called by its URL."""
    found: dict[str, str] = {}
    for server in [servers] if isinstance(servers, str) else servers:
        name, _, url = server.rpartition("=")
        if (name or url) in found:
            raise PadirError(f"benchmark_serve.servers: two are called {name or url!r}; name them, as in NAME={url}")
        found[name or url] = url
    if not found:
        raise PadirError("benchmark_serve.servers: is empty; give one or more URLs")
    return found


def _summary(loads: Sequence[Load]) -> dict[str, Any]:
    """Of one server: the most that it translated in a second, whether it was saturated at last, and all rates."""
    told = [load.to_dict() for load in loads]
    most = max(load["translated_per_second"] for load in told)
    return {"most_translated_per_second": most, "saturated": loads[-1].saturated, "loads": told}


async def _loads(
    servers: Mapping[str, str],
    texts: Sequence[str],
    fields: dict[str, Any],
    rates: Sequence[float],
    seconds: float,
    wait_ready_seconds: float,
    seed: int,
) -> dict[str, list[Load]]:
    """What became of the requests, by server."""
    found: dict[str, list[Load]] = {name: [] for name in servers}
    async with AsyncExitStack() as stack:
        clients = {name: await stack.enter_async_context(HttpClient(url)) for name, url in servers.items()}
        for name, url in servers.items():
            await _wait_until_ready(clients[name], url, wait_ready_seconds)
        for rate in rates:
            for name, client in clients.items():
                if found[name] and found[name][-1].saturated:
                    continue
                randomness = random.Random(f"{seed}, {rate}")
                times = arrivals(rate, seconds, randomness)
                load = await one_load(client, texts, times, fields, rate, randomness)
                # Fewer requests than usual may have come, and none at the end.
                load.seconds = max(load.seconds, seconds)
                found[name].append(load)
    return found


async def _wait_until_ready(client: HttpClient, url: str, seconds: float) -> None:
    end = time.monotonic() + seconds
    while True:
        try:
            status, body = await client.ask("/health")
        except OSError as error:
            raise PadirError(f"{url}: cannot be reached ({error}); start it with `padir serve`") from error
        # Servers without /health are taken to be ready.
        if status in (200, 404):
            return
        if time.monotonic() > end:
            raise PadirError(f"{url}: not ready after {seconds:g} s: {body}")
        await asyncio.sleep(0.5)


def arrivals(rate: float, seconds: float, randomness: random.Random) -> list[float]:
    """Returns the times of a Poisson process, in seconds after its start; at least one.

    Args:
      rate: mean number of arrivals per second.
      seconds: its end.
      randomness: what the gaps are drawn with.
    """
    times = [randomness.expovariate(rate)]
    while times[-1] < seconds:
        times.append(times[-1] + randomness.expovariate(rate))
    return times[:-1] or times


async def one_load(
    client: HttpClient,
    texts: Sequence[str],
    times: Sequence[float],
    fields: dict[str, Any],
    rate: float,
    randomness: random.Random,
) -> Load:
    """Sends a request at each of the times and waits for all answers.

    Args:
      client: of the server.
      texts: what is translated, drawn with replacement.
      times: seconds after the start, ascending.
      fields: of every request besides its text.
      rate: the mean rate of `times`, for the result.
      randomness: what texts are drawn with.
    """
    load = Load(rate, len(times), times[-1])
    began = time.perf_counter()

    async def send(text: str, due: float) -> None:
        load.delays.append(time.perf_counter() - began - due)
        try:
            status, _ = await client.ask("/translate", {"q": text, **fields})
        except OSError:
            status = 0
        load.statuses[status] += 1
        if status == 200:
            load.latencies.append(time.perf_counter() - began - due)

    async with asyncio.TaskGroup() as group:
        for due in times:
            await asyncio.sleep(max(0.0, began + due - time.perf_counter()))
            group.create_task(send(randomness.choice(texts), due))
    load.seconds = time.perf_counter() - began
    return load


def load_table(loads: Sequence[dict[str, Any]]) -> str:
    """A Markdown table with a row for each rate.

    Args:
      loads: of `Load.to_dict`.
    """
    lines = [
        "| requests/s | translated/s | p50 ms | p90 ms | p99 ms | max ms | other answers |",
        "|---:|---:|---:|---:|---:|---:|---|",
    ]
    for load in loads:
        times = ("–" if ms is None else f"{ms:.1f}" for ms in load["latency_ms"].values())
        others = ", ".join(f"{count}× {status}" for status, count in load["statuses"].items() if status != "200")
        rates = f"{load['rate']:g} | {load['translated_per_second']:.2f}"
        lines.append(f"| {rates} | {' | '.join(times)} | {others} |")
    return "\n".join(lines)
