"""Long jobs in phases, each run once however often the job is started."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from padir.errors import PadirError
from padir.files.atomic import write_text

PHASES_FILE = "phases.json"


class Phases:
    """Runs each phase once, however often the demo is started, and keeps the seconds it took."""

    def __init__(self, directory: Path, config: Any):
        self._path = directory / PHASES_FILE
        described = json.loads(json.dumps(dataclasses.asdict(config)))
        self._state: dict[str, Any] = {"config": described, "seconds": {}}
        if self._path.exists():
            self._state = json.loads(self._path.read_text(encoding="utf-8"))
            if self._state["config"] != described:
                raise PadirError(
                    f"{directory}: holds a run with other settings; choose another output_dir or delete this one"
                )

    @property
    def seconds(self) -> dict[str, float]:
        """By phase, in the order they ran."""
        return self._state["seconds"]

    def run(self, name: str, work: Callable[[], Any]) -> None:
        """Does `work` unless an earlier start has finished it."""
        if name in self.seconds:
            print(f"[{name}] done before ({self.seconds[name]:.0f} s)", file=sys.stderr)
            return
        print(f"[{name}]", file=sys.stderr)
        began = time.perf_counter()
        work()
        self.add(name, time.perf_counter() - began)

    def add(self, name: str, seconds: float) -> None:
        """Notes a phase as finished."""
        self.seconds[name] = seconds
        write_text(self._path, json.dumps(self._state, indent=2) + "\n")
