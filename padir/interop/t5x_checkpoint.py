"""Reading T5X checkpoints from disk, without T5X and without TensorFlow.

T5X wrote three formats over the years:

    msgpack + zarr  `checkpoint` is an index (MessagePack, as Flax writes it) of a tree whose leaves are small arrays,
                    or say in which folder beside the index the array lies (zarr version 2)
    early Orbax     the same, where a leaf 'PLACEHOLDER://target.encoder…' names the folder
    Orbax           `_METADATA` and arrays, in folders or in one database (OCDBT)
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import jax
import ml_dtypes
import numpy as np
import orbax.checkpoint as ocp
import tensorstore
from flax.serialization import msgpack_restore

from padir.errors import PadirError
from padir.files import refusals
from padir.files.paths import as_path, files_below, is_bucket

INDEX, ORBAX_INDEX = "checkpoint", "_METADATA"
_PLACEHOLDER = "PLACEHOLDER://"
# TensorStore by itself tries for a quarter of an hour.
_RETRIES = {"max_retries": 6, "initial_delay": "1s", "max_delay": "16s"}
_AT_ONCE = 16


class T5xCheckpoint(NamedTuple):
    """What a T5X checkpoint holds that matters here.

    Attributes:
      params: 'encoder/layers_0/…/kernel' → array, as stored.
      step: training steps done; 0 if it does not say.
    """

    params: dict[str, np.ndarray]
    step: int


def find_checkpoint(path: str | os.PathLike) -> Path | None:
    """The folder with the index: `path`, or the `state` or `default` item in it that Orbax's manager makes; or None."""
    for folder in (as_path(path), as_path(path) / "state", as_path(path) / "default"):
        if (folder / INDEX).is_file() or (folder / ORBAX_INDEX).is_file():
            return folder
    return None


def read_checkpoint(path: str | os.PathLike) -> T5xCheckpoint:
    """Reads the parameters and the step of a T5X checkpoint; the optimizer's state is left alone.

    Args:
      path: `checkpoint_<step>`, the folder that holds `checkpoint`, `_METADATA`, or `state/_METADATA`.

    Raises:
      PadirError: not a T5X checkpoint, or a damaged one; names the file.
      StorageError: a bucket does not answer.
    """
    folder = find_checkpoint(path)
    if folder is None:
        steps = sorted(child.name for child in as_path(path).glob("checkpoint_*"))
        found = f"name one of the checkpoints in it: {', '.join(steps)}" if steps else f"it has no file {INDEX}"
        raise PadirError(f"{path}: not a T5X checkpoint; {found} (or, of Orbax, {ORBAX_INDEX})")
    if (folder / ORBAX_INDEX).is_file():
        return _read_orbax(folder)
    tree = _read_index(folder / INDEX)
    # T5X keeps what it saves under 'optimizer', its early Orbax format does not.
    tree = tree.get("optimizer", tree)
    params = tree[_params_key(tree, folder / INDEX)]
    step = _leaf(folder, "state/step", tree.get("state", {}).get("step", 0))
    return T5xCheckpoint(_leaves(folder, dict(_flatten(params))), int(step))


def _params_key(tree: Any, path: Path) -> str:
    """Under what the parameters are in a train state: T5X's own says 'target', Flax's 'params'."""
    for key in ("target", "params"):
        if isinstance(tree, dict) and isinstance(tree.get(key), dict) and tree[key]:
            return key
    there = ", ".join(map(str, tree)) if isinstance(tree, dict) else type(tree).__name__
    raise PadirError(f"{path}: holds no parameters under 'target' or 'params'; it has: {there or 'nothing'}")


