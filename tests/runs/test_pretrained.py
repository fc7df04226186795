"""The models in pretrained/: small, complete, and able to translate by their names."""

from pathlib import Path

import pytest

import padir
from padir.runs import pretrained

FOLDER = Path(__file__).resolve().parents[2] / "pretrained"
NAMES = sorted(path.parent.name for path in FOLDER.glob("*/config.json"))


def test_there_are_some_and_they_are_found_by_name():
    assert {"tatoeba_de_en_ar", "tatoeba_de_en_padir"} <= set(NAMES)
    assert set(NAMES) <= set(pretrained.folders())


@pytest.mark.parametrize("name", NAMES)
def test_each_has_all_its_files_and_is_small(name):
    files = {path.name: path.stat().st_size for path in (FOLDER / name).iterdir()}
    assert set(files) == {"README.md", "config.json", "model.safetensors", "spiece.model"}
    assert sum(files.values()) < 12.5e6
    card = (FOLDER / name / "README.md").read_text(encoding="utf-8")
    assert "CC-BY 2.0" in card and "tatoeba.org" in card and f"--run_dir={name}" in card


@pytest.mark.parametrize("name", [name for name in NAMES if "_de_en_" in name])
def test_it_translates(name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (found,) = padir.load(name).translate(["Wo ist der Bahnhof?"])
    assert found.text == "Where's the station?"
