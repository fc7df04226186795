"""What is recorded of phases, over all starts of a job."""

import json
from dataclasses import dataclass

import pytest

from padir.demo.phases import PHASES_FILE, Phases
from padir.errors import PadirError


@dataclass(frozen=True)
class Settings:
    size: int = 1


def test_a_phase_runs_once_whatever_the_number_of_starts(tmp_path):
    ran = []
    for _ in range(2):
        phases = Phases(tmp_path, Settings())
        phases.run("first", lambda: ran.append(1))
    assert ran == [1] and list(phases.seconds) == ["first"]
    with pytest.raises(PadirError, match="holds a run with other settings"):
        Phases(tmp_path, Settings(size=2))


def test_the_most_memory_is_that_of_all_starts(tmp_path):
    phases = Phases(tmp_path, Settings())
    phases.run("first", lambda: None)
    now = phases.facts()["peak_memory_mb"]
    assert 0 < now < 2**20
    record = tmp_path / PHASES_FILE
    earlier = json.loads(record.read_text(encoding="utf-8"))
    earlier["peak_bytes"]["first"] = 2**50
    record.write_text(json.dumps(earlier), encoding="utf-8")
    again = Phases(tmp_path, Settings())
    again.run("second", lambda: None)
    facts = again.facts()
    assert facts["peak_memory_mb"] == 2**30
    assert list(facts["phase_seconds"]) == list(facts["phase_commits"]) == ["first", "second"]
    assert facts["seconds"] == sum(facts["phase_seconds"].values())


def test_a_record_without_memory_is_read(tmp_path):
    """Of a version that did not record it."""
    (tmp_path / PHASES_FILE).write_text('{"config": {"size": 1}, "seconds": {"first": 2.0}, "commits": {"first": "a"}}')
    assert Phases(tmp_path, Settings()).facts()["peak_memory_mb"] > 0
