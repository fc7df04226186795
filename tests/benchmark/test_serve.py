"""The load generator: a schedule that waits for nobody, and a client that mixes up no answers."""

import asyncio
import contextlib
import json
import random

import numpy as np
import pytest

from padir.benchmark import serve
from padir.benchmark.http_client import HttpClient
from padir.benchmark.serve import Load, arrivals, load_table, one_load, serve_load
from padir.errors import PadirError


def test_arrivals_are_a_poisson_process():
    times = arrivals(50.0, 400.0, random.Random(0))
    gaps = np.diff([0.0, *times])
    assert times == sorted(times) and times[-1] < 400.0
    # Of 20,000 exponential gaps: mean and standard deviation both 1 / rate.
    assert np.mean(gaps) == pytest.approx(0.02, rel=0.03) and np.std(gaps) == pytest.approx(0.02, rel=0.03)
    assert len(arrivals(0.001, 1.0, random.Random(0))) == 1


class Serial:
    """A client whose server answers one request after the other, each after `seconds`."""

    def __init__(self, seconds):
        self._seconds, self._lock, self.at_once, self.most = seconds, asyncio.Lock(), 0, 0

    async def ask(self, path, fields):
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        async with self._lock:
            await asyncio.sleep(self._seconds)
        self.at_once -= 1
        if fields["q"] == "gone":
            raise ConnectionResetError
        return (429 if fields["q"] == "full" else 200), {}


def test_what_waits_for_a_slow_server_counts():
    """Five requests at a time are all sent, and the last has waited for the four before it."""
    client = Serial(0.05)
    load = asyncio.run(one_load(client, ["a"], [0.0] * 5, {}, 1.0, random.Random(0)))
    assert client.most == 5
    for count, latency in enumerate(sorted(load.latencies), 1):
        assert latency >= count * 0.05 - 1e-3


def test_other_answers_are_counted_apart():
    loads = [
        asyncio.run(one_load(Serial(0.0), [text], [0.0, 0.0], {}, 3.0, random.Random(0)))
        for text in ("a", "full", "gone")
    ]
    assert [dict(load.statuses) for load in loads] == [{200: 2}, {429: 2}, {0: 2}]
    assert [len(load.latencies) for load in loads] == [2, 0, 0]


@pytest.mark.parametrize(
    ("translated", "seconds", "saturated"),
    # Of ten requests, the last at 20 s: 1.5 s and 3 s behind, and one or two that were refused.
    [(10, 21.5, False), (10, 23.0, True), (9, 20.1, False), (8, 20.1, True)],
)
def test_when_a_server_is_saturated(translated, seconds, saturated):
    load = Load(0.5, 10, 20.0, latencies=[0.1] * translated, seconds=seconds)
    assert load.saturated == saturated


def test_a_slow_server_with_little_to_do_is_not_saturated():
    """Each answer takes four seconds, and none waits for another."""
    assert not Load(0.1, 2, 18.0, latencies=[4.0, 4.1], seconds=22.1).saturated
    assert Load(0.1, 2, 18.0, latencies=[4.0, 8.0], seconds=26.0).saturated


def test_servers_in_turn_until_they_are_saturated(tmp_path, monkeypatch, capsys):
    """Both get the same texts at the same times; the one that refuses too much is not asked for more."""
    asked = []

    class Server:
        def __init__(self, url):
            self.url = url

        async def __aenter__(self):
            return self

        async def __aexit__(self, *error):
            pass

        async def ask(self, path, fields=None):
            if path == "/health":
                return 200, {}
            asked.append((self.url, fields["q"]))
            return (429 if self.url == "http://b:1" and rate() > 50 else 200), {}

    def rate():
        return current[-1]

    current = []
    real = serve.one_load

    async def one_load(client, texts, times, fields, rate, randomness):
        current.append(rate)
        asked.append((client.url, times))
        return await real(client, texts, times, fields, rate, randomness)

    monkeypatch.setattr(serve, "HttpClient", Server)
    monkeypatch.setattr(serve, "one_load", one_load)
    (tmp_path / "in.txt").write_text("a\nb\nc\n")
    result = serve_load(
        inputs=[str(tmp_path / "in.txt")],
        output=str(tmp_path / "out.json"),
        servers=["first=http://a:1", "second=http://b:1"],
        rates=(40, 80, 160),
        seconds=0.2,
    )
    of = {url: [what for who, what in asked if who == url] for url in ("http://a:1", "http://b:1")}
    assert of["http://b:1"] == of["http://a:1"][: len(of["http://b:1"])]
    assert current == [40, 40, 80, 80, 160]
    first, second = result["servers"].values()
    assert [load["rate"] for load in first["loads"]] == [40, 80, 160] and not first["saturated"]
    assert [load["rate"] for load in second["loads"]] == [40, 80] and second["saturated"]
    assert first["most_translated_per_second"] == max(load["translated_per_second"] for load in first["loads"])
    # What came in 0.2 seconds and was answered at once was not translated in less.
    for load in first["loads"]:
        assert load["translated_per_second"] <= load["scheduled"] / 0.2
    assert json.loads((tmp_path / "out.json").read_text()) == result
    assert (tmp_path / "out_load.png").stat().st_size > 1000
    assert "second\n\n| requests/s" in capsys.readouterr().out


