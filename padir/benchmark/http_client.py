"""A small HTTP client for load generators: JSON in, JSON out, over connections that are used again."""

from __future__ import annotations

import asyncio
import json
import urllib.parse
from typing import Any

from padir.errors import PadirError


class HttpClient:
    """Sends requests to one server over as many connections as there are requests at a time.

    A context manager of asyncio, which closes the connections.
    """

    def __init__(self, url: str, *, seconds: float = 600.0):
        """Opens nothing yet.

        Args:
          url: 'http://HOST:PORT'.
          seconds: how long to wait for an answer.

        Raises:
          PadirError: it is another kind of URL.
        """
        parts = urllib.parse.urlsplit(url)
        if parts.scheme != "http" or not parts.hostname or parts.path.strip("/"):
            raise PadirError(f"url: {url!r} is not of the form http://HOST:PORT")
        self._host, self._port, self._seconds = parts.hostname, parts.port or 80, seconds
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def __aenter__(self) -> HttpClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        while self._idle:
            self._idle.pop()[1].close()

    async def ask(self, path: str, fields: dict[str, Any] | None = None) -> tuple[int, Any]:
        """Returns (status, body): by POST if there are fields, else by GET. The body is parsed if it is JSON.

        Raises:
          OSError: the server cannot be reached, closes the connection before its answer is complete, takes too long, or
            answers in another protocol.
        """
        async with asyncio.timeout(self._seconds):
            return await self._ask(path, fields)

    async def _ask(self, path: str, fields: dict[str, Any] | None) -> tuple[int, Any]:
        body = b"" if fields is None else json.dumps(fields).encode()
        method = "GET" if fields is None else "POST"
        head = f"{method} {path} HTTP/1.1\r\nHost: {self._host}:{self._port}\r\nContent-Length: {len(body)}\r\n"
        request = f"{head}Content-Type: application/json\r\n\r\n".encode() + body
        while self._idle:
            connection = self._idle.pop()
            try:
                return await self._exchange(connection, request)
            except ConnectionResetError:
                # The server has closed it since it was used last; no part of an answer has come.
                continue
        connection = await asyncio.open_connection(self._host, self._port)
        return await self._exchange(connection, request)

    async def _exchange(
        self, connection: tuple[asyncio.StreamReader, asyncio.StreamWriter], request: bytes
    ) -> tuple[int, Any]:
        reader, writer = connection
        keep = False
        try:
            writer.write(request)
            await writer.drain()
            first = await reader.readline()
            if not first:
                raise ConnectionResetError("the server has closed the connection")
            status, headers = int(first.split()[1]), {}
            while (line := await reader.readline()) not in (b"\r\n", b""):
                name, _, value = line.decode("latin-1").partition(":")
                headers[name.lower()] = value.strip()
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            is_json = headers.get("content-type", "").startswith("application/json")
            parsed = json.loads(body) if is_json else body.decode()
            keep = headers.get("connection", "") != "close"
        except (ValueError, IndexError) as error:
            raise OSError("the answer is not one of HTTP") from error
        except asyncio.IncompleteReadError as error:
            raise OSError("the server has closed the connection before its answer was complete") from error
        finally:
            # Also where the request is cancelled: half an answer must not be taken for the next one's.
            if keep:
                self._idle.append(connection)
            else:
                writer.close()
        return status, parsed
