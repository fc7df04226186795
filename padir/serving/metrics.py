"""Counters, gauges and histograms in the text format of Prometheus (version 0.0.4)."""

from __future__ import annotations

import bisect
import threading
from collections.abc import Callable, Sequence

# The media type that Prometheus expects.
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# Upper edges in seconds, from a few milliseconds to the time limit of a request.
SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128)


class Counter:
    """A number that only grows, one for each combination of label values."""

    kind = "counter"

    def __init__(self, name: str, text: str, labels: Sequence[str] = ()):
        self.name, self.text, self._labels = name, text, tuple(labels)
        self._values: dict[tuple[str, ...], float] = {} if labels else {(): 0}
        self._lock = threading.Lock()

    def add(self, *values: str, by: float = 1) -> None:
        """Adds `by` to the counter of these label values, which are given in the order of the labels."""
        with self._lock:
            self._values[values] = self._values.get(values, 0) + by

    def value(self, *values: str) -> float:
        """Returns the counter of these label values; 0 if it was never added to."""
        return self._values.get(values, 0)

    def lines(self) -> list[str]:
        """Returns the samples."""
        with self._lock:
            return [f"{self.name}{_labels(self._labels, key)} {_number(n)}" for key, n in sorted(self._values.items())]


class Gauge:
    """A number that is read when it is asked for."""

    kind = "gauge"

    def __init__(self, name: str, text: str, read: Callable[[], float]):
        self.name, self.text, self._read = name, text, read

    def lines(self) -> list[str]:
        """Returns the one sample."""
        return [f"{self.name} {_number(self._read())}"]


class Histogram:
    """How many observations were at most each of several edges, with their sum and number."""

    kind = "histogram"

    def __init__(self, name: str, text: str, edges: Sequence[float]):
        self.name, self.text, self._edges = name, text, tuple(edges)
        self._counts = [0] * (len(edges) + 1)
        self._sum = 0.0
        self._lock = threading.Lock()

    def observe(self, value: float) -> None:
        """Adds one observation."""
        with self._lock:
            self._counts[bisect.bisect_left(self._edges, value)] += 1
            self._sum += value

    def lines(self) -> list[str]:
        """Returns the cumulative counts, the sum and the number of observations."""
        with self._lock:
            counts, total = list(self._counts), self._sum
        lines, below = [], 0
        for edge, count in zip((*map(_number, self._edges), "+Inf"), counts, strict=True):
            below += count
            lines.append(f'{self.name}_bucket{{le="{edge}"}} {below}')
        return [*lines, f"{self.name}_sum {_number(total)}", f"{self.name}_count {below}"]


class Metrics:
    """Everything that `/metrics` shows.

    Attributes:
      requests: answered requests by path and status.
      texts: translated texts by model.
      dropped: texts that left the queue undecoded by reason: 'client' left, 'deadline' passed, or
        another text of the same request 'failed'.
      batch_size: texts in a batch, without padding.
      request_seconds: from the first byte of a translation request to its answer.
      queue_seconds: from the arrival of a text to the start of its batch.
      decode_seconds: of a batch.
      steps: decoder passes of a text.
    """

    def __init__(self):
        self.requests = Counter("padir_requests_total", "Answered requests.", ("path", "status"))
        self.texts = Counter("padir_texts_total", "Translated texts.", ("model",))
        self.dropped = Counter("padir_dropped_texts_total", "Texts that left the queue undecoded.", ("reason",))
        self.batch_size = Histogram("padir_batch_size", "Texts in a batch, without padding.", COUNTS)
        self.request_seconds = Histogram("padir_request_seconds", "Seconds that a translation request took.", SECONDS)
        self.queue_seconds = Histogram("padir_queue_seconds", "Seconds that a text waited for its batch.", SECONDS)
        self.decode_seconds = Histogram("padir_decode_seconds", "Seconds that a batch was decoded.", SECONDS)
        self.steps = Histogram("padir_steps", "Decoder passes of a text.", COUNTS)
        self._gauges: list[Gauge] = []

    def gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        """Adds a gauge."""
        self._gauges.append(Gauge(name, text, read))

    def render(self) -> str:
        """Returns all samples with their help and type."""
        whole = (
            *(self.requests, self.texts, self.dropped, self.batch_size),
            *(self.request_seconds, self.queue_seconds, self.decode_seconds, self.steps),
            *self._gauges,
        )
        lines = []
        for one in whole:
            lines += [f"# HELP {one.name} {one.text}", f"# TYPE {one.name} {one.kind}", *one.lines()]
        return "\n".join(lines) + "\n"


def _labels(names: Sequence[str], values: Sequence[str]) -> str:
    if not names:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in zip(names, values, strict=True)) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))
