"""COMET in another environment: what is missing is named; texts reach the right places of its interface."""

import subprocess
import sys

import pytest

from padir.errors import PadirError
from padir.metrics.comet_process import check_comet, comet_scores

# The interface of unbabel-comet 2.2, which no test can install: predict() of rows, with lengths for scores.
STAND_IN = """
import os
from types import SimpleNamespace

def download_model(name):
    print("downloading", flush=True)
    return f"downloaded {name}"

def load_from_checkpoint(path):
    os.write(1, b"chatter")
    assert path in ("downloaded some/model", os.environ.get("EXPECTED_MODEL")), path

    def predict(rows, batch_size, gpus):
        assert gpus == 0
        return SimpleNamespace(scores=[len(row["src"]) + 10 * len(row["mt"]) + 100 * len(row["ref"]) for row in rows])

    return SimpleNamespace(predict=predict)
"""


@pytest.fixture(scope="module")
def environments(tmp_path_factory):
    """Two interpreters of environments of their own: one without COMET, one with what stands in for it."""
    pythons = []
    for name in ("bare", "comet"):
        folder = tmp_path_factory.mktemp("environments") / name
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
        if name == "comet":
            (packages,) = folder.glob("lib/python*/site-packages")
            (packages / "comet.py").write_text(STAND_IN)
        pythons.append(str(folder / "bin" / "python"))
    return pythons


def test_an_environment_without_comet(environments, tmp_path):
    """The bare one is real: this error is what a user without COMET sees."""
    how = r"python3 -m venv comet && comet/bin/pip install unbabel-comet, then give --comet_python=comet/bin/python"
    for python, message in (
        (None, "evaluate.comet: no value for comet_python"),
        (environments[0], "has no package unbabel-comet"),
        (str(tmp_path / "none"), "none: No such file or directory"),
    ):
        with pytest.raises(PadirError, match=f"{message}; COMET needs an environment of its own, .*{how}"):
            check_comet(python)
    with pytest.raises(PadirError, match="has no package unbabel-comet"):
        comet_scores(environments[0], "some/model", ["a"], ["b"], ["c"])


def test_texts_and_scores(environments, monkeypatch, tmp_path, capfd):
    scores = comet_scores(environments[1], "some/model", ["a", "ü" * 3], ["bb", ""], ["ccc", "c"])
    assert scores == [1 + 20 + 300, 3 + 0 + 100]
    assert capfd.readouterr().out == ""
    model = tmp_path / "model.ckpt"
    model.touch()
    monkeypatch.setenv("EXPECTED_MODEL", str(model))
    assert comet_scores(environments[1], str(model), ["a"], ["b"], ["c"]) == [111.0]


def test_what_goes_wrong(environments):
    with pytest.raises(PadirError, match="COMET: 1 hypotheses, 2 references, 1 sources"):
        comet_scores(environments[1], "some/model", ["a"], ["b"], ["c", "d"])
    with pytest.raises(PadirError, match="COMET failed with status 1 on other/model; its own message is above"):
        comet_scores(environments[1], "other/model", ["a"], ["b"], ["c"])
