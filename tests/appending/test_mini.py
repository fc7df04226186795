"""The small experiment: its lines, its verifiers' examples, and its claims, with a model that hardly learns."""

import dataclasses

import numpy as np
import pytest
import tiny_models

from padir.appending import lines, mini
from padir.appending.mini import BLOCK, LAST, PLAIN, RANDOM, MiniConfig, Writer, claims, compare, train_verifiers
from padir.appending.protocol import Row
from padir.data.append_tests import first_error, parse
from padir.decoding.backtracking import Backtracking
from padir.decoding.sampling import Sampling
from padir.decoding.verifiers import AlwaysAccept
from padir.nn.network import NetworkConfig
from padir.verifier.training import TrainedProbe

NETWORK = NetworkConfig(
    **tiny_models.SIZES | {"dropout_rate": 0.0}, tied_logits=False, causal=True, positional_attention=False
)
CONFIG = MiniConfig(NETWORK, steps=2, batch_size=4, lines=2, num_names=3, examples=60, names=2, repeats=2, runs=2)


def test_a_known_share_of_lines_is_wrong():
    drawn, room = lines.texts(["abc", "xyz"], 400, np.random.default_rng(0), lines=4, wrong=0.15)
    found = ["".join(lines.pieces_of(row)) for row in drawn]
    assert room == 4 + 4 * 30 + 1 and (drawn > 0).sum(axis=1).max() <= room
    assert all(row[row > 0][-1] == 1 for row in drawn) and {text[:4] for text in found} == {"abc\n", "xyz\n"}
    cases = [case for text in found for case in parse(text[4:], text[:3], 4)]
    assert len(cases) == 1600
    assert abs(np.mean([not case.correct for case in cases]) - 0.15) < 5 * np.sqrt(0.15 * 0.85 / 1600)
    right = lines.texts(["abc"], 20, np.random.default_rng(0), lines=3, wrong=0.0)[0]
    assert all(first_error("".join(lines.pieces_of(row))[4:], "abc", 3) is None for row in right)


def test_texts_and_tokens():
    text = "assert abc([1, 2], 3) == [1, 2, 3]\n"
    tokens = lines.tokens_of(text)
    assert lines.pieces_of(tokens) == [*["assert ", *"abc([1", ", ", *"2]", ", ", *"3)", " == ", *"[1"], ", ", "2"] + [
        ", ",
        *"3]\n",
    ]
    assert lines.pieces_of([*tokens, 1, 5, 5])[-1] == ""
    with pytest.raises(KeyError):
        lines.tokens_of("A")


@pytest.mark.slow
def test_every_part_runs_and_counts(monkeypatch):
    # All that this model writes is wrong from the first token on.
    monkeypatch.setattr(mini.protocol, "example_places", lambda *_, requested: [(0, 1.0), (1, 0.0)])
    writer = Writer(CONFIG, tiny_models.sharpen(CONFIG.model.init(0)))
    names = CONFIG.known_names
    plain = Backtracking(quota=0, sampling=Sampling(temperature=1.0))
    tokens, queries = writer.write(names, plain, AlwaysAccept(), stream="a")
    again, _ = writer.write(names, plain, AlwaysAccept(), stream="a")
    np.testing.assert_array_equal(tokens, again)
    assert ["".join(lines.pieces_of(row[:4])) for row in tokens] == [f"{name}\n" for name in names]
    np.testing.assert_array_equal(queries, (tokens > 0).sum(axis=1) - lines.PROMPT)
    verifiers = train_verifiers(writer)
    # One layer, and what the norm makes of it.
    assert list(verifiers) == ["layer 1", LAST] and [layer for layer, _ in verifiers.values()] == [1, None]
    assert all(of.training_examples + of.validation_examples == 120 for _, of in verifiers.values())
    found = compare(writer, verifiers)
    ours = [f"backtracking, {name}, {threshold}" for name in ("layer 1", LAST) for threshold in (0.1, 0.5)]
    assert list(found) == [PLAIN, RANDOM, *ours, BLOCK]
    assert all(row.runs == 2 and 0 <= row.accuracy[0] <= 1 for row in found.values())
    assert found[BLOCK].queries[0] > 2 * found[PLAIN].queries[0]


@pytest.mark.slow
def test_training_and_result(monkeypatch):
    monkeypatch.setattr(mini, "train_verifiers", lambda writer: {LAST: (None, TrainedProbe(None, 0.9, 0.9, 1, 8, 2))})
    rows = {
        PLAIN: Row((0.60, 0.03), (1000.0, 10.0), 24.0, 5),
        RANDOM: Row((0.61, 0.04), (1050.0, 10.0), 24.4, 5),
        f"backtracking, {LAST}, 0.1": Row((0.60, 0.04), (1000.0, 10.0), 24.0, 5),
        f"backtracking, {LAST}, 0.5": Row((0.70, 0.04), (1080.0, 10.0), 28.0, 5),
        BLOCK: Row((0.65, 0.04), (3500.0, 10.0), 26.0, 5),
    }
    monkeypatch.setattr(mini, "compare", lambda writer, verifiers: rows)
    result = mini.mini(dataclasses.replace(CONFIG, steps=2))
    assert len(result["losses"]) == 2 and result["losses"][0] > 1.0
    assert result["verifiers"] == {LAST: {"accuracy": 0.9, "examples": 10}}
    measured = [claim["measured"] for claim in result["claims"]]
    assert measured == pytest.approx([0.0, 1.0, 2.0, 1.08, 3.5, 0.2])
    assert [claim["passed"] for claim in result["claims"]] == [False, True, *[measured[2] > 2.0], True, True, True]
    greedy = claims(rows | {RANDOM: Row((0.45, 0.03), (1050.0, 10.0), 18.0, 5)}, {LAST: (None, _probe())}, (0.5,))[-1]
    assert not greedy.passed and "rewritten greedily" in greedy.line()


def _probe():
    return TrainedProbe(None, 0.9, 0.9, 1, 8, 2)
