"""Constraints over pieces: every spelling of every text, distances, lengths, and what is impossible."""

import itertools

import pytest
from constrained_tables import CONSTRAINTS, LONGEST, SPELLINGS, VOCABULARY, outputs, table

from padir.data.constraints import Constraint
from padir.data.piece_automata import DEAD, ENDED, NEVER, START, UNREACHABLE, PieceConstraint, PieceTable
from padir.errors import PadirError


def state_after(table, tokens):
    state = START
    for token in tokens:
        state = table.steps[state, table.classes[token]]
    return state


@pytest.mark.parametrize("spec", CONSTRAINTS, ids=str)
def test_exactly_the_outputs_that_obey_are_accepted(spec):
    found, obeying = table(spec), set(outputs(spec))
    for length in range(LONGEST):
        for tokens in itertools.product(range(VOCABULARY), repeat=length):
            assert (state_after(found, (*tokens, 1)) == ENDED) == ((*tokens, 1) in obeying)


@pytest.mark.parametrize("spec", CONSTRAINTS, ids=str)
def test_distances_and_lengths_are_those_of_the_listed_outputs(spec):
    found, obeying = table(spec), outputs(spec)
    # Two tokens of any prefix leave three, and no distance here is larger.
    for prefix in itertools.product(range(3, VOCABULARY), repeat=2):
        rests = [len(tokens) - 2 for tokens in obeying if tokens[:2] == prefix]
        expected = min(rests) if rests else UNREACHABLE
        assert found.distances[state_after(found, prefix)] == expected
        assert (state_after(found, prefix) == DEAD) == (not rests)
    lengths = sorted({len(tokens) for tokens in obeying})
    expected = [min((n for n in lengths if n >= count), default=lengths[-1]) for count in range(LONGEST + 1)]
    assert found.lengths(LONGEST).tolist() == expected


def test_tokens_that_spell_nothing_are_never_written():
    found = table({"required": ["a"]})
    assert [token for token in range(VOCABULARY) if found.classes[token] == NEVER] == [0, 2]
    assert (found.steps[:, NEVER] == DEAD).all()


def test_terms_give_each_source_its_own_table():
    constraint = PieceConstraint(Constraint.read({"terms": {"x": "a", "y": ["b", "ab"]}}), SPELLINGS, LONGEST)
    assert state_after(constraint.of_source("nothing"), (1,)) == ENDED
    for tokens, x, y in (((4, 1), ENDED, DEAD), ((6, 1), DEAD, ENDED), ((5, 1), DEAD, ENDED), ((1,), DEAD, DEAD)):
        assert state_after(constraint.of_source("x"), tokens) == x
        assert state_after(constraint.of_source("a y b"), tokens) == y
    assert state_after(constraint.of_source("x y"), (4, 3, 5, 1)) == ENDED
    assert constraint.of_source("x, x") is constraint.of_source("x")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"required": ["a ☃!"]}, "required: no piece of the vocabulary has '☃!' of 'a ☃!'"),
        ({"terms": {"x": ["☃", "c"]}}, "terms: no piece of the vocabulary has '☃' of '☃', which 'x' must become"),
        ({"pattern": "[^ab ]+"}, "impossible with this vocabulary: no output obeys it"),
        ({"pattern": "(ab){9}"}, "it takes 10 tokens, and the model writes 5"),
        ({"pattern": "a", "required": ["b"]}, "no output obeys it"),
        ({"pattern": "a*", "terms": {"x": "b"}}, "terms: no output contains what 'x' must become"),
    ],
)
def test_an_impossible_constraint_is_one_error(spec, message):
    with pytest.raises(PadirError, match="constraint: .*" + message.replace("[", r"\[")):
        PieceConstraint(Constraint.read(spec), SPELLINGS, LONGEST)


def test_a_source_with_too_many_terms_is_one_error():
    words = {letter: letter * 4 + "z" for letter in "abcdefghijkl"}
    constraint = PieceConstraint(Constraint.read({"terms": words}), [None, None, None, " ", *"abcdefghijklz"], 80)
    assert constraint.of_source("a b c").distances[START] == 3 * 5 + 2 + 1
    with pytest.raises(PadirError, match="terms: together with the rest it needs more than 5000 states"):
        constraint.of_source(" ".join(words))
    nothing = PieceTable.without_output(17)
    assert nothing.lengths(4).tolist() == [0] * 5
    assert nothing.distances[START] == UNREACHABLE


def test_a_thousand_forbidden_words_share_their_states():
    words = ["".join(word) for word in itertools.product("abcdefghij", repeat=3)]
    constraint = PieceConstraint(Constraint.read({"forbidden": words}), [None, None, None, " ", *"abcdefghijk"], 8)
    # At a word's start, after one, two and three of the letters, within a longer word; dead and ended.
    assert len(constraint.of_source("").steps) == 7
