"""Automata as sets of texts: intersection, complement, cleaned white space, and the fewest states."""

import itertools
import re

import pytest

from padir.data.finite_automata import before_cleaning, both, compiled, without
from padir.data.patterns import parse

ALPHABET = "ab "
TEXTS = ["".join(text) for length in range(6) for text in itertools.product(ALPHABET, repeat=length)]


def accepted(automaton, text):
    state = 0
    for character in text:
        state = automaton.steps[state, automaton.classes[ALPHABET.index(character)]]
    return bool(automaton.accepts[state])


def test_both_and_without_are_intersection_and_complement():
    left, right = "a(.*)", "(.*)b( )?"
    found = both(compiled(parse(left), ALPHABET), without(compiled(parse(right), ALPHABET)))
    for text in TEXTS:
        assert accepted(found, text) == bool(re.fullmatch(left, text) and not re.fullmatch(right, text))


@pytest.mark.parametrize("pattern", ["", "a b", "(a|b)( a)*", "[^ ]*", ".*"])
def test_white_space_is_cleaned_as_by_the_vocabulary(pattern):
    found = before_cleaning(compiled(parse(pattern), ALPHABET), ALPHABET)
    for text in TEXTS:
        assert accepted(found, text) == bool(re.fullmatch(pattern, " ".join(text.split())))


def test_states_and_classes_are_as_few_as_can_be():
    # Even numbers of "a": two states, and two kinds of characters.
    automaton = compiled(parse("[^a]*(a[^a]*a[^a]*)*"), ALPHABET)
    assert automaton.steps.shape == (2, 2)
    assert both(automaton, without(automaton)).is_empty
