"""The server as an ASGI application: LibreTranslate's `/translate`, `/refine`, `/health`, `/metrics` and the page."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.resources
import logging
import re
import sys
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import PurePath
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from padir.errors import PadirError
from padir.runtime import host_memory
from padir.serving import metrics
from padir.serving.batcher import Batcher
from padir.serving.limits import Limits, RequestRefused
from padir.serving.models import ServedModel
from padir.serving.queries import edit, fields_of, query
from padir.serving.work import Alone, Work, decode_batch

# Media types of the page's files.
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'",
}
# The header of a request: a name or an address, and perhaps a port.
_HOST = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]+)?")
_LOG = logging.getLogger("uvicorn.error")
# What a request may take before the server is ready: it may wait for a compilation.
COMPILING_SECONDS = 300.0
# What nginx logs for a client that has left; nobody reads the answer.
_CLIENT_LEFT = 499


class Server:
    """What the routes share: the models, the queue and the metrics.

    Attributes:
      models: by name; the first one answers queries that name none.
      limits: what is accepted.
      metrics: what `/metrics` shows.
      batcher: the queue; None until the application has started.
      hosts: the names by which it may be called; empty is any.
    """

    hosts: frozenset[str] = frozenset()

    def __init__(
        self,
        models: Sequence[ServedModel],
        limits: Limits,
        *,
        max_wait: float = 0.003,
        languages: tuple[str, str] | None = None,
        warm_up: bool = True,
    ):
        """See `padir.serving.serve.serve`; `max_wait` is in seconds, `languages` are codes of source and target."""
        self.models = {model.name: model for model in models}
        self.limits, self.metrics = limits, metrics.Metrics()
        self.batcher: Batcher | None = None
        self._max_wait, self._languages = max_wait, languages
        self._needed = [call for model in models for call in model.warm_up()] if warm_up else []
        # The page's as well: while one is compiled, requests wait.
        self._needed += [call for model in models for call in model.warm_up_page()] if warm_up else []
        self._warm, self._failures, self._failed, self._began = 0, 0, "", 0.0
        self.metrics.gauge("padir_queue_texts", "Texts that wait.", lambda: len(self.batcher or ()))
        self.metrics.gauge("padir_warm_programs", "Programs compiled at the start.", lambda: self._warm)
        self.metrics.gauge("padir_memory_maps", "Memory maps in use.", lambda: host_memory.memory_maps()[0])
        self.metrics.gauge("padir_ready", "1 when /health says ready.", lambda: self.is_ready)

    @property
    def is_ready(self) -> bool:
        """Whether all programs that the page and queries without options need are compiled, and batches are taken."""
        return self.batcher is not None and self.batcher.is_running and self._warm >= len(self._needed)

    @property
    def is_warming(self) -> bool:
        """Whether programs are still being compiled at the start."""
        return self._warm + self._failures < len(self._needed)

    def check_host(self, request: Request) -> None:
        """Raises RequestRefused if the request calls the server by a name that is not its own."""
        if not self.hosts:
            return
        # Not `request.url`, which has the server's address in place of a name that it cannot read.
        called = request.headers.get("host", "")
        name = _HOST.fullmatch(called)
        if name is None or name[1].lower() not in self.hosts:
            said = called if name is None else name[1]
            message = f"Host: this server is not called {said[:100]!r}; start it with --hosts to allow that"
            raise RequestRefused(400, message)

    @contextlib.asynccontextmanager
    async def running(self, app: Starlette) -> AsyncIterator[None]:
        """Starts the queue with the application; at its end, answers what waits and stops."""
        sizes = max((model.sizes for model in self.models.values()), key=lambda sizes: sizes[-1])
        self.batcher = Batcher(
            decode_batch, sizes, max_wait=self._max_wait, max_queue=self.limits.max_queue, metrics=self.metrics
        )
        self._began = time.monotonic()
        if self._needed:
            self._say(f"compiling {len(self._needed)} programs; until then a request may wait for one (see /health)")
        for call in self._needed:
            self.batcher.in_background(lambda call=call: self._warm_one(call))
        self.batcher.start()
        yield
        await self.batcher.close()

    @staticmethod
    def _say(what: str) -> None:
        print(f"padir serve: {what}", file=sys.stderr, flush=True)

    def _warm_one(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:
            self._failed = f"a program could not be compiled: {error}".splitlines()[0]
            self._failures += 1
            raise
        self._warm += 1
        if self._warm == len(self._needed):
            self._say(f"ready: all programs are compiled, after {time.monotonic() - self._began:.0f} s")

    async def translate(self, request: Request) -> Response:
        """`POST /translate`."""
        asked = query(await self._fields(request), self.limits)
        self._check_languages(asked.source, asked.target)
        # A server that is busy must not put long texts into tokens first, only to refuse them.
        self.batcher.check_room(sum(not text.isspace() for text in asked.texts if text))
        # In a thread, so that others are answered while a long text is put into tokens.
        work = await asyncio.to_thread(Work, self._model(asked.model), asked, self.limits, self._deadline(request))
        return await self._answer(request, work)

    async def refine(self, request: Request) -> Response:
        """`POST /refine`."""
        asked = edit(await self._fields(request), self.limits)
        return await self._answer(request, Alone(self._model(asked.model), asked, self._deadline(request)))

    async def _answer(self, request: Request, work: Work | Alone) -> Response:
        """Queues the items of a request and waits for them; takes them back if the client leaves or time runs out."""
        items = work.items
        self.batcher.submit(items)
        answered = asyncio.gather(*(item.future for item in items))
        # Whatever becomes of it has then been looked at, also where nobody waits for it any more.
        answered.add_done_callback(lambda done: done.cancelled() or done.exception())
        leaving = asyncio.ensure_future(_left(request))
        reason = "failed"  # If one of the items fails, the others are not decoded.
        try:
            await asyncio.wait(
                {answered, leaving},
                timeout=max(0.0, self._deadline(request) - time.monotonic()),
                return_when=asyncio.FIRST_COMPLETED,
            )
            if answered.done():
                answers = answered.result()
                self.metrics.texts.add(work.model.name, by=len(items))
                for steps in work.steps(answers):
                    self.metrics.steps.observe(steps)
                return JSONResponse(work.answer(answers))
            if leaving.done():
                reason = "client"
                return Response(status_code=_CLIENT_LEFT)
            reason = "deadline"
            raise RequestRefused(503, f"took longer than {self._deadline(request) - request.state.began:g} s")
        finally:
            leaving.cancel()
            self.batcher.withdraw([item for item in items if not item.future.done()], reason)

    async def _fields(self, request: Request) -> dict[str, Any]:
        """Reads the body, no more of it than allowed and no longer than allowed."""
        most = self.limits.max_body_bytes
        too_large = RequestRefused(413, f"the body is larger than {most} bytes")
        declared = request.headers.get("content-length", "")
        if declared.isdigit() and int(declared) > most:
            raise too_large
        body = bytearray()
        try:
            async with asyncio.timeout(max(0.0, self._deadline(request) - time.monotonic())):
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > most:
                        raise too_large
        except TimeoutError:
            raise RequestRefused(408, f"the body took longer than {self.limits.max_seconds:g} s") from None
        return fields_of(bytes(body), request.headers.get("content-type", ""))

    def _deadline(self, request: Request) -> float:
        """By `time.monotonic`; later for a request that came while programs were compiled at the start."""
        seconds = self.limits.max_seconds
        return request.state.began + (max(seconds, COMPILING_SECONDS) if request.state.may_compile else seconds)

    def _model(self, name: str | None) -> ServedModel:
        if name is None:
            return next(iter(self.models.values()))
        if name not in self.models:
            raise RequestRefused(400, f"model: unknown {name!r}; choose one of {', '.join(self.models)}")
        return self.models[name]

    def _check_languages(self, source: str | None, target: str | None) -> None:
        if self._languages is None:
            return
        for what, given, own in zip(("source", "target"), (source, target), self._languages, strict=True):
            if given not in (None, own) and not (what == "source" and given == "auto"):
                raise RequestRefused(400, f"{what}: {given!r} is not supported; this server's is {own!r}")

    async def languages(self, request: Request) -> Response:
        """`GET /languages`, in LibreTranslate's form; none are listed if the server was not told."""
        if self._languages is None:
            return JSONResponse([])
        source, target = self._languages
        return JSONResponse([{"code": source, "name": source, "targets": [target]}])

    async def offered(self, request: Request) -> Response:
        """`GET /models`: names and kinds, the first one is the default."""
        return JSONResponse([model.described() for model in self.models.values()])

    async def health(self, request: Request) -> Response:
        """`GET /health`: 200 once all programs are compiled, else 503 with how far it has come or what has failed."""
        self.check_host(request)
        if self.is_ready:
            return JSONResponse({"status": "ready"})
        progress = {"status": "warming", "warm": self._warm, "of": len(self._needed)}
        if self._failed or not self.batcher.is_running:
            progress |= {"status": "failed", "error": self._failed or "no batches are taken any more"}
        return JSONResponse(progress, 503)

    async def show_metrics(self, request: Request) -> Response:
        """`GET /metrics`."""
        self.check_host(request)
        return Response(self.metrics.render(), media_type=metrics.CONTENT_TYPE)


