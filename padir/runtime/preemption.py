"""Stopping in good order when the platform takes the machine back."""

from __future__ import annotations

import signal
import threading

import jax
from jax.experimental import multihost_utils


class Preemption:
    """Notices SIGTERM, which platforms send before they stop a job; a context manager.

    Of several processes JAX's preemption service notices it, if `distributed.initialize` was told to have it: one that
    gets the signal tells the others, and they agree on the step after which all of them stop. Without that service, and
    in a thread other than the main one, which Python gives no signals, SIGTERM ends the process as it ever did.
    """

    def __init__(self):
        several = jax.process_count() > 1
        self._told, self._asked = False, 0
        self._asks_jax = several and jax.config.jax_enable_preemption_service
        self._catches = not several and threading.current_thread() is threading.main_thread()

    def __enter__(self) -> Preemption:
        if self._catches:
            self._before = signal.signal(signal.SIGTERM, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        if self._catches:
            # None: it was set from outside Python, which cannot set it so again.
            signal.signal(signal.SIGTERM, signal.SIG_DFL if self._before is None else self._before)

    def after_step(self) -> bool:
        """Whether the signal came and this is the step to stop after; every process must ask after every step."""
        if not self._asks_jax:
            return self._told
        # Counted from 1, not the run's steps: told before anyone has asked, JAX settles on 1.
        self._asked += 1
        return multihost_utils.reached_preemption_sync_point(self._asked)

    def _note(self, *_: object) -> None:
        self._told = True
