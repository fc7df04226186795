"""The models in pretrained/: small, complete, and able to translate by their names."""

from pathlib import Path

import pytest

import padir
from padir.decoding.autoregressive import Autoregressive
from padir.decoding.refinement import Refinement
from padir.runs import pretrained

FOLDER = Path(__file__).resolve().parents[2] / "pretrained"
NAMES = sorted(path.parent.name for path in FOLDER.glob("*/config.json"))


def test_there_are_some_and_they_are_found_by_name():
    assert [f"tatoeba_{way}_{kind}" for way in ("de_en", "en_de") for kind in ("ar", "padir")] == NAMES
    assert set(NAMES) <= set(pretrained.folders())


@pytest.mark.parametrize("name", NAMES)
def test_each_has_all_its_files_and_is_small(name):
    files = {path.name: path.stat().st_size for path in (FOLDER / name).iterdir()}
    assert set(files) == {"README.md", "config.json", "model.safetensors", "spiece.model"}
    assert sum(files.values()) <= 12e6
    card = (FOLDER / name / "README.md").read_text(encoding="utf-8")
    assert "CC-BY 2.0" in card and "tatoeba.org" in card and f"--run_dir={name}" in card


@pytest.mark.parametrize("name", NAMES)
def test_it_translates(name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    german, english = "Wo ist der Bahnhof?", "Where's the station?"
    text, expected = (german, english) if "_de_en_" in name else (english, german)
    (found,) = padir.load(name).translate([text])
    assert found.text == expected


@pytest.mark.parametrize("direction", ["de_en", "en_de"])
def test_students_rank_their_own_hypotheses_and_decode_both_ways(direction):
    translator = padir.load(f"tatoeba_{direction}_padir")
    texts = {"de": "Der Hund schläft.", "en": "The dog is sleeping." if direction == "de_en" else "The dog sleeps."}
    source, target = direction.split("_")
    ways = Refinement(num_hypotheses=3, self_rescoring=True, target_buckets=(8,)), Autoregressive()
    for decode in ways:
        assert translator.translate([texts[source]], decode)[0].text == texts[target]
