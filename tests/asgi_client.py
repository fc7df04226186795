"""Calls an ASGI application without a socket: tests of the server ask it thousands of times."""

import asyncio
import contextlib
import json

from padir.serving.app import application


@contextlib.asynccontextmanager
async def serving(server, **options):
    """Runs a `Server`; yields ask(path, **fields) → (status, body), by POST if there are fields, else by GET."""
    app = application(server, **options)

    async def ask(path, **fields):
        kind = b"application/json"
        return await call(app, path, json.dumps(fields).encode() if fields else None, kind)

    ask.app = app
    async with server.running(app):
        yield ask


async def call(app, path, body=None, content_type=b"application/json", *, headers=(), host=b"test", leave=None):
    """Returns (status, body, JSON if it is some); the client leaves when the event `leave` is set."""
    sent, leave = [], leave or asyncio.Event()
    chunks = [body or b""] if isinstance(body or b"", bytes) else list(body)
    requests = [
        {"type": "http.request", "body": chunk, "more_body": index < len(chunks) - 1}
        for index, chunk in enumerate(chunks)
    ]

    async def receive():
        if requests:
            return requests.pop(0)
        await leave.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http",
        "http_version": "1.1",
        "asgi": {"version": "3.0"},
        "method": "GET" if body is None else "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "scheme": "http",
        "headers": [(b"content-type", content_type), (b"host", host), *headers],
        "client": ("test", 1),
        "server": ("test", 80),
    }
    await app(scope, receive, send)
    text = b"".join(message.get("body", b"") for message in sent)
    types = dict(sent[0]["headers"]).get(b"content-type", b"")
    return sent[0]["status"], json.loads(text) if types == b"application/json" else text.decode()
