"""A result says what it depends on."""

import subprocess

from padir.benchmark import facts
from padir.benchmark.facts import run_facts


def test_facts_of_the_run():
    found = run_facts()
    assert found["device"] == "cpu" and found["device_count"] == 8 and found["cpu_count"] >= 1
    assert "xla_force_host_platform_device_count=8" in found["xla_flags"]
    assert len(found["load_average"]) == 3
    assert {"jax", "jaxlib", "flax", "optax"} <= found["versions"].keys()
    assert found["python"].startswith("3.")


def test_the_commit_says_whether_the_checkout_differs(monkeypatch, tmp_path):
    def git(*arguments):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        command = ["git", "-C", str(tmp_path), *identity, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    (tmp_path / "padir" / "benchmark").mkdir(parents=True)
    monkeypatch.setattr(facts, "__file__", str(tmp_path / "padir" / "benchmark" / "facts.py"))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert facts._commit() == ""
    git("init", "-q")
    (tmp_path / "padir" / "file").write_text("one")
    git("add", ".")
    git("commit", "-qm", "one")
    assert facts._commit() == git("rev-parse", "HEAD")
    (tmp_path / "result.json").write_text("{}")
    assert facts._commit() == git("rev-parse", "HEAD"), "a result is no code"
    (tmp_path / "padir" / "file").write_text("two")
    assert facts._commit() == git("rev-parse", "HEAD") + "+changes"
