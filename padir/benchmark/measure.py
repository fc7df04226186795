"""Timing: systems take turns in one process, on the same requests, host to host."""

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

# What JAX calls the time that XLA takes for one program.
_COMPILED = "/jax/core/compile/backend_compile_duration"

_RESAMPLES = 2_000


class Compilations:
    """Counts the programs that XLA compiles while the context is open."""

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
    """Milliseconds per request of one system, host to host.

    Attributes:
      samples: [n], in the order measured.
      requests: [n] int, which request each sample is of.
      warm_up_seconds: spent before, on requests of every shape once; not part of any sample.
      compilations, compile_seconds: programs that XLA made in that time. Systems that share a program pay for it once,
        the first of them.
      late_compilations: programs made while samples were taken; above 0 the samples are not to be trusted.
    """

    samples: np.ndarray
    requests: np.ndarray
    warm_up_seconds: float = 0.0
    compilations: int = 0
    compile_seconds: float = 0.0
    late_compilations: int = 0

    def to_dict(self) -> dict[str, Any]:
        """n, median with its 95% interval, mean, p90, p99 and what warming up took."""
        return {
            "n": len(self.samples),
            "median": float(np.median(self.samples)),
            "median_ci95": median_interval(self.samples),
            "mean": float(np.mean(self.samples)),
            "p90": float(np.percentile(self.samples, 90)),
            "p99": float(np.percentile(self.samples, 99)),
            "warm_up_seconds": self.warm_up_seconds,
            "compilations": self.compilations,
            "compile_seconds": self.compile_seconds,
            "late_compilations": self.late_compilations,
        }


def median_interval(samples: np.ndarray, seed: int = 0) -> list[float]:
    """The 95% percentile-bootstrap interval of the median of samples [n]."""
    draws = np.random.default_rng(seed).choice(samples, (_RESAMPLES, len(samples)))
    return np.percentile(np.median(draws, axis=1), [2.5, 97.5]).tolist()


def take_turns(
    systems: Mapping[str, Callable[[Request], Any]],
    requests: Sequence[Request],
    *,
    repeats: int = 3,
    seed: int = 0,
    untimed: int = 0,
    shape: Callable[[Request], Hashable] = lambda request: request,
) -> dict[str, Timing]:
    """Times every request on every system, systems taking turns in a random order on each.

    Every system first answers one request of each shape, which compiles whatever it needs; that time is reported apart.
    A sample is one call, which must return only when the answer is on the host.

    Args:
      systems: by name, what answers a request.
      requests: what they are asked.
      repeats: how often each is timed on each system.
      seed: of the order.
      untimed: how often a system is asked before each sample, so that caches hold what they do where it runs alone.
      shape: requests for which this is equal need the same programs.

    Returns:
      By name, len(requests) · repeats samples.
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
                # Turn by turn on the same request: whatever slows the machine for a while slows all alike.
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
