"""Reads and writes prepared data sets, which `padir prepare` makes (no TensorFlow).

A prepared set is a folder with these files::

    manifest.json                 written last: a folder without it holds an incomplete preparation
    vocabulary.model              the SentencePiece model of the ids below
    train-00000.array_record ...  one record per example; see `encode_record`
    train.lengths.npy             int32 [num_examples, 2]: source and target length, EOS counted

A record holds ids without noise and the text that they come from, e.g.::

    source_ids  uint16/uint32 [source_length]   [431, 87, 1290, 1]    EOS (1) last, no padding
    target_ids  uint16/uint32 [target_length]   [52, 1811, 9, 604, 1] EOS (1) last, no padding
    source_text, target_text                    UTF-8; never truncated, even if the ids are
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import struct
from array import array
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from array_record.python import array_record_module

from padir.data.manifest import VOCABULARY_NAME, Manifest, SplitManifest
from padir.data.vocabulary import Vocabulary
from padir.errors import PadirError, StorageError
from padir.files import refusals
from padir.files.atomic import Replacement, write_bytes
from padir.files.cache import copied
from padir.files.paths import as_path, is_bucket
from padir.files.reading import open_for_reading

HISTOGRAM_WIDTH = 8
# Records read at once from a bucket.
_REQUESTS = 32
# How ArrayRecord's client of a bucket says that it gave up, or was refused, when it last asked.
_GAVE_UP = re.compile(r"Retry policy exhausted|Permanent error")

# group_size:1 compresses every record separately, so that random access decompresses nothing else.
WRITER_OPTIONS = "group_size:1,snappy"
READER_OPTIONS = "readahead_buffer_size:0,max_parallelism:0"

# Bytes per id, number of source ids, number of target ids, number of UTF-8 bytes of the source text.
_HEADER = struct.Struct("<BIII")
_ID_DTYPES = {2: np.dtype("<u2"), 4: np.dtype("<u4")}


class Example(NamedTuple):
    """One sentence pair.

    Attributes:
      source_ids: int array [source_length], EOS last.
      target_ids: int array [target_length], EOS last.
      source_text: the source, as it was read.
      target_text: the reference, as it was read.
    """

    source_ids: np.ndarray
    target_ids: np.ndarray
    source_text: str
    target_text: str


def encode_record(source_ids: np.ndarray, target_ids: np.ndarray, source_text: bytes, target_text: bytes) -> bytes:
    """Packs one example into bytes: a header of 13 bytes, the ids, and both texts in UTF-8.

    Args:
      source_ids: int array [source_length], EOS last. Ids take 2 bytes each if all of them fit, else 4.
      target_ids: int array [target_length], EOS last.
      source_text, target_text: UTF-8.
    """
    width = 2 if max(source_ids.max(), target_ids.max()) < 1 << 16 else 4
    dtype = _ID_DTYPES[width]
    return b"".join(
        (
            _HEADER.pack(width, len(source_ids), len(target_ids), len(source_text)),
            source_ids.astype(dtype).tobytes(),
            target_ids.astype(dtype).tobytes(),
            source_text,
            target_text,
        )
    )


def decode_ids(record: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Returns the source and target ids of a record as views of its bytes. Does not decode the texts."""
    width, num_source, num_target, _ = _HEADER.unpack_from(record)
    ids = np.frombuffer(record, _ID_DTYPES[width], num_source + num_target, _HEADER.size)
    return ids[:num_source], ids[num_source:]


def decode_record(record: bytes) -> Example:
    """Unpacks an example; the inverse of `encode_record`."""
    source_ids, target_ids = decode_ids(record)
    source_bytes = _HEADER.unpack_from(record)[3]
    text = _HEADER.size + source_ids.nbytes + target_ids.nbytes
    middle = text + source_bytes
    return Example(source_ids, target_ids, record[text:middle].decode(), record[middle:].decode())


class ShardWriter:
    """Writes one shard. The file does not exist before it is complete.

    All methods raise PadirError, with file and cause, if the shard cannot be written, e.g. because the disk is full.
    """

    def __init__(self, path: Path):
        self._path, self._file = path, Replacement(path)
        self._lengths = array("i")
        with self._errors():
            self._writer = array_record_module.ArrayRecordWriter(str(self._file.local), WRITER_OPTIONS)

    def __len__(self) -> int:
        return len(self._lengths) // 2

    def write(self, source_ids: np.ndarray, target_ids: np.ndarray, source_text: bytes, target_text: bytes) -> None:
        """Appends one example; see `encode_record`."""
        with self._errors():
            self._writer.write(encode_record(source_ids, target_ids, source_text, target_text))
        self._lengths.extend((len(source_ids), len(target_ids)))

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Turns ArrayRecord's errors into PadirError. ArrayRecord may report a failed open only when writing."""
        try:
            yield
        except RuntimeError as error:
            what = " ".join(str(error).split())
            raise PadirError(f"{self._path}: cannot be written ({what})") from error

    def close(self) -> np.ndarray:
        """Finishes the shard and returns its lengths, int32 [records, 2]."""
        with self._errors():
            self._writer.close()
        self._file.commit()
        return np.array(self._lengths, np.int32).reshape(-1, 2)


