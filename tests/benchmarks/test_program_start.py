"""Seconds to the first translation: each command is a process that sees its own compilation cache, or none."""

import sys

import pytest

# Says the text and the cache that it sees.
ECHO = "import os; print(input(), os.environ.get('JAX_COMPILATION_CACHE_DIR'), file=open({!r}, 'a')); print('done')"


def test_a_process_with_and_without_a_cache(load_script, tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "of the caller")
    script, said = load_script("program_start"), tmp_path / "said"
    command = [sys.executable, "-c", ECHO.format(str(said))]
    assert script.seconds(command, "text", None) > 0 and script.seconds(command, "text", tmp_path / "cache") > 0
    assert said.read_text().splitlines() == ["text None", f"text {tmp_path / 'cache'}"]
    with pytest.raises(RuntimeError, match="no translation"):
        script.seconds([sys.executable, "-c", "input()"], "text", None)


def test_systems_take_turns_after_their_caches_are_filled(load_script, tmp_path, monkeypatch):
    script, asked = load_script("program_start"), []

    def seconds(command, text, cache):
        asked.append((command[-1].endswith("load_program.py"), cache is not None))
        return float(len(asked))

    monkeypatch.setattr(script, "seconds", seconds)
    monkeypatch.setattr(script.subprocess, "run", lambda command, check: None)
    found = script.measure(tmp_path, "run", "text", 3)
    exported, padir = [(True, False), (True, True)], [(False, False), (False, True)]
    assert asked == [exported[1], padir[1], *(exported + padir) * 3]
    assert found["exported program, no cache"] == {"median": 7.0, "min": 3.0, "max": 11.0, "n": 3}
    assert list(found)[1:] == [
        "exported program, filled cache",
        "padir translate, no cache",
        "padir translate, filled cache",
    ]
