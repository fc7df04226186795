"""Regular expressions against Python's own `re`, and what is refused."""

import itertools
import re

import pytest

from padir.data.finite_automata import compiled
from padir.data.patterns import parse
from padir.errors import PadirError

ALPHABET = "abÄ "


def accepted(automaton, text, alphabet=ALPHABET):
    state = 0
    for character in text:
        state = automaton.steps[state, automaton.classes[alphabet.index(character)]]
    return bool(automaton.accepts[state])


@pytest.mark.parametrize(
    "pattern",
    [
        "",
        "a*b",
        "(a|b)*",
        "(ab)+|b?",
        "[^a]{2,3}",
        ".{0,2}a",
        "a{2}",
        "(?:a|){,2}b",
        r"\w+( \w+)*",
        "(a?b?)*",
        "((a*)b){2,}",
        "a*?b",
        "a+?",
        r"[]a]|\x62|\u00c4",
        r"[^\W\d]\S",
        "x|a",
    ],
)
def test_all_short_texts_match_as_in_python(pattern):
    automaton = compiled(parse(pattern), ALPHABET)
    for length in range(6):
        for text in map("".join, itertools.product(ALPHABET, repeat=length)):
            assert accepted(automaton, text) == bool(re.fullmatch(pattern, text)), text


def test_groups_may_be_nested_a_hundred_deep():
    automaton = compiled(parse("(a|b" * 100 + ")*" * 100), ALPHABET)
    assert accepted(automaton, "b" * 3 + "a")
    assert not accepted(automaton, "b" * 3 + "Ä")


def test_case_is_ignored_on_demand_for_letters_of_any_script():
    automaton = compiled(parse("ä[A-B]", ignore_case=True), ALPHABET)
    assert accepted(automaton, "Äb")
    assert not accepted(compiled(parse("ä[A-B]"), ALPHABET), "Äb")


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("ab^", r"the anchor '\^' at position 2"),
        ("a(?=b)", r"the group '\(\?='… at position 1"),
        (r"(a)\1", r"the escape '\\1' at position 3"),
        (r"\bq", r"the escape '\\b' at position 0"),
        ("a++", r"the possessive '\+' at position 2"),
        ("a{b", "'{' that begins no repetition at position 1"),
        ("(a", r"not a regular expression: missing \), unterminated subpattern at position 0"),
        ("(ab){10001}", "more than 20000"),
        ("(" * 250 + "a" + ")" * 250, "a group within 100 others at position 100|nested too deeply"),
        ("(a|b" * 101 + ")*" * 101, "a group within 100 others at position 400"),
    ],
)
def test_what_is_not_supported_is_named_with_its_position(pattern, message):
    with pytest.raises(PadirError, match=message):
        compiled(parse(pattern), ALPHABET)
