"""Detection of preemption, so that a job can save its state before the platform stops it."""

from __future__ import annotations

import signal
import threading

import jax
from jax.experimental import multihost_utils


class Preemption:
    """Notices SIGTERM, which platforms send before they stop a job. Use it as a context manager.

    In a job of several processes, the preemption service of JAX notices the signal if `distributed.initialize` was
    called with `preemption`. The processes then agree on the step after which all of them stop. Without this service,
    and in threads other than the main thread, to which Python delivers no signals, SIGTERM ends the process.
    """

    def __init__(self):
        """Installs nothing yet; the signal is handled inside the `with` block."""
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
            # None means that the handler was not installed from Python, so Python cannot restore it.
            signal.signal(signal.SIGTERM, signal.SIG_DFL if self._before is None else self._before)

    def after_step(self) -> bool:
        """Whether the job must stop after this step. Every process must call it after every step."""
        if not self._asks_jax:
            return self._told
        # Calls are counted from 1: if the signal comes before the first call, JAX agrees to stop at step 1.
        self._asked += 1
        return multihost_utils.reached_preemption_sync_point(self._asked)

    def _note(self, *_: object) -> None:
        self._told = True
