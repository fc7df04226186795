"""The experiment with a code model, over a stand-in that writes lines of known probabilities."""

import json

import causal_stand_in as stand_in
import numpy as np
import pytest
from causal_stand_in import EOS, Model, Tokenizer

from padir.appending import protocol, thesis
from padir.appending.protocol import (
    backtracking,
    block_best_of,
    completions,
    example_places,
    nucleus,
    plain,
    report,
    rows,
    verifier_examples,
)
from padir.decoding.stepwise import judged_by
from padir.errors import PadirError
from padir.interop.causal_lm import CausalLM
from padir.verifier.training import ProbeTraining, train_probe

END = "one in each line:\n"
# Errs in the item of every line with probability 0.4; items count up, so that test cases differ.
WRONG = 0.4


class Writer(CausalLM):
    """A model that knows the task, but writes '9' in place of a right side's last digit too often.

    Its features say whether the last token is such a 9, and how long the text is.
    """

    def __init__(self, lines=8):
        super().__init__(Model(self.next_logits), Tokenizer(), torch=stand_in.torch)
        self.lines = lines

    def next_logits(self, tokens):
        text = Tokenizer().decode([token for token in tokens if token > 2])
        if text.count(END) < 2:
            return np.zeros(len(Tokenizer()))  # Of the prompt itself.
        name = text.rsplit("function ", 1)[1].split(",")[0]
        written = text.rsplit(END, 1)[1]
        done = written.count("\n")
        line = f"assert {name}([{done}], 1) == [{done}, 1]\n"
        rest = written.rsplit("\n", 1)[-1]
        logits = np.full(len(Tokenizer()), -np.inf)
        if done == self.lines:
            logits[EOS] = 0.0
        else:
            right = Tokenizer().encode(line[len(rest)], False)[0]
            logits[right] = 0.0
            if len(rest) == len(line) - 3:
                logits[right], logits[Tokenizer().encode("9", False)[0]] = np.log([1 - WRONG, WRONG])
        return logits

    def step(self, token, position, state):
        log_probs, _, state = super().step(token, position, state)
        text = Tokenizer().decode(state.tokens, skip_special_tokens=True)
        return log_probs, np.array([text.endswith(", 9"), len(text) % 7 - 3], np.float32), state


@pytest.fixture(scope="module")
def trained():
    features, labels, groups = verifier_examples(Writer(), repeats=6, sampling=nucleus(1.0, 1.0), seed=3)
    return (
        features,
        labels,
        groups,
        judged_by(train_probe(features, labels, groups, ProbeTraining(epochs=100, learning_rate=0.1)).probe),
    )


def test_examples_are_first_errors_and_tokens_before_them(trained):
    features, labels, groups, judge = trained
    # 42 texts of 8 lines: nearly all err. A wrong prefix ends in the 9, and a fine one does not.
    assert len(np.unique(groups)) == 42 and labels.sum() == 42 and 38 <= (labels == 0).sum() <= 42
    np.testing.assert_array_equal(features[:, 0], 1 - labels)
    assert judge([], np.array([0.0, 1.0])) > 0.9 > 0.1 > judge([], np.array([1.0, 1.0]))


def test_places_of_examples():
    random = np.random.default_rng(0)
    right = [*"assert f([], 1) == [1]\n"]
    assert example_places([*right, *"assert f([], 2) == [3]\n"], "f", random)[1] == (len(right) + 20, 0.0)
    wrong_line = [*right, *"assert f([], 2) == [3]\n", *right]
    assert example_places(wrong_line, "f", random, line_ends_only=True) == [
        (len(right) - 1, 1.0),
        (2 * len(right) - 1, 0.0),
    ]
    # Nothing is wrong but what follows the eighth: it teaches nothing.
    whole = [*right * 8, *"and so on", ""]
    for _ in range(20):
        ((place, label),) = example_places(whole, "f", random)
        assert label == 1.0 and place < 8 * len(right)
    # Ended too soon, EOS is the error; where the text is cut off, none of its tokens is.
    assert example_places([*right, ""], "f", random)[1] == (len(right), 0.0)
    assert example_places(right, "f", random) == []


