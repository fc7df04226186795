"""Buckets without a cloud: gcp-storage-emulator in this process, with what it lacks, and faults on demand.

The emulator answers gcsfs, google-cloud-storage, TensorStore and ArrayRecord. It ignores conditions on generations;
here they hold, as they do in the cloud. It serves one connection at a time; here each has a thread.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from http import server

from gcp_storage_emulator.exceptions import NotFound
from gcp_storage_emulator.handlers import objects as emulated_objects
from gcp_storage_emulator.handlers.buckets import create_bucket
from gcp_storage_emulator.server import RequestHandler
from gcp_storage_emulator.storage import Storage

BUCKET = "test-bucket"
# It calls every object that is asked for and not there an error.
logging.getLogger("gcp_storage_emulator").setLevel(logging.CRITICAL)
_OBJECT = re.compile(r"(?:/download)?(?:/storage/v1)?/b/([^/]+)/o/([^/]+)$")
_UPLOAD = re.compile(r"/upload/storage/v1/b/([^/]+)/o$")


@dataclass
class Request:
    """A request that has arrived: its method, its path decoded, its query, and its number from 0."""

    method: str
    path: str
    query: dict[str, str]
    number: int


@dataclass
class Faults:
    """What goes wrong. `fault` is asked at every request; it answers with one of these, or None.

    drop: the connection is closed without an answer. truncate: after half the answer. lose: the request is carried out
    and the connection then closed without an answer. A number: this status. 'slow': the answer takes 0.3 seconds.
    """

    fault: Callable[[Request], str | int | None] = lambda request: None
    requests: list[Request] = field(default_factory=list)

    @contextlib.contextmanager
    def happen(self, fault: Callable[[Request], str | int | None]) -> Iterator[list[Request]]:
        """Within the block, faults happen; yields the requests of the block."""
        first = len(self.requests)
        seen: list[Request] = []

        def noted(request: Request) -> str | int | None:
            request.number -= first
            seen.append(request)
            return fault(request)

        self.fault = noted
        try:
            yield seen
        finally:
            self.fault = lambda request: None


class _Handler(RequestHandler):
    """The emulator's handler of one connection behind conditions and faults."""

    faults: Faults
    lock: threading.RLock

    def _answer(self, method: str) -> None:
        parsed = urllib.parse.urlparse(self.path)
        query = {key: values[0] for key, values in urllib.parse.parse_qs(parsed.query).items()}
        with self.lock:
            request = Request(method, urllib.parse.unquote(parsed.path), query, len(self.faults.requests))
            self.faults.requests.append(request)
            fault = self.faults.fault(request)
        if fault == "drop":
            self.connection.close()
            return
        if fault == "slow":
            time.sleep(0.3)
        if fault in ("truncate", "lose"):
            self._cut(method, lose=fault == "lose")
            return
        with self.lock:
            found = _OBJECT.match(parsed.path) if method == "GET" else None
            self._version = self._generation(found) if found else None
            status = fault if isinstance(fault, int) else self._refused(method, parsed.path, query)
            if status:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                self._say(status)
            else:
                getattr(super(), f"do_{method}")()

    _version: str | None = None

    def end_headers(self) -> None:
        """Adds the generation of an object that is read, by which TensorStore makes its writes conditional."""
        if self._version is not None:
            self.send_header("x-goog-generation", self._version)
        super().end_headers()

    def _cut(self, method: str, *, lose: bool) -> None:
        kept, self.wfile = self.wfile, _Kept()
        with self.lock:
            getattr(super(), f"do_{method}")()
        said, self.wfile = self.wfile.said, kept
        if not lose:
            head = said.index(b"\r\n\r\n") + 4
            self.wfile.write(said[: head + (len(said) - head) // 2])
        self.close_connection = True

    def _say(self, status: int) -> None:
        content = json.dumps({"error": {"code": status, "message": f"status {status} on demand"}}).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _refused(self, method: str, path: str, query: dict[str, str]) -> int | None:
        """The status of a request whose condition does not hold."""
        found = _OBJECT.match(path)
        if found and "generation" in query and self._generation(found) != query["generation"]:
            return 404
        name = query.get("name")
        wanted = query.get("ifGenerationMatch")
        if wanted is not None and method in ("POST", "DELETE", "PUT"):
            upload = _UPLOAD.match(path)
            there = self._generation(found) if found else self._generation_of(upload[1], name) if upload else wanted
            if there != wanted:
                return 412
        return None

    def _generation(self, found: re.Match) -> str:
        return self._generation_of(urllib.parse.unquote(found[1]), urllib.parse.unquote(found[2]))

    def _generation_of(self, bucket: str, name: str) -> str:
        try:
            return self.storage.get_file_obj(bucket, name)["generation"]
        except NotFound:
            return "0"

    def do_GET(self) -> None:
        self._answer("GET")

    def do_POST(self) -> None:
        self._answer("POST")

    def do_DELETE(self) -> None:
        self._answer("DELETE")

    def do_PUT(self) -> None:
        self._answer("PUT")

    def do_PATCH(self) -> None:
        self._answer("PATCH")


def _media_upload(request, response, storage, original=emulated_objects._media_upload):
    # The emulator takes an empty upload for none.
    request._data = request.data or b""
    original(request, response, storage)


emulated_objects._media_upload = _media_upload


class _Kept:
    """A stream that keeps what is written."""

    def __init__(self):
        self.said = b""

    def write(self, content: bytes) -> None:
        self.said += content

    def flush(self) -> None:
        pass


class _Server(server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """A client that was killed is no error here."""


@dataclass(frozen=True)
class Emulator:
    """A running emulator.

    Attributes:
      environment: the variables by which clients find it, also in child processes.
      faults: what goes wrong.
      storage: its content.
    """

    environment: dict[str, str]
    faults: Faults
    storage: Storage

    @property
    def root(self) -> str:
        """The address of the bucket."""
        return f"gs://{BUCKET}"


@contextlib.contextmanager
def emulated() -> Iterator[Emulator]:
    """Runs an emulator with one bucket, in memory; the environment of this process leads to it."""
    storage, faults = Storage(use_memory_fs=True), Faults()
    create_bucket(BUCKET, storage)
    handler = type("Handler", (_Handler,), {"faults": faults, "lock": threading.RLock()})
    with _Server(("127.0.0.1", 0), partial(handler, storage)) as serving:
        thread = threading.Thread(target=serving.serve_forever, daemon=True)
        thread.start()
        address = f"http://127.0.0.1:{serving.server_address[1]}"
        environment = {
            "STORAGE_EMULATOR_HOST": address,
            "TENSORSTORE_GCS_HTTP_URL": address,
            "GOOGLE_AUTH_TOKEN_FOR_TESTING": "token",
            "CLOUD_STORAGE_EMULATOR_ENDPOINT": address,
            "NO_GCE_CHECK": "true",
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
            "GOOGLE_CLOUD_PROJECT": "test",
        }
        before = {name: os.environ.get(name) for name in environment}
        os.environ.update(environment)
        try:
            yield Emulator(environment, faults, storage)
        finally:
            for name, value in before.items():
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value
            serving.shutdown()
            thread.join()
