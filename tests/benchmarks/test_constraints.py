"""`benchmarks/constraints.py`: the terminology that it derives."""

import pytest

from padir.data.constraints import Constraint

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
