"""`padir train --describe`: the parameters of a training job, their sharding and memory, without allocating them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import optax

from padir.data.manifest import MANIFEST_NAME, PrepareSettings
from padir.data.records import PreparedSet
from padir.data.vocabulary import Vocabulary
from padir.errors import PadirError
from padir.files.paths import as_path
from padir.models.axes import path_name
from padir.models.kinds import Model
from padir.runs.train_state import abstract_train_state
from padir.runtime.distributed import is_first
from padir.runtime.sharding import Layout, make_mesh
from padir.types import PyTree, TokenIds


class Placed(NamedTuple):
    """The sharding of one array.

    Attributes:
      name: the path of the array, joined by '/'.
      shape: the global shape.
      dtype: the name of the dtype.
      spec: the `PartitionSpec` as text; '-' for an axis that is not split.
      bytes_per_device: the bytes that each device holds.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    spec: str
    bytes_per_device: int


def describe_training(
    model: Callable[[TokenIds], Model],
    data_dir: str,
    settings: PrepareSettings | None,
    optimizer: optax.GradientTransformation,
    layout: Layout,
    ema_decay: float | None,
) -> None:
    """Prints every parameter with its sharding over the available devices, and totals for the whole training state.

    Args:
      model: makes the model, given the token ids of the vocabulary.
      data_dir: the prepared set. If it does not exist yet, `settings` determine the size of its vocabulary.
      settings: how the set would be prepared.
      optimizer: as built by `OptimizerConfig.build`.
      layout: how the devices share the work.
      ema_decay: None if no moving average of the parameters is kept.

    Raises:
      PadirError: the size of the vocabulary is not known, or sizes do not divide evenly over the devices.
    """
    built = model(TokenIds(num_pieces(data_dir, settings)))
    mesh = make_mesh(layout=layout)
    state = abstract_train_state(built, optimizer, mesh, layout.rules, ema=ema_decay is not None)
    if is_first():
        axes = ", ".join(f"{name} {size}" for name, size in mesh.shape.items())
        platform = mesh.devices.flat[0].platform
        print(f"{type(built).__name__}, preset {layout.preset!r} on {mesh.size} {platform} device(s): {axes}")
        parts = {"parameters": state.params, "optimizer state": state.opt_state}
        if state.ema is not None:
            parts["average of the parameters"] = state.ema
        print("\n".join(report({name: placed(tree) for name, tree in parts.items()})))


def placed(tree: PyTree) -> list[Placed]:
    """Returns a `Placed` for each array of a tree of `jax.ShapeDtypeStruct`s that have shardings."""
    return [
        Placed(
            path_name(path),
            leaf.shape,
            str(leaf.dtype),
            f"({', '.join(map(_axis_text, (*leaf.sharding.spec, *[None] * (leaf.ndim - len(leaf.sharding.spec)))))})",
            math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize,
        )
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    ]


def report(parts: dict[str, list[Placed]]) -> list[str]:
    """Formats a table as lines of text.

    Args:
      parts: arrays by the name of the part of the state, e.g. 'parameters'.

    Returns:
      A heading, a line for each array of the first part, a total for each part, and the total of all.
    """
    first = next(iter(parts.values()))
    rows = [("parameter", "shape", "dtype", "split over", "bytes/device")]
    rows += [(p.name, str(list(p.shape)), p.dtype, p.spec, f"{p.bytes_per_device:,}") for p in first]
    total = 0
    for name, arrays in parts.items():
        numbers, held = sum(math.prod(p.shape) for p in arrays), sum(p.bytes_per_device for p in arrays)
        rows.append((f"{name}, total", f"{numbers:,}", "", "", f"{held:,}"))
        total += held
    rows.append(("training state", "", "", "", f"{total:,}"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.rjust(width) if index == 4 else cell.ljust(width) for index, (cell, width) in enumerate(pairs))
        for pairs in (zip(row, widths, strict=True) for row in rows)
    ]


def _axis_text(over: str | tuple[str, ...] | None) -> str:
    return "-" if over is None else over if isinstance(over, str) else "+".join(over)


def num_pieces(data_dir: str, settings: PrepareSettings | None) -> int:
    """Returns the size of the vocabulary of a prepared set, or of the set that `settings` would make.

    Args:
      data_dir: the folder of the prepared set, which need not exist.
      settings: how the set would be prepared; used if `data_dir` holds no prepared set.

    Raises:
      PadirError: `data_dir` holds no prepared set, and `settings` is None.
    """
    if (as_path(data_dir) / MANIFEST_NAME).exists():
        return PreparedSet.open(data_dir).vocabulary().num_pieces
    if settings is None:
        raise PadirError(
            f"{data_dir}: no prepared data set here, so the size of the vocabulary is not known; build it with "
            "`padir prepare`, or bind train.settings = @PrepareSettings()"
        )
    return settings.num_pieces if settings.vocabulary is None else Vocabulary.load(settings.vocabulary).num_pieces
