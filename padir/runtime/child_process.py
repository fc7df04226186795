"""Calls a module in a process of its own: for libraries that must stay out of this one.

Request and answer are JSON, over the child's standard input and output.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

from padir.errors import PadirError

# Exit status of the child when its answer is a message for the user.
_USER_ERROR = 2
_INTERRUPTED = 130


def call_in_process(module: str, request: Mapping[str, Any], *, doing: str, subject: str) -> Any:
    """Runs `python -m module`, which must call `serve`, and returns what that answers.

    Args:
      module: dotted name.
      request: JSON values for the child.
      doing: what the child does, for messages: 'preparing runs/data'.
      subject: what an error of the operating system without a file name is about: 'runs/data'.

    Raises:
      PadirError: what the child found wrong, or that it was ended by a signal.
      RuntimeError: a defect; the child's traceback is on standard error.
    """
    # The child finds its modules where this process does, whatever the working directory.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    child = subprocess.run(
        [sys.executable, "-m", module],
        input=json.dumps({"subject": subject, "request": request}),
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    if child.returncode == _USER_ERROR:
        raise PadirError(json.loads(child.stdout)["error"])
    if child.returncode < 0:
        name = signal.Signals(-child.returncode).name
        hint = "; the machine may have run out of memory" if name == "SIGKILL" else ""
        raise PadirError(f"{doing} was ended by {name}{hint}")
    if child.returncode:
        raise RuntimeError(f"{doing} failed with status {child.returncode}; its traceback is above")
    return json.loads(child.stdout)["result"]


def serve(handle: Callable[..., Any]) -> int:
    """The child's side: answers one request with `handle(**request)`; returns the exit status."""
    message = json.load(sys.stdin)
    # What libraries print goes to standard error; the standard output the parent reads carries the answer alone.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answer:
        os.dup2(2, 1)
        try:
            result = handle(**message["request"])
        except PadirError as error:
            json.dump({"error": str(error)}, answer)
            return _USER_ERROR
        except OSError as error:
            json.dump({"error": f"{error.filename or message['subject']}: {error.strerror or error}"}, answer)
            return _USER_ERROR
        except KeyboardInterrupt:
            return _INTERRUPTED
        json.dump({"result": result}, answer)
    return 0
