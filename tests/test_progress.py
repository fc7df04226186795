"""Progress bars are shown to terminals and notebooks, and to nobody else."""

import io
import sys

import pytest

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
