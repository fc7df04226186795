"""Each claim's number is computed from the results as its text says."""

import math

import pytest

from padir.dyck import claims
from padir.dyck.laws import ACTION, BACKTRACKING, WALK

GAIN = "errors without a verifier minus with the trained one"
RANDOM_GAIN = "errors that a trained verifier avoids, halved, minus those that a random one avoids"
PERFECT = "errors with a perfect verifier minus 1.05 times those with the trained one"


def results():
    """Results with the thesis's numbers where it has some, and round ones elsewhere."""
    errors = {
        "greedy, no verifier": 150.0,
        "baseline, top_p 0.9": 240.0,
        "backtracking, top_p 0.9": 180.0,
        "random verifier, top_p 0.9": 225.0,
        "random verifier, objecting as often, top_p 0.9": 205.0,
        "perfect verifier, top_p 0.9": 90.0,
        "baseline, top_p 1.0": 480.0,
        "backtracking, top_p 1.0": 200.0,
        "random verifier, top_p 1.0": 410.0,
        "random verifier, objecting as often, top_p 1.0": 350.0,
        "perfect verifier, top_p 1.0": 100.0,
        "backtracking without argmax, top_p 0.9": 270.0,
    }
    grid = {
        f"{quota},{stride}": {
            **{"accuracy": 0.1 * quota + 0.05 * stride, "nucleus": 0.1, "greedy": 0.15},
            "checked": 0.2 * quota + 0.02 * stride,
        }
        for quota in (1, 2, 4)
        for stride in (2, 4, 6)
    }
    mistakes = {"mistakes": 200, "quota_spent": 190, "wrong_type": 170}
    checked = {"mistakes": 100, "quota_spent": 99, "wrong_type": 80}
    return {
        "language_model": {"closing_accuracy": 1.0, "validity": 0.99, "parameters": 1000, "words": 2000},
        "verifier": {"mean": 0.93},
        "inducing": {
            "forced": {"rewritten greedily": dict(zip("01248", (0.33, 0.36, 0.35, 0.6, 0.8), strict=True))},
            "grid": grid,
        },
        "unseen": {
            "systems": {name: {"mean": mean} for name, mean in errors.items()},
            "p_values": {"0.9": 0.001, "1.0": 0.02},
            "mistakes": {
                "backtracking, top_p 0.9": mistakes,
                "backtracking, rewritten tokens checked, top_p 0.9": checked,
            },
            "prompts": 10_000,
        },
        "diversity": {
            "baseline, top_p 0.9": {"mean": 5.0},
            "backtracking without argmax, top_p 0.9": {"mean": 4.8},
            "backtracking, top_p 0.9": {"mean": 4.5},
            "baseline, top_p 1.0": {"mean": 6.0},
            "backtracking, top_p 1.0": {"mean": 3.0},
        },
        "laws": {
            "systems": {
                WALK: {"distance": 0.05, "valid": 0.97},
                ACTION: {"distance": 0.2, "valid": 0.99},
                BACKTRACKING: {"distance": 0.1, "valid": 0.9},
            }
        },
    }


def test_measured_numbers():
    found = {claim.text: (claim.measured, claim.passed) for claim in claims.all_claims(results())}
    expected = {
        "share of closing brackets that are the model's likeliest token": (1.0, True),
        "share of valid ones among its samples, top_p 1.0": (0.99, True),
        "share of errors on unseen prompts, top_p 1.0": (0.048, True),
        "errors at top_p 1.0 / at 0.9 without a verifier": (2.0, True),
        "validation accuracy of the linear verifier, mean of all": (0.93, True),
        "forced backtrack: least change of accuracy from a stride to the next": (-0.01, True),
        "forced backtrack: accuracy at B = 8 minus none": (0.47, True),
        "verifier's backtracks: accuracy at Q = 4, B = 6 minus none": (0.37, True),
        "rewritten tokens checked: accuracy at Q = 4, B = 6 minus none": (0.59, True),
        "verifier's backtracks: least gain from Q = 1 to 4, of all B": (0.3, True),
        "verifier's backtracks: least gain from B = 2 to 6, of all Q": (0.2, True),
        # The cell Q = 1, B = 2 has accuracy 0.2.
        "accuracy without backtracking where the verifier objected minus with it, the largest of all cells": (
            -0.05,
            True,
        ),
        "errors with backtracking / without, top_p 0.9": (0.75, True),
        "p-value of fewer errors, paired bootstrap, top_p 0.9": (0.001, True),
        "errors with backtracking / without, top_p 1.0": (200 / 480, True),
        "p-value of fewer errors, paired bootstrap, top_p 1.0": (0.02, False),
        "errors without argmax / with it, top_p 0.9": (1.5, True),
        f"{GAIN}, top_p 0.9": (60.0, True),
        f"{RANDOM_GAIN}, top_p 0.9": (15.0, True),
        f"{RANDOM_GAIN} which objects as often, top_p 0.9": (-5.0, False),
        f"{PERFECT}, top_p 0.9": (-99.0, True),
        f"{GAIN}, top_p 1.0": (280.0, True),
        f"{RANDOM_GAIN}, top_p 1.0": (70.0, True),
        f"{RANDOM_GAIN} which objects as often, top_p 1.0": (10.0, True),
        f"{PERFECT}, top_p 1.0": (-110.0, True),
        "distinct outputs with backtracking / without, top_p 0.9": (0.9, True),
        "distinct outputs with backtracking / without, top_p 1.0": (0.5, False),
        "distinct outputs without argmax / without backtracking, top_p 0.9": (0.96, True),
        "share of remaining mistakes with the quota spent": (0.95, True),
        "rewritten tokens checked: share of remaining mistakes with the quota spent": (0.99, True),
        "share of remaining mistakes that are of the wrong closing type": (0.85, True),
        f"distance from π*: VGB / {ACTION}": (0.25, True),
        f"distance from π*: VGB / {BACKTRACKING}": (0.5, True),
        "validity of VGB minus action-level's": (-0.02, False),
    }
    assert list(found) == list(expected)
    for text, (measured, passed) in expected.items():
        assert found[text][0] == pytest.approx(measured), text
        assert found[text][1] is passed, text


