"""What bodies of requests become, and which are refused with what status."""

import json

import pytest

from padir.errors import PadirError
from padir.serving.limits import Limits, RequestRefused
from padir.serving.queries import Edit, Query, edit, fields_of, query

LIMITS = Limits(max_text_chars=20, max_items=3, max_alternatives=2, max_steps=8)


def test_json_and_forms_ask_the_same():
    body = json.dumps({"q": "gut", "source": "de", "target": "en", "alternatives": 2, "steps": 3, "split": True})
    form = b"q=gut&source=de&target=en&alternatives=2&steps=3&split=true&api_key="
    expected = Query(("gut",), source="de", target="en", alternatives=2, steps=3, split=True)
    assert query(fields_of(body.encode(), "application/json; charset=utf-8"), LIMITS) == expected
    assert query(fields_of(form, "application/x-www-form-urlencoded"), LIMITS) == expected
    assert query(fields_of(b"q=a&q=b%20c", "application/x-www-form-urlencoded"), LIMITS) == Query(("a", "b c"), True)


@pytest.mark.parametrize(
    "body, kind, status",
    [
        (b"{}", "text/plain", 415),
        (b"{}", "", 415),
        (b"{", "application/json", 400),
        (b"\xff", "application/json", 400),
        (b"[" * 100_000, "application/json", 400),
        (b'"q"', "application/json", 400),
    ],
)
def test_bodies_that_are_none(body, kind, status):
    with pytest.raises(RequestRefused) as refused:
        fields_of(body, kind)
    assert refused.value.status == status


@pytest.mark.parametrize(
    "fields, status, part",
    [
        ({}, 400, "q: give"),
        ({"q": []}, 400, "q: give"),
        ({"q": ["a", 1]}, 400, "q: give"),
        ({"q": ["a"] * 4}, 413, "4 texts are more than the 3"),
        ({"q": ["a", "b" * 21]}, 413, "text 2: 21 characters are more than 20"),
        ({"q": "a\ud800"}, 400, "surrogate"),
        ({"q": "a", "format": "html"}, 400, "'html' is not supported"),
        ({"q": "a", "steps": 0}, 400, "steps: give a whole number from 1 to 8"),
        ({"q": "a", "steps": True}, 400, "steps"),
        ({"q": "a", "steps": "9" * 5000}, 400, "steps"),
        ({"q": "a", "alternatives": 3}, 400, "from 0 to 2"),
        ({"q": "a", "num_hypotheses": 4}, 400, "from 1 to 3"),
        ({"q": "a", "trace": "maybe"}, 400, "trace: give true or false"),
        ({"q": "a", "model": ["x"]}, 400, "model: give a short text"),
    ],
)
def test_queries_that_are_refused(fields, status, part):
    with pytest.raises(RequestRefused, match=part) as refused:
        query(fields, LIMITS)
    assert refused.value.status == status


def test_edits():
    fields = {"text": "gut", "tokens": [5, None, "well"], "clamped": [True, False, False], "length": 4}
    assert edit(fields, LIMITS) == Edit("gut", (5, None, "well"), (True, False, False), 4)
    assert edit({"text": "gut", "tokens": [5]}, LIMITS) == Edit("gut", (5,), (False,))
    assert edit({"text": "gut", "tokens": ["a"] * 4, "clamped": None}, LIMITS).clamped == (False,) * 4
    for wrong in ({"text": " "}, {"tokens": [1.5]}, {"tokens": [True]}, {"clamped": [1, 0, 0]}, {"length": 0}):
        with pytest.raises(RequestRefused) as refused:
            edit({**fields, **wrong}, LIMITS)
        assert refused.value.status == 400


@pytest.mark.parametrize(
    "fields, status, message",
    [
        ({"text": "b" * 21}, 413, "text: 21 characters are more than 20"),
        ({"tokens": ["a", "b" * 21]}, 413, "token 2: 21 characters are more than 20"),
        ({"tokens": [5, "a\ud800"]}, 400, "token 2: holds half of a surrogate pair, which is no character"),
        ({"tokens": [5] * 21}, 413, "tokens: 21 are more than 20"),
    ],
)
def test_what_is_wrong_with_an_edit_is_named(fields, status, message):
    with pytest.raises(RequestRefused, match=f"^{message}$") as refused:
        edit({"text": "gut", "tokens": [5], **fields}, LIMITS)
    assert refused.value.status == status


def test_null_is_what_is_left_out():
    assert query({"q": "a", "trace": None, "split": None, "format": None, "steps": None}, LIMITS) == query(
        {"q": "a"}, LIMITS
    )


def test_a_form_that_is_no_utf8_is_refused():
    assert fields_of(b"q=T%C3%BCr", "application/x-www-form-urlencoded") == {"q": "Tür"}
    with pytest.raises(RequestRefused, match="the body is no form in UTF-8"):
        fields_of(b"q=T%FCr", "application/x-www-form-urlencoded")


def test_limits_that_contradict_each_other():
    with pytest.raises(PadirError, match=r"serve\.max_steps: 0 must be above 0"):
        Limits(max_steps=0)
    with pytest.raises(PadirError, match="128 texts can never enter a queue of 5; raise max_queue"):
        Limits(max_queue=5)