class SplitWriter:
    """Writes the shards and the length table of one split. No file exists before it is complete.

    Raises the same errors as `ShardWriter`.
    """

    def __init__(self, directory: Path, name: str, records_per_shard: int):
        self._directory, self._name, self._records_per_shard = directory, name, records_per_shard
        self._shards: list[tuple[str, int]] = []
        self._lengths = [np.zeros((0, 2), np.int32)]
        self._shard: ShardWriter | None = None

    def write(self, source_ids: np.ndarray, target_ids: np.ndarray, source_text: bytes, target_text: bytes) -> None:
        """Appends one example; see `encode_record`."""
        if self._shard is None:
            self._file_name = f"{self._name}-{len(self._shards):05d}.array_record"
            self._shard = ShardWriter(self._directory / self._file_name)
        self._shard.write(source_ids, target_ids, source_text, target_text)
        if len(self._shard) == self._records_per_shard:
            self._finish_shard()

    def _finish_shard(self) -> None:
        self._lengths.append(self._shard.close())
        self._shards.append((self._file_name, len(self._shard)))
        self._shard = None

    def close(self, *, dropped: int, truncated: int, skipped_empty: int) -> SplitManifest:
        """Finishes the last shard, writes the length table and describes the split; counts as in `SplitManifest`."""
        if self._shard is not None:
            self._finish_shard()
        counts = {"dropped": dropped, "truncated": truncated, "skipped_empty": skipped_empty}
        return describe_split(self._directory, self._name, self._shards, np.concatenate(self._lengths), **counts)


def describe_split(
    directory: Path,
    name: str,
    shards: Sequence[tuple[str, int]],
    lengths: np.ndarray,
    *,
    dropped: int,
    truncated: int,
    skipped_empty: int,
) -> SplitManifest:
    """Writes the length table of a split and describes the split.

    Args:
      directory: the folder of the split.
      name: name of the split.
      shards: (file name, number of records) of each shard, in order.
      lengths: int32 [records, 2], source and target length, EOS counted.
      dropped, truncated, skipped_empty: counts of pairs, as in `SplitManifest`.
    """
    path = directory / lengths_name(name)
    content = io.BytesIO()
    np.save(content, lengths)
    write_bytes(path, content.getvalue())
    longest = lengths.max(axis=0, initial=0)
    return SplitManifest(
        shards=tuple(shards),
        num_examples=len(lengths),
        dropped=dropped,
        truncated=truncated,
        skipped_empty=skipped_empty,
        max_lengths=(int(longest[0]), int(longest[1])),
        source_length_histogram=_histogram(lengths[:, 0]),
        target_length_histogram=_histogram(lengths[:, 1]),
    )


def lengths_name(split: str) -> str:
    """Returns the file name of a split's length table."""
    return f"{split}.lengths.npy"


