"""`benchmarks/host_time.py`: the host's part is timed without the program."""

import json
import sys

import jax
import numpy as np


def test_answers_that_were_kept(load_script, tiny, tmp_path, monkeypatch):
    script, output, texts = load_script("host_time"), tmp_path / "host.json", tmp_path / "texts"
    texts.write_text("a dog\na big dog\nnot read\n")
    options = {"run_dir": tiny.padir, "texts": texts, "sentences": 2, "repeats": 3, "output": output}
    monkeypatch.setattr(sys, "argv", ["host_time.py", *(f"--{name}={value}" for name, value in options.items())])
    script.main()
    found = json.loads(output.read_text())["ms"]
    assert {name: timing["n"] for name, timing in found.items()} == {"text to text": 6, "host": 6}
    assert found["host"]["late_compilations"] == 0


def test_a_program_runs_once_for_each_source(load_script, tiny, monkeypatch):
    script, ran = load_script("host_time"), []
    translator = script.with_answers(str(tiny.padir), ["a dog", "a big dog"])
    expected = translator.translate(["a dog"])
    monkeypatch.setattr(jax, "block_until_ready", lambda answer: ran.append(np.shape(answer[0])) or answer)
    assert translator.translate(["a dog"]) == expected and ran == []
    translator.translate(["a dog a dog"])
    assert len(ran) == 1
