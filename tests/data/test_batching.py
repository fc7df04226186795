"""Schedules by hand and by property; loading through Grain; resuming and hosts."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from padir.data import batching
from padir.data.batching import Buckets, evaluation_schedule, schedule
from padir.data.records import PreparedSplit, SplitWriter
from padir.errors import PadirError
from padir.types import RowShare

BUCKETS = Buckets(((4, 4), (8, 6), (8, 12), (16, 16)))


def random_lengths(count, seed=0):
    return np.random.default_rng(seed).integers(1, 17, size=(count, 2)).astype(np.int32)


@pytest.fixture(scope="module")
def split(tmp_path_factory):
    """60 examples; row i holds ids 100 + i, so that a batch tells which rows it was made of."""
    directory = tmp_path_factory.mktemp("split")
    writer = SplitWriter(directory, "train", records_per_shard=25)
    for i, (source, target) in enumerate(random_lengths(60)):
        ids = [np.array([100 + i] * (length - 1) + [1], np.int32) for length in (source, target)]
        writer.write(*ids, b"s", b"t")
    return PreparedSplit(directory, "train", writer.close(dropped=0, truncated=0, skipped_empty=0))


def assert_equal_batches(found, expected):
    found, expected = list(found), list(expected)
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])


def test_first_bucket_that_fits_both_sides():
    lengths = np.array([[1, 1], [4, 4], [5, 4], [4, 5], [8, 7], [3, 12], [9, 1], [1, 16]])
    assert BUCKETS.assign(lengths).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert Buckets.square([8, 16]) == Buckets(((8, 8), (16, 16)))


@pytest.mark.parametrize("boundaries", [(), ((0, 4),), ((8, 8), (16, 4)), ((8, 8), (8, 8))])
def test_boundaries_must_grow(boundaries):
    with pytest.raises(PadirError, match="buckets: "):
        Buckets(boundaries)


def test_too_long_examples_are_counted():
    with pytest.raises(PadirError, match=r"2 of 3 examples .* \(16, 16\); the longest source has 17 .* target 20:"):
        schedule(np.array([[17, 3], [2, 2], [1, 20]]), buckets=BUCKETS, batch_size=1, seed=0, epoch=0)


def test_leftovers_are_promoted():
    # Three of bucket 0, three of bucket 3: one batch of two short ones, one mixed, one of two long ones.
    lengths = np.array([[2, 2], [16, 16], [2, 2], [16, 16], [2, 2], [9, 9]])
    plan = schedule(lengths, buckets=BUCKETS, batch_size=2, seed=3, epoch=0)
    assert sorted(plan.bucket.tolist()) == [0, 3, 3]
    short = plan.rows[plan.bucket == 0][0].tolist()
    assert set(short) < {0, 2, 4}
    assert sorted(len(set(rows) & {1, 3, 5}) for rows in plan.rows[plan.bucket == 3].tolist()) == [1, 2]


def test_no_example_is_left_out_of_all_epochs():
    """Two long ones among 39, in batches of 10: nine are left out of an epoch."""
    lengths = np.array([[2, 2]] * 37 + [[16, 16]] * 2)
    plans = [schedule(lengths, buckets=BUCKETS, batch_size=10, seed=0, epoch=epoch) for epoch in range(1000)]
    used = np.bincount(np.concatenate([plan.rows.ravel() for plan in plans]), minlength=39)
    assert used.sum() == 30_000
    # Each is in 30 of 39 epochs: 769 of 1,000, with a standard deviation of 13.
    assert abs(used - 30_000 / 39).max() < 55


def test_schedule_is_pinned():
    # The order is part of the promise to resume: a change here breaks every run in flight.
    lengths = np.array([[2, 2]] * 4 + [[9, 9]] * 4)
    first = schedule(lengths, buckets=BUCKETS, batch_size=2, seed=1, epoch=0)
    assert first.rows.tolist() == [[6, 7], [2, 0], [4, 5], [1, 3]]
    assert first.bucket.tolist() == [3, 0, 3, 0]
    assert (first.rows.dtype, first.bucket.dtype) == (np.int32, np.int16)


def test_epochs_and_seeds_differ_and_repeat():
    lengths = random_lengths(500)
    plans = {
        (seed, epoch): schedule(lengths, buckets=BUCKETS, batch_size=8, seed=seed, epoch=epoch).rows.tolist()
        for seed in (0, 1)
        for epoch in (0, 1)
    }
    assert len({str(rows) for rows in plans.values()}) == 4
    again = schedule(lengths, buckets=BUCKETS, batch_size=8, seed=1, epoch=1)
    assert again.rows.tolist() == plans[1, 1]


def test_shuffle_is_uniform_enough():
    # 4 examples of one bucket, batches of 1: each example opens about a quarter of 400 epochs.
    lengths = np.full((4, 2), 2)
    opened = [schedule(lengths, buckets=BUCKETS, batch_size=1, seed=0, epoch=e).rows[0, 0] for e in range(400)]
    assert np.bincount(opened).min() > 70 and np.bincount(opened).max() < 130


@settings(max_examples=150, deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 16), st.integers(1, 16)), min_size=1, max_size=80),
    batch_size=st.integers(1, 9),
    seed=st.integers(0, 2**40),
    epoch=st.integers(0, 1000),
)
def test_every_example_once_or_dropped_and_in_a_bucket_that_fits(lengths, batch_size, seed, epoch):
    lengths = np.array(lengths, np.int32)
    batch_size = min(batch_size, len(lengths))
    plan = schedule(lengths, buckets=BUCKETS, batch_size=batch_size, seed=seed, epoch=epoch)
    used = plan.rows.ravel().tolist()
    assert len(set(used)) == len(used)
    assert 0 <= len(lengths) - len(used) < batch_size
    assert (lengths[plan.rows] <= np.array(BUCKETS.boundaries)[plan.bucket][:, None]).all()


@settings(max_examples=50, deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 16), st.integers(1, 16)), min_size=1, max_size=80),
    batch_size=st.integers(1, 9),
)
def test_a_run_that_an_earlier_version_began_drops_only_the_longest(lengths, batch_size):
    lengths = np.array(lengths, np.int32)
    options = {"buckets": BUCKETS, "batch_size": min(batch_size, len(lengths)), "seed": 3, "epoch": 2}
    plan = schedule(lengths, **options, drop_longest=True)
    used = plan.rows.ravel().tolist()
    dropped = set(range(len(lengths))) - set(used)
    if dropped:
        assert BUCKETS.assign(lengths)[list(dropped)].min() >= BUCKETS.assign(lengths)[used].max()
    else:
        np.testing.assert_array_equal(plan.rows, schedule(lengths, **options).rows)


@settings(max_examples=100, deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 16), st.integers(1, 16)), max_size=50),
    batch_size=st.integers(1, 9),
)
def test_evaluation_loses_nothing(lengths, batch_size):
    lengths = np.array(lengths, np.int32).reshape(-1, 2)
    plan = evaluation_schedule(lengths, buckets=BUCKETS, batch_size=batch_size)
    rows = plan.rows.ravel()
    assert sorted(rows[rows >= 0].tolist()) == list(range(len(lengths)))
    assert (rows[: len(lengths)] >= 0).all()
    assert len(rows) - len(lengths) < batch_size
    assert (np.diff(plan.bucket) >= 0).all()
    bounds = np.array(BUCKETS.boundaries)[plan.bucket]
    for padded, batch in zip(bounds, plan.rows, strict=True):
        assert (lengths[batch[batch >= 0]] <= padded).all()


@settings(max_examples=50, deadline=None)
@given(blocks=st.permutations(range(6)), per_host=st.sampled_from([1, 2, 3]), size=st.integers(1, 5))
def test_hosts_partition_the_global_batch(blocks, per_host, size):
    rows = np.arange(6 * size) * 10
    shares = [tuple(sorted(blocks[start : start + per_host])) for start in range(0, 6, per_host)]
    for share in shares:
        part = batching.host_rows(rows, RowShare(share, 6))
        assert part.tolist() == [10 * (size * block + row) for block in share for row in range(size)]
    assert sorted(block for share in shares for block in share) == list(range(6))


def test_batches_hold_the_scheduled_rows(split):
    plan = schedule(split.lengths, buckets=BUCKETS, batch_size=8, seed=5, epoch=0)
    batches = list(batching.train_batches(split, buckets=BUCKETS, batch_size=8, seed=5, start_step=0, num_steps=7))
    assert len(batches) == 7 == len(plan.rows)
    for batch, rows, bucket in zip(batches, plan.rows, plan.bucket, strict=True):
        source, target = batch["encoder_input_tokens"], batch["decoder_target_tokens"]
        assert (source.shape[1], target.shape[1]) == BUCKETS.boundaries[bucket]
        assert source.dtype == target.dtype == batch["example_index"].dtype == np.int32
        np.testing.assert_array_equal(batch["example_index"], rows)
        for tokens, lengths in ((source, split.lengths[rows, 0]), (target, split.lengths[rows, 1])):
            for row, length, index in zip(tokens, lengths, rows, strict=True):
                assert row.tolist() == [100 + index] * (length - 1) + [1] + [0] * (len(row) - length)


def test_resuming_needs_only_the_step(split):
    def batches(start, count):
        return batching.train_batches(split, buckets=BUCKETS, batch_size=8, seed=5, start_step=start, num_steps=count)

    whole = list(batches(0, 20))  # Nearly three epochs of 7 steps.
    assert_equal_batches(batches(7, 13), whole[7:])
    assert_equal_batches(batches(19, 1), whole[19:])
    assert_equal_batches(batches(20, 0), [])
    epochs = [np.concatenate([b["example_index"] for b in whole[e * 7 : e * 7 + 7]]).tolist() for e in (0, 1)]
    assert epochs[0] != epochs[1] and len(set(epochs[1])) == 56


def test_hosts_together_load_the_global_batch(split):
    options = {"buckets": BUCKETS, "batch_size": 8, "seed": 5, "start_step": 3, "num_steps": 6}
    whole = batching.train_batches(split, **options)
    hosts = [batching.train_batches(split, **options, share=RowShare((i,), 4)) for i in range(4)]
    for batch, *parts in zip(whole, *hosts, strict=True):
        for name, values in batch.items():
            np.testing.assert_array_equal(np.concatenate([part[name] for part in parts]), values)


def test_eval_batches_hold_every_example_and_empty_rows(split):
    batches = list(batching.eval_batches(split, buckets=BUCKETS, batch_size=16))
    index = np.concatenate([batch["example_index"] for batch in batches])
    assert sorted(index.tolist()) == [-1] * 4 + list(range(60))
    assert batches[-1]["example_index"][-4:].tolist() == [-1] * 4
    assert not batches[-1]["encoder_input_tokens"][-4:].any()
    assert not batches[-1]["decoder_target_tokens"][-4:].any()
    halves = [batching.eval_batches(split, buckets=BUCKETS, batch_size=16, share=RowShare((i,), 2)) for i in (0, 1)]
    for whole, one, two in zip(batches, *halves, strict=True):
        np.testing.assert_array_equal(
            np.concatenate([one["example_index"], two["example_index"]]), whole["example_index"]
        )


def test_bad_requests_are_named(split):
    def batches(**changes):
        options = {"buckets": BUCKETS, "batch_size": 8, "seed": 0, "start_step": 0, "num_steps": 1}
        return batching.train_batches(split, **(options | changes))

    with pytest.raises(PadirError, match="batch_size=61 must be at least 1 and at most .* 60"):
        batches(batch_size=61)
    with pytest.raises(PadirError, match="batch_size=8 must be a multiple of 3, the number of parts"):
        batches(share=RowShare((0,), 3))
    with pytest.raises(PadirError, match="seed=-1"):
        batches(seed=-1)
    with pytest.raises(PadirError, match="longer than the largest bucket"):
        batches(buckets=Buckets(((4, 4),)))


def test_training_schedule_forgets_old_epochs():
    plan = batching.TrainingSchedule(random_lengths(40), buckets=BUCKETS, batch_size=8, seed=0)
    assert plan.steps_per_epoch == 5
    first = plan.batch_at(2)
    for step in range(50):
        plan.batch_at(step)
    assert len(plan._epochs) == 2
    assert plan.batch_at(2)[0] == first[0]
    np.testing.assert_array_equal(plan.batch_at(2)[1], first[1])
