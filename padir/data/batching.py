"""Which examples make up the batch of a step, and loading them through Grain (no TensorFlow).

The data contract. Every batch of a prepared set is a dictionary of

    encoder_input_tokens   int32 [B, Ls]  source ids, EOS (1) last, then pad (0)     [[431, 87, 1290, 1, 0, 0], ...]
    decoder_target_tokens  int32 [B, Lt]  target ids, EOS (1) last, then pad (0)     [[52, 1811, 9, 604, 1, 0], ...]
    example_index          int32 [B]      row of the split, -1 for an all-zero row   [10432, ...]

B is the rows of *this host*: its `RowShare` of batch_size. (Ls, Lt) is one of a fixed set of padded
lengths, the buckets, so that a jitted step compiles once a bucket. Decoder inputs and loss weights are
made on device, inside the train step: prepared data is free of noise.

Order is a pure function of (seed, epoch, lengths): nothing has to be saved to resume, and every host
computes the same schedule from the length table and reads only its own rows.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterable, Iterator

import grain
import numpy as np

from padir.data.records import PreparedSplit, decode_ids
from padir.errors import PadirError
from padir.types import RowShare

Batch = dict[str, np.ndarray]

# Reading one batch is mostly one call into ArrayRecord; two threads hide it behind a train step.
READ_THREADS = 2
PREFETCHED_BATCHES = 8

# An epoch ends while its successor's first batches are already being prefetched.
_EPOCHS_KEPT = 2


@dataclasses.dataclass(frozen=True)
class Buckets:
    """The padded (source length, target length) pairs a batch may have.

    Attributes:
      boundaries: from small to large, neither length ever falling from one to the next; lengths count EOS.
        An example belongs to the first it fits.
    """

    boundaries: tuple[tuple[int, int], ...]

    def __post_init__(self):
        boundaries = tuple((int(source), int(target)) for source, target in self.boundaries)
        object.__setattr__(self, "boundaries", boundaries)
        if not boundaries or min(min(pair) for pair in boundaries) < 1:
            raise PadirError(f"buckets: boundaries must be one or more pairs of lengths above 0, not {boundaries}")
        for smaller, larger in zip(boundaries, boundaries[1:], strict=False):
            if larger[0] < smaller[0] or larger[1] < smaller[1] or larger == smaller:
                raise PadirError(
                    f"buckets: {larger} follows {smaller}; list boundaries from small to large, with neither "
                    "length falling, so that leftovers of one bucket fit the next"
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
          PadirError: examples longer than the largest bucket; names how many and the longest lengths.
        """
        edges = np.array(self.boundaries)
        # Both columns of edges are sorted, so the first bucket that fits is the larger of the two sides' firsts.
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
      rows: int32 [num_batches, batch_size], rows of the split; -1 is an empty row (evaluation only).
    """

    bucket: np.ndarray
    rows: np.ndarray


def schedule(lengths: np.ndarray, *, buckets: Buckets, batch_size: int, seed: int, epoch: int) -> Schedule:
    """Returns the shuffled batches of one training epoch; a pure function of its arguments.

    Examples are shuffled and sorted by bucket, and the sequence is cut every `batch_size`. A batch that
    straddles two buckets takes the larger: so the leftovers of each bucket are promoted to the next,
    and only what is left at the very end (fewer than `batch_size` of the longest examples) is dropped.
    Keys come straight from the Philox bit stream, which NumPy promises never to change, and not from
    `Generator.permutation`, which it may: a run resumed under another NumPy sees the same batches.

    Args:
      lengths: int [n, 2], source and target length, EOS counted.
      buckets: padded lengths.
      batch_size: examples in a batch, over all hosts.
      seed: any int >= 0.
      epoch: any int >= 0.

    Raises:
      PadirError: an example fits no bucket, or there are fewer examples than `batch_size`.
    """
    num_batches = _num_batches(lengths, batch_size)
    assigned = buckets.assign(lengths)
    stream = np.random.Philox(np.random.SeedSequence([seed, epoch]))
    # The bucket in the top bits, chance below: one sort groups by bucket and shuffles within.
    keys = (assigned.astype(np.uint64) << np.uint64(48)) | (stream.random_raw(len(lengths)) >> np.uint64(16))
    rows = np.argsort(keys, kind="stable")[: num_batches * batch_size].astype(np.int32).reshape(num_batches, batch_size)
    order = np.argsort(stream.random_raw(num_batches), kind="stable")
    bucket = assigned[rows[:, -1]].astype(np.int16)
    return Schedule(bucket[order], rows[order])


def evaluation_schedule(lengths: np.ndarray, *, buckets: Buckets, batch_size: int) -> Schedule:
    """Returns batches that hold every example once, unshuffled, from small buckets to large.

    The last batch is filled up with empty rows (-1). Arguments and errors as for `schedule`, except
    that any number of examples will do.
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
      steps_per_epoch: batches in each epoch; the same in all of them.
    """

    def __init__(self, lengths: np.ndarray, *, buckets: Buckets, batch_size: int, seed: int):
        self._lengths, self._buckets, self._batch_size, self._seed = lengths, buckets, batch_size, seed
        if seed < 0:
            raise PadirError(f"seed={seed} of the batch order must not be negative")
        self.steps_per_epoch = _num_batches(lengths, batch_size)
        self._epochs: dict[int, Schedule] = {}
        self._lock = threading.Lock()
        self._epoch(0)  # Examples that fit no bucket are reported here, not from a loader thread.

    def _epoch(self, epoch: int) -> Schedule:
        with self._lock:
            if epoch not in self._epochs:
                while len(self._epochs) >= _EPOCHS_KEPT:
                    del self._epochs[min(self._epochs)]
                self._epochs[epoch] = schedule(
                    self._lengths, buckets=self._buckets, batch_size=self._batch_size, seed=self._seed, epoch=epoch
                )
            return self._epochs[epoch]

    def batch_at(self, step: int) -> tuple[int, np.ndarray]:
        """Returns (bucket, rows int32 [batch_size]) of a step counted from 0; depends on seed and step only."""
        epoch, position = divmod(step, self.steps_per_epoch)
        current = self._epoch(epoch)
        return int(current.bucket[position]), current.rows[position]


def load_batch(split: PreparedSplit, rows: np.ndarray, padded: tuple[int, int]) -> Batch:
    """Reads rows of a split into one batch.

    Args:
      split: where to read.
      rows: int [B]; -1 gives a row of zeros.
      padded: (Ls, Lt), at least as long as any of the rows.

    Returns:
      The features described at the top of this file.
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
        raise PadirError(f"batch_size={len(rows)} must be a multiple of {share.of}, what its rows are divided by")
    return rows.reshape(share.of, -1)[list(share.blocks)].ravel()


