"""Calls to a module in a child process, for libraries that must not be loaded into this process.

The request and the answer are JSON, sent over the child's standard input and output.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

from padir.errors import PadirError, StorageError, kind_of

# Exit statuses of the child when its answer is a message for the user.
_KINDS = {kind.status: kind for kind in (PadirError, StorageError)}
_INTERRUPTED = 130


def call_in_process(module: str, request: Mapping[str, Any], *, doing: str, subject: str) -> Any:
    """Runs `python -m module`, which must call `serve`, and returns its answer.

    Args:
      module: the dotted name of the module.
      request: the keyword arguments of the child's handler, as JSON values.
      doing: what the child does, for messages, e.g. 'preparing runs/data'.
      subject: the name to give in the message of an operating-system error that has no file name, e.g. 'runs/data'.

    Returns:
      The result of the child's handler, a JSON value.

    Raises:
      PadirError: the child raised a PadirError or OSError, or was ended by a signal.
      StorageError: the child raised one.
      RuntimeError: the child failed in another way; its traceback is on standard error.
    """
    # The child imports from the same places as this process, whatever the working directory.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    child = subprocess.run(
        [sys.executable, "-m", module],
        input=json.dumps({"subject": subject, "request": request}),
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    if child.returncode in _KINDS:
        raise _KINDS[child.returncode](json.loads(child.stdout)["error"])
    if child.returncode < 0:
        name = signal.Signals(-child.returncode).name
        hint = "; the machine may have run out of memory" if name == "SIGKILL" else ""
        raise PadirError(f"{doing} was ended by {name}{hint}")
    if child.returncode:
        raise RuntimeError(f"{doing} failed with status {child.returncode}; its traceback is above")
    return json.loads(child.stdout)["result"]


def serve(handle: Callable[..., Any]) -> int:
    """Runs in the child: answers one request with the result of `handle(**request)`, and returns the exit status."""
    message = json.load(sys.stdin)
    # Output of libraries is redirected to standard error, so that the parent reads only the answer.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answer:
        os.dup2(2, 1)
        try:
            result = handle(**message["request"])
        except PadirError as error:
            json.dump({"error": str(error)}, answer)
            return error.status
        except OSError as error:
            json.dump({"error": f"{error.filename or message['subject']}: {error.strerror or error}"}, answer)
            return kind_of(error).status
        except KeyboardInterrupt:
            return _INTERRUPTED
        json.dump({"result": result}, answer)
    return 0
