"""Progress bars are shown to terminals and notebooks; logs get a line now and then."""

import io
import re
import sys
import time

import pytest

from padir import progress as progress_module
from padir.progress import announce, progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


# As `ipykernel.iostream.OutStream`, which is no terminal.
Notebook = type("OutStream", (io.StringIO,), {"__module__": "ipykernel.iostream"})


@pytest.mark.parametrize(("stream", "shown"), [(Terminal, True), (Notebook, True), (io.StringIO, False)])
def test_who_sees_a_bar(monkeypatch, stream, shown):
    monkeypatch.setattr(sys, "stderr", stream())
    announce("long work")
    assert list(progress(range(3), label="steps", unit="steps")) == [0, 1, 2]
    said = sys.stderr.getvalue()
    assert ("long work\n" in said, "3/3" in said) == (shown, shown)
    assert list(progress(range(2), label="other", unit="steps", active=False)) == [0, 1]
    assert "other" not in sys.stderr.getvalue()


def test_a_log_gets_lines(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    monkeypatch.setattr(progress_module, "_PAUSE", 0.02)
    with progress(label="translate", unit="lines", total=50) as bar:
        for _ in range(40):
            time.sleep(0.005)
            bar.update(1)
    said = sys.stderr.getvalue().splitlines()
    assert 1 < len(said) <= 11
    assert all(re.fullmatch(r"translate: \d+/50 lines \[00:\d\d<[\d?:]+, .*\]", line) for line in said)
    assert list(progress(range(3), label="train", unit="steps", lines=False)) == [0, 1, 2]
    monkeypatch.setattr(progress_module, "_PAUSE", 60.0)
    assert list(progress(iter(range(3)), label="soon done", unit="steps")) == [0, 1, 2]
    assert sys.stderr.getvalue().splitlines() == said