def test_backtracking_repairs_what_the_model_writes(trained):
    judge, names = trained[-1], ["aaa", "bbb"]
    settings = [plain(1.0), backtracking(27, 0.5, stride=1, quota=10, top_p=1.0)]
    settings.append(block_best_of(Writer().line_ends(), 2, top_p=1.0))
    options = {"names": names, "repeats": 2, "new_tokens": 400}
    lines = [
        json.loads(json.dumps(line))
        for run in range(3)
        for setting in settings
        for line in completions(Writer(), setting, judge, run=run, **options)
    ]
    assert len(lines) == 3 * 3 * 4 and len({line["text"] for line in lines}) > 10
    found = rows(lines)
    assert list(found) == ["plain; 1.0, 1.0", "Q10 B1, layer 27, 0.5; 1.0, 1.0", "block best of 2; 1.0, 1.0"]
    without, repaired, blocks = found.values()
    # Right is any of two texts of a name: 1 - 0.4², but the same 8 test cases in both, so at most half of those asked.
    assert repaired.accuracy == (0.5, 0.0) and repaired.distinct_correct == 16 and repaired.runs == 3
    assert without.accuracy[0] < 0.48 and without.queries == (4 * (8 * len("assert aaa([0], 1) == [0, 1]\n") + 1), 0.0)
    assert 1.0 < repaired.queries[0] / without.queries[0] < 1.1 < 1.95 < blocks.queries[0] / without.queries[0]
    # A test case written twice counts once, and one for each name.
    assert rows(line for line in lines if line["name"] == "aaa")["plain; 1.0, 1.0"].distinct_correct <= 8
    table = report(found)
    assert table.splitlines()[2].startswith("| Q10 B1, layer 27, 0.5; 1.0, 1.0 | 0.500 ± 0.000 |")
    assert "| 0.504 ± 0.025 | 30754 ± 1272 |" in table


def test_runs_differ_and_repeat():
    options = {"repeats": 1, "new_tokens": 240}
    first, again, other = (list(completions(Writer(), plain(1.0), run=run, **options)) for run in (0, 0, 1))
    assert first == again and len({line["name"] for line in first}) == 10
    assert {line["name"] for line in first} != {line["name"] for line in other}


def test_names_of_the_thesis():
    theirs = thesis.table()
    assert theirs[plain().name] == (0.660, 0.042, 38231, 165)
    assert theirs[backtracking(27).name][:2] == (0.714, 0.011)
    assert theirs[backtracking(31, 0.5).name][2:] == (39629, 135)
    assert theirs[block_best_of((3,), 8).name] == (0.559, 0.038, 122933, 3832)
    # Tables 3.9, 3.11, 3.17 and 3.15.
    assert theirs[backtracking(11).name] == (0.650, 0.041, None, None)
    assert theirs[backtracking(None).name][:2] == (0.663, 0.027)
    assert theirs[backtracking(27, depth=4).name][:2] == (0.699, 0.038)
    assert theirs[backtracking(27, 0.5, argmax=False).name][:2] == (0.663, 0.023)
    assert not backtracking(27, argmax=False).sampler.rewrite_greedily
    assert theirs[thesis.variant(backtracking(27, 0.5).name, ood_names=True)][:2] == (0.687, 0.024)
    assert theirs[thesis.variant(plain().name, ood_names=True)][:2] == (0.606, 0.034)
    assert theirs[plain(0.8, 1.2).name][2:] == (38343, 90) and theirs[plain(0.7, 0.2).name][2:] == (38400, 0)


def test_random_judge_repeats_and_is_uniform():
    judge, again, other = (protocol.random_judge(run) for run in (0, 0, 1))
    drawn = [judge([], np.zeros(1)) for _ in range(2000)]
    assert drawn == [again([], np.ones(1)) for _ in range(2000)] and drawn[0] != other([], np.zeros(1))
    assert abs(np.mean(drawn) - 0.5) < 5 / np.sqrt(12 * 2000) and abs(np.mean(np.array(drawn) < 0.1) - 0.1) < 0.035


def test_what_does_not_fit_is_refused():
    with pytest.raises(PadirError, match="Q4 B4, layer 27, 0.1; 0.95, 1.0: asks a verifier, and there is none"):
        next(completions(Writer(), backtracking(27)))
    with pytest.raises(PadirError, match="completion 2: needs 'setting', 'run', 'name', 'text' and 'queries'"):
        rows([{"setting": "a", "run": 0, "name": "f", "text": "", "queries": 1}, {"setting": "a"}])
    with pytest.raises(PadirError, match="no completion gave an example"):
        verifier_examples(Writer(), repeats=0)
    assert protocol.NEW_TOKENS == 384
