"""The file of a constraint: what stands in a text, terms of a source, and one clear error each."""

import json

import pytest

from padir.data.constraints import Constraint
from padir.errors import PadirError


def test_a_file_and_a_dictionary_say_the_same(tmp_path):
    spec = {"required": ["New  York"], "terms": {"Auto": "car", "Haus": ["house", "home"]}, "ignore_case": True}
    path = tmp_path / "terms.json"
    path.write_text(json.dumps(spec), encoding="utf-8")
    found = Constraint.read(path)
    assert found.required == ("New York",)
    assert found.terms == (("Auto", ("car",)), ("Haus", ("house", "home")))
    assert {**vars(found), "name": "constraint"} == vars(Constraint.read(spec))


@pytest.mark.parametrize(
    ("phrase", "text", "stands"),
    [
        ("car", "a cartoon", False),
        ("car", "scar", False),
        ("car", "car, a", True),
        ("car", "(car)", True),
        ("car", "Car", False),
        ("C++", "in C++11", True),  # It ends in no letter, so that anything may follow.
        ("Ä", "ÄÄ", False),
        ("猫", "我的猫很大", True),  # No spaces are written between these words.
        ("की", "कीमत", False),  # It ends in an accent, which is part of the word.
    ],
)
def test_a_phrase_stands_between_word_boundaries(phrase, text, stands):
    assert Constraint().stands_in(phrase, text) is stands


def test_terms_are_in_force_where_the_source_has_them():
    constraint = Constraint.read({"terms": {"Auto": ["car", "vehicle"], "rot": "red"}})
    assert constraint.demanded("Das Auto ist rot.") == (("car", "vehicle"), ("red",))
    assert constraint.demanded("Die Autobahn") == ()
    assert constraint.met("Das Auto", "a vehicle")
    assert not constraint.met("Das Auto", "a scar")
    assert constraint.met("Die Bahn", "a train")


def test_every_key_counts():
    constraint = Constraint.read({"pattern": "[A-Z].*", "required": ["b"], "forbidden": ["c d"], "ignore_case": True})
    assert constraint.met("", "a B")
    assert not constraint.met("", "a bc")
    assert not constraint.met("", "a b C D")
    assert not constraint.met("", "1 b")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ([], "not a JSON object"),
        ({}, "demands nothing"),
        ({"ignore_case": True}, "demands nothing"),
        ({"wanted": ["a"]}, "unknown key 'wanted'; choose among pattern, required"),
        ({"required": []}, "required: the list is empty"),
        ({"forbidden": "a"}, "forbidden: 'a' is not a list"),
        ({"forbidden": ["a", " "]}, "forbidden: the phrase ' ' is empty"),
        ({"terms": {}}, "terms: there is no term"),
        ({"terms": {"a": []}}, "terms: a: the list is empty"),
        ({"terms": {"a": 3}}, "terms: a: 3 is not a phrase"),
        ({"pattern": 3}, "pattern: 3 is not a text"),
        ({"pattern": "a$"}, r"pattern: the anchor '\$' at position 1"),
        ({"required": ["a b"], "forbidden": ["B"], "ignore_case": True}, "required: 'a b' contains 'B'"),
        ({"terms": {"x": ["a b", "b"]}, "forbidden": ["b"]}, "terms: what 'x' must become is forbidden: a b, b"),
        ({"required": ["a"], "ignore_case": "yes"}, "ignore_case: 'yes' is not true or false"),
    ],
)
def test_an_error_names_file_and_key(tmp_path, spec, message):
    path = tmp_path / "terms.json"
    path.write_text(json.dumps(spec), encoding="utf-8")
    with pytest.raises(PadirError, match=f"terms.json: {message}"):
        Constraint.read(path)


def test_a_file_that_is_missing_or_no_json(tmp_path):
    with pytest.raises(PadirError, match=r"none.json: cannot read the constraint"):
        Constraint.read(tmp_path / "none.json")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(PadirError, match=r"bad.json: cannot read the constraint"):
        Constraint.read(tmp_path / "bad.json")
