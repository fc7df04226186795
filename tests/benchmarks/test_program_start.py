"""Seconds to the first translation: each command is a process that sees its own compilation cache, or none."""

import json
import sys

import pytest

# Says the text and the cache that it sees.
ECHO = "import os; print(input(), os.environ.get('JAX_COMPILATION_CACHE_DIR'), file=open({!r}, 'a')); print('done')"


def test_a_process_with_and_without_a_cache(load_script, tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "of the caller")
    script, said = load_script("program_start"), tmp_path / "said"
    command = [sys.executable, "-c", ECHO.format(str(said))]
    assert script.seconds(command, "text", None) > 0 and script.seconds(command, "text", tmp_path / "cache") > 0
    assert said.read_text().splitlines() == ["text None", f"text {tmp_path / 'cache'}"]
    with pytest.raises(RuntimeError, match="1 texts, but 0 translations"):
        script.seconds([sys.executable, "-c", "input()"], "text", None)


def test_lines_of_a_command(load_script):
    script = load_script("program_start")
    upper = [sys.executable, "-c", "import sys; print(sys.stdin.read().upper(), end='')"]
    assert script.translated(upper, ["a", "b"]) == ["A", "B"]
    with pytest.raises(RuntimeError, match="2 texts, but 1 translations"):
        script.translated([sys.executable, "-c", "input(); print('one')"], ["a", "b"])


# Starts after a while, and is never ready; says what it was asked.
SERVER = """
import http.server, json, sys, time
asked = []
time.sleep(0.5)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        asked.append(self.path)
        self.send_response(503)
        self.end_headers()
    def do_POST(self):
        fields = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = fields["q"]
        with open(sys.argv[1], "w") as file:
            json.dump([fields, *asked], file)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"translatedText": text.upper()}).encode())
    def log_message(self, *_):
        pass
port = int(sys.argv[-1].removeprefix("--port="))
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


def test_a_server_is_waited_for_and_asked(load_script, tmp_path):
    script, said = load_script("program_start"), tmp_path / "said"
    assert script.seconds([sys.executable, "-c", SERVER, str(said), "serve"], "text", None) > 0.5
    assert json.loads(said.read_text()) == [{"q": "text"}, "/health"]
    script.seconds([sys.executable, "-c", SERVER, str(said), "serve"], "text", None, {"trace": True})
    assert json.loads(said.read_text()) == [{"q": "text", "trace": True}, "/health"]
    with pytest.raises(RuntimeError, match="did not start"):
        script.seconds([sys.executable, "-c", "", "serve"], "text", None)


def test_systems_take_turns_after_their_caches_are_filled(load_script, tmp_path, monkeypatch):
    script, asked = load_script("program_start"), []

    def seconds(command, text, cache, fields):
        page = {"trace": True, "steps": 6, "num_hypotheses": 4}
        assert (text, fields) == ("text", page if "page" in command else None)
        asked.append((command, cache))
        return float(len(asked))

    monkeypatch.setattr(script, "seconds", seconds)
    found = script.measure({"a": ["a"], "b": ["b"]}, tmp_path, "text", 3)
    turn = [(["a"], None), (["a"], tmp_path / "cache a"), (["b"], None), (["b"], tmp_path / "cache b")]
    assert asked == [turn[1], turn[3], *turn * 3]
    assert found["a, no cache"] == {"median": 7.0, "min": 3.0, "max": 11.0, "n": 3}
    assert list(found)[1:] == ["a, filled cache", "b, no cache", "b, filled cache"]
    page = "padir serve, its page"
    script.measure({page: ["page"]}, tmp_path, "text", 1)
    named = ["exported program", "padir translate", "padir serve", page]
    assert [list(script.commands_of(tmp_path, "run", serve)) for serve in (False, True)] == [named[:2], named]
