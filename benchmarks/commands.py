"""Runs padir's commands for the scripts here."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence

from padir.cli import main as cli


def run_padir(arguments: Sequence[str]) -> int:
    """Runs a padir command; returns its exit status.

    Evaluations are many and short, and run in this process. The others have a process of their own: `padir train` uses
    memory in another way than decoding. A SIGTERM to this process is passed on to theirs, because training saves its
    state then.
    """
    if arguments[0] == "evaluate":
        return cli.main(list(arguments))
    with subprocess.Popen([sys.executable, "-m", "padir.cli", *arguments]) as child:
        before = signal.signal(signal.SIGTERM, lambda *_: child.terminate())
        try:
            return child.wait()
        finally:
            signal.signal(signal.SIGTERM, before)
