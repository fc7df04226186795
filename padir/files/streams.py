"""Reading an object as a stream: the first bytes soon, what follows ahead of time, memory flat."""

from __future__ import annotations

import io
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from padir.errors import StorageError
from padir.files import objects

# The first request is small, so that its answer comes soon; each further one is twice as large, up to the last.
FIRST_BYTES, LARGEST_BYTES = 1 << 18, 1 << 23


class ObjectStream(io.RawIOBase):
    """The bytes of an object, from any position on. One block is read ahead by a thread while another is consumed.

    All blocks are of the version that was there when the stream was opened. Reading raises StorageError if that version
    is gone.
    """

    def __init__(self, uri: str, end: int | None = None):
        """Opens an object.

        Args:
          uri: its address.
          end: do not read ahead beyond this position; None reads to the end of the object.

        Raises:
          FileNotFoundError: there is no such object.
        """
        super().__init__()
        found = objects.describe(uri)
        self._uri, self._generation, self.size = uri, found.generation, found.size
        self._ahead_end = found.size if end is None else min(end, found.size)
        self._position, self._block, self._begin = 0, b"", 0
        self._bytes = FIRST_BYTES
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="read-ahead")
        self._ahead: tuple[int, Future[bytes]] | None = None

    def readable(self) -> bool:
        """Returns True."""
        return True

    def seekable(self) -> bool:
        """Returns True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Moves to a position; nothing is read yet."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}[whence]
        self._position = max(0, start + offset)
        return self._position

    def tell(self) -> int:
        """Returns the position."""
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Reads at least one byte, unless the end is reached; waits for the storage only where nothing was read."""
        if self._position >= self.size or not len(buffer):
            return 0
        if not self._begin <= self._position < self._begin + len(self._block):
            self._next_block()
        start = self._position - self._begin
        count = min(len(buffer), len(self._block) - start)
        buffer[:count] = memoryview(self._block)[start : start + count]
        self._position += count
        return count

    def _next_block(self) -> None:
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead[0] == self._position:
            self._block = ahead[1].result()
        else:
            # A jump: what was read ahead is of no use.
            self._bytes = FIRST_BYTES
            self._block = self._request(self._position)
        self._begin = self._position
        following = self._begin + len(self._block)
        if following < self._ahead_end:
            self._bytes = min(2 * self._bytes, LARGEST_BYTES)
            self._ahead = following, self._thread.submit(self._request, following)

    def _request(self, begin: int) -> bytes:
        try:
            end = min(begin + self._bytes, self.size)
            return objects.read(self._uri, begin, end, generation=self._generation)
        except FileNotFoundError as error:
            raise StorageError(f"{self._uri}: was replaced or removed while it was read") from error

    def close(self) -> None:
        """Ends reading ahead."""
        if not self.closed:
            self._thread.shutdown(wait=False, cancel_futures=True)
            self._block = b""
        super().close()
