"""`benchmarks/constraints.py`: the terminology that it derives, and how it counts queries."""

import dataclasses

import pytest

from padir.data.constraints import Constraint
from padir.decoding.autoregressive import Autoregressive
from padir.decoding.beam import BeamSearch
from padir.decoding.refinement import Refinement
from padir.inference.translator import Translation

PAIRS = [("der alte Rechner", "the old computer"), ("ein Wagen kommt", "a carriage comes"), ("der Wagen", "the car")]


@pytest.fixture(scope="module")
def script(load_script):
    return load_script("constraints")


def test_terms_are_usual_partners_that_every_reference_has(script):
    training = [("Rechner", "computer")] * 6 + [("Wagen", "carriage")] * 6 + [("kommt nicht", "comes not")] * 3
    found = script.terminology(PAIRS[:2], training + [("nichts", "nothing")] * 2000)
    # "kommt" is too rare, and "alte" has no partner.
    assert found == {"rechner": ["computer"], "wagen": ["carriage"]}
    # The reference of the third pair has no partner of "Wagen", which is then no term.
    assert script.terminology(PAIRS, training + [("nichts", "nothing")] * 2000) == {"rechner": ["computer"]}
    constraint = Constraint.read({"terms": found, "ignore_case": True})
    assert all(constraint.met(source, reference) for source, reference in PAIRS[:2])


def test_queries_are_tokens_chosen_for_each_token_written(script):
    translations = [Translation("", 0.0, 4, 8), Translation("", 0.0, 2, 4)]
    assert script.queries_per_token(translations, Refinement()) == (4 * 8 + 2 * 4) / 12
    greedy = [dataclasses.replace(each, steps_run=each.predicted_length) for each in translations]
    assert script.queries_per_token(greedy, Autoregressive()) == 1.0
    assert script.queries_per_token(greedy, BeamSearch(beam_size=5)) == 5.0
