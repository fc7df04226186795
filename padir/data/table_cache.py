"""Tables of automata that are kept for later sources with the same terms."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

import numpy as np

Table = TypeVar("Table")
Demanded = tuple[tuple[str, ...], ...]
# A large glossary makes thousands of combinations of terms, and a table may take megabytes.
_MOST_BYTES = 256 << 20


class TableCache(Generic[Table]):
    """Keeps the tables that were asked for last, as many as a number of bytes allows; threads may share it."""

    def __init__(self, most_bytes: int = _MOST_BYTES):
        """Keeps nothing yet."""
        self._most_bytes, self._bytes = most_bytes, 0
        self._tables: OrderedDict[Demanded, Table] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """How many are kept."""
        return len(self._tables)

    def get(self, demanded: Demanded, make: Callable[[], Table]) -> Table:
        """The table of what is demanded; `make` makes it if it is not kept. What `make` raises is passed on."""
        with self._lock:
            if demanded in self._tables:
                self._tables.move_to_end(demanded)
                return self._tables[demanded]
        # Others need not wait for it. If two threads make one, both get that which was kept first.
        made = make()
        with self._lock:
            if demanded in self._tables:
                return self._tables[demanded]
            self._tables[demanded] = made
            self._bytes += _bytes_of(made)
            while self._bytes > self._most_bytes and len(self._tables) > 1:
                self._bytes -= _bytes_of(self._tables.popitem(last=False)[1])
        return made


def _bytes_of(table: object) -> int:
    return sum(array.nbytes for array in vars(table).values() if isinstance(array, np.ndarray))
