"""`padir benchmark serve`: what a running server does with requests that do not wait for one another."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Sequence
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
      seconds: from the start to the last answer.
    """

    rate: float
    scheduled: int
    statuses: Counter = field(default_factory=Counter)
    latencies: list[float] = field(default_factory=list)
    delays: list[float] = field(default_factory=list)
    seconds: float = 0.0

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
    url: str = "http://127.0.0.1:8000",
    rates: Sequence[float] = (1, 2, 4, 8, 16, 32, 64),
    seconds: float = 20.0,
    model: str | None = None,
    wait_ready_seconds: float = 600.0,
    seed: int = 0,
) -> dict[str, Any]:
    """Sends requests to a server at rising rates, prints a table, and writes JSON and a figure.

    Requests of one text each arrive by a Poisson process, whether or not earlier ones have been answered (open loop).

    Args:
      inputs: files with a text on each line, from which the texts are drawn.
      output: the JSON file to write. The figure `<stem>_load.png` is written beside it.
      url: the server: `padir serve`, or another that knows LibreTranslate's `/translate`.
      rates: requests per second, in the order in which they are tried.
      seconds: how long requests arrive at each rate.
      model: the name of the model; the server's first if None.
      wait_ready_seconds: how long to wait until `/health` says that the server is ready.
      seed: of the arrivals and of the choice of texts.

    Returns:
      The contents of the JSON file.

    Raises:
      PadirError: there is no text, the server cannot be reached or does not become ready, or a number is wrong.
    """
    if seconds <= 0 or not rates or min(rates) <= 0:
        raise PadirError("benchmark serve: seconds and all rates must be above 0")
    inputs = resolved_inputs(inputs)
    lines = (line.raw.decode("utf-8", "replace").strip() for line in lines_of_all(inputs) if line is not None)
    texts = [line for line in lines if line]
    if not texts:
        raise PadirError(f"{', '.join(inputs)}: no text")
    facts = run_facts()
    fields = {} if model is None else {"model": model}
    loads = asyncio.run(_loads(url, texts, fields, rates, seconds, wait_ready_seconds, random.Random(seed)))
    result = {
        "facts": facts,
        "url": url,
        "model": model,
        "seconds": seconds,
        "texts": len(texts),
        "loads": [load.to_dict() for load in loads],
    }
    output = local_path(output)
    write_text(output, json.dumps(result, indent=2) + "\n")
    pictures.load(output.with_name(f"{output.stem}_load.png"), result["loads"])
    print(load_table(result["loads"]))
    return result


async def _loads(
    url: str,
    texts: Sequence[str],
    fields: dict[str, Any],
    rates: Sequence[float],
    seconds: float,
    wait_ready_seconds: float,
    randomness: random.Random,
) -> list[Load]:
    async with HttpClient(url) as client:
        await _wait_until_ready(client, url, wait_ready_seconds)
        return [
            await one_load(client, texts, arrivals(rate, seconds, randomness), fields, rate, randomness)
            for rate in rates
        ]


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
    load = Load(rate, len(times))
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
