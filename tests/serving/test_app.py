"""The routes, with a translator that answers at once."""

import asyncio
import dataclasses
import json
import re
import sys
import threading
import time

import numpy as np
import pytest
from asgi_client import call, serving
from stand_in import LONGEST_SOURCE, StandIn, sentence, train_vocabulary, translated

from padir.decoding.ranking import RankByLogProbability
from padir.decoding.refinement import Refinement
from padir.errors import PadirError
from padir.inference.trace import traced
from padir.serving import models
from padir.serving.app import Server
from padir.serving.limits import Limits
from padir.serving.listen import hosts_of
from padir.serving.models import ServedModel, batch_sizes
from padir.serving.queries import Query


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    return train_vocabulary(tmp_path_factory.mktemp("vocabulary") / "v.model")


@pytest.fixture
def make(vocabulary):
    """Returns make(limits, names, seconds_per_batch, …) -> Server of stand-ins."""

    def server(limits=Limits(), names=("one",), seconds=0.0, **options):
        models = [
            ServedModel(name, StandIn(vocabulary, seconds_per_batch=seconds, step=step), Refinement(), (1, 4, 16))
            for step, name in enumerate(names)
        ]
        return Server(models, limits, warm_up=False, **options)

    return server


def run(server, test, **options):
    async def whole():
        async with serving(server, **options) as ask:
            return await test(ask)

    return asyncio.run(whole())


def test_one_text_and_a_list(make):
    async def test(ask):
        return await ask("/translate", q="no 1 is here", source="de", target="en"), await ask(
            "/translate", q=["no 2 is here", "  ", "\ufeff", "no 3 is here now"], alternatives=1
        )

    (status, one), (_, several) = run(make(), test)
    assert status == 200 and one.pop("milliseconds") >= 0
    assert one == {"translatedText": "here is 1 no", "stepsRun": 1, "model": "one"}
    assert len(several.pop("milliseconds")) == 4
    # What is blank has nothing to translate.
    assert several == {
        "translatedText": ["here is 2 no", "  ", "\ufeff", "now here is 3 no"],
        "stepsRun": [1, 0, 0, 1],
        "alternatives": [[], [], [], []],
        "model": "one",
    }


def test_ten_thousand_requests_are_answered_each_with_its_own_text(make):
    """200 clients at a time."""
    server = make()
    answers = {}

    async def test(ask):
        numbers = iter(range(10_000))

        async def client():
            for number in numbers:
                answers[number] = await ask("/translate", q=sentence(number))

        await asyncio.gather(*(client() for _ in range(200)))

    run(server, test)
    assert {status for status, _ in answers.values()} == {200}
    texts = {number: body["translatedText"] for number, (_, body) in answers.items()}
    assert texts == {number: translated(sentence(number)) for number in range(10_000)}
    batches = server.models["one"].translator.batches
    assert len(batches) < 5000 and max(map(len, batches)) == 16
    assert server.metrics.texts.value("one") == 10_000


def test_models_by_name(make):
    server = make(names=("student", "teacher"))

    async def test(ask):
        return [await ask("/translate", q="no 1", model=name) for name in (None, "teacher", "nobody")] + [
            await ask("/models")
        ]

    first, second, third, models = run(server, test)
    assert (first[1]["model"], second[1]["model"]) == ("student", "teacher")
    assert [len(model.translator.batches) for model in server.models.values()] == [1, 1]
    assert third == (400, {"error": "model: unknown 'nobody'; choose one of student, teacher"})
    told = {"name": "teacher", "kind": "padir", "refines": True, "longestSource": LONGEST_SOURCE}
    assert models[1][1] == told | {"steps": 4, "lengths": 4, "examples": []}


def test_errors_of_addresses_are_json_too(make):
    async def test(ask):
        return await ask("/translate"), await ask("/nowhere")

    assert run(make(), test) == ((405, {"error": "Method Not Allowed"}), (404, {"error": "Not Found"}))


def test_examples_are_offered(make):
    model = make().models["one"]
    offered = dataclasses.replace(model, examples=("no 1",)).described()
    assert offered["examples"] == ["no 1"] and model.described()["examples"] == []


