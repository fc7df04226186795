"""What a constraint cost: queries per token, and sentences without an output."""

import dataclasses

from padir.data.constraints import Constraint
from padir.decoding.autoregressive import Autoregressive
from padir.decoding.beam import BeamSearch
from padir.decoding.refinement import Refinement
from padir.decoding.verified import Verified
from padir.evaluation.cost import cost_under_constraint, held_against, queries_per_token
from padir.inference.translator import Translation

TRANSLATIONS = [Translation("", 0.0, 4, 8), Translation("", 0.0, 2, 4)]


def test_queries_are_tokens_chosen_for_each_token_written():
    assert queries_per_token(TRANSLATIONS, Refinement(num_hypotheses=1)) == (4 * 8 + 2 * 4) / 12
    assert queries_per_token(TRANSLATIONS, Refinement(num_hypotheses=3)) == 3 * (4 * 8 + 2 * 4) / 12
    greedy = [dataclasses.replace(each, steps_run=each.predicted_length) for each in TRANSLATIONS]
    assert queries_per_token(greedy, Autoregressive()) == 1.0
    assert queries_per_token(greedy, BeamSearch(beam_size=5)) == 5.0
    # A draft and its verification of 8 tokens, then three rounds of 5; and of 4, one round.
    verified = [dataclasses.replace(each, rounds=rounds) for each, rounds in zip(TRANSLATIONS, (4, 1), strict=True)]
    assert queries_per_token(verified, Verified(window=5)) == (2 * 8 + 3 * 2 * 5 + 2 * 4) / 12
    several = Verified(window=5, num_hypotheses=2, length_beam=3, draft_steps=2)
    assert queries_per_token(verified, several) == (2 * 3 * 8 + 3 * 3 * 2 * 5 + 2 * 3 * 4) / 12


def test_sentences_that_failed_are_counted_and_cost_nothing():
    failed = Translation("", float("-inf"), 3, 7, failed=True, constraint_met=False)
    met = dataclasses.replace(TRANSLATIONS[0], constraint_met=True)
    found = cost_under_constraint([failed, met], Refinement(num_hypotheses=1))
    assert found == {"constraint_met": 50.0, "queries_per_token": 4.0, "failed": 1}
    assert cost_under_constraint([failed], Refinement())["queries_per_token"] is None
    assert cost_under_constraint(TRANSLATIONS, Refinement()) == {}


def test_what_failed_obeys_nothing():
    """Not even a constraint that only forbids, which an empty text meets."""
    constraint = Constraint.read({"forbidden": ["cat"]})
    failed = Translation("", float("-inf"), 3, 7, failed=True)
    texts = [failed, *(dataclasses.replace(TRANSLATIONS[0], text=text) for text in ("a dog", "a cat"))]
    found = held_against(constraint, ["ein Hund"] * 3, texts)
    assert [each.constraint_met for each in found] == [False, True, False]
