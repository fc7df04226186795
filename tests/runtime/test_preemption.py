"""SIGTERM is noted where it can be, and what was there before comes back."""

import os
import signal
import threading

import jax

from padir.runtime.preemption import Preemption


def test_one_process_notes_the_signal():
    before = signal.getsignal(signal.SIGTERM)
    with Preemption() as preemption:
        assert not preemption.after_step()
        os.kill(os.getpid(), signal.SIGTERM)
        assert preemption.after_step()
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_handler_from_outside_python_leaves_the_default_behind(monkeypatch):
    before = signal.getsignal(signal.SIGTERM)
    real = signal.signal
    try:
        with monkeypatch.context() as patch:
            patch.setattr(signal, "signal", lambda *arguments: real(*arguments) and None)
            with Preemption():
                pass
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        real(signal.SIGTERM, before)


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


def test_one_of_several_processes_leaves_signals_alone(monkeypatch):
    """JAX catches them, if it was asked to: tests/training/test_multiprocess.py."""
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    before = signal.getsignal(signal.SIGTERM)
    with Preemption():
        assert signal.getsignal(signal.SIGTERM) is before