def test_options_of_a_query_change_the_decode(make):
    model = make().models["one"]
    assert model.decode_for(Query(("a",))) is model.decode
    assert model.decode_for(Query(("a",), steps=2, num_hypotheses=3)) == Refinement(num_steps=2, num_hypotheses=3)
    assert model.decode_for(Query(("a",), alternatives=2)) == Refinement(num_hypotheses=3)


def test_a_query_gets_the_hypotheses_that_the_server_would_not_return_by_itself(make):
    rank = RankByLogProbability(length_weight=0.1)
    lazy = Refinement(num_hypotheses=5, likeliest_first=True, rank=rank)
    model = dataclasses.replace(make().models["one"], decode=lazy)
    assert model.decode_for(Query(("a",), steps=2)) == dataclasses.replace(lazy, num_steps=2)
    for query in (Query(("a",), alternatives=3), Query(("a",), num_hypotheses=5)):
        assert model.decode_for(query) == dataclasses.replace(lazy, likeliest_first=False)
    single = model.decode_for(Query(("a",), num_hypotheses=1))
    assert single == dataclasses.replace(lazy, num_hypotheses=1, likeliest_first=False)
    pruned = Refinement(num_hypotheses=5, keep_hypotheses=2)
    model = dataclasses.replace(model, decode=pruned)
    assert model.decode_for(Query(("a",), alternatives=3)) == dataclasses.replace(pruned, keep_hypotheses=None)
    assert model.decode_for(Query(("a",), num_hypotheses=3)) == dataclasses.replace(pruned, num_hypotheses=3)
    assert model.decode_for(Query(("a",), num_hypotheses=1)) == Refinement(num_hypotheses=1, keep_hypotheses=1)


def test_too_long_is_413_or_split_if_asked(make):
    long = "\n".join(sentence(number) for number in range(20))

    async def test(ask):
        return [
            await ask("/translate", q=long),
            await ask("/translate", q=long, split=True),
            await ask("/translate", q=["no 1", "is " * 60], split=True),
            await ask("/translate", q=long, split=True, trace=True),
            await ask("/translate", q=long, trace=True),
        ]

    refused, split, still, traced, hint = run(make(), test)
    assert refused[0] == 413
    assert f"more than the {LONGEST_SOURCE} that the model allows; with split=true" in refused[1]["error"]
    text = "\n".join(translated(sentence(number)) for number in range(20))
    assert (split[0], split[1]["translatedText"]) == (200, text)
    assert still[0] == 413 and still[1]["error"].startswith("text 2, sentence 1: ")
    assert traced == (400, {"error": "trace: text 1 would be split, and a trace is of one decode"})
    # What would be refused is not advised.
    assert hint[0] == 413 and "split" not in hint[1]["error"]


def test_limits(make):
    server = make(Limits(max_body_bytes=200, max_text_chars=50, max_items=2))

    async def test(ask):
        chunks = [b'{"q": "', b"a" * 300, b'"}']
        return [
            await call(ask.app, "/translate", b"", headers=[(b"content-length", b"201")]),
            await call(ask.app, "/translate", chunks),
            await ask("/translate", q="a" * 51),
            await ask("/translate", q=["a"] * 3),
            await ask("/translate", q="a\nb\nc " + "is " * 14, split=True),
        ]

    for status, body in run(server, test):
        assert status == 413 and "error" in body
    assert server.metrics.requests.value("/translate", "413") == 5


def test_a_full_queue_answers_429_at_once(make, monkeypatch):
    server = make(Limits(max_queue=4, max_items=4), seconds=0.3)

    async def test(ask):
        first = asyncio.ensure_future(ask("/translate", q="no 1"))
        while not server.metrics.batch_size._sum:
            await asyncio.sleep(0.001)
        waiting = asyncio.ensure_future(ask("/translate", q=["no 2", "no 3", "no 4"]))
        await asyncio.sleep(0.01)
        # Nothing is put into tokens for an answer that is certain.
        with monkeypatch.context() as patched:
            patched.setattr(ServedModel, "tokenize", None)
            refused = await ask("/translate", q=["no 5", "no 6"])
        # The first is still being decoded.
        assert not first.done()
        return refused, await first, await waiting

    refused, first, waiting = run(server, test)
    assert refused == (429, {"error": "the queue of 4 texts is full; try again later"})
    assert first[0] == 200 and waiting[1]["translatedText"] == ["2 no", "3 no", "4 no"]


