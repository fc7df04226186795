"""The script for a pretrained code model, over a stand-in: each step's file is what the next one reads."""

import json
import sys

import causal_stand_in as stand_in
import numpy as np
import pytest
from causal_stand_in import EOS, Model, Tokenizer

from padir.errors import PadirError
from padir.interop.causal_lm import CausalLM
from padir.verifier.run import train_verifier
from padir.verifier.training import ProbeTraining

END = "one in each line:\n"


class Writer(CausalLM):
    """Writes one test case after another; every third is wrong with probability 0.5."""

    def __init__(self, layer=-1):
        super().__init__(Model(self.next_logits), Tokenizer(), layer=layer, torch=stand_in.torch)

    def next_logits(self, tokens):
        logits = np.zeros(len(Tokenizer()))
        text = Tokenizer().decode([token for token in tokens if token > 2])
        if text.count(END) < 2:
            return logits
        name = text.rsplit("function ", 1)[1].split(",")[0]
        written = text.rsplit(END, 1)[1]
        done, rest = written.count("\n"), written.rsplit("\n", 1)[-1]
        line = f"assert {name}([], {done}) == [{done}]\n"
        right = EOS if done == 8 else Tokenizer().encode(line[len(rest)], False)[0]
        logits[:] = -np.inf
        logits[right] = 0.0
        if done % 3 == 2 and len(rest) == len(line) - 3:
            logits[Tokenizer().encode("9", False)[0]] = 0.0
        return logits

    def step(self, token, position, state):
        log_probs, features, state = super().step(token, position, state)
        text = Tokenizer().decode(state.tokens, skip_special_tokens=True)
        return log_probs, np.array([text.endswith("[9"), features[1] % 3], np.float32), state


@pytest.fixture
def run(load_script, monkeypatch):
    script = load_script("append_tests")
    monkeypatch.setattr(script.CausalLM, "load", lambda path, layer=-1, **options: Writer(layer))

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["append_tests.py", *map(str, arguments)])
        script.main()

    return run


@pytest.mark.slow
def test_all_steps(run, tmp_path, capsys):
    examples, out = tmp_path / "examples.npz", tmp_path / "out.jsonl"
    run("examples", "--model=m", "--layer=1", "--repeats=8", f"--output={examples}")
    arrays = np.load(examples)
    errors = int((arrays["labels"] == 0).sum())
    assert arrays["features"].shape == (56 + errors, 2) and 25 < errors < 50
    np.testing.assert_array_equal(arrays["features"][:, 0], 1 - arrays["labels"])
    given = {"features": str(examples), "layer": 1, "threshold": 0.25, "output_dir": str(tmp_path / "verifier")}
    record = train_verifier(**given, training=ProbeTraining(epochs=100, learning_rate=0.1))
    assert record["accuracy"] == 1.0
    few = ["--model=m", f"--output={out}", "--runs=2", "--names=2", "--repeats=1", "--top_p=1.0"]
    run("complete", *few, "--setting=plain")
    run("complete", *few, f"--verifier={tmp_path / 'verifier'}", "--quota=10", "--stride=1")
    before = out.read_text()
    # What is there is not run again.
    run("complete", *few, "--setting=plain")
    assert out.read_text() == before
    assert [json.loads(line)["run"] for line in before.splitlines()] == [0, 0, 1, 1] * 2
    capsys.readouterr()
    run("score", out)
    table = capsys.readouterr().out.splitlines()
    assert table[2].startswith("| Q10 B1, layer 1, 0.25; 1.0, 1.0 | 1.000 ± 0.000 |")
    assert table[3].startswith("| plain; 1.0, 1.0 | 0.") and table[3].endswith("| 0.504 ± 0.025 | 30754 ± 1272 |")
    run("complete", *few, "--setting=random", "--no_argmax", "--ood_names")
    added = [json.loads(line) for line in out.read_text().splitlines()[8:]]
    assert {line["setting"] for line in added} == {"Q4 B4, random verifier, 0.1; 1.0, 1.0, without argmax, OOD names"}
    assert [line["name"] for line in added] == ["pop", "add"] * 2 and sum(line["backtracks"] for line in added) > 0
    with pytest.raises(PadirError, match="--names=11: there are 10 --ood_names"):
        run("complete", *few, "--setting=random", "--ood_names", "--names=11")
    with pytest.raises(PadirError, match="--no_argmax: --setting=plain rewrites nothing"):
        run("complete", *few, "--setting=plain", "--no_argmax")
    out.write_text("".join(before.splitlines(keepends=True)[:-1]))
    with pytest.raises(PadirError, match="run 1 of Q10 B1, layer 1, 0.25; 1.0, 1.0 was cut off; remove its lines"):
        run("complete", *few, f"--verifier={tmp_path / 'verifier'}", "--quota=10", "--stride=1")
    out.write_text("no JSON")
    with pytest.raises(PadirError, match="not one JSON object a line"):
        run("score", out)
