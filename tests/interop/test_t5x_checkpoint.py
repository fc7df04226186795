"""Every format T5X wrote reads to the same parameters; damage is named."""

import shutil

import jax
import ml_dtypes
import numpy as np
import orbax.checkpoint as ocp
import pytest
import tensorstore
from flax.serialization import msgpack_restore, msgpack_serialize
from flax.traverse_util import unflatten_dict
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from padir.errors import PadirError
from padir.interop.t5x_checkpoint import find_checkpoint, read_checkpoint

TABLE = "target.token_embedder.embedding"


@pytest.fixture
def expected(golden):
    """The release's parameters."""
    arrays = golden("padir_tiny_tied.npz")
    return {name.removeprefix("params/"): arrays[name] for name in arrays if name.startswith("params/")}


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array, err_msg=name)


def rewrite_index(folder, change):
    """Applies `change` to the tree of a checkpoint's index."""
    tree = msgpack_restore((folder / "checkpoint").read_bytes())
    change(tree["optimizer"]["target"])
    (folder / "checkpoint").write_bytes(msgpack_serialize(tree))


def write_zarr(folder, array, dtype, chunks):
    metadata = {"shape": array.shape, "chunks": chunks, "dtype": dtype, "compressor": {"id": "gzip", "level": 1}}
    spec = {"driver": "zarr", "kvstore": {"driver": "file", "path": str(folder)}, "metadata": metadata}
    tensorstore.open(spec, create=True, delete_existing=True).result().write(array).result()


class TestIndexAndZarr:
    def test_the_release_checkpoint(self, t5x_checkpoint, expected):
        params, step = read_checkpoint(t5x_checkpoint)
        assert_equal(params, expected)
        assert step == 0

    def test_arrays_in_the_index(self, tmp_path):
        """T5X keeps small arrays in the index itself."""
        scale, table = np.arange(3, dtype=np.float32), np.ones((2, 2), ml_dtypes.bfloat16)
        tree = {"target": {"encoder": {"norm": {"scale": scale}}, "table": table}, "state": {"step": np.int32(1200)}}
        (tmp_path / "checkpoint").write_bytes(msgpack_serialize({"version": 3, "optimizer": tree}))
        params, step = read_checkpoint(tmp_path)
        assert_equal(params, {"encoder/norm/scale": scale, "table": table})
        assert step == 1200

    def test_paths_of_where_it_was_written_mean_nothing(self, t5x_checkpoint, expected):
        """It was written to a bucket, or by a TensorStore that kept `path` beside `kvstore`, and copied here."""

        def change(target):
            table = target["token_embedder"]["embedding"]
            table["kvstore"] = {"driver": "gcs", "bucket": "b", "path": f"models/x/checkpoint_0/{TABLE}/"}
            scale = target["encoder"]["encoder_norm"]["scale"]
            scale["path"] = scale["kvstore"].pop("path")

        rewrite_index(t5x_checkpoint, change)
        assert_equal(read_checkpoint(t5x_checkpoint).params, expected)

    def test_early_orbax_placeholders(self, t5x_checkpoint, expected):
        def placeholders(target):
            target["token_embedder"]["embedding"] = f"PLACEHOLDER://{TABLE}"

        rewrite_index(t5x_checkpoint, placeholders)
        assert_equal(read_checkpoint(t5x_checkpoint).params, expected)

    def test_bfloat16_kept_as_integers_and_several_chunks(self, tmp_path):
        array = np.random.default_rng(0).normal(size=(5, 7)).astype(ml_dtypes.bfloat16)
        write_zarr(tmp_path / "target.x", array.view(np.uint16), "<u2", [2, 4])
        leaf = {"driver": "zarr", "dtype": "uint16", "kvstore": {"driver": "file", "path": "target.x/"}}
        (tmp_path / "checkpoint").write_bytes(msgpack_serialize({"optimizer": {"target": {"x": leaf}}}))
        assert len(list((tmp_path / "target.x").glob("?.?"))) == 6
        assert_equal(read_checkpoint(tmp_path).params, {"x": array})

    def test_damaged_index(self, t5x_checkpoint):
        path = t5x_checkpoint / "checkpoint"
        path.write_bytes(path.read_bytes()[:-100])
        with pytest.raises(PadirError, match=rf"^{path}: cannot be read as a T5X index; it is damaged"):
            read_checkpoint(t5x_checkpoint)

    @pytest.mark.parametrize(
        ("damage", "message"),
        [
            (lambda folder: (folder / "0.0").write_bytes(b"junk"), r"missing or damaged array \(.*0\.0"),
            (lambda folder: (folder / "0.0").unlink(), "damaged: 1 of its 1 chunk files are missing"),
            (lambda folder: (folder / ".zarray").write_text("{"), r"missing or damaged array \("),
            (shutil.rmtree, r"missing or damaged array \(NOT_FOUND"),
            (
                lambda folder: write_zarr(folder, np.zeros((4, 32), np.float32), "<f4", [4, 32]),
                r"damaged: has shape \(4, 32\), the index says \(128, 32\)",
            ),
        ],
        ids=["chunk", "no chunk", "metadata", "folder", "shape"],
    )
    def test_damaged_array(self, t5x_checkpoint, damage, message):
        damage(t5x_checkpoint / TABLE)
        with pytest.raises(PadirError, match=rf"^{t5x_checkpoint / TABLE}: {message}"):
            read_checkpoint(t5x_checkpoint)

    def test_no_parameters(self, tmp_path):
        (tmp_path / "checkpoint").write_bytes(msgpack_serialize({"optimizer": {"state": {"step": 3}}}))
        with pytest.raises(PadirError, match="holds no parameters under 'target' or 'params'; it has: state$"):
            read_checkpoint(tmp_path)

    def test_a_leaf_that_is_no_array(self, tmp_path):
        (tmp_path / "checkpoint").write_bytes(msgpack_serialize({"target": {"x": "hello"}}))
        with pytest.raises(PadirError, match=r"x is neither an array nor says where it lies \(str\)"):
            read_checkpoint(tmp_path)