def test_a_client_that_leaves_is_dropped(make):
    server = make(seconds=0.2)

    async def test(ask):
        first = asyncio.ensure_future(ask("/translate", q="no 1"))
        await asyncio.sleep(0.05)
        leave = asyncio.Event()
        body = json.dumps({"q": ["no 2", "no 3"]}).encode()
        leaving = asyncio.ensure_future(call(ask.app, "/translate", body, leave=leave))
        await asyncio.sleep(0.02)
        leave.set()
        assert (await leaving)[0] == 499
        return await first, await ask("/translate", q="no 4")

    first, last = run(server, test)
    assert first[1]["translatedText"] == "1 no" and last[1]["translatedText"] == "4 no"
    assert [len(batch) for batch in server.models["one"].translator.batches] == [1, 1]
    assert server.metrics.dropped.value("client") == 2


def test_the_time_limit(make):
    server = make(Limits(max_seconds=0.2), seconds=1.0)

    async def test(ask):
        began = time.monotonic()
        answer = await ask("/translate", q="no 1")
        return answer, time.monotonic() - began

    answer, _ = run(server, test)
    assert answer == (503, {"error": "took longer than 0.2 s"})


def test_texts_beside_one_that_fails_are_not_decoded(make):
    server = make(seconds=0.02)
    translator = server.models["one"].translator
    decode_ids, bad = translator.decode_ids, translator.tokenize("no 17")

    def fails(sources, *others):
        if bad in [list(ids) for ids in sources]:
            raise ZeroDivisionError
        return decode_ids(sources, *others)

    translator.decode_ids = fails
    status, _ = run(server, lambda ask: ask("/translate", q=[f"no {number}" for number in range(10, 70)]))
    # Batches hold 16. Those of the first are tried alone; the others still wait when one of these fails.
    assert status == 500 and sum(map(len, translator.batches)) == 15
    assert server.metrics.dropped.value("failed") == 60 - 16
    assert server.metrics.dropped.value("deadline") == 0


def test_what_a_beam_did_not_find_is_no_alternative(make):
    server = make()
    translator = server.models["one"].translator
    decode_ids = translator.decode_ids

    def with_two_more(*given):
        found = decode_ids(*given)
        other = np.where(np.arange(found.tokens.shape[2]) < 2, found.tokens, 0)
        scores = np.concatenate([found.scores, found.scores - 1, np.full_like(found.scores, -np.inf)], axis=1)
        return dataclasses.replace(
            found,
            tokens=np.concatenate([found.tokens, other, np.zeros_like(other)], axis=1),
            scores=scores,
            predicted_lengths=np.repeat(found.predicted_lengths, 3, axis=1),
            steps_run=np.repeat(found.steps_run, 3, axis=1),
        )

    translator.decode_ids = with_two_more
    _, body = run(server, lambda ask: ask("/translate", q="no 1 is here", alternatives=2))
    assert body["translatedText"] == "here is 1 no" and body["alternatives"] == ["here"]


def test_a_defect_is_500_without_details(make, caplog):
    server = make()
    server.models["one"].translator.decode_ids = lambda *given: 1 / 0
    status, body = run(server, lambda ask: ask("/translate", q="no 1"))
    assert status == 500 and body["error"].startswith("internal error ") and "zero" not in body["error"]
    assert body["error"].split()[-1] in caplog.text and "ZeroDivisionError" in caplog.text


