"""The page is read back with a parser: what a browser would show is what was given, markup in sentences included."""

import shutil
import subprocess
from html.parser import HTMLParser

import pytest

from padir.evaluation.side_by_side import Side, marked, page
from padir.metrics.bootstrap import paired_bootstrap
from padir.metrics.counts import count_sentences
from padir.metrics.quality import evaluate_hypotheses

SOURCES = ["ein <script>alert('x')</script> Satz", 'שלום & "Welt"', "drei </td> vier"]
REFERENCES = ["a <b>sentence</b> here now", "hello & 'world'", "three four five six"]
SYSTEM = ["a <b>sentence</b> <b>sentence</b> here now", "hello & 'world'", "three three four <script>x</script>"]
BASELINE = ["a sentence", "hello hello world", "three four five six"]


class Rows(HTMLParser):
    """Body rows as (attributes, cell texts, cell attributes, marked texts), and every tag and script."""

    def __init__(self):
        super().__init__()
        self.rows, self.tags, self.scripts = [], [], []
        self._in = []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in ("meta", "br"):
            self._in.append(tag)
        if tag == "tr" and "tbody" in self._in:
            self.rows.append({"data": dict(attributes), "cells": [], "attributes": [], "marked": []})
        if tag == "td":
            self.rows[-1]["cells"].append("")
            self.rows[-1]["attributes"].append(dict(attributes))
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag):
        assert self._in.pop() == tag

    def handle_data(self, data):
        if "script" in self._in:
            self.scripts[-1] += data
        if "td" in self._in:
            self.rows[-1]["cells"][-1] += data
        if "mark" in self._in and "td" in self._in:
            self.rows[-1]["marked"].append(data)


@pytest.fixture(scope="module")
def text():
    comparisons = paired_bootstrap(SYSTEM, BASELINE, REFERENCES, samples=5)
    result = {
        "name": "<mine>",
        "baseline": "runs/ar.txt",
        "split": "test",
        "data_dir": "d",
        "bleu_signature": evaluate_hypotheses(SYSTEM, REFERENCES).bleu_signature,
        "against_baseline": {metric: comparison.to_dict() for metric, comparison in comparisons.items()},
    }
    sides = [Side(texts, count_sentences(texts, REFERENCES)) for texts in (SYSTEM, BASELINE)]
    return page(result, SOURCES, REFERENCES, *sides)


@pytest.fixture(scope="module")
def parsed(text):
    parser = Rows()
    parser.feed(text)
    parser.close()
    assert not parser._in
    return parser


def test_every_text_is_shown_as_it_is(parsed):
    shown = [row["cells"][:5] for row in parsed.rows]
    expected = zip("123", SOURCES, REFERENCES, BASELINE, SYSTEM, strict=True)
    assert shown == [list(row) for row in expected]


def test_one_script_and_nothing_from_outside(parsed, text):
    assert len(parsed.scripts) == 1 and "data-key" in parsed.scripts[0] and "alert" not in parsed.scripts[0]
    assert not [attributes for _, attributes in parsed.tags if {"src", "href", "onclick"} & attributes.keys()]
    policies = [a["content"] for tag, a in parsed.tags if a.get("http-equiv") == "Content-Security-Policy"]
    assert len(policies) == 1 and policies[0].startswith("default-src 'none'; ")
    assert "<mine>" not in text and "&lt;mine&gt; against runs/ar.txt" in text


def test_stutter_is_marked(parsed):
    assert [row["marked"] for row in parsed.rows] == [["<b>sentence</b>"], ["hello"], ["three"]]


def test_scores_of_each_sentence_and_what_rows_are_ordered_by(parsed):
    for row, system, baseline, reference in zip(parsed.rows, SYSTEM, BASELINE, REFERENCES, strict=True):
        ours, theirs = (evaluate_hypotheses([text], [reference]).chrf for text in (system, baseline))
        assert row["cells"][5:7] == [f"{theirs:.1f}", f"{ours:.1f}"]
        assert row["cells"][7] == f"{round(ours, 1) - round(theirs, 1):+.1f}"
        assert float(row["data"]["data-chrf"]) == float(row["cells"][7])
        assert float(row["data"]["data-bleu"]) == float(row["cells"][10])
    # By hand: 1 of 3 words matches, no 2-gram of 2 (counted as 1/2), no 3-gram of 1 (1/4): (1/3 · 1/4 · 1/4)^(1/3).
    assert parsed.rows[1]["cells"][8:] == ["27.5", "100.0", "+72.5"]
    assert [row["data"]["data-number"] for row in parsed.rows] == ["1", "2", "3"]
    # Every key that a button orders by is one that rows have.
    keys = [f"data-{attributes['data-key']}" for tag, attributes in parsed.tags if tag == "button"]
    assert keys == ["data-number", "data-chrf", "data-bleu"] and set(keys) == set(parsed.rows[0]["data"])


def test_every_text_has_its_own_direction(parsed):
    for row in parsed.rows:
        assert [attributes.get("dir") for attributes in row["attributes"][1:5]] == ["auto"] * 4


@pytest.mark.parametrize(
    ("output", "reference", "tokenize", "expected"),
    [
        ("the the  cat", "the cat", "13a", "the <mark>the</mark>  cat"),
        ("no\u00a0no", "no", "13a", "no\u00a0<mark>no</mark>"),
        (" a <a> <a>", "a", "13a", " a &lt;a&gt; <mark>&lt;a&gt;</mark>"),
        ("had had had", "had had", "13a", "had had <mark>had</mark>"),
        ("天天好好", "天天好", "zh", "天天好<mark>好</mark>"),
        ("天 天", "天", "zh", "天 <mark>天</mark>"),
        ("", "a", "13a", ""),
    ],
)
def test_marks(output, reference, tokenize, expected):
    assert marked(output, reference, tokenize=tokenize) == expected


# As much of a browser's document as the script asks for: five rows, and the page's three buttons.
DOCUMENT = """
let order = [[1, -2.5], [2, 10.5], [3, 0], [4, -30], [5, 10.5]].map(
  ([number, chrf]) => ({dataset: {number: `${number}`, chrf: `${chrf}`, bleu: `${-chrf}`}}));
const clicks = {};
const document = {
  querySelector: () => ({get rows() { return order; }, append: (...rows) => { order = rows; }}),
  querySelectorAll: () => ["number", "chrf", "bleu"].map(
    (key) => ({dataset: {key}, addEventListener: (event, click) => { clicks[key] = click; }})),
};
"""
CLICKS = """
for (const key of ["chrf", "chrf", "bleu", "number", "number"]) {
  clicks[key]();
  console.log(order.map((row) => row.dataset.number).join(""));
}
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node to run the page's script")
def test_rows_are_ordered_by_a_click(parsed):
    """Largest first, then smallest first; what ties stays in the order of the test set; the number counts up first."""
    code = DOCUMENT + parsed.scripts[0] + CLICKS
    done = subprocess.run(["node", "-e", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["25314", "41325", "41325", "12345", "54321"]