def test_table():
    load = Load(8.0, 5, latencies=[0.001, 0.002, 0.003, 0.004], delays=[0.0], seconds=2.0)
    load.statuses.update({200: 4, 429: 1})
    told = load.to_dict()
    assert told["translated_per_second"] == 2.0 and told["latency_ms"]["p50"] == pytest.approx(2.5)
    assert load_table([told]).splitlines()[-1] == "| 8 | 2.00 | 2.5 | 3.7 | 4.0 | 4.0 | 1× 429 |"


def answer(body, *, more=""):
    text = json.dumps(body)
    return f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(text)}\r\n{more}\r\n{text}"


async def with_server(handle, test):
    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        async with HttpClient(f"http://127.0.0.1:{port}") as client:
            found = await test(client)
        # The server sees the end of its connections.
        await asyncio.sleep(0.05)
        return found


def test_connections_are_used_again_and_opened_anew_where_the_server_has_closed_them():
    """The server closes each connection after two requests without saying so."""
    connections = []

    async def handle(reader, writer):
        connections.append(0)
        with contextlib.suppress(asyncio.IncompleteReadError):
            while connections[-1] < 2:
                head = await reader.readuntil(b"\r\n\r\n")
                size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                writer.write(answer(json.loads(await reader.readexactly(size))).encode())
                connections[-1] += 1
        writer.close()

    async def test(client):
        found = []
        for number in range(5):
            found.append(await client.ask("/translate", {"q": number}))
            await asyncio.sleep(0.01)
        return found

    assert asyncio.run(with_server(handle, test)) == [(200, {"q": number}) for number in range(5)]
    assert connections == [2, 2, 1]


def test_half_an_answer_is_none():
    async def handle(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer({"translatedText": "whole"})[:-4].encode())
        writer.close()

    async def test(client):
        with pytest.raises(OSError, match="before its answer was complete"):
            await client.ask("/health")

    asyncio.run(with_server(handle, test))


@pytest.mark.parametrize("url", ["https://a", "127.0.0.1:8000", "http://a/translate", "http://"])
def test_urls_that_are_none(url):
    with pytest.raises(PadirError, match="not of the form http://HOST:PORT"):
        HttpClient(url)


def test_mistakes(tmp_path):
    (tmp_path / "in.txt").write_text("a\n\n")
    (tmp_path / "empty.txt").write_text("\n")
    options = {"inputs": [str(tmp_path / "in.txt")], "output": str(tmp_path / "out.json")}
    # Nothing listens on the port for tcpmux.
    with pytest.raises(PadirError, match="cannot be reached .* start it with `padir serve`"):
        serve_load(**options, servers=["http://127.0.0.1:1"])
    with pytest.raises(PadirError, match="above 0"):
        serve_load(**options, rates=(0,))
    with pytest.raises(PadirError, match="benchmark_serve.rates: must ascend"):
        serve_load(**options, rates=(2, 1))
    with pytest.raises(PadirError, match="benchmark_serve.servers: two are called 'a'"):
        serve_load(**options, servers=["a=http://127.0.0.1:1", "a=http://127.0.0.1:2"])
    with pytest.raises(PadirError, match="benchmark_serve.servers: is empty"):
        serve_load(**options, servers=[])
    with pytest.raises(PadirError, match="empty.txt: no text"):
        serve_load(**options | {"inputs": [str(tmp_path / "empty.txt")]})
    assert not (tmp_path / "out.json").exists()