def test_languages(make):
    server = make(languages=("de", "en"))

    async def test(ask):
        given = ({"source": "auto", "target": "en"}, {"source": "fr", "target": "en"}, {"target": "fr"})
        return [await ask("/translate", q="no 1", **fields) for fields in given] + [await ask("/languages")]

    good, source, target, languages = run(server, test)
    assert good[0] == 200
    assert source == (400, {"error": "source: 'fr' is not supported; this server's is 'de'"})
    assert target == (400, {"error": "target: 'fr' is not supported; this server's is 'en'"})
    assert languages == (200, [{"code": "de", "name": "de", "targets": ["en"]}])


def test_health_and_metrics(make, capsys):
    """Ready when every program is warm; requests are answered before that."""
    server = make(seconds=0.02)
    server._needed = server.models["one"].warm_up()[:5]

    async def test(ask):
        early = await ask("/health"), await ask("/translate", q="no 1")
        while not server.is_ready:
            await asyncio.sleep(0.01)
        return *early, await ask("/health"), await ask("/metrics")

    early, answer, late, (_, text) = run(server, test)
    assert early == (503, {"status": "warming", "warm": 0, "of": 5})
    assert answer[1]["translatedText"] == "1 no"
    assert late == (200, {"status": "ready"})
    begun, ended = capsys.readouterr().err.splitlines()
    assert begun == "padir serve: compiling 5 programs; until then a request may wait for one (see /health)"
    assert re.fullmatch(r"padir serve: ready: all programs are compiled, after \d+ s", ended)
    lines = text.splitlines()
    for line in (
        'padir_requests_total{path="/translate",status="200"} 1',
        'padir_texts_total{model="one"} 1',
        "padir_queue_texts 0",
        "padir_warm_programs 5",
        "padir_ready 1",
        'padir_steps_bucket{le="1"} 1',
        "padir_request_seconds_count 1",
    ):
        assert line in lines
    (maps,) = (line.split()[1] for line in lines if line.startswith("padir_memory_maps "))
    assert (int(float(maps)) > 0) == (sys.platform == "linux")


def test_health_says_what_failed(make):
    """A program that cannot be compiled, and a queue from which nothing is taken any more."""
    server = make()

    def broken():
        raise RuntimeError("no memory\nfor it")

    server._needed = [broken, *server.models["one"].warm_up()[:1]]

    async def test(ask):
        while server._warm < 1:
            await asyncio.sleep(0.01)
        failed = await ask("/health")
        server._warm, server._failed = 2, ""
        ready = await ask("/health")
        server.batcher._task.cancel()
        await asyncio.sleep(0.01)
        dead = await ask("/health")
        refused = await ask("/translate", q="no 1")
        server.batcher._task = None
        return failed, ready, dead, refused

    failed, ready, dead, refused = run(server, test)
    # Nobody waits five minutes for what cannot come.
    assert not server.is_warming
    assert refused == (503, {"error": "no batches are taken any more; restart the server"})
    message = "a program could not be compiled: no memory"
    assert failed == (503, {"status": "failed", "warm": 1, "of": 2, "error": message})
    assert ready[0] == 200
    assert dead == (503, {"status": "failed", "warm": 2, "of": 2, "error": "no batches are taken any more"})


def test_the_names_of_the_server(make):
    async def test(ask):
        answers = [await ask(path) for path in ("/health", "/metrics", "/models")]
        return [(status, body["error"] if status == 400 else None) for status, body in answers]

    message = "Host: this server is not called 'test'; start it with --hosts to allow that"
    refused = run(make(), test, hosts=["localhost"])
    assert set(refused) == {(400, message)}
    assert {status for status, _ in run(make(), test, hosts=["localhost", "TEST"])} == {200}


@pytest.mark.parametrize(
    "host",
    [b"a.example", b"a`b.example", b'a"b.example', b"a{b.example", b"a.example#@localhost", b"localhost@a.example"]
    + [b"localhost a.example", b"local\xc3\xb6host", b"[::1", b"::1", b"localhost:80:80", b"localhost:x", b""],
)
def test_a_name_that_cannot_be_read_is_none_of_the_servers(make, host):
    """A page whose name resolves to this machine must not reach the server by any spelling of it."""

    async def test(ask):
        paths = "/", "/static/viewer.js", "/health", "/metrics", "/models", "/languages"
        got = [await call(ask.app, path, host=host) for path in paths]
        return [*got, await call(ask.app, "/translate", b'{"q": "no 1"}', host=host)]

    answers = run(make(), test, hosts=hosts_of("127.0.0.1", ()))
    assert {status for status, _ in answers} == {400}
    assert all("this server is not called" in body["error"] for _, body in answers)


