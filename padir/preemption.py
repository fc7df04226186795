"""Stopping in good order when the platform takes the machine back (layer 0)."""

from __future__ import annotations

import signal
import threading

import jax


class Preemption:
    """Notices SIGTERM, which platforms send before they stop a job; a context manager.

    Only where one process runs alone: several would have to agree on the step after which all of them save. There, and
    in a thread other than the main one, which Python gives no signals, SIGTERM ends the process as it ever did.

    Attributes:
      told: whether the signal came.
    """

    def __init__(self):
        self.told = False
        self._catches = jax.process_count() == 1 and threading.current_thread() is threading.main_thread()

    def __enter__(self) -> Preemption:
        if self._catches:
            self._before = signal.signal(signal.SIGTERM, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        if self._catches:
            # None: it was set from outside Python, which cannot set it so again.
            signal.signal(signal.SIGTERM, signal.SIG_DFL if self._before is None else self._before)

    def _note(self, *_: object) -> None:
        self.told = True
