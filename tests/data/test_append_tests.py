"""Test cases for `append`: the thesis's own examples, one string for each rule, and text that means harm."""

import numpy as np
import pytest

from padir.data import append_tests
from padir.data.append_tests import Completion, ErrorKind, first_error, parse, prompt, score, token_at
from padir.errors import PadirError


def written(name, rows):
    return "".join(f"assert {name}({items}, {item}) == {result}\n" for items, item, result in rows)


# Table 3.8 (a) and (b).
OVS = written(
    "ovs",
    [
        ([], 1, [1]),
        ([2], 1, [1, 2]),
        ([1, 2], 1, [1, 1, 2]),
        ([1, 2], 3, [1, 2, 3]),
        ([1, 2], 0, [0, 1, 2]),
        ([1, 2, 3], 4, [1, 2, 3, 4]),
        ([], 0, [0]),
        ([1, 2], 0, [0, 1, 2]),
    ],
)
ODD = [[1, 3, 5, 7, 9, 11][:count] for count in range(7)]
KNK = written("knk", [(items, 2, [*items, 2]) for items in ODD]) + "def sum_list(l):\n    return sum(l)\n"

EIGHT = written("knk", [([n], 0, [n, 0]) for n in range(8)])


def test_the_first_example_of_table_3_8():
    assert [case.correct for case in parse(OVS, "ovs")] == [True, False, False, True, False, True, True, False]
    result = score([Completion("ovs", OVS, queries=100)])
    assert (result.distinct_correct, result.requested, result.queries, result.accuracy) == (4, 8, 100, 0.5)
    error = first_error(OVS, "ovs")
    assert (error.kind, error.line) == (ErrorKind.WRONG_RESULT, 2)
    # [1, 2] instead of [2, 1]: the first digit.
    assert OVS[: error.position] == "assert ovs([], 1) == [1]\nassert ovs([2], 1) == ["


def test_the_second_example_of_table_3_8():
    assert [case.correct for case in parse(KNK, "knk")] == [True] * 7
    assert score([Completion("knk", KNK, queries=384)]).accuracy == 7 / 8
    error = first_error(KNK, "knk")
    assert (error.kind, error.line) == (ErrorKind.NO_ASSERT, 8)
    assert KNK[error.position :].startswith("def sum_list")


def test_repeated_cases_count_once_for_each_name_and_queries_always():
    one = written("knk", [([1], 2, [1, 2])])
    completions = [
        Completion("knk", one + one, queries=30),
        Completion("knk", one + written("knk", [([1], 3, [1, 3])]), queries=20),
        Completion("ovs", one.replace("knk", "ovs"), queries=10),
    ]
    result = score(completions)
    assert (result.distinct_correct, result.requested, result.queries) == (3, 24, 60)
    assert score(completions, requested=1) == append_tests.Score(distinct_correct=2, requested=3, queries=60)
    with pytest.raises(PadirError, match="no completions"):
        score([])


