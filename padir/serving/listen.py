"""Runs the server on uvicorn until it is told to stop."""

from __future__ import annotations

import math
import signal
from collections.abc import Sequence

import uvicorn

from padir.errors import PadirError
from padir.serving.app import COMPILING_SECONDS, Server, application

# Names of this machine for itself.
_LOOPBACK = ("127.0.0.1", "localhost", "::1", "[::1]")


def hosts_of(host: str, hosts: Sequence[str]) -> tuple[str, ...]:
    """The names that requests may call a server by which listens on `host`; empty is any.

    A server that only this machine can reach answers to its own names alone, so that no page can reach it by a name
    of the page's.
    """
    return (*_LOOPBACK, *hosts) if hosts or host in _LOOPBACK else ()


def listen(
    server: Server, *, host: str, port: int, cors_origins: Sequence[str] = (), hosts: Sequence[str] = ()
) -> None:
    """Runs a server until SIGTERM or SIGINT, and then until the requests in flight are answered.

    Args:
      server: what is served.
      host, port: where it listens.
      cors_origins: see `application`.
      hosts: further names that it may be called by; see `hosts_of`.

    Raises:
      PadirError: it cannot listen there.
    """
    config = uvicorn.Config(
        application(server, cors_origins=cors_origins, hosts=hosts_of(host, hosts)),
        host=host,
        port=port,
        access_log=False,
        server_header=False,
        lifespan="on",
        ws="none",
        # uvicorn refuses the connection that reaches its limit.
        limit_concurrency=server.limits.max_connections + 1,
        # A request is answered by its deadline at the latest.
        timeout_graceful_shutdown=math.ceil(max(server.limits.max_seconds, COMPILING_SECONDS)) + 1,
    )
    listening = uvicorn.Server(config)
    # uvicorn sends itself the signal once more when it has finished, for the handler that was there before it.
    before = signal.signal(signal.SIGTERM, lambda number, frame: None)
    try:
        listening.run()
    except KeyboardInterrupt:
        # Ctrl-C, raised once more when uvicorn has finished.
        pass
    except SystemExit as stop:
        # uvicorn has logged why; it exits so when the address cannot be bound.
        hint = "choose another, or end what listens there"
        raise PadirError(f"--port: cannot listen on {host} port {port}; {hint}") from stop
    finally:
        signal.signal(signal.SIGTERM, before)
