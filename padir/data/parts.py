"""Writes a split in parts, so that processes can work in parallel and an interrupted preparation can resume.

This module does not import TensorFlow. With n = `records_per_shard`, part i holds the records of the pairs i * n to
(i + 1) * n - 1 that are not left out. It consists of two files, e.g. for part 3 of the train split::

    train-00003.array_record  its records; the file does not exist if all pairs are left out
    train-00003.part.npz      written last: lengths, int32 [records, 2], and counts of pairs that were left out

The .part.npz files are deleted when the set is complete. The parts do not depend on the number of processes. After an
interruption only the missing parts are written.
"""

from __future__ import annotations

import io
import os
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from padir.data.manifest import SplitManifest
from padir.data.records import ShardWriter, describe_split
from padir.files.atomic import write_bytes
from padir.files.reading import open_for_reading


@dataclass(frozen=True)
class Part:
    """Describes one part.

    Attributes:
      lengths: int32 [records, 2], source and target length, EOS counted.
      pairs: number of pairs that were read.
      dropped, truncated, empty: how many of these pairs were dropped, truncated or empty, as in `SplitManifest`.
    """

    lengths: np.ndarray
    pairs: int
    dropped: int
    truncated: int
    empty: int


class PartWriter:
    """Writes one part. Its files do not exist before they are complete."""

    def __init__(self, directory: Path, split: str, index: int):
        self._directory, self._split, self._index = directory, split, index
        self._shard: ShardWriter | None = None

    def write(self, source_ids: np.ndarray, target_ids: np.ndarray, source_text: bytes, target_text: bytes) -> None:
        """Appends one example; see `encode_record`."""
        if self._shard is None:
            self._shard = ShardWriter(self._directory / _shard_name(self._split, self._index))
        self._shard.write(source_ids, target_ids, source_text, target_text)

    def close(self, *, pairs: int, dropped: int, truncated: int, empty: int) -> None:
        """Finishes the part.

        Args:
          pairs, dropped, truncated, empty: counts, as in `Part`.
        """
        lengths = np.zeros((0, 2), np.int32) if self._shard is None else self._shard.close()
        path = part_path(self._directory, self._split, self._index)
        counts = {"pairs": pairs, "dropped": dropped, "truncated": truncated, "empty": empty}
        content = io.BytesIO()
        np.savez(content, lengths=lengths, **counts)
        write_bytes(path, content.getvalue())


def part_path(directory: Path, split: str, index: int) -> Path:
    """The file that marks a part as complete."""
    return directory / f"{split}-{index:05d}.part.npz"


def _shard_name(split: str, index: int) -> str:
    return f"{split}-{index:05d}.array_record"


def _load(path: Path) -> Part:
    with open_for_reading(path) as file, np.load(file) as stored:
        counts = {name: int(stored[name]) for name in ("pairs", "dropped", "truncated", "empty")}
        return Part(stored["lengths"], **counts)


def assemble(directory: Path, split: str, count: int, *, skipped: int) -> SplitManifest:
    """Writes the length table of a split whose parts are all complete, and describes the split.

    Args:
      directory: the folder of the parts.
      split: name of the split.
      count: number of parts.
      skipped: empty pairs that the task itself skipped.
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
    """Deletes the .part.npz files of a split."""
    for path in directory.glob(f"{split}-[0-9][0-9][0-9][0-9][0-9].part.npz*"):
        path.unlink()


def end_with(parent: int) -> None:
    """Waits until the parent process has ended, then ends this process. Does not return.

    Run it in a thread of each worker. Otherwise a worker could outlive a killed preparation and write into the folder
    while the next preparation works there.

    Args:
      parent: process id of the parent.
    """
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(1)