# What Orbax leaves running when it fails complains later, of a loop that is closed.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
class TestOrbax:
    """What Orbax wrote, with arrays spread over devices, as T5X does today."""

    @pytest.fixture
    def tree(self, expected):
        mesh = Mesh(np.asarray(jax.devices()), ("data",))
        target = unflatten_dict(expected, sep="/")
        table = target["token_embedder"]["embedding"]
        target["token_embedder"]["embedding"] = jax.device_put(table, NamedSharding(mesh, PartitionSpec("data")))
        states = {"decoder": {"v": np.zeros((4, 3), np.float32)}, "encoder": {}}
        return {"target": target, "state": {"step": np.int32(37), "param_states": states}}

    @staticmethod
    def write_with_manager(folder, tree):
        options = ocp.CheckpointManagerOptions(step_prefix="checkpoint")
        with ocp.CheckpointManager(folder.parent, item_names=("state",), options=options) as manager:
            manager.save(int(folder.name.split("_")[1]), args=ocp.args.Composite(state=ocp.args.PyTreeSave(tree)))

    @staticmethod
    def write_standard(folder, tree):
        with ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save(folder, tree)

    @staticmethod
    def write_folders(folder, tree):
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_ocdbt=False)) as checkpointer:
            checkpointer.save(folder, args=ocp.args.PyTreeSave(tree))

    @pytest.mark.parametrize("write", ["write_with_manager", "write_standard", "write_folders"])
    def test_read_back(self, tmp_path, tree, expected, write):
        folder = tmp_path / "checkpoint_37"
        getattr(self, write)(folder, tree)
        params, step = read_checkpoint(folder)
        assert_equal(params, expected)
        assert step == 37

    def test_parameters_alone(self, tmp_path, expected):
        self.write_standard(tmp_path / "x", {"params": unflatten_dict(expected, sep="/")})
        params, step = read_checkpoint(tmp_path / "x")
        assert_equal(params, expected)
        assert step == 0

    @pytest.mark.parametrize(
        ("damage", "message"),
        [
            (lambda at: [data.write_bytes(b"") for data in at.glob("ocdbt.process_0/d/*")], r"it is damaged \("),
            (lambda at: (at / "manifest.ocdbt").unlink(), "its metadata are damaged, or arrays are missing"),
            (lambda at: (at / "_METADATA").write_text("{"), "its metadata are damaged, or arrays are missing"),
        ],
        ids=["arrays", "manifest", "metadata"],
    )
    def test_damage(self, tmp_path, tree, damage, message):
        self.write_standard(tmp_path / "x", tree)
        damage(tmp_path / "x")
        with pytest.raises(PadirError, match=rf"^{tmp_path / 'x'}: cannot be read by Orbax; {message}"):
            read_checkpoint(tmp_path / "x")

    def test_no_parameters(self, tmp_path):
        self.write_standard(tmp_path / "x", {"weights": {"a": np.zeros(2)}})
        with pytest.raises(PadirError, match="holds no parameters under 'target' or 'params'; it has: weights$"):
            read_checkpoint(tmp_path / "x")


def test_not_a_checkpoint(tmp_path, t5x_checkpoint):
    assert find_checkpoint(tmp_path) is None
    assert find_checkpoint(t5x_checkpoint) == t5x_checkpoint
    with pytest.raises(PadirError, match=r"name one of the checkpoints in it: checkpoint_0 \(or"):
        read_checkpoint(tmp_path)
    with pytest.raises(PadirError, match="nowhere: not a T5X checkpoint; it has no file checkpoint"):
        read_checkpoint(tmp_path / "nowhere")
