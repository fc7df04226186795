"""Summaries, claims and pages, from numbers that can be checked by hand."""

import copy
import json

import numpy as np
import pytest

from padir.analysis import tables
from padir.analysis.pairs import CROSS, SELF, Pairs
from padir.analysis.paper import PAPER

STUTTERS = np.array([True, False, True, False])


@pytest.fixture
def pairs():
    values = {name: np.tile(np.array([[1.0, 3.0]], np.float32), (4, 1)) for name in SELF}
    values |= {name: np.ones((4, 1), np.float32) for name in CROSS}
    values["self_avg"] = np.array([[0.1, 0.3], [0.2, 0.2], [0.5, 0.3], [0.0, 0.4]], np.float32)
    values["tv_avg"] = np.array([[0.125], [0.5], [0.25], [0.625]], np.float32)
    return Pairs(values, STUTTERS, np.array([0, 0, 1, 1]))


def test_moments_by_hand(pairs):
    summary = tables.summarize(pairs, permutations=200, seed=0)
    row = summary["self_avg"]
    # Both directions of two pairs: 0.1, 0.3, 0.5, 0.3, and 0.2, 0.2, 0.0, 0.4; sd of the first is sqrt(0.08 / 3).
    sd = pytest.approx(0.16329931, rel=1e-5)
    assert row["stutter"] == {"mean": pytest.approx(0.3), "sd": sd, "n": 4}
    assert row["no_stutter"] == {"mean": pytest.approx(0.2), "sd": sd, "n": 4}
    assert row["difference"] == pytest.approx(0.1)
    assert summary["self_avg_forward"]["stutter"]["mean"] == pytest.approx(0.3)
    assert summary["self_avg_forward"]["no_stutter"] == {
        "mean": pytest.approx(0.1),
        "sd": pytest.approx(0.1414214),
        "n": 2,
    }
    assert summary["self_avg_backward"]["difference"] == pytest.approx(0.0, abs=1e-6)
    assert summary["tv_avg"]["difference"] == -0.375
    # Two rotations of each sentence: sums 0.375 (this one), 0.75, 0.75 and 1.125, which is as far above.
    assert summary["tv_avg"]["p_value"] == pytest.approx(0.5, abs=0.15)
    assert "tv_avg_forward" not in summary
    json.dumps(summary, allow_nan=False)


def row(difference, p_value, within=None):
    return {
        "difference": difference,
        "difference_within_sentences": difference if within is None else within,
        "p_value": p_value,
    }


AS_IN_THE_PAPER = {
    "self_min": row(-0.0001, 0.001),
    "self_avg": row(-0.001, 0.4),
    "self_max": row(0.001, 0.4),
    **{f"{distance}_{over}": row(-0.1, 0.001) for distance in ("tv", "cosine") for over in ("min", "avg", "max")},
    "cross_top1": row(0.17, 0.001),
    "cross_top2": row(0.08, 0.001),
}


@pytest.mark.parametrize(
    ("name", "changed", "fails"),
    [
        ("self_avg", row(0.01, 0.4), False),
        ("self_avg", row(-0.01, 0.001), False),
        ("self_avg", row(0.01, 0.001), True),
        ("self_max", row(0.01, 0.001), True),
        ("cosine_min", row(-0.01, 0.2), True),
        ("tv_avg", row(-0.1, 0.06), True),
        ("tv_avg", row(0.1, 0.001), True),
        ("tv_avg", row(-0.1, 0.001, within=0.1), True),
        ("cross_top2", row(-0.1, 0.001), True),
        ("cross_top2", row(0.01, 0.049), False),
    ],
)
def test_claims(name, changed, fails):
    summary = copy.deepcopy(AS_IN_THE_PAPER)
    assert all(claim["passed"] for claim in tables.claims(summary))
    found = tables.claims(summary | {name: changed})
    assert [claim["statistic"] for claim in found if not claim["passed"]] == [name] * fails
    lines = tables.verdicts(found)
    assert len(lines) == 2
    hypothesis = 1 if name.startswith("self") else 2
    assert ["does not fully agree with the paper" in line for line in lines] == [
        fails and hypothesis == number for number in (1, 2)
    ]
    assert [line.split(" claims")[0].split(", ")[-1] for line in lines] == [
        f"{3 - (fails and hypothesis == 1)} of 3",
        f"{8 - (fails and hypothesis == 2)} of 8",
    ]


def test_a_claims_line():
    line = tables.claims(AS_IN_THE_PAPER)[3]["line"]
    expected = (
        "PASS  hypothesis 2, tv_avg smaller where it stutters: difference -0.1000 (p = 0.001), in the paper -0.1000"
    )
    assert line == expected


def test_the_page(pairs):
    summary = tables.summarize(pairs, permutations=200, seed=0)
    claims = tables.claims(summary)
    result = {
        "layer": 2,
        "run_dir": "run",
        "step": 5,
        "split": "test",
        "data_dir": "data",
        "decode": "Refinement()",
        "permutations": 200,
        "counts": {"sentences": 2, "stutter_pairs": 2, "sentences_that_stutter": 2, "other_pairs": 2},
        "verdicts": tables.verdicts(claims),
        "claims": claims,
        "statistics": summary,
    }
    lines = tables.markdown(result).splitlines()
    assert "| | min | avg | max | P{top-1} | P{top-2} | P{top-1}, mean of heads | P{top-2}, mean of heads |" in lines
    assert "| paper, stutter | 0.0004 ± 0.0007 | 0.032 ± 0.023 | 0.16 ± 0.11 | 0.2 | 0.39 | – | – |" in lines
    measured = next(line for line in lines if line.startswith("| here, stutter |"))
    assert measured.split(" | ")[2] == "0.300 ± 0.163"
    assert sum(line.startswith("| here t → t+1, stutter |") for line in lines) == 1
    assert sum(line.startswith("| within sentences |") for line in lines) == 2
    # Every row of a table has its heading's columns.
    for heading, end in (("| | min", "Distance"), ("| | total", "min, avg and max")):
        first = next(i for i, line in enumerate(lines) if line.startswith(heading))
        rows = [line for line in lines[first : first + 15] if line.startswith("|")]
        assert {line.count("|") for line in rows} == {lines[first].count("|")}, end


def test_the_papers_numbers(shared):
    printed = json.loads((shared / "paper" / "tables.json").read_text())
    for table, names in (
        ("attention_self", ("self_min", "self_avg", "self_max", "self_top1", "self_top2")),
        (
            "attention_cross",
            ("tv_min", "tv_avg", "tv_max", "cosine_min", "cosine_avg", "cosine_max", "cross_top1", "cross_top2"),
        ),
    ):
        for index, kind in enumerate(("stutter", "no_stutter")):
            expected = [tuple(cell) if isinstance(cell, list) else (cell,) for cell in printed[table][kind]]
            assert [PAPER[name][index] for name in names] == expected
