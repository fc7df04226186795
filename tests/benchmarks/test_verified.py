"""`benchmarks/verified.py` on tiny models: what it counts, and that it would see a difference."""

import json
import sys

import numpy as np
import pytest

import padir


@pytest.fixture(scope="module")
def script(load_script):
    return load_script("verified")


@pytest.fixture(scope="module")
def result(script, tiny, tmp_path_factory):
    output = tmp_path_factory.mktemp("verified") / "verified.json"
    options = {"teacher": tiny.ar, "student": tiny.padir, "data": tiny.data, "output": output, "buckets": "32"}
    options |= {"requests": 2, "repeats": 1}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["verified.py", *(f"--{name}={value}" for name, value in options.items())])
        patch.setattr(script, "COMPUTE_TYPES", (None,))
        script.main()
    return json.loads(output.read_text())


@pytest.mark.slow
def test_every_output_is_that_of_greedy_decoding(result):
    found = result["agreement"]["None"]
    for drafts in ("1 draft", "3 drafts"):
        counted = found[drafts]
        assert counted["equal"] == found["sentences"] and counted["margins"] == []
        assert counted["tokens_per_round"] == pytest.approx(found["tokens"] / counted["mean_rounds"])
        assert counted["mean_rounds"] >= 1 and 0 <= counted["one_round"] <= 1
        # One pass of the student for a round, but none where the teacher goes on alone.
        assert 1 <= counted["mean_draft_passes"] <= counted["mean_rounds"]


@pytest.mark.slow
def test_every_part_takes_time(result):
    profile = result["profile"]
    assert min(profile["encoder_ms"].values()) > 0 and profile["greedy_step_ms"] > 0
    assert {name: timing["n"] for name, timing in result["latency_ms"].items()} == {
        "AR greedy": 2,
        "PaDIR, 1 step": 2,
        "verified, 1 draft a round": 2,
        "verified, 3 drafts a round": 2,
        "verified, drafts of 4 steps": 2,
        "verified, close tokens stand": 2,
        "verified, sampled": 2,
    }


@pytest.mark.slow
def test_exact_ways_score_as_greedy_decoding(result):
    ways = result["ways"]
    greedy = ways.pop("AR greedy")
    assert greedy["equal"] == result["agreement"]["None"]["sentences"] and "mean_rounds" not in greedy
    for name in ("verified, 1 draft a round", "verified, 3 drafts a round", "verified, drafts of 4 steps"):
        assert (ways[name]["bleu"], ways[name]["equal"]) == (greedy["bleu"], greedy["equal"])
        assert "p_value" not in ways[name]
    assert ways["AR sampled"]["equal"] < greedy["equal"] and 0 <= ways["AR sampled"]["p_value"] <= 1
    assert ways["verified, sampled"]["against"] == "AR sampled"
    # More is accepted, so that there are no more rounds.
    assert ways["verified, close tokens stand"]["mean_rounds"] <= ways["verified, 1 draft a round"]["mean_rounds"]
    assert ways["verified, sampled"]["mean_rounds"] >= 1


@pytest.mark.slow
def test_a_difference_has_its_margin(script, tiny):
    teacher = padir.load(tiny.ar)
    sources = [teacher.tokenize("a dog"), teacher.tokenize("a big dog")]
    decoded = teacher.decode_ids(sources, teacher.default_decode)
    greedy = decoded.tokens[:2, 0]
    other = greedy.copy()
    other[1, 0] = 3 + (greedy[1, 0] == 3)
    (margin,) = script.margins(teacher, script.padded(sources), greedy, other)
    # The first greedy token is the likeliest.
    assert margin > 0
    assert script.margins(teacher, script.padded(sources), greedy, greedy) == []
    assert np.array_equal(script.padded([[4, 1], [4, 5, 1]]), [[4, 1, 0], [4, 5, 1]])
