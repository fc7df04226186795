"""Documents of traces written by hand, and a server that answers with them: tests of the page need no model."""

from __future__ import annotations

import http.server
import json
import threading
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "padir" / "serving" / "page"
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
# As `padir.serving.app` sends it.
POLICY = "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'"


def step(read, write, confidence, remasked=()):
    """One step of a hypothesis: words as pieces, and the ids 10, 11, …"""
    told = [{"position": at, "why": "repeats its left neighbour"} for at in remasked]
    ids = list(range(10, 10 + len(write)))
    return {"read": read, "write": write, "ids": ids, "confidence": confidence, "remasked": told}


def hypothesis(steps, text, score, stopped, dropped=()):
    """A hypothesis, whose position i looks at source piece i only."""
    length = len(steps[0]["read"])
    looks = [[float(i == j) for j in range(4)] for i in range(length)]
    return {
        "text": text,
        "score": score,
        "length": length,
        "steps_run": len(steps),
        "stopped": stopped,
        "steps": steps,
        "dropped": list(dropped),
        "attention": [looks] * len(steps),
    }


def student(text="ein Hund schläft", words=("▁a", "▁dog", "▁sleeps")):
    """Two lengths of a refinement; the better one takes three steps, the other one."""
    masks = ["<mask>"] * 3 + ["</s>"]
    first = step(masks, ["▁a", "▁a", "▁sleeps", "</s>"], [0.9, 0.3, 0.8, 1.0], [1])
    second = step(["▁a", "<mask>", "▁sleeps", "</s>"], [*words, "</s>"], [0.95, 0.7, 0.9, 1.0])
    third = step([*words, "</s>"], [*words, "</s>"], [0.97, 0.85, 0.95, 1.0])
    short = step(["<mask>", "</s>"], ["▁dog", "</s>"], [0.4, 1.0])
    return {
        "format": "padir-trace/1",
        "model": {"name": "student", "kind": "padir", "step": 7},
        "source": {"text": text, "pieces": ["▁ein", "▁Hund", "▁schläft", "</s>"]},
        "decode": {"kind": "Refinement", "num_steps": 4, "num_hypotheses": 2},
        "translation": {"text": "a dog sleeps", "score": -0.1, "steps_run": 3, "failed": False, "cut_off": False},
        "hypotheses": [
            hypothesis([first, second, third], "".join(words).replace("▁", " ").strip(), -0.1, "nothing changed"),
            hypothesis([short], "dog", -0.9, "all steps were used"),
        ],
        "lengths": [{"length": 4, "probability": 0.6}, {"length": 2, "probability": 0.3}],
        "edited": None,
        "timings": {"total_ms": 12.0},
    }


def teacher():
    """An autoregressive model, which takes four passes."""
    best = {"text": "the dog sleeps", "score": -0.2, "pieces": ["▁the", "▁dog", "▁sleeps", "</s>"]}
    best |= {"ids": [20, 21, 22, 1], "confidence": [0.5, 0.9, 0.9, 0.99], "attention": [[0.25] * 4] * 4}
    changed = {"model": {"name": "teacher", "kind": "autoregressive", "step": 7}, "hypotheses": [best]}
    return student() | changed | {"decode": {"kind": "Autoregressive"}, "lengths": None, "timings": {"total_ms": 40.0}}


def refined(asked):
    """What the server makes of an edit: what is clamped stays, all else becomes 'x'."""
    count = len(asked["tokens"])
    typed = [t if isinstance(t, str) else f"id{t}" for t in asked["tokens"]]
    words = [f"▁{word}" if fixed else "▁x" for word, fixed in zip(typed, asked["clamped"], strict=True)]
    if asked["length"]:
        words = [*words, *["▁x"] * asked["length"]][: asked["length"] - 1]
    read = ["<mask>"] * len(words)
    made = hypothesis([step([*read, "</s>"], [*words, "</s>"], [1.0] * (len(words) + 1))], "", -0.3, "nothing changed")
    made["text"] = "".join(words).replace("▁", " ").strip()
    clamped = [*asked["clamped"], *[False] * (len(words) - count)][: len(words)] + [False]
    edited = {"clamped": clamped, "pieces": [*read, "</s>"], "ids": [9] * (len(words) + 1)}
    return student() | {"hypotheses": [made], "edited": edited}


class StandIn:
    """A server on a free port of this machine, in a thread.

    Attributes:
      url: where it is.
      asked: (path, fields) of each request, in order.
      offered: what `/models` answers.
      canned: documents of the student and the teacher to answer with instead; or None.
    """

    def __init__(self, offered):
        self.offered, self.asked, self.canned = offered, [], None
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_port}/"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self):
        """Stops it."""
        self._server.shutdown()
        self._server.server_close()

    def answer(self, path, fields):
        """(status, object) for a request."""
        self.asked.append((path, fields))
        if path == "/refine":
            return 200, {"trace": refined(fields)}
        if len(fields["q"]) > 10_000:
            return 413, {"error": f"text 1: {len(fields['q'])} characters are more than 10000"}
        if self.canned is not None:
            return 200, {"trace": self.canned[fields.get("model") == "teacher"]}
        made = teacher() if fields.get("model") == "teacher" else student()
        # What is asked for comes back, as pieces of the source and as a word of the target.
        words = fields["q"].split(" ")
        made["source"] = {"text": fields["q"], "pieces": [f"▁{word}" for word in words] + ["</s>"]}
        if fields["q"].startswith("show"):
            made["hypotheses"] = student(words=("▁a", f"▁{fields['q']}", "▁end"))["hypotheses"]
        return 200, {"translatedText": made["translation"]["text"], "trace": made}

    def _handler(self):
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                name = "index.html" if self.path == "/" else self.path.removeprefix("/static/")
                if self.path == "/models":
                    self.send(200, json.dumps(server.offered).encode(), "application/json")
                elif (PAGE / Path(name).name).is_file():
                    self.send(200, (PAGE / Path(name).name).read_bytes(), _TYPES[Path(name).suffix])
                else:
                    self.send(404, b"", "text/plain")

            def do_POST(self):
                fields = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status, said = server.answer(self.path, fields)
                self.send(status, json.dumps(said).encode(), "application/json")

            def send(self, status, body, kind):
                self.send_response(status)
                self.send_header("Content-Type", f"{kind}; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Content-Security-Policy", POLICY)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *arguments):
                pass

        return Handler
