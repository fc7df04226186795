"""A split in parts, which processes write side by side and a preparation cut short leaves (no TensorFlow).

Part i of a split holds what is kept of its pairs i·n to (i+1)·n - 1, n = `records_per_shard`, whoever writes it:

    train-00003.array_record  its records; none if no pair is kept
    train-00003.part.npz      written last: lengths int32 [records, 2] and what was left out; deleted with the last part

So a set does not depend on the number of processes, and what there is of one need not be written again.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from padir.data.manifest import SplitManifest
from padir.data.records import ShardWriter, describe_split


@dataclass(frozen=True)
class Part:
    """What one part came to.

    Attributes:
      lengths: int32 [records, 2], source and target length, EOS counted.
      pairs: read of the source.
      dropped, truncated, empty: of these, as in `SplitManifest`.
    """

    lengths: np.ndarray
    pairs: int
    dropped: int
    truncated: int
    empty: int


class PartWriter:
    """Writes one part; nothing of it is there before it is whole."""

    def __init__(self, directory: Path, split: str, index: int):
        self._directory, self._split, self._index = directory, split, index
        self._shard: ShardWriter | None = None

    def write(self, source_ids: np.ndarray, target_ids: np.ndarray, source_text: bytes, target_text: bytes) -> None:
        """Appends one example; see `encode_record`."""
        if self._shard is None:
            self._shard = ShardWriter(self._directory / _shard_name(self._split, self._index))
        self._shard.write(source_ids, target_ids, source_text, target_text)

    def close(self, *, pairs: int, dropped: int, truncated: int, empty: int) -> None:
        """Makes the part appear; counts as in `Part`."""
        lengths = np.zeros((0, 2), np.int32) if self._shard is None else self._shard.close()
        path = part_path(self._directory, self._split, self._index)
        temporary = path.with_name(f"{path.name}.tmp")
        counts = {"pairs": pairs, "dropped": dropped, "truncated": truncated, "empty": empty}
        with open(temporary, "wb") as file:
            np.savez(file, lengths=lengths, **counts)
        os.replace(temporary, path)


def part_path(directory: Path, split: str, index: int) -> Path:
    """The file that says that a part is whole."""
    return directory / f"{split}-{index:05d}.part.npz"


def _shard_name(split: str, index: int) -> str:
    return f"{split}-{index:05d}.array_record"


def _load(path: Path) -> Part:
    with np.load(path) as stored:
        counts = {name: int(stored[name]) for name in ("pairs", "dropped", "truncated", "empty")}
        return Part(stored["lengths"], **counts)


def assemble(directory: Path, split: str, count: int, *, skipped: int) -> SplitManifest:
    """Describes a split of `count` parts, all of them whole, and writes its table of lengths.

    Args:
      directory: where they are.
      split: of what.
      count: how many.
      skipped: pairs that the source left out by itself.
    """
    parts = [_load(part_path(directory, split, index)) for index in range(count)]
    shards = [(_shard_name(split, index), len(part.lengths)) for index, part in enumerate(parts) if len(part.lengths)]
    return describe_split(
        directory,
        split,
        shards,
        np.concatenate([np.zeros((0, 2), np.int32), *(part.lengths for part in parts)]),
        dropped=sum(part.dropped for part in parts),
        truncated=sum(part.truncated for part in parts),
        skipped_empty=skipped + sum(part.empty for part in parts),
    )


def remove_parts(directory: Path, split: str) -> None:
    """Deletes the files that say which parts are whole, once the set is."""
    for path in directory.glob(f"{split}-[0-9][0-9][0-9][0-9][0-9].part.npz*"):
        path.unlink()


def end_with(parent: int) -> None:
    """Ends this process soon after its parent: whoever prepares next must not find it writing there."""
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(1)
