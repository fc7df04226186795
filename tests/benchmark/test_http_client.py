"""The client against servers that answer badly: whatever they do is an OSError, and soon."""

import asyncio

import pytest

from padir.benchmark.http_client import HttpClient

ANSWERS = {
    "nothing": b"",
    "no status": b"HTTP/1.1\r\n\r\n",
    "no number": b"HTTP/1.1 fine\r\n\r\n",
    "no HTTP": b"\x00\xff\r\n\r\n",
    "no length": b"HTTP/1.1 200 OK\r\ncontent-length: many\r\n\r\n",
    "half": b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{",
    "no JSON": b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 1\r\n\r\n{",
}


async def asked(answer, seconds=30.0):
    """What one request to a server that sends `answer` gives; None has it say nothing and keep the connection."""
    done = asyncio.Event()

    async def serve(reader, writer):
        await reader.readline()
        if answer is None:
            await done.wait()
        else:
            writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server, HttpClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", seconds=seconds) as client:
        try:
            return await client.ask("/health")
        finally:
            done.set()


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_a_bad_answer_is_an_error_of_the_connection(answer):
    with pytest.raises(OSError):
        asyncio.run(asked(answer))


def test_a_server_that_says_nothing_is_given_up():
    with pytest.raises(TimeoutError):
        asyncio.run(asked(None, seconds=0.05))


def test_a_good_answer():
    good = b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{"a": 12}'
    assert asyncio.run(asked(good)) == (200, {"a": 12})
