"""Times systems that take turns in one process, on the same requests, from host to host."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import numpy as np

from padir.progress import progress

Request = TypeVar("Request")

# JAX's event for the time that XLA takes to compile one program.
_COMPILED = "/jax/core/compile/backend_compile_duration"

_RESAMPLES = 2_000


class Compilations:
    """A context manager that counts the programs that XLA compiles while it is open.

    Attributes:
      count: compiled programs.
      seconds: the time their compilation took.
    """

    def __init__(self):
        self.count, self.seconds = 0, 0.0

    def __enter__(self) -> Compilations:
        jax.monitoring.register_event_duration_secs_listener(self._listen)
        return self

    def __exit__(self, *_: object) -> None:
        jax.monitoring.unregister_event_duration_listener(self._listen)

    def _listen(self, event: str, seconds: float, **_: Any) -> None:
        if event == _COMPILED:
            self.count += 1
            self.seconds += seconds


@dataclass(frozen=True)
class Timing:
    """The measured times of one system, in milliseconds per request, from host to host.

    Attributes:
      samples: float64 [n], in the order in which they were measured.
      requests: int [n], the index of the request of each sample.
      warm_up_seconds: the time of the warm-up, which answers one request of each shape. It is not part of any sample.
      compilations, compile_seconds: number and total time of the programs compiled during the warm-up. If systems
        share a program, it counts only for the first of them.
      late_compilations: programs compiled while samples were taken. If there are any, the samples are not reliable.
    """

    samples: np.ndarray
    requests: np.ndarray
    warm_up_seconds: float = 0.0
    compilations: int = 0
    compile_seconds: float = 0.0
    late_compilations: int = 0

    def by_request(self) -> list[float]:
        """The median of the samples of each request, rounded to microseconds, in the order of their indices."""
        return [round(float(np.median(self.samples[self.requests == index])), 3) for index in np.unique(self.requests)]

    def to_dict(self) -> dict[str, Any]:
        """The number of samples, their median with its 95% interval, mean, p90 and p99, and the cost of the warm-up."""
        return {
            "n": len(self.samples),
            "median": float(np.median(self.samples)),
            "median_ci95": median_interval(self.samples, self.requests),
            "mean": float(np.mean(self.samples)),
            "p90": float(np.percentile(self.samples, 90)),
            "p99": float(np.percentile(self.samples, 99)),
            "warm_up_seconds": self.warm_up_seconds,
            "compilations": self.compilations,
            "compile_seconds": self.compile_seconds,
            "late_compilations": self.late_compilations,
        }


def median_interval(samples: np.ndarray, requests: np.ndarray | None = None, seed: int = 0) -> list[float]:
    """The 95% percentile-bootstrap interval of the median, [low, high].

    Requests are drawn, each with all of its samples: that a sentence was timed three times makes it no three sentences.

    Args:
      samples: float [n].
      requests: int [n], the request of each sample; None, or one and the same, if samples are all of a kind.
      seed: random seed of the draws.
    """
    if requests is None or len(set(requests.tolist())) == 1:
        requests = np.arange(len(samples))
    chosen = _draws(len(set(requests.tolist())), seed)
    _, clusters = np.unique(requests, return_inverse=True)
    return np.percentile(_medians(samples, chosen[:, clusters]), [2.5, 97.5]).tolist()


def ratio_interval(before: np.ndarray, after: np.ndarray, seed: int = 0) -> list[float]:
    """The 95% interval of the ratio of two medians of the same requests, [low, high]: after / before.

    Both are of the same requests in each draw, so that it does not matter how much requests differ from one another.

    Args:
      before, after: float [n], the time of each request.
      seed: random seed of the draws.
    """
    chosen = _draws(len(before), seed)
    return np.percentile(_medians(after, chosen) / _medians(before, chosen), [2.5, 97.5]).tolist()


def _draws(count: int, seed: int) -> np.ndarray:
    """How often each of `count` things is drawn, int [resamples, count], by resample."""
    return np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), _RESAMPLES)


def _medians(samples: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The median of samples [n] of which each counts so many times, `counts` int [resamples, n]; [resamples]."""
    order = np.argsort(samples)
    upto = np.cumsum(counts[:, order], axis=1)
    middle = ((upto[:, -1] - 1) // 2, upto[:, -1] // 2)
    return sum(samples[order][(upto > place[:, None]).argmax(axis=1)] for place in middle) / 2


def take_turns(
    systems: Mapping[str, Callable[[Request], Any]],
    requests: Sequence[Request],
    *,
    repeats: int = 3,
    seed: int = 0,
    untimed: int = 0,
    shape: Callable[[Request], Hashable] = lambda request: request,
) -> dict[str, Timing]:
    """Times every request on every system. For each request the systems take turns in random order.

    Before that, each system answers one request of each shape, so that all programs are compiled; this warm-up is
    reported separately. A sample is the time of one call, which must not return before the answer is on the host.

    Args:
      systems: a function per system, by name, that answers a request.
      requests: the requests.
      repeats: how often each request is timed on each system.
      seed: random seed of the order.
      untimed: calls before each timed one, so that caches are as they would be if the system ran alone.
      shape: maps a request to its shape; requests of the same shape need the same programs.

    Returns:
      For each system, by name, a `Timing` with len(requests) * repeats samples.
    """
    first_of = {shape(request): request for request in reversed(requests)}
    warm_ups = {}
    with progress(label="warm up", unit="shapes", total=len(first_of) * len(systems)) as bar:
        for name, answer in systems.items():
            began = time.perf_counter()
            with Compilations() as compiled:
                for request in first_of.values():
                    answer(request)
                    bar.update(1)
            warm_ups[name] = (time.perf_counter() - began, compiled.count, compiled.seconds)
    order = random.Random(seed)
    samples: dict[str, list[float]] = {name: [] for name in systems}
    asked: dict[str, list[int]] = {name: [] for name in systems}
    late = dict.fromkeys(systems, 0)
    with progress(label="measure", unit="requests", total=repeats * len(requests) * len(systems)) as bar:
        for _ in range(repeats):
            for index in order.sample(range(len(requests)), len(requests)):
                # Taking turns on each request spreads temporary slowdowns of the machine over all systems.
                for name in order.sample(list(systems), len(systems)):
                    with Compilations() as compiled:
                        for _ in range(untimed):
                            systems[name](requests[index])
                        began = time.perf_counter()
                        systems[name](requests[index])
                        samples[name].append(1e3 * (time.perf_counter() - began))
                    asked[name].append(index)
                    late[name] += compiled.count
                bar.update(len(systems))
    return {
        name: Timing(np.asarray(samples[name]), np.asarray(asked[name]), *warm_ups[name], late[name])
        for name in systems
    }
