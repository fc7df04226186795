"""`benchmarks/commands.py`: the process of a padir command is told when that of the script is to stop."""

import os
import signal
import sys
import threading
import time


def test_sigterm_is_passed_on(load_script, tmp_path, monkeypatch):
    padir = tmp_path / "padir"
    padir.write_text(f"#!/bin/sh\ntrap 'exit 7' TERM\ntouch {tmp_path}/ready\nwhile :; do sleep 0.05; done\n")
    padir.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(padir))
    before = signal.getsignal(signal.SIGTERM)

    def terminate():
        while not (tmp_path / "ready").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=terminate)
    thread.start()
    assert load_script("commands").run_padir(["train"]) == 7
    thread.join()
    assert signal.getsignal(signal.SIGTERM) is before
