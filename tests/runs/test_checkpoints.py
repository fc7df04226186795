"""What is saved is what comes back; kills, other models and missing steps are told apart."""

import hashlib
import shutil
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from padir.errors import PadirError, StorageError
from padir.runs.checkpoints import Checkpointer
from padir.runs.train_state import TrainState
from padir.runtime.sharding import make_mesh, replicated

PARAMS = {"dense": {"kernel": (2, 3)}, "norm": {"scale": (3,)}}


@pytest.fixture
def mesh():
    return make_mesh()


def state_of(step, mesh, shapes=PARAMS):
    """A state on all devices whose every number depends on the step."""
    keys = iter(jax.random.split(jax.random.key(step), 10))

    def draw(shape):
        return jax.random.normal(next(keys), shape)

    params = jax.tree.map(draw, shapes, is_leaf=lambda leaf: isinstance(leaf, tuple))
    opt_state = ({"count": jnp.int32(step), "v": jax.tree.map(jnp.square, params)}, ())
    state = TrainState(jnp.int32(step), params, opt_state)
    return jax.device_put(state, replicated(mesh))


def save(run_dir, mesh, *steps, keep=3):
    with Checkpointer(run_dir, keep=keep) as checkpointer:
        for step in steps:
            checkpointer.save(state_of(step, mesh))


def assert_equal(restored, expected):
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(restored), jax.device_get(expected))


def test_a_whole_state_comes_back(tmp_path, mesh):
    save(tmp_path, mesh, 5, 7)
    with Checkpointer(tmp_path) as checkpointer:
        assert checkpointer.latest_step() == 7
        restored = checkpointer.restore(state_of(0, mesh))
        assert_equal(restored, state_of(7, mesh))
        assert restored.params["norm"]["scale"].sharding == replicated(mesh)
        assert_equal(checkpointer.restore(state_of(0, mesh), step=5), state_of(5, mesh))


def test_only_the_newest_are_kept(tmp_path, mesh):
    save(tmp_path, mesh, 1, 2, 3, 4, keep=2)
    assert sorted(int(path.name) for path in (tmp_path / "checkpoints").iterdir() if path.is_dir()) == [3, 4]


def test_a_step_that_is_saved_already_is_left_as_it_is(tmp_path, mesh):
    save(tmp_path, mesh, 3)
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(state_of(4, mesh).replace(step=jnp.int32(3)))
    with Checkpointer(tmp_path) as checkpointer:
        assert_equal(checkpointer.restore(state_of(0, mesh)), state_of(3, mesh))


def test_parameters_alone_onto_other_devices(tmp_path, mesh):
    save(tmp_path, mesh, 6, 8)
    one = make_mesh(jax.devices()[:1])
    abstract = jax.eval_shape(lambda: state_of(0, mesh).params)
    with Checkpointer(tmp_path, read_only=True) as checkpointer:
        newest = checkpointer.restore_params(abstract, one)
        assert_equal(newest, state_of(8, mesh).params)
        assert newest["dense"]["kernel"].devices() == {jax.devices()[0]}
        assert_equal(checkpointer.restore_params(abstract, one, step=6), state_of(6, mesh).params)


def test_no_such_checkpoint_names_those_there_are(tmp_path, mesh):
    with Checkpointer(tmp_path) as checkpointer:
        assert checkpointer.latest_step() is None
        with pytest.raises(PadirError, match=r"checkpoints: no checkpoint was saved yet"):
            checkpointer.restore(state_of(0, mesh))
    save(tmp_path, mesh, 2, 4)
    with (
        Checkpointer(tmp_path, read_only=True) as checkpointer,
        pytest.raises(PadirError, match=r"no checkpoint of step 3; steps there: 2, 4$"),
    ):
        checkpointer.restore(state_of(0, mesh), step=3)


@pytest.mark.parametrize(
    "shapes, message",
    [
        (PARAMS | {"dense": {"kernel": (2, 4)}}, r"dense/kernel is (2, 3) there, (2, 4) here"),
        (PARAMS | {"head": {"kernel": (2,)}}, "head/kernel is missing there"),
        ({"dense": PARAMS["dense"]}, "norm/scale is unknown here"),
    ],
)
def test_another_model(tmp_path, mesh, shapes, message):
    save(tmp_path, mesh, 2)
    with Checkpointer(tmp_path, read_only=True) as checkpointer, pytest.raises(PadirError) as raised:
        checkpointer.restore(state_of(0, mesh, shapes))
    assert str(raised.value) == f"{tmp_path}/checkpoints/2: saved by another model: {message}"


def test_a_reader_needs_a_run(tmp_path):
    with pytest.raises(PadirError, match=r"checkpoints: no such folder; is .* a run directory of `padir train`\?"):
        Checkpointer(tmp_path, read_only=True)
    assert not list(tmp_path.iterdir())


