"""Commands whose storage fails, or that are killed, while they write a certain object."""

import signal
import time
from collections.abc import Callable
from pathlib import Path

# What may happen besides the emulator's faults.
KILL = "kill"

# A process of its own, which is killed with its children when a file appears; gcsfs tries requests again without
# waiting. In the test's process TensorStore would go on writing when the command has ended.
COMMAND = """
import asyncio, os, signal, sys, threading, time
from pathlib import Path
import gcsfs.retry
from padir.cli.main import main
sleep = asyncio.sleep
gcsfs.retry.asyncio.sleep = lambda seconds, *rest: sleep(0)
def kill():
    while not Path(sys.argv[1]).exists():
        time.sleep(0.05)
    os.killpg(0, signal.SIGKILL)
threading.Thread(target=kill, daemon=True).start()
sys.exit(main(sys.argv[2:]))
"""


def fails(emulator, run_python: Callable, marker: Path, command: list[str], written: str, fault: str | int) -> None:
    """Runs a command, which cannot write objects whose names contain `written`, and checks how it ends.

    Args:
      emulator: the storage.
      run_python: the fixture.
      marker: a file that is not there yet.
      command: what follows `padir`.
      written: part of an object's name.
      fault: one of the emulator's, or KILL.
    """

    def refuse(request):
        if request.method != "POST" or written not in request.query.get("name", ""):
            return None
        if fault != KILL:
            return fault
        marker.touch()
        time.sleep(0.5)
        return "drop"

    with emulator.faults.happen(refuse):
        ended = run_python(COMMAND, marker, *command)
    marker.unlink(missing_ok=True)
    assert ended.returncode == (-signal.SIGKILL if fault == KILL else 74), ended.stderr.decode()
