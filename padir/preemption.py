"""Stopping in good order when the platform takes the machine back (layer 0)."""

from __future__ import annotations

import signal
import threading

import jax
from jax.experimental import multihost_utils


class Preemption:
    """Notices SIGTERM, which platforms send before they stop a job; a context manager.

    One process alone catches the signal itself. Of several, each may get it at another moment: JAX's preemption service
    agrees on a step that all of them reach, which is the first one for which `due` says so, in all alike.
    """

    def __init__(self):
        self._told = False
        self._alone = jax.process_count() == 1
        self._before = None

    def __enter__(self) -> Preemption:
        # Python lets only the main thread take signals; a run started from another one is stopped as it ever was.
        if self._alone and threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)

    def _note(self, *_: object) -> None:
        self._told = True

    def due(self, step: int) -> bool:
        """Whether to save and stop after `step`."""
        return self._told if self._alone else multihost_utils.reached_preemption_sync_point(step)
