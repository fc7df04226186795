"""Foreign checkpoints in buckets: the same arrays as on disk; damage is named, and failing storage is not damage."""

import jax
import ml_dtypes
import numpy as np
import orbax.checkpoint as ocp
import pytest
from flax.traverse_util import unflatten_dict
from uploads import upload

from padir.errors import PadirError, StorageError
from padir.files.paths import as_path, files_below
from padir.interop import huggingface, t5x_checkpoint
from padir.interop.t5x_checkpoint import find_checkpoint, read_checkpoint


@pytest.fixture
def at_once(quick_retries, monkeypatch):
    """Requests are tried again without waiting, by TensorStore too."""
    monkeypatch.setattr(t5x_checkpoint, "_RETRIES", {"max_retries": 2, "initial_delay": "1ms", "max_delay": "2ms"})


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array, err_msg=name)


def test_t5x_index_and_zarr(t5x_checkpoint, bucket):
    local = read_checkpoint(t5x_checkpoint)
    folder = upload(t5x_checkpoint, f"{bucket}/runs/checkpoint_0")
    found = read_checkpoint(str(folder))
    assert found.step == local.step == 0
    assert_equal(found.params, local.params)
    with pytest.raises(PadirError, match="not a T5X checkpoint; name one of the checkpoints in it: checkpoint_0 "):
        read_checkpoint(f"{bucket}/runs")
    assert find_checkpoint(f"{bucket}/other") is None


def test_t5x_damage(t5x_checkpoint, bucket, emulator, at_once):
    folder = upload(t5x_checkpoint, f"{bucket}/checkpoint_0")
    table = folder / "target.token_embedder.embedding"
    chunk = next(name for name in files_below(table) if not name.startswith("."))
    whole = (table / chunk).read_bytes()
    (table / chunk).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(PadirError, match=r"token_embedder.embedding: missing or damaged array \("):
        read_checkpoint(folder)
    (table / chunk).write_bytes(whole)
    (folder / "checkpoint").write_bytes((folder / "checkpoint").read_bytes()[:40])
    with pytest.raises(PadirError, match="checkpoint: cannot be read as a T5X index; it is damaged"):
        read_checkpoint(folder)
    upload(t5x_checkpoint, folder)

    def fails(request):
        return 503 if "token_embedder" in request.path else None

    with emulator.faults.happen(fails), pytest.raises(StorageError, match="embedding: the storage did not answer") as e:
        read_checkpoint(folder)
    assert e.value.status == 74
    with (
        emulator.faults.happen(lambda request: 403 if "token_embedder" in request.path else None),
        pytest.raises(PadirError, match="embedding: permission denied .* give this account the roles"),
    ):
        read_checkpoint(folder)
    with emulator.faults.happen(lambda request: 503), pytest.raises(StorageError, match="did not answer after sev"):
        read_checkpoint(folder)


@pytest.mark.parametrize("database", [True, False])
def test_orbax_of_t5x(bucket, tmp_path, database):
    params = {"encoder/norm/scale": np.arange(3, dtype=np.float32), "table": np.ones((2, 2), ml_dtypes.bfloat16)}
    tree = {"target": unflatten_dict(params, sep="/"), "state": {"step": np.int32(12), "slots": np.zeros(4)}}
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_ocdbt=database)) as checkpointer:
        checkpointer.save(tmp_path / "checkpoint_12", args=ocp.args.PyTreeSave(tree))
    folder = upload(tmp_path / "checkpoint_12", f"{bucket}/checkpoint_12")
    found = read_checkpoint(folder)
    assert found.step == 12
    assert_equal(found.params, params)
    for name in files_below(folder):
        if "scale" in name or "/d/" in f"/{name}":
            (folder / name).unlink()
    with pytest.raises(PadirError, match="checkpoint_12: cannot be read by Orbax; "):
        read_checkpoint(folder)


@pytest.mark.parametrize("name", ["t5_10", "t5_11"])
def test_hugging_face(hugging_face, bucket, tmp_path, emulator, at_once, name):
    local = huggingface.load(hugging_face(name))
    folder = upload(tmp_path / name, f"{bucket}/t5")
    found = huggingface.load(str(folder))
    assert found.model == local.model
    jax.tree.map(np.testing.assert_array_equal, found.params, local.params)
    # Out again: the same bytes as on disk, config.json last.
    vocabulary = as_path(f"{bucket}/spiece.model")
    vocabulary.write_bytes(b"pieces")
    with emulator.faults.happen(lambda request: None) as requests:
        huggingface.save(f"{bucket}/out", found.model, found.params, vocabulary=vocabulary)
    written = [request.query.get("name", request.path) for request in requests if request.method == "POST"]
    assert written[-1].endswith("/out/config.json")
    huggingface.save(tmp_path / "out", local.model, local.params)
    for file in ("config.json", "model.safetensors"):
        assert as_path(f"{bucket}/out/{file}").read_bytes() == (tmp_path / "out" / file).read_bytes()
    assert as_path(f"{bucket}/out/spiece.model").read_bytes() == b"pieces"
    with pytest.raises(PadirError, match="out/config.json: exists; choose another folder, or delete it"):
        huggingface.save(f"{bucket}/out", found.model, found.params)


def test_hugging_face_damage(hugging_face, bucket, emulator, at_once):
    folder = upload(hugging_face("t5_10"), f"{bucket}/t5")
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-8])
    with pytest.raises(PadirError, match=rf"^{weights}: damaged safetensors file"):
        huggingface.load(folder)
    weights.unlink()
    with pytest.raises(PadirError, match=rf"^{weights}: no such file$"):
        huggingface.load(folder)
    weights.write_bytes(whole)

    def fails(request):
        return "drop" if request.path.startswith("/download") and "safetensors" in request.path else None

    with emulator.faults.happen(fails), pytest.raises(StorageError, match="model.safetensors: the storage did not ans"):
        huggingface.load(folder)
    (folder / "config.json").unlink()
    with pytest.raises(PadirError, match=r"config.json: cannot be read \(No such object\); is this a folder of Hug"):
        huggingface.load(folder)


def test_an_export_that_is_cut_leaves_no_model(hugging_face, bucket, emulator, at_once):
    model, params = huggingface.load(hugging_face("t5_10"))

    def fails(request):
        return "drop" if request.method == "POST" and request.query.get("name", "").endswith("config.json") else None

    with emulator.faults.happen(fails), pytest.raises(StorageError):
        huggingface.save(f"{bucket}/out", model, params)
    assert files_below(as_path(f"{bucket}/out")) == ["model.safetensors"]
    with pytest.raises(PadirError, match="config.json: cannot be read"):
        huggingface.load(f"{bucket}/out")
    huggingface.save(f"{bucket}/out", model, params)
    jax.tree.map(np.testing.assert_array_equal, huggingface.load(f"{bucket}/out").params, params)
