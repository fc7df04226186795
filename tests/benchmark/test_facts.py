"""A result says what it depends on."""

import re
import subprocess

import pytest

from padir.benchmark import facts
from padir.benchmark.facts import run_facts


def test_facts_of_the_run():
    found = run_facts()
    assert found["device"] == "cpu" and found["device_count"] == 8 and found["cpu_count"] >= 1
    assert "xla_force_host_platform_device_count=8" in found["xla_flags"]
    assert len(found["load_average"]) == 3
    assert {"jax", "jaxlib", "flax", "optax"} <= found["versions"].keys()
    assert found["python"].startswith("3.")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", found["date"])
    assert set(found["cpu_features"]) <= set(facts._FEATURES)
    assert not re.search(r"(^| )/", found["command"])


@pytest.mark.parametrize(
    "text, expected",
    [
        ("{here}/runs/ar", "runs/ar"),
        ("--output={here}/x.json", "--output=x.json"),
        ("--gin.DATA='{here}/a b'", "--gin.DATA='a b'"),
        ("/somewhere/else/.venv/bin/padir", "padir"),
        ("runs/ar ../shared/data gs://bucket/x a/b", "runs/ar ../shared/data gs://bucket/x a/b"),
        ("('/x/one', '/x/two')", "('one', 'two')"),
    ],
)
def test_commands_hold_no_absolute_path(text, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert facts.portable(text.format(here=tmp_path)) == expected


def test_the_commit_says_whether_the_checkout_differs(monkeypatch, tmp_path):
    def git(*arguments):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        command = ["git", "-C", str(tmp_path), *identity, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    (tmp_path / "padir" / "benchmark").mkdir(parents=True)
    monkeypatch.setattr(facts, "__file__", str(tmp_path / "padir" / "benchmark" / "facts.py"))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert facts.commit() == ""
    git("init", "-q")
    (tmp_path / "padir" / "file").write_text("one")
    git("add", ".")
    git("commit", "-qm", "one")
    assert facts.commit() == git("rev-parse", "HEAD")
    (tmp_path / "result.json").write_text("{}")
    assert facts.commit() == git("rev-parse", "HEAD"), "a result is no code"
    (tmp_path / "padir" / "file").write_text("two")
    assert facts.commit() == git("rev-parse", "HEAD") + "+changes"
