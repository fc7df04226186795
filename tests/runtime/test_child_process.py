"""A call into another process: its answer and its errors come back; what it prints does not."""

import pytest

from padir.errors import PadirError
from padir.runtime.child_process import call_in_process


@pytest.fixture
def child(tmp_path, monkeypatch):
    """Returns child(statement) -> what a child answers that runs the statement with `a` and `b`."""

    def child(statement):
        (tmp_path / "a_child.py").write_text(
            "import os, sys\nfrom padir.runtime.child_process import serve\nfrom padir.errors import PadirError\n"
            f"def handle(a, b):\n    {statement}\nif __name__ == '__main__':\n    sys.exit(serve(handle))\n"
        )
        return call_in_process("a_child", {"a": [1, "ü"], "b": 2.5}, doing="trying x", subject="x")

    monkeypatch.syspath_prepend(str(tmp_path))
    return child


def test_the_answer(child, capfd):
    assert child("print('chatter', flush=True); os.write(1, b'more'); return {'a': a, 'b': b}") == {
        "a": [1, "ü"],
        "b": 2.5,
    }
    captured = capfd.readouterr()
    assert captured.out == "" and "chatter" in captured.err and "more" in captured.err
    assert child("pass") is None


@pytest.mark.parametrize(
    ("statement", "kind", "message"),
    [
        ("raise PadirError('what is wrong: ü')", PadirError, "^what is wrong: ü$"),
        ("raise OSError(28, 'No space left on device')", PadirError, "^x: No space left on device$"),
        ("os.kill(os.getpid(), 9)", PadirError, "^trying x was ended by SIGKILL; the machine may have run out of mem"),
        ("1 / 0", RuntimeError, "^trying x failed with status 1; its traceback is above$"),
    ],
)
def test_errors(child, statement, kind, message):
    with pytest.raises(kind, match=message):
        child(statement)
