"""Terms as bits: what is certain after every text, by the definition of `Constraint.met`, and what it still costs."""

import itertools

import numpy as np
import pytest
from constrained_tables import LONGEST, SPELLINGS, VOCABULARY, text_of

from padir.data.constraints import Constraint
from padir.data.piece_automata import DEAD, ENDED, START, UNREACHABLE, PieceConstraint
from padir.data.term_automata import MOST_TERMS, TermConstraint, TermTable
from padir.errors import PadirError

SPECS = [
    {"terms": {"x": "ab", "y": ["b", "a b"]}},
    {"terms": {"x": "a a", "y": "b", "z": "ab"}, "forbidden": ["ba"]},
    {"terms": {"x": "AB", "y": "B"}, "ignore_case": True},
    {"terms": {"x": "a", "y": "b"}, "pattern": "a.*"},
]


def made(spec):
    constraint = Constraint.read(spec)
    compiled = PieceConstraint(constraint, SPELLINGS, LONGEST)
    return constraint, TermConstraint(compiled).table(constraint.demanded("x y z"))


def walk(table, tokens):
    state, bits = START, 0
    for token in tokens:
        kind = table.classes[token]
        state, bits = table.steps[state, kind], bits | table.gains[state, kind]
    return state, bits


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_the_outputs_that_obey_are_those_with_all_bits(spec):
    constraint, table = made(spec)
    every = (1 << table.nearest.shape[1]) - 1
    count = 0
    for length in range(LONGEST):
        for tokens in itertools.product(range(3, VOCABULARY), repeat=length):
            state, bits = walk(table, (*tokens, 1))
            obeys = constraint.met("x y z", text_of(tokens))
            assert (state == ENDED and bits == every) == obeys, text_of(tokens)
            before = walk(table, tokens)
            if before[0] != DEAD:
                assert (before[1] | table.ends[before[0]] == every and table.distances[before[0]] == 1) == obeys
            count += obeys
    assert count > 10


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_the_nearest_of_each_term_is_that_of_a_search(spec):
    _, table = made(spec)
    for state in range(ENDED + 1, len(table.steps)):
        for term in range(table.nearest.shape[1]):
            front, far = {state}, 0
            while far <= 8:
                far += 1
                moves = [(here, kind) for here in front for kind in range(table.steps.shape[1])]
                going = [move for move in moves if table.steps[move] > ENDED]
                if any(table.gains[move] >> term & 1 for move in going):
                    break
                front = {int(table.steps[move]) for move in going}
            assert table.nearest[state, term] == far


def test_costs_are_the_dearest_of_all_states():
    _, table = made(SPECS[0])
    assert table.costs().tolist() == table.nearest[2:].max(axis=0).tolist() and table.last() == 1
    assert (table.nearest[:2] == UNREACHABLE).all()
    # Behind "a": " a", "b a" is the text " ab a".
    assert table.costs().tolist() == [2, 2]


def test_a_table_of_states_has_no_bits():
    plain = PieceConstraint(Constraint.read({"required": ["ab"]}), SPELLINGS, LONGEST).of_source("")
    table = TermTable.of(plain)
    assert table.nearest.shape == (len(plain.steps), 0) and not table.gains.any()
    assert table.last() == plain.distances[plain.distances < UNREACHABLE].max()
    np.testing.assert_array_equal(table.distances, plain.distances)


def test_thirty_terms_make_a_small_table():
    letters = "abcdefghijklmnopqrstuvwxyz"
    spellings = [None, None, None, " ", *letters, "ing", " the", "qu"]
    terms = {f"s{number}": [letters[number % 26] * 2 + "ing", "qu" + letters[number % 26] * 3] for number in range(30)}
    terms |= {f"s{number}": f"{letters[number % 26]}xyz" for number in range(26, 30)}
    constraint = Constraint.read({"terms": terms})
    demanded = constraint.demanded(" ".join(terms))
    assert len(demanded) == 30
    table = TermConstraint(PieceConstraint(constraint, spellings, 400)).table(demanded)
    assert len(table.steps) < 600
    text = " ".join(targets[0] for targets in demanded)
    tokens = [spellings.index(character) for character in text]
    state, bits = walk(table, [*tokens, 1])
    assert state == ENDED and bits == (1 << 30) - 1
    assert walk(table, [*tokens[:-1], 1])[1] == (1 << 29) - 1


def test_what_cannot_be_bits_is_refused():
    with pytest.raises(PadirError, match="what else is demanded may leave no place for a term"):
        made({"terms": {"x": "a", "y": "b"}, "pattern": "a b|b a"})
    many = {f"s{number}": "a" * (number + 1) for number in range(MOST_TERMS + 1)}
    constraint = Constraint.read({"terms": many})
    compiled = PieceConstraint(constraint, SPELLINGS, 64)
    with pytest.raises(PadirError, match="32 terms are more than 31"):
        TermConstraint(compiled).table(constraint.demanded(" ".join(many)))
