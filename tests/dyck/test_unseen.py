"""Counting errors, their kinds and distinct outputs."""

import numpy as np
import pytest
import tiny_dyck

from padir.data.dyck import text_of
from padir.decoding.backtracking import Backtracking
from padir.dyck import unseen
from padir.dyck.generator import GREEDY, Completed, Prefixes, nucleus, plain
from padir.dyck.unseen import distinct, diversity, fewer_p_value, remaining, standard_error, systems, unseen_errors

CONFIG = tiny_dyck.CONFIG


def test_paired_bootstrap():
    """As drawing prompts one by one; 0.5 where nothing differs but chance, tiny where ours are always fewer."""
    random = np.random.default_rng(0)
    ours, theirs = random.integers(0, 3, 200) / 2, random.integers(0, 3, 200) / 2
    ours[:8] = 0.0
    drawn = random.integers(0, 200, (4000, 200))
    by_hand = ((ours - theirs)[drawn].sum(axis=1) >= -1e-9).mean()
    assert 0.01 < by_hand < 0.99
    assert fewer_p_value(ours, theirs, 1) == pytest.approx(by_hand, abs=0.03)
    assert fewer_p_value(np.zeros(50), np.ones(50), 0) == pytest.approx(1 / 10_001)
    assert fewer_p_value(np.ones(50), np.ones(50), 0) == 1.0


def test_small_statistics():
    assert standard_error(np.array([1.0, 3.0])) == pytest.approx(1.0)
    assert standard_error(np.array([4.0])) == 0.0
    tokens = np.array([[3, 4], [3, 4], [5, 6], [3, 4], [5, 6], [3, 6]])
    assert distinct(tokens, 3).tolist() == [2, 3]


def test_every_setting_of_the_thesis_is_there():
    named = systems(CONFIG, tiny_dyck.probe())
    assert {name: (of.quota, of.stride, of.threshold, of.rewrite_greedily) for name, (of, _) in named.items()} == {
        **{f"baseline, top_p {p}": (0, 4, None, True) for p in (0.9, 1.0)},
        "greedy, no verifier": (0, 4, None, True),
        **{f"backtracking, top_p {p}": (4, 4, None, True) for p in (0.9, 1.0)},
        **{f"backtracking, rewritten tokens checked, top_p {p}": (4, 4, None, True) for p in (0.9, 1.0)},
        **{f"random verifier, top_p {p}": (4, 4, 0.1, True) for p in (0.9, 1.0)},
        **{f"perfect verifier, top_p {p}": (4, 4, None, True) for p in (0.9, 1.0)},
        "backtracking without argmax, top_p 0.9": (4, 4, None, False),
    }
    assert named["baseline, top_p 0.9"][0].sampling.top_p == 0.9
    assert named["baseline, top_p 1.0"][0].sampling.top_p == 1.0
    checked = {name for name, (of, _) in named.items() if of.check_rewritten}
    assert checked == {f"backtracking, rewritten tokens checked, top_p {p}" for p in (0.9, 1.0)}


def test_errors_of_unseen_prompts(monkeypatch):
    """A perfect verifier leaves fewer errors than none; costs are means; runs differ."""
    chosen = ("baseline, top_p 1.0", "perfect verifier, top_p 1.0", "greedy, no verifier")
    every = systems

    def some(config, probe):
        found = {name: system for name, system in every(config, probe).items() if name in chosen}
        # Nothing is rewritten unchecked.
        drawn = Backtracking(4, 4, sampling=nucleus(1.0), rewrite_greedily=False)
        return found | {"backtracking, top_p 1.0": (drawn, found[chosen[1]][1])}

    monkeypatch.setattr(unseen, "systems", some)
    monkeypatch.setattr(unseen, "TOP_PS", (1.0,))
    generator = tiny_dyck.trained()
    found = unseen_errors(generator, tiny_dyck.probe())
    base, perfect, greedy = (found["systems"][name] for name in chosen)
    assert len(greedy["errors"]) == 1, "it draws nothing"
    often = found["systems"]["random verifier, objecting as often, top_p 1.0"]
    trained = found["systems"]["backtracking, top_p 1.0"]
    assert 0 < found["objections"]["1.0"] < 1
    assert trained["backtracks"] / trained["verifier_calls"] == pytest.approx(found["objections"]["1.0"], rel=1e-6)
    assert often["backtracks"] / often["verifier_calls"] == pytest.approx(found["objections"]["1.0"], abs=0.15)
    assert base["mean"] == np.mean(base["errors"]) and len(base["errors"]) == 2
    assert base["mean"] > perfect["mean"] + 5
    assert base["valid"] == pytest.approx(1 - base["mean"] / 64)
    assert base["verifier_calls"] == base["erased"] == 0 < perfect["erased"]
    assert found["p_values"]["1.0"] == pytest.approx(1 / 10_001)
    mistakes = found["mistakes"]["backtracking, top_p 1.0"]
    errors = found["systems"]["backtracking, top_p 1.0"]["errors"]
    assert mistakes["mistakes"] == sum(errors) == sum(mistakes["kinds"].values()) > 0
    # It objects to every error while it may, so that those that are left have spent their quota.
    assert mistakes["quota_spent"] == mistakes["mistakes"]
    several = diversity(generator, tiny_dyck.probe())
    assert all(1 <= row["mean"] <= 10 for row in several.values())


def test_what_remains_is_told_by_kind():
    generator = tiny_dyck.generator()
    texts = [[3, 6, 0, 0, 0, 0, 0], [3, 4, 1, 0, 0, 0, 0], [3, 4, 3, 4, 3, 4, 1]]
    outputs = Prefixes(np.array(texts, np.int32), np.array([2, 3, 7], np.int32))
    counts = np.array([4, 1, 0])
    run = Completed(outputs, counts < 0, np.array([False, False, True]), *[counts] * 5)
    found = remaining(generator, [run, run])
    assert found["mistakes"] == 4 and found["wrong_type"] == 2 and found["quota_spent"] == 2
    assert found["kinds"] == {"END": 2, "TYPE": 2}
    first = found["examples"][0]
    assert (first["prefix"], first["token"], first["quota_left"]) == ("[", ")", 0)
    # What greedy decoding writes behind the prefix.
    greedy = generator.complete(outputs.cut(np.ones(3, int)), plain(GREEDY), stream="greedy").outputs
    assert first["likeliest"] == text_of(greedy.tokens[0, 1:2])
    assert first["probability"] == pytest.approx(float(np.exp(generator.read(outputs)[1][0, 1])))
    assert remaining(generator, [Completed(outputs, counts < 0, counts >= 0, *[counts] * 5)])["mistakes"] == 0
