"""Keeps `padir serve` busy for a while, with faults: `python benchmarks/serve_soak.py --minutes=60 --output=soak.json`.

First each model that the server offers translates each text by itself. Then they are asked for texts again by a Poisson
process, in batches with others, beside clients that misbehave: they leave, stop in the middle of a body, send what is
no request, or ask for more than the queue holds; and the server is stopped for a second now and then. What is counted:
requests that were answered, those among them with a text that is not their own, and those without an answer; and the
server's memory. At the end the server is told to stop while requests are in flight. The exit status is 1 if a request
was lost or answered with another text, or if memory grew by more than a tenth from the first third to the last.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from padir.benchmark.facts import run_facts
from padir.benchmark.http_client import HttpClient
from padir.files.lines import lines_of

# Texts that a client asks for at once.
_FLOOD = 200
# A model and a text that it is asked to translate.
Asked = tuple[str, str]


class Soak:
    """What has been asked of a server, and what came of it.

    Attributes:
      expected: each model's translation of each text, made by itself.
      counts: 'own', 'another' and 'lost' requests; other statuses by number; faults by name.
      memory: (seconds since the start, resident megabytes of the server).
    """

    def __init__(self, port: int, seed: int):
        self.expected: dict[Asked, str] = {}
        self.counts: Counter = Counter()
        self.memory: list[tuple[float, float]] = []
        self._port = port
        self._random = random.Random(seed)
        self.client = HttpClient(f"http://127.0.0.1:{port}", seconds=120)

    async def learn(self, texts: list[str]) -> None:
        """Has each model translate each text by itself: a request begins when the one before is answered."""
        _, offered = await self.client.ask("/models")
        for asked in itertools.product((model["name"] for model in offered), texts):
            status, body = await self._translate(asked)
            if status != 200:
                raise RuntimeError(f"{status}: {body}")
            self.expected[asked] = body["translatedText"]

    async def _translate(self, asked: Asked) -> tuple[int, Any]:
        model, text = asked
        return await self.client.ask("/translate", {"q": text, "model": model})

    async def ask(self, asked: Asked) -> None:
        """Asks a model for one text and judges the answer."""
        try:
            status, body = await self._translate(asked)
        except OSError:
            self.counts["lost"] += 1
            return
        if status != 200:
            self.counts[str(status)] += 1
        else:
            self.counts["own" if body["translatedText"] == self.expected[asked] else "another"] += 1

    async def misbehave(self, pid: int) -> None:
        """One fault, chosen at random."""
        _, text = self._random.choice(list(self.expected))
        fault = self._random.choice(("leave", "half a body", "nonsense", "flood", "pause"))
        self.counts[fault] += 1
        body = json.dumps({"q": [text] * 4}).encode()
        head = b"POST /translate HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        if fault == "leave":
            await self._send(head % len(body) + body, self._random.uniform(0, 0.2))
        elif fault == "half a body":
            await self._send(head % len(body) + body[:10], self._random.uniform(0, 2))
        elif fault == "nonsense":
            size = self._random.randrange(200)
            await self._send(self._random.choice((head % size, b"")) + self._random.randbytes(size) + b"\r\n\r\n", 0.5)
        elif fault == "flood":
            await asyncio.gather(*(self.ask(asked) for asked in self._random.choices(list(self.expected), k=_FLOOD)))
        else:
            os.kill(pid, signal.SIGSTOP)
            await asyncio.sleep(1)
            os.kill(pid, signal.SIGCONT)

    async def _send(self, data: bytes, seconds: float) -> None:
        """Opens a connection, sends, waits and leaves without reading."""
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", self._port)
            writer.write(data)
            await writer.drain()
            await asyncio.sleep(seconds)
            writer.transport.abort()

    async def run(self, pid: int, minutes: float, rate: float) -> None:
        """Asks at `rate` requests per second, with a fault every two seconds, for so many minutes."""
        began, known = time.monotonic(), list(self.expected)
        end, next_fault, next_reading = began + 60 * minutes, began, began
        async with asyncio.TaskGroup() as group:
            while (now := time.monotonic()) < end:
                if now >= next_fault:
                    group.create_task(self.misbehave(pid))
                    next_fault = now + 2
                if now >= next_reading:
                    self.memory.append((now - began, resident_megabytes(pid)))
                    next_reading = now + 5
                group.create_task(self.ask(self._random.choice(known)))
                await asyncio.sleep(self._random.expovariate(rate))

    async def stop(self, server: subprocess.Popen) -> int:
        """Tells the server to stop while 50 requests are in flight, which must be answered; returns its status."""
        some = self._random.sample(list(self.expected), min(50, len(self.expected)))
        in_flight = [asyncio.ensure_future(self.ask(asked)) for asked in some]
        await asyncio.sleep(0.2)
        server.terminate()
        await asyncio.gather(*in_flight)
        return await asyncio.to_thread(server.wait, 120)


def resident_megabytes(pid: int) -> float:
    """Memory that a process holds, by /proc."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) / 1024


