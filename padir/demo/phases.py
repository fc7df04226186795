"""Runs a long job in phases, each of them once, even if the job is interrupted and started again."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from padir.benchmark.facts import commit
from padir.errors import PadirError
from padir.files.atomic import write_text
from padir.runtime import host_memory

PHASES_FILE = "phases.json"


class Phases:
    """Runs each phase once, even if the job is started several times; records its seconds, and the commit it ran at."""

    def __init__(self, directory: Path, config: Any):
        """Reads the record of earlier starts, if there is one.

        Args:
          directory: the folder for the record, `phases.json`.
          config: a dataclass with the settings of the job.

        Raises:
          PadirError: the folder holds a job with other settings.
        """
        self._path = directory / PHASES_FILE
        described = json.loads(json.dumps(dataclasses.asdict(config)))
        self._state: dict[str, Any] = {"config": described, "seconds": {}, "commits": {}, "peak_bytes": {}}
        if self._path.exists():
            self._state |= json.loads(self._path.read_text(encoding="utf-8"))
            if self._state["config"] != described:
                raise PadirError(
                    f"{directory}: holds a run with other settings; choose another output_dir or delete this one"
                )

    @property
    def seconds(self) -> dict[str, float]:
        """The seconds that each finished phase took, in the order in which they ran."""
        return self._state["seconds"]

    def facts(self) -> dict[str, Any]:
        """What a result says of its phases: seconds, commits, and the most memory that a start of the job had used."""
        peaks = self._state["peak_bytes"].values()
        return {
            "seconds": sum(self.seconds.values()),
            "phase_seconds": self.seconds,
            "phase_commits": self._state["commits"],
            "peak_memory_mb": max([host_memory.peak_resident_bytes(), *peaks]) / 2**20,
        }

    def run(self, name: str, work: Callable[[], Any]) -> None:
        """Runs `work`, unless the phase `name` is finished already."""
        if name in self.seconds:
            print(f"[{name}] finished earlier ({self.seconds[name]:.0f} s)", file=sys.stderr)
            return
        print(f"[{name}]", file=sys.stderr)
        began = time.perf_counter()
        work()
        self.add(name, time.perf_counter() - began)

    def add(self, name: str, seconds: float) -> None:
        """Records a phase as finished."""
        self.seconds[name], self._state["commits"][name] = seconds, commit()
        self._state["peak_bytes"][name] = host_memory.peak_resident_bytes()
        write_text(self._path, json.dumps(self._state, indent=2) + "\n")