class _BatchSource:
    """A Grain random-access source whose item i is this host's part of batch `start + i`."""

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
) -> Iterator[Batch]:
    """Yields this host's part of the batches of steps start_step .. start_step + num_steps - 1.

    Resuming needs nothing but the step: batches from step 7 equal the tail of batches from step 0.

    Args:
      split: training examples.
      buckets: padded lengths.
      batch_size: examples in a batch, over all hosts.
      seed: of the order.
      start_step: first step, counted from 0 over all epochs.
      num_steps: number of batches.
      share: which rows of each batch; all of them by default.

    Returns:
      An iterator of batches, read ahead by threads; features as described at the top of this file.

    Raises:
      PadirError: an example fits no bucket, too few examples, or a batch that hosts cannot share evenly.
    """
    plan = TrainingSchedule(split.lengths, buckets=buckets, batch_size=batch_size, seed=seed)
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


def rows_of_step(split: PreparedSplit, *, buckets: Buckets, batch_size: int, seed: int, step: int) -> np.ndarray:
    """Returns which rows of the split are in the batch of a step (counted from 0), of all hosts: int32 [batch_size]."""
    return TrainingSchedule(split.lengths, buckets=buckets, batch_size=batch_size, seed=seed).batch_at(step)[1]


def eval_batches(
    split: PreparedSplit,
    *,
    buckets: Buckets,
    batch_size: int,
    share: RowShare = RowShare(),
) -> Iterator[Batch]:
    """Yields every example of a split once, from small buckets to large; see `evaluation_schedule`.

    Hosts take the same number of steps; `example_index` tells where each row belongs, -1 none.
    Arguments and errors as for `train_batches`.
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