def test_names_of_the_server_are_read_with_their_ports(make):
    async def test(ask):
        hosts = b"localhost", b"LOCALHOST:8000", b"127.0.0.1:8000", b"[::1]:8000", b"[::1]"
        return [(await call(ask.app, path, host=host))[0] for host in hosts for path in ("/", "/health")]

    assert set(run(make(), test, hosts=hosts_of("127.0.0.1", ()))) == {200}


def test_names_of_a_server_that_only_this_machine_can_reach():
    assert set(hosts_of("127.0.0.1", ())) == {"127.0.0.1", "localhost", "::1", "[::1]"}
    assert set(hosts_of("127.0.0.1", ["a.example"])) == {*hosts_of("127.0.0.1", ()), "a.example"}
    assert hosts_of("0.0.0.0", ()) == ()
    assert "localhost" in hosts_of("0.0.0.0", ["a.example"])


def test_texts_are_put_into_tokens_outside_the_event_loop(make, monkeypatch):
    """Others are answered while a long text is."""
    threads, tokenize = [], ServedModel.tokenize

    def noted(self, *arguments, **options):
        threads.append(threading.current_thread())
        return tokenize(self, *arguments, **options)

    monkeypatch.setattr(ServedModel, "tokenize", noted)
    run(make(), lambda ask: ask("/translate", q="no 1 is here"))
    assert threads and threading.main_thread() not in threads


def test_what_is_warmed_up_is_every_width_and_number_of_rows(make):
    model = make().models["one"]
    for program in model.warm_up():
        program()
    # With the length token they fill a bucket.
    widths = (7, 15, 23, 31, LONGEST_SOURCE)
    assert model.translator.batches == [[width] * rows for rows in (1, 4, 16) for width in widths]


def test_the_page_is_warmed_up_for_what_it_asks(make, monkeypatch):
    """A trace with several lengths, and going on from what was edited."""
    model, asked = make().models["one"], []
    monkeypatch.setattr(models, "watch", lambda translator, source, decode: asked.append((len(source), decode)))
    monkeypatch.setattr(
        StandIn, "continue_ids", lambda self, source, tokens, clamped, decode: asked.append((len(source), decode))
    )
    for program in model.warm_up_page():
        program()
    both = Refinement(num_hypotheses=4), traced(Refinement())
    assert asked == [(width, decode) for width in (7, 15, 23, 31) for decode in both]


def test_the_page_and_no_other_file(make):
    async def test(ask):
        paths = ("/", "/static/viewer.js", "/static/../app.py", "/static/%2e%2e/app.py", "/static/", "/etc/passwd")
        return [await ask(path) for path in paths]

    (index, page), (script, code), *others = run(make(), test)
    assert (index, script) == (200, 200) and "<title>PaDIR</title>" in page and "use strict" in code
    assert {status for status, _ in others} == {404}


def test_cors_is_off_unless_asked_for(make):
    async def test(ask):
        sent = []

        async def send(message):
            sent.append(message)

        async def receive():
            return {"type": "http.request", "body": b""}

        scope = {"type": "http", "method": "GET", "path": "/health", "query_string": b"", "root_path": ""}
        await ask.app({**scope, "headers": [(b"origin", b"https://a.example")]}, receive, send)
        return dict(sent[0]["headers"]).get(b"access-control-allow-origin")

    assert run(make(), test) is None
    assert run(make(), test, cors_origins=["https://a.example"]) == b"https://a.example"
    assert run(make(), test, cors_origins=["https://b.example"]) is None


def test_batch_sizes():
    assert batch_sizes(1) == (1,) and batch_sizes(8) == (1, 4, 8) and batch_sizes(64) == (1, 4, 16, 64)
    with pytest.raises(PadirError, match="max_batch_size: 12 is not a power of 2"):
        batch_sizes(12)
