"""Chooses the examples of each batch and loads them through Grain (no TensorFlow).

The data contract: every batch of a prepared data set is a dictionary of these arrays::

    encoder_input_tokens   int32 [B, Ls]  source ids, EOS (1) last, then pad (0)     [[431, 87, 1290, 1, 0, 0], ...]
    decoder_target_tokens  int32 [B, Lt]  target ids, EOS (1) last, then pad (0)     [[52, 1811, 9, 604, 1, 0], ...]
    example_index          int32 [B]      row of the split, -1 for an all-zero row   [10432, ...]

B is the number of rows of *this host*, its `RowShare` of the batch. (Ls, Lt) is one of a fixed set of padded lengths,
the buckets, so that a jitted step compiles once per bucket. Prepared data contains no noise: the train step makes
decoder inputs and loss weights on the device.

The order is a pure function of (seed, epoch, lengths). Therefore a run can resume without any saved state of the data
pipeline. Every host computes the same schedule from the length table and reads only its own rows.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import grain
import numpy as np

from padir.data.records import PreparedSplit, decode_ids
from padir.errors import PadirError
from padir.types import RowShare

Batch = dict[str, np.ndarray]

# Each record is a call into ArrayRecord, which lets other threads run. Eight hide some of the latency of a disk.
READ_THREADS = 8
PREFETCHED_BATCHES = 8

# Two, because the first batches of the next epoch are prefetched before the current epoch ends.
_EPOCHS_KEPT = 2


@dataclasses.dataclass(frozen=True)
class Buckets:
    """The padded (source length, target length) pairs that a batch may have.

    Attributes:
      boundaries: pairs of lengths, EOS counted, from small to large: neither length may decrease from one pair to the
        next. An example belongs to the first pair that it fits.
    """

    boundaries: tuple[tuple[int, int], ...]

    def __post_init__(self):
        boundaries = tuple((int(source), int(target)) for source, target in self.boundaries)
        object.__setattr__(self, "boundaries", boundaries)
        if not boundaries or min(min(pair) for pair in boundaries) < 1:
            raise PadirError(f"buckets: boundaries must be one or more pairs of positive lengths, not {boundaries}")
        for smaller, larger in zip(boundaries, boundaries[1:], strict=False):
            if larger[0] < smaller[0] or larger[1] < smaller[1] or larger == smaller:
                raise PadirError(
                    f"buckets: {larger} follows {smaller}; list boundaries from small to large, so that neither "
                    "length decreases and examples left over from one bucket fit the next"
                )

    @classmethod
    def square(cls, lengths: Iterable[int]) -> Buckets:
        """Returns buckets with the same length on both sides, e.g. (8, 16) -> ((8, 8), (16, 16))."""
        return cls(tuple((length, length) for length in lengths))

    def assign(self, lengths: np.ndarray) -> np.ndarray:
        """Returns the bucket of each pair of lengths.

        Args:
          lengths: int [n, 2], source and target length, EOS counted.

        Returns:
          int64 [n], indices into `boundaries`.

        Raises:
          PadirError: some examples exceed the largest bucket; the message gives their number and the longest lengths.
        """
        edges = np.array(self.boundaries)
        # Both columns are sorted, so the first bucket that fits both sides is the larger of each side's first.
        bucket = np.maximum(np.searchsorted(edges[:, 0], lengths[:, 0]), np.searchsorted(edges[:, 1], lengths[:, 1]))
        too_long = int((bucket == len(edges)).sum())
        if too_long:
            source, target = lengths.max(axis=0)
            raise PadirError(
                f"buckets: {too_long} of {len(lengths)} examples are longer than the largest bucket "
                f"{self.boundaries[-1]}; the longest source has {source} tokens, the longest target {target}: "
                "add a larger bucket, or prepare the data with smaller maximum lengths"
            )
        return bucket


@dataclasses.dataclass(frozen=True)
class Schedule:
    """The batches of one epoch.

    Attributes:
      bucket: int16 [num_batches], index of each batch's padded lengths.
      rows: int32 [num_batches, batch_size], rows of the split; -1 stands for an empty row (only in evaluation).
    """

    bucket: np.ndarray
    rows: np.ndarray


def schedule(
    lengths: np.ndarray, *, buckets: Buckets, batch_size: int, seed: int, epoch: int, drop_longest: bool = False
) -> Schedule:
    """Returns the shuffled batches of one training epoch; a pure function of its arguments.

    Examples are shuffled and sorted by bucket, and the sequence is cut into batches of `batch_size`. A batch with
    examples of two buckets is padded to the larger one, so that the examples left over from one bucket are used with
    the next. As many as fill no batch, fewer than `batch_size`, are left out. They are drawn from all: if the end of
    the sequence were cut off, the few longest examples of a small set would be in no epoch.

    Sort keys come directly from the Philox bit stream, which NumPy guarantees never to change. A run that is resumed
    with another version of NumPy therefore sees the same batches. `Generator.permutation` has no such guarantee.

    Args:
      lengths: int [n, 2], source and target length, EOS counted.
      buckets: padded lengths.
      batch_size: examples in a batch, summed over all hosts.
      seed: any int >= 0.
      epoch: any int >= 0.
      drop_longest: whether the end of the sequence is left out all the same, in a run that an earlier version began.

    Raises:
      PadirError: an example fits no bucket, or there are fewer examples than `batch_size`.
    """
    num_batches = _num_batches(lengths, batch_size)
    assigned = buckets.assign(lengths)
    stream = np.random.Philox(np.random.SeedSequence([seed, epoch]))
    noise = stream.random_raw(len(lengths)) >> np.uint64(16)
    kept = np.arange(len(lengths))
    left_out = len(lengths) % batch_size
    if left_out and not drop_longest:
        kept = np.sort(np.argsort(noise, kind="stable")[left_out:])
    # The bucket is in the top bits and random bits follow: one sort groups by bucket and shuffles within buckets.
    keys = (assigned[kept].astype(np.uint64) << np.uint64(48)) | noise[kept]
    rows = kept[np.argsort(keys, kind="stable")][: num_batches * batch_size].astype(np.int32)
    rows = rows.reshape(num_batches, batch_size)
    order = np.argsort(stream.random_raw(num_batches), kind="stable")
    bucket = assigned[rows[:, -1]].astype(np.int16)
    return Schedule(bucket[order], rows[order])


def evaluation_schedule(lengths: np.ndarray, *, buckets: Buckets, batch_size: int) -> Schedule:
    """Returns batches that contain every example once, unshuffled, from small buckets to large ones.

    The last batch is filled up with empty rows (-1). Arguments and errors are those of `schedule`, except that any
    number of examples is allowed.
    """
    assigned = buckets.assign(lengths)
    num_batches = -(-len(lengths) // batch_size)
    rows = np.full(num_batches * batch_size, -1, np.int32)
    rows[: len(lengths)] = np.argsort(assigned, kind="stable")
    last_of_batch = np.minimum(np.arange(1, num_batches + 1) * batch_size, len(lengths)) - 1
    return Schedule(assigned[rows[last_of_batch]].astype(np.int16), rows.reshape(num_batches, batch_size))


def _num_batches(lengths: np.ndarray, batch_size: int) -> int:
    if len(lengths) < batch_size or batch_size < 1:
        raise PadirError(
            f"batch_size={batch_size} must be at least 1 and at most the number of training examples, {len(lengths)}"
        )
    return len(lengths) // batch_size


class TrainingSchedule:
    """The endless sequence of training batches, addressed by step; safe to use from several threads.

    Attributes:
      steps_per_epoch: number of batches in an epoch, which is the same for all epochs.
    """

    def __init__(
        self, lengths: np.ndarray, *, buckets: Buckets, batch_size: int, seed: int, drop_longest: bool = False
    ):
        self._lengths = lengths
        self._order = {"buckets": buckets, "batch_size": batch_size, "seed": seed, "drop_longest": drop_longest}
        if seed < 0:
            raise PadirError(f"seed={seed} must not be negative")
        self.steps_per_epoch = _num_batches(lengths, batch_size)
        self._epochs: dict[int, Schedule] = {}
        self._lock = threading.Lock()
        self._epoch(0)  # Examples that fit no bucket raise an error here and not in a loader thread.

    def _epoch(self, epoch: int) -> Schedule:
        with self._lock:
            if epoch not in self._epochs:
                while len(self._epochs) >= _EPOCHS_KEPT:
                    del self._epochs[min(self._epochs)]
                self._epochs[epoch] = schedule(self._lengths, **self._order, epoch=epoch)
            return self._epochs[epoch]

    def batch_at(self, step: int) -> tuple[int, np.ndarray]:
        """Returns (bucket, rows int32 [batch_size]) of a step, counted from 0 over all epochs."""
        epoch, position = divmod(step, self.steps_per_epoch)
        current = self._epoch(epoch)
        return int(current.bucket[position]), current.rows[position]


def load_batch(split: PreparedSplit, rows: np.ndarray, padded: tuple[int, int]) -> Batch:
    """Reads rows of a split into one batch.

    Args:
      split: the split to read.
      rows: int [B], rows of the split; -1 gives a row of zeros.
      padded: (Ls, Lt), at least the length of the longest row.

    Returns:
      The arrays described in the docstring of this module.
    """
    source = np.zeros((len(rows), padded[0]), np.int32)
    target = np.zeros((len(rows), padded[1]), np.int32)
    filled = np.flatnonzero(rows >= 0)
    for row, record in zip(filled.tolist(), split.read_records(rows[filled]), strict=True):
        source_ids, target_ids = decode_ids(record)
        source[row, : len(source_ids)] = source_ids
        target[row, : len(target_ids)] = target_ids
    return {
        "encoder_input_tokens": source,
        "decoder_target_tokens": target,
        "example_index": rows.astype(np.int32),
    }


def host_rows(rows: np.ndarray, share: RowShare) -> np.ndarray:
    """Returns this host's part of a global batch, in the batch's order.

    Raises:
      PadirError: the batch cannot be divided evenly.
    """
    if len(rows) % share.of:
        raise PadirError(
            f"batch_size={len(rows)} must be a multiple of {share.of}, the number of parts it is split into"
        )
    return rows.reshape(share.of, -1)[list(share.blocks)].ravel()


class _BatchSource:
    """A random-access source for Grain whose item i is this host's part of batch `start + i`."""

    def __init__(self, split, batch_at, buckets, *, start, count, share):
        self._split, self._batch_at, self._buckets = split, batch_at, buckets
        self._start, self._count = start, count
        self._share = share

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Batch:
        bucket, rows = self._batch_at(self._start + int(index))
        return load_batch(self._split, host_rows(rows, self._share), self._buckets.boundaries[bucket])

    def __repr__(self) -> str:
        return f"batches of {self._split.name}"