def application(server: Server, *, cors_origins: Sequence[str] = (), hosts: Sequence[str] = ()) -> Starlette:
    """Returns the ASGI application of a server.

    Args:
      server: what it serves.
      cors_origins: the origins whose pages may call it from a browser; none by default.
      hosts: the names by which it may be called; any by default.
    """
    # Names have no case, and a request's come in small letters.
    server.hosts = frozenset(map(str.lower, hosts))
    routes = [
        Route("/translate", _counted(server, server.translate), methods=["POST"]),
        Route("/refine", _counted(server, server.refine), methods=["POST"]),
        Route("/languages", _counted(server, server.languages)),
        Route("/models", _counted(server, server.offered)),
        Route("/health", server.health),
        Route("/metrics", server.show_metrics),
        *(Route(path, _file(server, content, kind)) for path, (content, kind) in _page().items()),
    ]
    middleware = []
    if cors_origins:
        allowed = {"allow_origins": list(cors_origins), "allow_methods": ["GET", "POST"]}
        middleware = [Middleware(CORSMiddleware, **allowed, allow_headers=["content-type"])]
    refusals = {
        RequestRefused: lambda request, refusal: _refused(refusal),
        HTTPException: lambda request, refusal: JSONResponse({"error": refusal.detail}, refusal.status_code),
    }
    return Starlette(routes=routes, middleware=middleware, lifespan=server.running, exception_handlers=refusals)


