"""Checkpoints of others, laid out as they come."""

import shutil
import zipfile
from pathlib import Path

import pytest

GOLDEN = Path(__file__).resolve().parents[1] / "golden"


@pytest.fixture
def t5x_checkpoint(tmp_path) -> Path:
    """A checkpoint of the release's tiny model as T5X wrote it: index and zarr folders."""
    folder = tmp_path / "checkpoint_0"
    with zipfile.ZipFile(GOLDEN / "t5x_checkpoint_0.zip") as archive:
        archive.extractall(folder)
    return folder


@pytest.fixture
def hugging_face(tmp_path):
    """Returns lay_out(name) -> a folder with config.json and model.safetensors as Transformers wrote them."""

    def lay_out(name: str) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        shutil.copyfile(GOLDEN / "hf_t5" / f"{name}.config.json", folder / "config.json")
        shutil.copyfile(GOLDEN / "hf_t5" / f"{name}.safetensors", folder / "model.safetensors")
        return folder

    return lay_out