def test_what_a_kill_left_half_written_is_named_and_removed(tmp_path, mesh, capfd):
    """A save writes into `<step>.orbax-checkpoint-tmp…` and renames it last."""
    save(tmp_path, mesh, 2)
    folder = tmp_path / "checkpoints"
    half = folder / "4.orbax-checkpoint-tmp"
    (half / "params").mkdir(parents=True)
    (half / "params" / "manifest.ocdbt").write_bytes(b"half")
    with Checkpointer(tmp_path, read_only=True) as checkpointer:
        assert checkpointer.latest_step() == 2
        assert half.is_dir()
    with Checkpointer(tmp_path) as checkpointer:
        assert f"{half}: incomplete, because its save was killed; removed" in capfd.readouterr().err
        assert checkpointer.latest_step() == 2 and not half.exists()
        assert_equal(checkpointer.restore(state_of(0, mesh)), state_of(2, mesh))
        checkpointer.save(state_of(4, mesh))
    with Checkpointer(tmp_path, read_only=True) as checkpointer:
        assert checkpointer.latest_step() == 4
        assert_equal(
            checkpointer.restore_params(jax.eval_shape(lambda: state_of(0, mesh).params), mesh),
            state_of(4, mesh).params,
        )


@pytest.mark.parametrize("damaged", ["*/_METADATA", "d/*"], ids=["index", "arrays"])
@pytest.mark.parametrize("checksums", [True, False])
def test_damage_is_named(tmp_path, mesh, damaged, checksums):
    save(tmp_path, mesh, 2)
    if not checksums:
        (tmp_path / "checkpoints" / "2" / "SHA256SUMS").unlink()
    paths = list((tmp_path / "checkpoints" / "2" / "params").rglob(damaged.removeprefix("*/")))
    assert paths
    for path in paths:
        path.write_bytes(path.read_bytes()[:7])
    with (
        Checkpointer(tmp_path, read_only=True) as checkpointer,
        pytest.raises(PadirError, match=r"checkpoints/2: cannot be restored; it is damaged"),
    ):
        checkpointer.restore(state_of(0, mesh))


