"""Runs `padir.data.prepare` in a process of its own (layer 6; no TensorFlow in the caller's).

TensorFlow would otherwise claim memory, and on some machines the accelerator, of the process that trains.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys

from padir.data.manifest import Manifest, PrepareSettings, TaskConfig
from padir.errors import PadirError

# Exit status of the child when its last line on standard error is a message for the user.
_USER_ERROR = 2


def prepare_in_process(
    task: TaskConfig, output_dir: str | os.PathLike, settings: PrepareSettings | None = None
) -> Manifest:
    """Prepares `task` into `output_dir`; arguments, result and errors as for `padir.data.prepare.prepare`.

    Prints what each split came to hold, and how many pairs were left out or cut.

    Raises:
      PadirError: what the child found wrong, or that the `data` extra is not installed.
    """
    settings = settings or PrepareSettings()
    request = {
        "task": {**dataclasses.asdict(task), "options": dict(task.options)},
        "output_dir": str(output_dir),
        "settings": dataclasses.asdict(settings),
    }
    # The child finds its modules where this process does, whatever the working directory.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    child = subprocess.run(
        [sys.executable, "-m", __name__], input=json.dumps(request), stdout=subprocess.PIPE, text=True, env=environment
    )
    if child.returncode == _USER_ERROR:
        raise PadirError(json.loads(child.stdout)["error"])
    if child.returncode:
        raise RuntimeError(f"preparing {output_dir} failed with status {child.returncode}; its traceback is above")
    manifest = Manifest.load(output_dir)
    print(manifest.summary(), file=sys.stderr)
    return manifest


def _main() -> int:
    request = json.load(sys.stdin)
    try:
        try:
            from padir.data.prepare import prepare
        except ModuleNotFoundError as error:
            raise PadirError(
                f"preparing data needs {error.name}, which is not installed: pip install 'padir[data]'"
            ) from error
        task = TaskConfig(**request["task"])
        prepare(task, request["output_dir"], PrepareSettings(**request["settings"]))
    except PadirError as error:
        json.dump({"error": str(error)}, sys.stdout)
        return _USER_ERROR
    return 0


if __name__ == "__main__":
    sys.exit(_main())