def _iterate(source: _BatchSource) -> Iterator[Batch]:
    options = grain.ReadOptions(num_threads=READ_THREADS, prefetch_buffer_size=PREFETCHED_BATCHES)
    return iter(grain.MapDataset.source(source).to_iter_dataset(options))


def train_batches(
    split: PreparedSplit,
    *,
    buckets: Buckets,
    batch_size: int,
    seed: int,
    start_step: int,
    num_steps: int,
    share: RowShare = RowShare(),
    drop_longest: bool = False,
) -> Iterator[Batch]:
    """Yields this host's part of the batches of steps start_step .. start_step + num_steps - 1.

    To resume, only the step is needed: an iterator that starts at step 7 yields the same batches as one that starts at
    step 0 yields from its step 7 on.

    Args:
      split: training examples.
      buckets: padded lengths.
      batch_size: examples in a batch, summed over all hosts.
      seed: random seed of the order.
      start_step: first step, counted from 0 over all epochs.
      num_steps: number of batches.
      share: which rows of each batch to load; all of them by default.
      drop_longest: see `schedule`.

    Returns:
      An iterator of batches, described in the docstring of this module. Threads read ahead.

    Raises:
      PadirError: an example fits no bucket, there are too few examples, or hosts cannot share a batch evenly.
    """
    order = {"buckets": buckets, "batch_size": batch_size, "seed": seed, "drop_longest": drop_longest}
    plan = TrainingSchedule(split.lengths, **order)
    host_rows(plan.batch_at(start_step)[1], share)
    return _iterate(
        _BatchSource(
            split,
            plan.batch_at,
            buckets,
            start=start_step,
            count=num_steps,
            share=share,
        )
    )


def rows_of_step(split: PreparedSplit, *, step: int, **order: Any) -> np.ndarray:
    """Returns the rows of the split in the batch of a step (counted from 0), over all hosts: int32 [batch_size].

    `order` is what `TrainingSchedule` takes beside the lengths.
    """
    return TrainingSchedule(split.lengths, **order).batch_at(step)[1]


def eval_batches(
    split: PreparedSplit,
    *,
    buckets: Buckets,
    batch_size: int,
    share: RowShare = RowShare(),
) -> Iterator[Batch]:
    """Yields every example of a split once, from small buckets to large ones; see `evaluation_schedule`.

    All hosts get the same number of batches. `example_index` is the row of the split, or -1 for an empty row.
    Arguments and errors are those of `train_batches`.
    """
    plan = evaluation_schedule(split.lengths, buckets=buckets, batch_size=batch_size)
    host_rows(np.zeros(batch_size), share)
    return _iterate(
        _BatchSource(
            split,
            lambda step: (int(plan.bucket[step]), plan.rows[step]),
            buckets,
            start=0,
            count=len(plan.rows),
            share=share,
        )
    )