def growth(memory: list[tuple[float, float]]) -> float:
    """Median memory of the last third over that of the first third, less 1."""
    third = max(1, len(memory) // 3)
    first, last = (statistics.median(value for _, value in part) for part in (memory[:third], memory[-third:]))
    return last / first - 1


async def wait_until_ready(client: HttpClient, server: subprocess.Popen) -> None:
    """Returns when all programs are compiled."""
    while server.poll() is None:
        with contextlib.suppress(OSError):
            if (await client.ask("/health"))[0] == 200:
                return
        await asyncio.sleep(0.5)
    raise RuntimeError(f"the server has ended with status {server.returncode}")


async def soak(options: argparse.Namespace, rest: list[str]) -> dict:
    """Starts the server, keeps it busy, stops it, and returns the result."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    # A queue that a flood does not fit into.
    limits = ["--gin.serve.limits=@Limits()"]
    limits += [f"--gin.Limits.{name}={_FLOOD // 2}" for name in ("max_queue", "max_items")]
    command = [sys.executable, "-m", "padir.cli", "serve", f"--run_dir={options.run_dir}", f"--port={port}", *limits]
    command += rest
    server = subprocess.Popen(command)
    try:
        state = Soak(port, options.seed)
        async with state.client:
            await wait_until_ready(state.client, server)
            lines = (line.raw.decode("utf-8", "replace").strip() for line in lines_of(options.input))
            texts = [text for text in dict.fromkeys(lines) if 0 < len(text) <= options.longest]
            await state.learn(texts[: options.texts])
            await state.run(server.pid, options.minutes, options.rate)
            _, metrics = await state.client.ask("/metrics")
            status = await state.stop(server)
    finally:
        server.kill()
    return {
        "minutes": options.minutes,
        "rate": options.rate,
        "models": list(dict.fromkeys(model for model, _ in state.expected)),
        "texts": len({text for _, text in state.expected}),
        "counts": dict(state.counts),
        "memory_growth": growth(state.memory),
        "memory_mb": state.memory,
        "exit_status": status,
        "metrics": metrics,
    }


def main() -> int:
    """Runs the soak, prints the counts, writes the result, and returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], epilog="Further options go to padir serve.")
    parser.add_argument("--run_dir", default="tatoeba_de_en_padir")
    parser.add_argument("--input", required=True, help="file with a text on each line")
    parser.add_argument("--output", required=True, help="JSON file to write")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=20.0, help="requests per second")
    parser.add_argument("--texts", type=int, default=10_000, help="distinct texts")
    parser.add_argument("--longest", type=int, default=100, help="characters of a text")
    parser.add_argument("--seed", type=int, default=0)
    options, rest = parser.parse_known_args()
    result = {"facts": run_facts(), **asyncio.run(soak(options, rest))}
    Path(options.output).write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    counts = result["counts"]
    print(f"{counts}; memory {result['memory_growth']:+.1%}; exit status {result['exit_status']}")
    bad = counts.get("lost", 0) + counts.get("another", 0) + counts.get("500", 0) + abs(result["exit_status"])
    return int(bad > 0 or result["memory_growth"] > 0.1)


if __name__ == "__main__":
    sys.exit(main())