class TestChecksums:
    @staticmethod
    def flip_a_bit(path):
        """In the middle, where arrays lie in the larger files."""
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)

    def test_they_are_of_all_files_of_the_state(self, tmp_path, mesh):
        with Checkpointer(tmp_path) as checkpointer:
            state = state_of(2, mesh)
            checkpointer.save(state.replace(ema=state.params), 0.5)
            checkpointer.save(state_of(4, mesh))
        for step, parts in ((2, {"params", "progress", "ema"}), (4, {"params", "progress"})):
            folder = tmp_path / "checkpoints" / str(step)
            listed = dict(line.split("  ")[::-1] for line in (folder / "SHA256SUMS").read_text().splitlines())
            files = {str(path.relative_to(folder)): path for part in parts for path in (folder / part).rglob("*")}
            files = {name: path for name, path in files.items() if path.is_file()}
            assert {name.partition("/")[0] for name in files} == parts
            assert listed == {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()}

    def test_a_bit_that_has_changed_in_any_file_is_found(self, tmp_path, mesh):
        state = state_of(2, mesh)
        state = state.replace(ema=jax.tree.map(lambda leaf: 2 * leaf, state.params))
        with Checkpointer(tmp_path) as checkpointer:
            checkpointer.save(state)
        folder = tmp_path / "checkpoints" / "2"
        paths = [path for part in ("params", "progress", "ema") for path in (folder / part).rglob("*")]
        for path in filter(Path.is_file, paths):
            self.flip_a_bit(path)
            self.assert_refused(tmp_path, state, f"{path.relative_to(folder)} has changed since it was saved")
            self.flip_a_bit(path)
        with Checkpointer(tmp_path) as checkpointer:
            assert_equal(checkpointer.restore(state), state)

    @staticmethod
    def assert_refused(run_dir, like, reason):
        with Checkpointer(run_dir, read_only=True) as checkpointer, pytest.raises(PadirError) as raised:
            checkpointer.restore(like)
        assert str(raised.value) == f"{run_dir}/checkpoints/2: cannot be restored; it is damaged ({reason})"

    @pytest.mark.parametrize("part", ["params", "progress", "ema"])
    def test_a_part_that_is_gone(self, tmp_path, mesh, part):
        """Of the average, nothing else would tell; it would start anew."""
        state = state_of(2, mesh)
        with Checkpointer(tmp_path) as checkpointer:
            checkpointer.save(state.replace(ema=state.params))
        first = min(path for path in (tmp_path / "checkpoints" / "2" / part).rglob("*") if path.is_file())
        shutil.rmtree(tmp_path / "checkpoints" / "2" / part)
        name = first.relative_to(tmp_path / "checkpoints" / "2")
        self.assert_refused(tmp_path, state.replace(ema=state.params), f"{name} is missing")

    def test_the_checkpoint_before_is_used(self, tmp_path, mesh, capfd):
        save(tmp_path, mesh, 2, 4)
        path = max((tmp_path / "checkpoints" / "4" / "progress").rglob("d/*"), key=lambda path: path.stat().st_size)
        self.flip_a_bit(path)
        with Checkpointer(tmp_path) as checkpointer:
            assert_equal(checkpointer.restore_newest(state_of(0, mesh)), state_of(2, mesh))
        assert "has changed since it was saved); it is set aside as damaged_4\n" in capfd.readouterr().err

    def test_of_parameters_only_their_files_count(self, tmp_path, mesh):
        save(tmp_path, mesh, 2)
        abstract = jax.eval_shape(lambda: state_of(0, mesh).params)
        self.flip_a_bit(next((tmp_path / "checkpoints" / "2" / "progress").rglob("d/*")))
        with Checkpointer(tmp_path, read_only=True) as checkpointer:
            assert_equal(checkpointer.restore_params(abstract, mesh), state_of(2, mesh).params)
        self.flip_a_bit(next((tmp_path / "checkpoints" / "2" / "params").rglob("_METADATA")))
        with (
            Checkpointer(tmp_path, read_only=True) as checkpointer,
            pytest.raises(PadirError, match=r"\(params/_METADATA has changed since it was saved\)"),
        ):
            checkpointer.restore_params(abstract, mesh)

    @pytest.mark.parametrize(
        "damage, reason",
        [
            (lambda lines: [], "SHA256SUMS does not list all files of params"),
            (lambda lines: lines[:-1], "SHA256SUMS does not list all files of progress"),
            (
                lambda lines: [line for line in lines if "  params" in line],
                "SHA256SUMS does not list all files of progress",
            ),
            (lambda lines: [*lines[:-1], lines[-1][:30]], "SHA256SUMS has changed since it was saved"),
            (lambda lines: [*lines[:-1], lines[-1][:76] + 5000 * "\ufffd"], "progress/"),
            (lambda lines: ["\x00" * 100], "SHA256SUMS has changed since it was saved"),
        ],
        ids=["empty", "a line less", "a part less", "cut in a line", "other bytes", "zeros"],
    )
    def test_damaged_themselves(self, tmp_path, mesh, damage, reason):
        save(tmp_path, mesh, 1, 2)
        path = tmp_path / "checkpoints" / "2" / "SHA256SUMS"
        path.write_text("".join(f"{line}\n" for line in damage(path.read_text().splitlines())))
        refused = rf"checkpoints/2: cannot be restored; it is damaged \({reason}"
        with Checkpointer(tmp_path, read_only=True) as checkpointer, pytest.raises(PadirError, match=refused):
            checkpointer.restore(state_of(0, mesh))
        with Checkpointer(tmp_path) as checkpointer:
            assert_equal(checkpointer.restore_newest(state_of(0, mesh)), state_of(1, mesh))

    def test_no_checkpoint_is_there_before_they_are(self, tmp_path, mesh, monkeypatch):
        seen = []

        def fail(folder, parts):
            seen.extend(sorted(path.name for path in (tmp_path / "checkpoints").iterdir()))
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("padir.runs.checkpoints.write_checksums", fail)
        checkpointer = Checkpointer(tmp_path)
        checkpointer.save(state_of(2, mesh))
        with pytest.raises(OSError, match="No space left on device"):
            checkpointer.close()
        assert len(seen) == 1 and seen[0].startswith("2.orbax-checkpoint-tmp")
        assert not (tmp_path / "checkpoints" / "2").exists()

    def test_a_checkpoint_of_before_there_were_any(self, tmp_path, mesh):
        save(tmp_path, mesh, 2)
        (tmp_path / "checkpoints" / "2" / "SHA256SUMS").unlink()
        with Checkpointer(tmp_path) as checkpointer:
            assert_equal(checkpointer.restore_newest(state_of(0, mesh)), state_of(2, mesh))


def test_a_damaged_loss_costs_a_checkpoint_its_place_among_the_best(tmp_path, mesh, capfd):
    with Checkpointer(tmp_path, keep_best=2) as checkpointer:
        for step, loss in ((1, 3.0), (2, 1.0), (3, 2.0)):
            checkpointer.save(state_of(step, mesh), loss)
    (path,) = (tmp_path / "checkpoints" / "2").glob("metrics/metrics")
    path.write_text(path.read_text()[:5])
    with Checkpointer(tmp_path, keep_best=2) as checkpointer:
        assert checkpointer.best_step() == 3
        assert_equal(checkpointer.restore(state_of(0, mesh), 2), state_of(2, mesh))
    assert f"{path}: damaged and removed; its checkpoint does not count among the best" in capfd.readouterr().err