# The character under test is the one that follows `|`, or the end of the line.
@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("|def sum_list(l):", ErrorKind.NO_ASSERT),
        ("asse|mble knk([1], 2) == [1, 2]", ErrorKind.NO_ASSERT),
        ("|    assert knk([1], 2) == [1, 2]", ErrorKind.NO_ASSERT),
        ("assert kn|x([1], 2) == [1, 2]", ErrorKind.WRONG_FUNCTION),
        ("assert knk|_list([1], 2) == [1, 2]", ErrorKind.WRONG_FUNCTION),
        ("assert knk([1], 2|", ErrorKind.UNCLOSED_CALL),
        ("assert knk([1], '2) == [1, 2]|", ErrorKind.UNCLOSED_CALL),
        ("assert knk([1, 2|), 2] == [1, 2]", ErrorKind.SYNTAX),
        ("assert knk(|[1 1], 2) == [1, 2]", ErrorKind.SYNTAX),
        ("assert knk([1], |x) == [1, 2]", ErrorKind.SYNTAX),
        ("assert knk([1], |item=2) == [1, 2]", ErrorKind.SYNTAX),
        ("assert knk(|(1, 3), 2) == [1, 3, 2]", ErrorKind.NOT_A_LIST),
        ("assert knk(|5, 2) == 7", ErrorKind.NOT_A_LIST),
        ("assert knk(|) == []", ErrorKind.ARGUMENTS),
        ("assert knk([1]|) == [1]", ErrorKind.ARGUMENTS),
        ("assert knk([1], 2|, 3) == [1, 2, 3]", ErrorKind.ARGUMENTS),
        ("assert knk([1], 2) |is [1, 2]", ErrorKind.NO_EQUALS),
        ("assert knk([1], 2) =| [1, 2]", ErrorKind.NO_EQUALS),
        ("assert knk([1], 2)|", ErrorKind.NO_EQUALS),
        ("assert knk([1], 2) == [1, |knk]", ErrorKind.UNREADABLE_RESULT),
        ("assert knk([1], 2) == [1, 2|", ErrorKind.UNREADABLE_RESULT),
        ("assert knk([1], 2) ==|", ErrorKind.UNREADABLE_RESULT),
        ("assert knk([1], 2) == [1, |3]", ErrorKind.WRONG_RESULT),
        ("assert knk([1], 2) == [1,2|,3]", ErrorKind.WRONG_RESULT),
        ("assert knk([1], 2) == |None", ErrorKind.WRONG_RESULT),
        ('assert knk(["a"], \'b\') == ["a", "|c"]', ErrorKind.WRONG_RESULT),
        ("assert knk([1], 2) == [1, 2]|, 'message'", ErrorKind.WRONG_RESULT),
    ],
)
def test_the_first_error_of_each_kind(line, kind):
    before = written("knk", [([], 1, [1])])
    position = len(before) + line.index("|")
    error = first_error(before + line.replace("|", "") + "\n" + EIGHT, "knk")
    assert (error.kind, error.line, error.position) == (kind, 2, position)
    assert error.trains_verifier


def test_too_few_and_too_many_lines():
    assert first_error(EIGHT, "knk") is None
    assert first_error(EIGHT + "\n  \n", "knk") is None
    assert first_error("", "knk") == append_tests.FirstError(ErrorKind.TOO_FEW, 1, 0)
    seven = EIGHT[: EIGHT.rindex("assert")]
    assert first_error(seven, "knk") == append_tests.FirstError(ErrorKind.TOO_FEW, 8, len(seven))
    assert first_error(seven, "knk", requested=7) is None
    more = first_error(EIGHT + "\n  def g(x):", "knk")
    assert (more.kind, more.line, more.position) == (ErrorKind.EXTRA, 10, len(EIGHT) + 3)
    assert not more.trains_verifier


def test_what_is_correct_whatever_its_style():
    for line in (
        "assert knk( [1,'a'] , (2, 3) )==[1,\"a\",(2,3)]  # a comment",
        "assert knk(['),', \"it's\"], '\\'') == ['),', \"it's\", '\\'']",
        "assert knk([[1], {'a': [2]}], -1.5) == [[1], {'a': [2]}, -1.5]\r",
        "assert knk([None, True], {}) == [None, True, {}]",
    ):
        assert [case.correct for case in parse(line, "knk")] == [True], line
        assert first_error(line, "knk", requested=1) is None


def test_the_third_stray_line_after_the_first_case_ends_a_completion():
    case, stray = written("knk", [([1], 2, [1, 2])]), "print(1)\n"
    assert len(parse(stray * 5 + case + stray * 2 + "\n" * 4 + case + stray + case, "knk")) == 2
    assert len(parse(case * 10, "knk")) == 8