def test_reasons_stand_on_other_numbers_of_the_run():
    """Why outputs are alike, or mistakes stay, is only said where the claim beside it shows it."""
    found = results()
    found["unseen"]["mistakes"]["backtracking, top_p 0.9"]["quota_spent"] = 100
    reasons = {claim.text: claim.reason for claim in claims.all_claims(found)}
    spent, alike = "share of remaining mistakes with the quota spent", "distinct outputs with backtracking / without"
    assert "not checked" in reasons[spent] and "greedily" in reasons[f"{alike}, top_p 1.0"]
    found["unseen"]["mistakes"]["backtracking, rewritten tokens checked, top_p 0.9"]["quota_spent"] = 50
    found["diversity"]["backtracking without argmax, top_p 0.9"]["mean"] = 3.0
    found["inducing"]["grid"]["4,6"]["checked"] = 0.33
    reasons = {claim.text: claim.reason for claim in claims.all_claims(found)}
    assert not any(reason for text, reason in reasons.items() if "backtrack" in text or "quota" in text)
    often = f"{RANDOM_GAIN} which objects as often, top_p 0.9"
    assert reasons[often].endswith("greedy decoding without a verifier leaves 150 errors, sampling 240")
    found["unseen"]["systems"]["greedy, no verifier"]["mean"] = 240.0
    assert {claim.text: claim.reason for claim in claims.all_claims(found)}[often] == ""
    size = "share of valid ones among its samples, top_p 1.0"
    assert reasons[size] == (
        "the model has 1,000 parameters and has seen 2,000 words, the thesis's 15,743,488 and 300,000"
    )
    found["language_model"]["parameters"] = 20_000_000
    assert {claim.text: claim.reason for claim in claims.all_claims(found)}[size] == ""


def test_a_verifier_that_does_harm_has_no_gain_to_share():
    """A random one that does more harm gains a negative share of a negative gain, which is above a half."""
    harmed = results()
    errors = harmed["unseen"]["systems"]
    errors["backtracking, top_p 0.9"]["mean"], errors["random verifier, top_p 0.9"]["mean"] = 250.0, 243.0
    found = {claim.text: claim for claim in claims.all_claims(harmed)}
    gain, of_random = found[f"{GAIN}, top_p 0.9"], found[f"{RANDOM_GAIN}, top_p 0.9"]
    assert (gain.measured, gain.passed) == (-10.0, False)
    # 0.5 · (240 - 250) - (240 - 243): the random verifier avoids 3 errors fewer than none, at most half of -10 is -5.
    assert (of_random.measured, of_random.passed) == (-2.0, False)


def test_without_errors_a_ratio_fails_and_does_not_stop_the_run():
    nothing = results()
    for row in nothing["unseen"]["systems"].values():
        row["mean"] = 0.0
    found = {claim.text: claim for claim in claims.all_claims(nothing)}
    ratio = found["errors with backtracking / without, top_p 0.9"]
    assert math.isnan(ratio.measured) and not ratio.passed
    # No verifier can be better than one that leaves no errors, and none gains anything.
    perfect, gain = (found[f"{text}, top_p 0.9"] for text in (PERFECT, GAIN))
    assert (perfect.measured, perfect.passed) == (0.0, True) and not gain.passed
