"""`padir serve` as a process: a trained model behind a socket, and how it stops."""

import contextlib
import json
import os
import signal
import socket
import threading
import time
import urllib.request
from types import SimpleNamespace

import pytest
from stand_in import StandIn, train_vocabulary

from padir.decoding.refinement import Refinement
from padir.errors import PadirError
from padir.serving import listen as listening
from padir.serving import serve as serving
from padir.serving.app import Server
from padir.serving.limits import Limits
from padir.serving.listen import listen
from padir.serving.models import ServedModel
from padir.serving.serve import serve


def test_a_real_model_translates_and_what_is_in_flight_is_finished(served):
    """SIGTERM comes while the first request waits for its compilation."""
    process, url = served
    assert urllib.request.urlopen(f"{url}/health").status == 200
    answers = []

    def ask():
        body = json.dumps({"q": "Ich habe heute keine Zeit.", "source": "de", "target": "en"}).encode()
        request = urllib.request.Request(f"{url}/translate", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            answers.append(json.load(answer))

    asking = threading.Thread(target=ask)
    asking.start()
    while "padir_batch_size_count 1" not in urllib.request.urlopen(f"{url}/metrics").read().decode():
        assert asking.is_alive()
    process.send_signal(signal.SIGTERM)
    asking.join()
    assert [answer["translatedText"] for answer in answers] == ["I don't have any time today."]
    assert answers[0]["model"] == "tatoeba_de_en_padir" and 1 <= answers[0]["stepsRun"] <= 4
    assert process.wait() == 0


@pytest.mark.parametrize("left", [True, False])
def test_the_process_does_not_wait_for_a_program_that_nobody_needs(monkeypatch, left):
    ended = []
    monkeypatch.setattr(os, "_exit", ended.append)

    def listens(server, **options):
        server.batcher = SimpleNamespace(left_work_behind=left)

    monkeypatch.setattr(listening, "listen", listens)
    serve(run_dir="tatoeba_de_en_padir", warm_up=False)
    assert ended == [0] * left


@pytest.mark.parametrize(
    "options, message",
    [
        ({"others": ["teacher"]}, "'teacher' is not of the form NAME=RUN_DIR"),
        ({"others": ["run=x"]}, "two models are called 'run'"),
        ({"source_language": "de"}, "give both source_language and target_language"),
        ({"others": ["other=x"], "constraint": "c.json"}, "constraint: would hold for the first model only"),
        ({"hosts": ["*.example.org"]}, "serve.hosts: '.*' is no name of a host"),
        ({"max_wait_ms": -1.0}, "max_wait_ms: -1.0 is not from 0 to 1000"),
        ({"max_batch_size": 3}, "3 is not a power of 2"),
        ({}, "no trained model found"),
    ],
)
def test_mistakes(tmp_path, options, message):
    with pytest.raises(PadirError, match=message):
        serve(run_dir=str(tmp_path / "run"), **options)


def test_without_the_extra(monkeypatch, tmp_path):
    monkeypatch.setattr(serving, "_NEEDS", ("starlette", "no_such_server"))
    with pytest.raises(PadirError, match=r"needs no_such_server; pip install '\.\[serve\]' in a clone"):
        serve(run_dir=str(tmp_path))


def test_a_port_that_is_taken(tmp_path):
    stand_in = StandIn(train_vocabulary(tmp_path / "v.model"))
    server = Server([ServedModel("one", stand_in, Refinement(), (1,))], Limits(), warm_up=False)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(PadirError, match=f"cannot listen on 127.0.0.1 port {port}"):
            listen(server, host="127.0.0.1", port=port)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_as_if_nothing_had_happened(tmp_path, number):
    stand_in = StandIn(train_vocabulary(tmp_path / "v.model"))
    server = Server([ServedModel("one", stand_in, Refinement(), (1,))], Limits(), warm_up=False)
    handlers = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)]

    def stop():
        while server.batcher is None or not server.batcher.is_running:
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    stopping = threading.Thread(target=stop)
    stopping.start()
    listen(server, host="127.0.0.1", port=0)
    stopping.join()
    assert not server.batcher.is_running and not server.batcher.left_work_behind
    assert [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)] == handlers


def test_further_connections_than_the_limit_are_refused(tmp_path):
    stand_in = StandIn(train_vocabulary(tmp_path / "v.model"))
    server = Server([ServedModel("one", stand_in, Refinement(), (1,))], Limits(max_connections=2), warm_up=False)
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    statuses = []

    def connect():
        """As soon as it listens."""
        for _ in range(1000):
            with contextlib.suppress(ConnectionRefusedError):
                return socket.create_connection(("127.0.0.1", port), timeout=30)
            time.sleep(0.01)
        raise AssertionError("it does not listen")

    def ask():
        try:
            with contextlib.ExitStack() as kept_open:
                for _ in range(3):
                    connection = kept_open.enter_context(connect())
                    connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
                    statuses.append(int(connection.recv(4096).split()[1]))
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    asking = threading.Thread(target=ask)
    asking.start()
    listen(server, host="127.0.0.1", port=port)
    asking.join()
    assert statuses == [200, 200, 503]