def _refused(refusal: RequestRefused) -> JSONResponse:
    return JSONResponse({"error": refusal.message}, refusal.status)


def _counted(server: Server, endpoint: Callable[[Request], Awaitable[Response]]) -> Callable:
    """The endpoint with its refusals as answers, counted and timed."""

    async def answer(request: Request) -> Response:
        """Calls the endpoint; whatever it raises becomes a status and a message."""
        request.state.began, request.state.may_compile = time.monotonic(), server.is_warming
        path = request.scope["path"]
        try:
            server.check_host(request)
            response = await endpoint(request)
        except RequestRefused as refusal:
            response = _refused(refusal)
            if refusal.status == 429:
                response.headers["Retry-After"] = "1"
            if refusal.status in (408, 413):
                # What is left of the body is not read.
                response.headers["Connection"] = "close"
        except PadirError as error:
            response = JSONResponse({"error": str(error)}, 400)
        except ClientDisconnect:
            response = Response(status_code=_CLIENT_LEFT)
        except Exception:
            # The traceback is for the operator, who finds it by the number that the client got.
            number = uuid.uuid4().hex[:12]
            _LOG.exception("error %s on %s", number, path)
            response = JSONResponse({"error": f"internal error {number}"}, 500)
        server.metrics.requests.add(path, str(response.status_code))
        if request.method == "POST":
            server.metrics.request_seconds.observe(time.monotonic() - request.state.began)
        return response

    return answer


async def _left(request: Request) -> None:
    """Returns when the client closes its connection; its body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _page() -> dict[str, tuple[bytes, str]]:
    """Content and media type of each of the page's files by its path: index.html at /, the others below /static.

    They are read once, at the start: no request ever opens a file.
    """
    found = {}
    for file in sorted((importlib.resources.files("padir.serving") / "page").iterdir(), key=lambda file: file.name):
        kind = _TYPES.get(PurePath(file.name).suffix)
        if kind is not None:
            path = "/" if file.name == "index.html" else f"/static/{file.name}"
            found[path] = file.read_bytes(), f"{kind}; charset=utf-8"
    return found


def _file(server: Server, content: bytes, media_type: str) -> Callable[[Request], Awaitable[Response]]:
    async def send(request: Request) -> Response:
        server.check_host(request)
        return Response(content, media_type=media_type, headers=_HEADERS)

    return send
