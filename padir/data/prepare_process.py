"""Runs `padir.data.prepare` in a process of its own (layer 6; no TensorFlow in the caller's).

TensorFlow would otherwise claim memory, and on some machines the accelerator, of the process that trains.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from typing import Any

from padir.data.manifest import Manifest, PrepareSettings, TaskConfig
from padir.data.vocabulary import Vocabulary
from padir.errors import PadirError

# Exit status of the child when what it wrote to standard output is a message for the user.
_USER_ERROR = 2
_INTERRUPTED = 130


def prepare_in_process(
    task: TaskConfig, output_dir: str | os.PathLike, settings: PrepareSettings | None = None
) -> Manifest:
    """Prepares `task` into `output_dir`; arguments, result and errors as for `padir.data.prepare.prepare`.

    Prints what each split came to hold, and how many pairs were left out or cut.

    Raises:
      PadirError: what the child found wrong, or that the `data` extra is not installed.
    """
    _run("prepare", task, output_dir, settings)
    manifest = Manifest.load(output_dir)
    print(manifest.summary(), file=sys.stderr)
    return manifest


def train_vocabulary_in_process(
    task: TaskConfig, output: str | os.PathLike, settings: PrepareSettings | None = None
) -> Vocabulary:
    """Trains a vocabulary; arguments, result and errors as for `padir.data.prepare.train_vocabulary`.

    Raises:
      PadirError: what the child found wrong, or that the `data` extra is not installed.
    """
    _run("train_vocabulary", task, output, settings)
    return Vocabulary.load(output)


def _run(function: str, task: TaskConfig, output: str | os.PathLike, settings: PrepareSettings | None) -> None:
    """Calls a function of `padir.data.prepare` in the child, and passes its error on."""
    request = {
        "function": function,
        "task": {**dataclasses.asdict(task), "options": dict(task.options)},
        "output": str(output),
        "settings": dataclasses.asdict(settings or PrepareSettings()),
    }
    # The child finds its modules where this process does, whatever the working directory.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    child = subprocess.run(
        [sys.executable, "-m", __name__], input=json.dumps(request), stdout=subprocess.PIPE, text=True, env=environment
    )
    if child.returncode == _USER_ERROR:
        raise PadirError(json.loads(child.stdout)["error"])
    if child.returncode < 0:
        name = signal.Signals(-child.returncode).name
        hint = "; the machine may have run out of memory" if name == "SIGKILL" else ""
        raise PadirError(f"preparing {output} was ended by {name}{hint}")
    if child.returncode:
        raise RuntimeError(f"preparing {output} failed with status {child.returncode}; its traceback is above")


def _main() -> int:
    request = json.load(sys.stdin)
    # What libraries print goes to standard error; the standard output the parent reads carries the answer alone.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answer:
        os.dup2(2, 1)
        try:
            _call(**request)
        except PadirError as error:
            json.dump({"error": str(error)}, answer)
            return _USER_ERROR
        except OSError as error:
            json.dump({"error": f"{error.filename or request['output']}: {error.strerror or error}"}, answer)
            return _USER_ERROR
        except KeyboardInterrupt:
            return _INTERRUPTED
    return 0


def _call(function: str, task: dict[str, Any], output: str, settings: dict[str, Any]) -> None:
    try:
        from padir.data import prepare
    except ModuleNotFoundError as error:
        raise PadirError(
            f"preparing data needs {error.name}, which is not installed: pip install 'padir[data]'"
        ) from error
    getattr(prepare, function)(TaskConfig(**task), output, PrepareSettings(**settings))


if __name__ == "__main__":
    sys.exit(_main())