def _flatten(tree: dict, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """('a/b/c', leaf) of nested dicts; a TensorStore specification is a leaf."""
    for key, value in tree.items():
        if isinstance(value, dict) and not {"driver", "kvstore"} <= value.keys():
            yield from _flatten(value, f"{prefix}{key}/")
        else:
            yield f"{prefix}{key}", value


def _read_index(path: Path) -> dict:
    try:
        tree = msgpack_restore(path.read_bytes())
    except PadirError:
        raise
    # msgpack has exceptions of many kinds for bytes that are not its own.
    except Exception as error:
        raise PadirError(f"{path}: cannot be read as a T5X index; it is damaged ({_first_line(error)})") from error
    if not isinstance(tree, dict):
        raise PadirError(f"{path}: cannot be read as a T5X index; it holds a {type(tree).__name__}")
    return tree


def _leaves(folder: Path, leaves: dict[str, Any]) -> dict[str, np.ndarray]:
    """The arrays of leaves by name; in a bucket, several are read at once."""
    if not is_bucket(folder):
        return {name: _leaf(folder, name, leaf) for name, leaf in leaves.items()}
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return dict(zip(leaves, pool.map(lambda name: _leaf(folder, name, leaves[name]), leaves), strict=True))


def _leaf(folder: Path, name: str, leaf: Any) -> np.ndarray:
    """The array of a leaf of the index: it is there itself, or in a folder beside it."""
    if isinstance(leaf, dict):
        # Older TensorStore kept `path` beside `kvstore`. Wherever it was written, an array lies beside the index now.
        stored = PurePosixPath(leaf["kvstore"].get("path") or leaf.get("path", ""))
        array = _read_zarr(folder / stored.name)
        shape = tuple(leaf.get("metadata", {}).get("shape", array.shape))
        if array.shape != shape:
            raise PadirError(f"{folder / stored.name}: damaged: has shape {array.shape}, the index says {shape}")
        return array
    if isinstance(leaf, str) and leaf.startswith(_PLACEHOLDER):
        return _read_zarr(folder / leaf.removeprefix(_PLACEHOLDER))
    if isinstance(leaf, (np.ndarray, np.generic, int, float)):
        return np.asarray(leaf)
    raise PadirError(f"{folder / INDEX}: {name} is neither an array nor says where it lies ({type(leaf).__name__})")


def _read_zarr(folder: Path) -> np.ndarray:
    """The whole of a zarr array."""
    spec = {"driver": "zarr", "kvstore": _key_value_store(folder)}
    try:
        store = tensorstore.open(spec, open=True).result()
        array = store.read().result()
    except ValueError as error:
        if is_bucket(folder) and (refused := refusals.of_status(folder, error)):
            raise refused from error
        raise PadirError(f"{folder}: missing or damaged array ({_first_line(error)})") from error
    # zarr takes a chunk that is not there for zeros, but one that was never filled has no fill value.
    if store.fill_value is None:
        chunk = store.chunk_layout.read_chunk.shape
        expected = math.prod(-(-size // step) for size, step in zip(array.shape, chunk, strict=True))
        found = sum(not PurePosixPath(name).name.startswith(".") for name in files_below(folder))
        if found < expected:
            raise PadirError(f"{folder}: damaged: {expected - found} of its {expected} chunk files are missing")
    # Before TensorStore knew bfloat16, T5X stored its bits as integers.
    return array.view(ml_dtypes.bfloat16) if array.dtype == np.uint16 else array


def _key_value_store(folder: Path) -> dict[str, Any]:
    """TensorStore's description of a folder."""
    if not is_bucket(folder):
        return {"driver": "file", "path": str(folder.resolve())}
    from padir.files import objects

    bucket, path = objects.split(str(folder))
    return {"driver": "gcs", "bucket": bucket, "path": f"{path}/", "gcs_request_retries": _RETRIES}


def _read_orbax(folder: Path) -> T5xCheckpoint:
    try:
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
            metadata = reader.metadata(folder.resolve()).item_metadata
            if metadata is None:
                raise PadirError(f"{folder}: cannot be read by Orbax; its metadata are damaged, or arrays are missing")
            tree = metadata.tree
            key = _params_key(tree, folder / ORBAX_INDEX)
            wanted = {key: tree[key]}
            if "step" in tree.get("state", {}):
                wanted["state"] = {"step": tree["state"]["step"]}
            # As NumPy arrays: the devices that wrote it are not ours.
            as_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), wanted)
            restored = reader.restore(
                folder.resolve(),
                args=ocp.args.PyTreeRestore(item=wanted, restore_args=as_numpy, partial_restore=True),
            )
    except (ValueError, KeyError, OSError) as error:
        if isinstance(error, PadirError):
            raise
        if is_bucket(folder) and (refused := refusals.of_status(folder, error)):
            raise refused from error
        raise PadirError(f"{folder}: cannot be read by Orbax; it is damaged ({_first_line(error)})") from error
    step = restored.get("state", {}).get("step", 0)
    return T5xCheckpoint(dict(_flatten(restored[key])), int(step))


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
