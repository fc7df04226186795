"""`padir trace`: a page, JSON, or lines on the terminal."""

import json
import re

import pytest

from padir.decoding.refinement import Refinement
from padir.errors import PadirError
from padir.inference import page
from padir.inference.watching import trace

DECODE = Refinement(num_steps=5, num_hypotheses=2)
TEXT = "Peter helps a big dog ."


def test_a_page_and_json_of_two_models(tiny, tmp_path, capsys):
    html, output = tmp_path / "trace.html", tmp_path / "trace.json"
    made = trace(
        text=TEXT, run_dir=str(tiny.padir), html=str(html), output=str(output), beside=str(tiny.ar), decode=DECODE
    )
    assert [told["model"]["name"] for told in made] == ["padir", "ar"]
    assert [len(told["hypotheses"]) for told in made] == [2, 1]
    # The clock of an ordinary request, if not all that is shown is in one.
    assert [set(told["timings"]) for told in made] == [{"total_ms", "served_ms"}, {"total_ms"}]
    assert json.loads(output.read_text()) == made
    assert html.read_text() == page.standalone(made, title=TEXT)
    assert capsys.readouterr().out == f"written: {html}\nwritten: {output}\n"


def test_on_the_terminal(tiny, capsys):
    (told,) = trace(text=TEXT, run_dir=str(tiny.padir), decode=DECODE)
    best = told["hypotheses"][0]
    first, *steps, last = capsys.readouterr().out.splitlines()
    assert first == f"padir: {best['text']}"
    assert last == f"stopped after {best['steps_run']}: {best['stopped']}; [remasked]"
    assert len(steps) == best["steps_run"]
    for line, step in zip(steps, best["steps"], strict=True):
        assert re.sub(r"^step \d: ", "", line).replace("[", "").replace("]", "").split(" ") == step["write"]
        assert line.count("[") == len(step["remasked"])


def test_a_file_that_cannot_be_written(tiny, tmp_path):
    with pytest.raises(PadirError, match=r"nowhere/trace\.html: cannot be written \(No such file"):
        trace(text=TEXT, run_dir=str(tiny.padir), html=str(tmp_path / "nowhere/trace.html"), decode=DECODE)