def test_a_storage_that_fails_damages_nothing(tmp_path, mesh, monkeypatch):
    save(tmp_path, mesh, 2, 4)

    def fail(*_, **__):
        raise OSError(5, "Input/output error")

    with Checkpointer(tmp_path) as checkpointer:
        monkeypatch.setattr(checkpointer._manager, "restore", fail)
        with pytest.raises(PadirError, match="checkpoints/4: cannot be read .*Input/output error"):
            checkpointer.restore_newest(state_of(0, mesh))
    assert (tmp_path / "checkpoints" / "4").is_dir()


class TestTheNewestWhole:
    @staticmethod
    def damage(folder, step):
        for path in (folder / "checkpoints" / str(step) / "params").rglob("_METADATA"):
            path.write_bytes(path.read_bytes()[:7])

    def test_the_one_before_is_used_and_the_step_can_be_saved_again(self, tmp_path, mesh, capfd):
        for step in (2, 4, 6):
            save(tmp_path, mesh, step)
        self.damage(tmp_path, 4)
        self.damage(tmp_path, 6)
        with Checkpointer(tmp_path) as checkpointer:
            assert_equal(checkpointer.restore_newest(state_of(0, mesh)), state_of(2, mesh))
            assert checkpointer.latest_step() == 2
            checkpointer.save(state_of(4, mesh))
        said = capfd.readouterr().err
        for step in (4, 6):
            assert f"checkpoints/{step}: cannot be restored; it is damaged" in said
            assert f"it is set aside as damaged_{step}\n" in said
            assert (tmp_path / "checkpoints" / f"damaged_{step}").is_dir()
        with Checkpointer(tmp_path, read_only=True) as checkpointer:
            assert_equal(checkpointer.restore(state_of(0, mesh)), state_of(4, mesh))

    def test_none_was_saved(self, tmp_path, mesh):
        with Checkpointer(tmp_path) as checkpointer:
            assert checkpointer.restore_newest(state_of(0, mesh)) is None

    def test_training_does_not_start_over_where_all_are_damaged(self, tmp_path, mesh):
        """Not the second time either: nothing is moved unless there is one to go on from."""
        for step in (2, 4):
            save(tmp_path, mesh, step)
            self.damage(tmp_path, step)
        for _ in range(2):
            with Checkpointer(tmp_path) as checkpointer, pytest.raises(PadirError, match="2: cannot be restored; it"):
                checkpointer.restore_newest(state_of(0, mesh))
        assert (tmp_path / "checkpoints" / "4").is_dir()

    def test_one_of_another_model_is_refused_not_set_aside(self, tmp_path, mesh):
        save(tmp_path, mesh, 2)
        with Checkpointer(tmp_path) as checkpointer, pytest.raises(PadirError, match="2: saved by another model"):
            checkpointer.restore_newest(state_of(0, mesh, {"other": (3,)}))
        assert (tmp_path / "checkpoints" / "2").is_dir()

    def test_one_of_another_optimizer_is_refused_not_set_aside(self, tmp_path, mesh):
        save(tmp_path, mesh, 2)
        like = state_of(0, mesh)
        like = like.replace(opt_state={"momentum": like.opt_state})
        with Checkpointer(tmp_path) as checkpointer, pytest.raises(PadirError, match="2: saved by another optimizer"):
            checkpointer.restore_newest(like)
        assert (tmp_path / "checkpoints" / "2").is_dir()

    def test_what_another_host_sees_late_is_waited_for(self, tmp_path, mesh, monkeypatch):
        """The first process has set 4 aside; here the file system still shows it for two looks."""
        save(tmp_path, mesh, 2, 4)
        looks, waits = iter([[2, 4], [2, 4], [2]]), []
        # Not of the module itself, where other threads sleep, too.
        monkeypatch.setattr("padir.runs.checkpoints.time", types.SimpleNamespace(sleep=waits.append))
        monkeypatch.setattr("padir.runs.checkpoints._SECONDS_TO_SEE", 9)
        with Checkpointer(tmp_path) as checkpointer:
            with monkeypatch.context() as patch:
                patch.setattr(checkpointer, "steps", lambda: next(looks))
                checkpointer._see(2)
            assert waits == [1.0, 1.0]
            with pytest.raises(StorageError, match="the newest is 2 to process 0, 4 to process 0"):
                checkpointer._see(2)
        assert waits[2:] == [*[1.0] * 9, 0.0]