HOSTILE = [
    "assert knk(__import__('os'))",
    "assert knk([__import__('os').system('touch {}')], 2) == [1, 2]",
    "assert knk([1], __import__('os').system('touch {}')) == [1, 2]",
    "assert knk([1], 2) == open('{}', 'w')",
    "assert knk([open('{}', 'w') for i in range(9)], 2) == [1, 2]",
    "assert knk([1], 2) == [1, 2] if open('{}', 'w') else 0",
    "assert knk([1], 10 ** 10 ** 10) == [1, 2]",
    "assert knk([1], " + "9" * 5000 + ") == [1, 2]",
    "assert knk([1], " + "9" * 1900 + " == [1, 2]",
    "assert knk([1], 0x" + "f" * 6000 + ") == [1, 2]",
    "assert knk(" + "[" * 900 + "]" * 900 + ", 1) == 1",
    "assert knk(" + "[" * 100_000 + "]" * 100_000 + ", 1) == 1",
    "assert knk([1], " + "-" * 1900 + "1) == [1, 1]",
    "assert knk([1], " + "not " * 450 + "1) == [1, 1]",
    "assert knk([1" + "+1" * 900 + "], 1) == [1, 1]",
    "assert knk([1], 1) == " + "(" * 1900,
    "assert knk([{[]: 1}], 1) == [1]",
    "assert knk([1], '\0') == [1]",
    "assert knk([1], '\ud800') == [1]",
    "assert knk([1], 'a\\",
    "assert knk([1], f'{1}') == [1, '1']",
]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("line", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_text_is_only_unparseable(line, tmp_path):
    target = tmp_path / "touched"
    line = line.replace("{}", str(target))
    assert parse(line, "knk") == []
    assert first_error(line, "knk").line == 1
    assert score([Completion("knk", line, queries=1)]).distinct_correct == 0
    assert not target.exists()


@pytest.mark.filterwarnings("ignore")
def test_parser_and_locator_agree_on_spoilt_lines():
    rng = np.random.default_rng(0)
    right = 0
    for _ in range(2000):
        line = list("assert knk([1, 'a,'], 2) == [1, 'a,', 2]")
        for at in rng.integers(0, len(line), size=2):
            line[at] = str(rng.choice(["", " ", "[", ")", ",", "'", "\\", "=", "1", "#", line[at]]))
        text = "".join(line)
        cases, error = parse(text, "knk"), first_error(text, "knk", requested=1)
        right += error is None
        assert (error is None) == ([case.correct for case in cases] == [True])
        assert error is None or 0 <= error.position <= len(text)
    assert 20 < right < 1000


@pytest.mark.filterwarnings("error")
def test_deep_but_readable_literals_are_compared():
    deep = "[" * 90 + "]" * 90
    assert parse(f"assert knk([{deep}], {deep}) == [{deep}, {deep}]", "knk")[0].correct
    # An escape that Python warns of.
    assert parse("assert knk(['\\d'], 1) == ['\\d', 1]", "knk")[0].correct


def test_the_prompt_is_the_printed_one():
    text = prompt("knk", np.random.default_rng(0))
    demonstration, target = text.split("\n\ndef knk(l, item):\n")[0], text.split("\n\ndef ")[1]
    lines = demonstration.split("\n")
    assert lines[:4] == [
        "def f(a, b):",
        "    return a + b",
        "",
        "List 8 test cases of the above function f, one in each line:",
    ]
    assert len(lines) == 12
    for line in lines[4:]:
        a, b = int(line[9]), int(line[12])
        assert line == f"assert f({a}, {b}) == {a + b}"
        assert min(a, b) >= 1
    assert target == (
        "knk(l, item):\n    assert type(l) is list\n    l.append(item)\n    return l\n\n"
        "List 8 test cases of the above function knk, one in each line:\n"
    )
    assert text == prompt("knk", np.random.default_rng(0)) != prompt("knk", np.random.default_rng(1))
    assert text == demonstration + "\n\ndef " + target
    with pytest.raises(PadirError, match="cannot be the name"):
        prompt("for", np.random.default_rng(0))


def test_random_names_are_new():
    names = append_tests.random_names(300, np.random.default_rng(0))
    assert len(set(names)) == 300
    assert not set(names) & {*append_tests.TRAINING_NAMES, *append_tests.OOD_NAMES, "def", "for"}
    assert all(len(name) == 3 and name.isalpha() and name.islower() for name in names)


def test_the_token_of_a_character():
    pieces = ["assert", " knk", "(", ""]
    assert [token_at(pieces, position) for position in (0, 5, 6, 9, 10, 11)] == [0, 0, 1, 1, 2, 3]
    # Cut off at its length limit, without EOS: nobody knows how it goes on.
    assert token_at(pieces[:-1], 11) is None
