"""SIGTERM is noted where it can be, and what was there before comes back."""

import os
import signal
import threading

import jax
from jax.experimental import multihost_utils

from padir.preemption import Preemption


def test_one_process_notes_the_signal_itself():
    before = signal.getsignal(signal.SIGTERM)
    with Preemption() as preemption:
        assert not preemption.due(1)
        os.kill(os.getpid(), signal.SIGTERM)
        assert preemption.due(2) and preemption.due(3)
    assert signal.getsignal(signal.SIGTERM) is before


def test_another_thread_leaves_signals_alone():
    handlers = []

    def run():
        with Preemption():
            handlers.append(signal.getsignal(signal.SIGTERM))

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert handlers == [before]


def test_several_processes_ask_the_service(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(multihost_utils, "reached_preemption_sync_point", lambda step: step == 7)
    before = signal.getsignal(signal.SIGTERM)
    with Preemption() as preemption:
        assert signal.getsignal(signal.SIGTERM) is before, "JAX catches it"
        assert [step for step in range(10) if preemption.due(step)] == [7]
