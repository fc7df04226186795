"""Checkpoints in a bucket: what counts as whole, what is damaged, and a storage that fails."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from padir.errors import PadirError, StorageError
from padir.files.atomic import copy_file
from padir.files.paths import as_path, files_below
from padir.runs.checkpoints import Checkpointer
from padir.runs.train_state import TrainState
from padir.runtime.sharding import make_mesh, replicated


@pytest.fixture
def mesh():
    return make_mesh()


def state_of(step, mesh):
    """A state on all devices whose every number depends on the step."""
    params = {"dense": {"kernel": jnp.arange(600.0).reshape(20, 30) + step}, "scale": jnp.full(3, float(step))}
    state = TrainState(jnp.int32(step), params, ({"count": jnp.int32(step)}, ()))
    return jax.device_put(state, replicated(mesh))


def save(run_dir, mesh, *steps, keep=3, **options):
    with Checkpointer(run_dir, keep=keep, **options) as checkpointer:
        for step in steps:
            checkpointer.save(state_of(step, mesh), loss=1.0 / step if options else None)


@pytest.fixture(scope="module")
def saved(emulator):
    """Where a run has the checkpoints 1 and 2."""
    place = f"{emulator.root}/saved_once"
    save(place, make_mesh(), 1, 2)
    return as_path(place)


@pytest.fixture
def run(saved, bucket):
    """A copy of that run."""
    for name in files_below(saved):
        copy_file(saved / name, f"{bucket}/{name}")
    return bucket


def newest(run_dir, mesh):
    """The step that a start of the run resumes from, after checking that its numbers are right."""
    with Checkpointer(run_dir) as checkpointer:
        restored = checkpointer.restore_newest(state_of(0, mesh))
    if restored is None:
        return None
    step = int(restored.step)
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(restored), jax.device_get(state_of(step, mesh)))
    return step


def test_a_whole_state_comes_back_and_the_newest_are_kept(bucket, mesh):
    assert newest(bucket, mesh) is None
    save(bucket, mesh, 1, 2, 3, keep=2)
    folder = as_path(bucket) / "checkpoints"
    assert [path.name for path in folder.iterdir()] == ["2", "3"]
    assert newest(bucket, mesh) == 3
    names = files_below(folder / "3")
    sums = (folder / "3" / "SHA256SUMS").read_text().splitlines()
    # Everything in the parts has a checksum.
    assert [line.split("  ")[1] for line in sums] == [name for name in names if name.startswith(("params/", "prog"))]
    assert "commit_success.txt" in names
    with Checkpointer(bucket, read_only=True) as checkpointer:
        assert checkpointer.steps() == [2, 3]
        params = checkpointer.restore_params(state_of(0, mesh).params, mesh, step=2)
    np.testing.assert_array_equal(params["scale"], [2.0, 2.0, 2.0])
    with pytest.raises(PadirError, match="no such folder; is .* a run directory"):
        Checkpointer(f"{bucket}/other", read_only=True)


def test_losses_choose_the_best(bucket, mesh):
    with Checkpointer(bucket, keep=1, keep_best=1) as checkpointer:
        for step, loss in ((1, 0.5), (2, 0.1), (3, 0.9)):
            checkpointer.save(state_of(step, mesh), loss=loss)
    with Checkpointer(bucket, keep=1, keep_best=1) as checkpointer:
        assert (checkpointer.steps(), checkpointer.best_step()) == ([2, 3], 2)
        checkpointer.save(state_of(4, mesh))
    with Checkpointer(bucket, keep=1, keep_best=1) as checkpointer:
        checkpointer.add_loss(0.05)
        assert checkpointer.best_step() == 4


def test_what_a_kill_left_half_written_is_named_and_removed(run, mesh, capsys):
    folder = as_path(run) / "checkpoints"
    # As after a kill before Orbax's last file.
    (folder / "2" / "commit_success.txt").unlink()
    assert newest(run, mesh) == 1
    assert f"{folder}/2: incomplete, because its save was killed; removed" in capsys.readouterr().err
    assert [path.name for path in folder.iterdir()] == ["1"]


@pytest.mark.parametrize("damage", ["changed", "truncated", "missing", "extra", "sums"])
def test_damaged_checkpoints_are_named_and_set_aside(run, mesh, capsys, damage):
    folder = as_path(run) / "checkpoints"
    (name,) = [name for name in files_below(folder / "2") if name.startswith("params/d/")]
    file = folder / "2" / name
    content = file.read_bytes()
    if damage == "changed":
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif damage == "truncated":
        file.write_bytes(content[: len(content) // 2])
    elif damage == "missing":
        file.unlink()
    elif damage == "extra":
        (folder / "2" / "params" / "more").write_bytes(b"")
    else:
        (folder / "2" / "SHA256SUMS").write_text("damaged\n")
    assert newest(run, mesh) == 1
    said = capsys.readouterr().err
    assert f"{folder}/2: cannot be restored; it is damaged (" in said and "set aside as damaged_2" in said
    aside = files_below(folder / "damaged_2")
    # All is kept but the file by which it would count.
    assert "SHA256SUMS" in aside and "commit_success.txt" not in aside
    assert [path.name for path in folder.iterdir()] == ["1", "damaged_2"]
    if damage == "changed":
        # The step can be saved again.
        save(run, mesh, 2)
        assert newest(run, mesh) == 2


def test_a_storage_that_fails_damages_nothing(run, mesh, emulator, quick_retries):
    folder = as_path(run) / "checkpoints"
    before = files_below(folder)
    with (
        emulator.faults.happen(lambda request: 503 if request.path.startswith("/download") else None),
        pytest.raises(StorageError, match="the storage did not answer") as caught,
    ):
        newest(run, mesh)
    assert caught.value.status == 74
    assert files_below(folder) == before and newest(run, mesh) == 2


@pytest.mark.parametrize(("code", "what"), [(401, "permission denied|no valid"), (403, "permission denied")])
def test_a_storage_that_refuses_arrays_damages_nothing(run, mesh, emulator, code, what):
    """Arrays are read by TensorStore, all else by gcsfs."""
    folder = as_path(run) / "checkpoints"
    before = files_below(folder)

    def refused(request):
        return code if "/o/" in request.path and "alt" in request.query and "/d/" in request.path else None

    with Checkpointer(run) as checkpointer:
        like = state_of(0, mesh)
        with (
            emulator.faults.happen(refused),
            pytest.MonkeyPatch.context() as patch,
            pytest.raises(PadirError, match=f"checkpoints/2: ({what}) .*(roles|gcloud)") as caught,
        ):
            # Checksums are read before the arrays, and would meet the refusal first.
            patch.setattr("padir.runs.checkpoints.check_parts", lambda folder, parts: True)
            checkpointer.restore(like)
    assert caught.value.status == 2 and type(caught.value) is PadirError
    assert files_below(folder) == before and newest(run, mesh) == 2


def test_a_save_survives_requests_that_fail(bucket, mesh, emulator):
    failed = []

    def sometimes(request):
        if "/checkpoints/" in str(request.query.get("name", request.path)) and request.number % 7 == 3:
            failed.append(request)
            return (503, "drop", "lose")[len(failed) % 3] if len(failed) < 7 else None
        return None

    with emulator.faults.happen(sometimes):
        save(bucket, mesh, 5)
    assert failed and newest(bucket, mesh) == 5
