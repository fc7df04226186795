"""What padir wrote before its folders were redrawn (commit 2022a24) still opens: sets, runs, exports."""

import json
import shutil
import tarfile
from pathlib import Path

import jax
import numpy as np
import pytest

import padir
from padir.cli import config
from padir.cli.main import main
from padir.data.manifest import TaskConfig
from padir.data.records import PreparedSet
from padir.runs.directory import trained_on


@pytest.fixture(scope="module")
def earlier(tmp_path_factory):
    """The folder that tests/golden/make_earlier_release.py filled."""
    folder = tmp_path_factory.mktemp("earlier")
    with tarfile.open(Path(__file__).parent / "golden" / "earlier_release.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture
def expected(earlier):
    return json.loads((earlier / "expected.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", ["ar", "padir", "ar_exported", "padir_exported"])
def test_runs_and_exports_translate_as_they_did(earlier, expected, name):
    found = padir.load(earlier / name).translate(expected["texts"])
    for translation, (text, score) in zip(found, expected["translations"][name.removesuffix("_exported")], strict=True):
        assert translation.text == text
        assert translation.score == pytest.approx(score, rel=1e-4)


def test_a_prepared_set(earlier):
    prepared = PreparedSet.open(earlier / "data")
    manifest, vocabulary = prepared.manifest, prepared.vocabulary()
    assert manifest.task.module == "tasks.synthetic" and not manifest.is_distilled
    for name, described in manifest.splits.items():
        split = prepared.split(name)
        assert len(split) == described.num_examples > 0
        example = split[0]
        assert example.source_ids[-1] == example.target_ids[-1] == 1
        assert vocabulary.decode(example.target_ids) == example.target_text


def test_a_distilled_set(earlier):
    manifest = PreparedSet.open(earlier / "distilled").manifest
    assert manifest.is_distilled
    assert manifest.original_task == TaskConfig("tasks.synthetic", "synthetic", manifest.original_task.options)
    assert (trained_on(earlier / "ar"), trained_on(earlier / "padir")) == ("raw", "distilled")


@pytest.mark.parametrize("run", ["ar", "padir"])
def test_training_goes_on_to_the_same_parameters(earlier, tmp_path, monkeypatch, run):
    """From the checkpoint of step 20, with the configuration that the run kept, to that of step 40."""
    folder = tmp_path / "copy"
    shutil.copytree(earlier, folder)
    shutil.rmtree(folder / run / "checkpoints" / "40")
    monkeypatch.chdir(folder)
    assert main(["train", f"--gin_file={run}/train.gin"]) == 0
    again, before = (jax.tree.leaves(padir.load(place / run).params) for place in (folder, earlier))
    for ours, theirs in zip(again, before, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-3 * np.abs(theirs).max())


def test_kept_configurations_are_read(earlier):
    paths = sorted(earlier.rglob("*.gin"))
    assert len(paths) == 5
    for path in paths:
        config.parse([str(path)], [])
        assert config.required(path.stem) == []