def _histogram(lengths: np.ndarray) -> dict[str, int]:
    ends = -(-lengths // HISTOGRAM_WIDTH) * HISTOGRAM_WIDTH
    return {str(end): int(count) for end, count in zip(*np.unique(ends, return_counts=True), strict=True)}


class PreparedSplit:
    """Random access to one split; safe to read from several threads.

    Attributes:
      name: 'train', 'validation' or 'test'.
      manifest: description of the split.
      lengths: int32 [num_examples, 2], source and target length, EOS counted.
    """

    def __init__(self, directory: Path, name: str, manifest: SplitManifest):
        self.name, self.manifest = name, manifest
        self._directory = directory
        try:
            with open_for_reading(directory / lengths_name(name)) as file:
                self.lengths = np.load(file)
        except StorageError:
            raise
        except (OSError, ValueError, EOFError) as error:
            raise _damaged(directory / lengths_name(name), str(error)) from error
        if self.lengths.shape != (manifest.num_examples, 2):
            raise _damaged(directory / lengths_name(name), f"{len(self.lengths)} rows, not {manifest.num_examples}")
        self._first = np.cumsum([0, *(count for _, count in manifest.shards)])
        # Opened here and not at the first read, so that loader threads share one reader per shard without a lock.
        self._readers = self._open_shards()
        # In a bucket a record takes a request, and many can wait at once.
        self._requests = ThreadPoolExecutor(_REQUESTS, "records") if is_bucket(directory) else None

    def _open_shards(self) -> list[Any]:
        """Opens one reader per shard; detects missing, truncated and replaced files."""
        return [_opened(self._directory / name, count) for name, count in self.manifest.shards]

    def __len__(self) -> int:
        return self.manifest.num_examples

    def __getitem__(self, index: int) -> Example:
        """Returns example `index`; negative counts from the end."""
        return self.read([range(len(self))[index]])[0]

    def read_records(self, indices: Sequence[int] | np.ndarray) -> list[bytes]:
        """Returns the raw records at `indices` (int [n], each in 0..len-1), in the same order.

        Raises:
          StorageError: the bucket does not answer.
          PadirError: it refuses, or a record is damaged.
        """
        indices = np.asarray(indices, np.int64)
        shards = np.searchsorted(self._first, indices, side="right") - 1
        within = indices - self._first[shards]

        # One call for each record, because a call for a list of them looks at every record of the shard.
        def record(shard: int, place: int) -> bytes:
            try:
                return self._readers[shard].read(place, place + 1)[0]
            except RuntimeError as error:
                raise _unreadable(self._directory / self.manifest.shards[shard][0], str(error)) from error

        read = map if self._requests is None else self._requests.map
        return list(read(record, shards.tolist(), within.tolist()))

    def read(self, indices: Sequence[int] | np.ndarray) -> list[Example]:
        """Returns the examples at `indices` (int [n], each in 0..len-1), in the same order, with one batch read."""
        return [decode_record(record) for record in self.read_records(indices)]


def _opened(path: Path, count: int) -> Any:
    """A reader of a shard with `count` records."""
    # ArrayRecord takes a shard that a bucket refused it, or would not give for a while, for an empty one.
    for is_last in (False, True) if is_bucket(path) else (True,):
        try:
            reader = array_record_module.ArrayRecordReader(str(path), READER_OPTIONS)
            if (found := reader.num_records()) == count:
                return reader
            what = f"{found} records, not {count}"
        except RuntimeError as error:
            what = str(error)
        _ask_for(path)
        if is_last:
            raise _damaged(path, " ".join(what.split())[:300])


def _unreadable(path: Path, what: str) -> PadirError:
    """What it means that ArrayRecord cannot read a record: the bucket does not give it, or the shard is damaged."""
    what = " ".join(what.split())[:300]
    _ask_for(path)
    if is_bucket(path) and _GAVE_UP.search(what):
        return refusals.no_answer(path, what)
    return _damaged(path, what)


def _ask_for(path: Path) -> None:
    """Reads a byte of a shard in a bucket by our own client, which says why it is refused."""
    if not is_bucket(path):
        return
    try:
        with open_for_reading(path) as file:
            file.read(1)
    except FileNotFoundError as error:
        raise _damaged(path, str(error)) from error


def _damaged(path: Path, what: str) -> PadirError:
    return PadirError(f"{path}: damaged ({what}); delete {path.parent} and run `padir prepare` again")


class PreparedSet:
    """A folder written by `padir prepare`.

    Attributes:
      directory: the folder.
      manifest: its description.
      cache: the local folder to which splits are copied before they are read; None reads them where they are.
    """

    def __init__(self, directory: Path, manifest: Manifest, cache: str | os.PathLike | None = None):
        self.directory, self.manifest, self.cache = directory, manifest, cache

    @classmethod
    def open(cls, directory: str | os.PathLike, cache: str | os.PathLike | None = None) -> PreparedSet:
        """Opens a prepared set; raises the errors of `Manifest.load`.

        Args:
          directory: the folder.
          cache: of a set in a bucket, the local folder to which a split is copied when it is opened; see
            `padir.files.cache`. It has no effect on a local set.
        """
        return cls(as_path(directory), Manifest.load(directory), cache)

    def vocabulary(self) -> Vocabulary:
        """Loads the set's vocabulary.

        Raises:
          PadirError: the data was prepared with another vocabulary; the message gives both hashes.
        """
        vocabulary = Vocabulary.load(self.directory / VOCABULARY_NAME)
        if vocabulary.hash != self.manifest.vocabulary_hash:
            raise PadirError(
                f"{vocabulary.path}: vocabulary hash {vocabulary.hash} differs from the manifest's "
                f"{self.manifest.vocabulary_hash}; restore the file or delete the folder and run `padir prepare`"
            )
        return vocabulary

    def split(self, name: str) -> PreparedSplit:
        """Opens one split.

        Raises:
          PadirError: the set has no such split (the message lists its splits), or a file of the split is damaged.
        """
        if name not in self.manifest.splits:
            raise PadirError(f"{self.directory}: no split {name!r}; it has {', '.join(self.manifest.splits)}")
        manifest, directory = self.manifest.splits[name], self.directory
        if self.cache is not None and is_bucket(directory):
            files = [lengths_name(name), *(file for file, _ in manifest.shards)]
            directory = copied(directory, files, as_path(self.cache))
        return PreparedSplit(directory, name, manifest)
