"""Time and metrics of an interval, with a clock that the test turns."""

import weakref

import jax.numpy as jnp
import numpy as np
import pytest

from padir.training.intervals import (
    COMPILE,
    COMPUTE,
    DATA,
    FETCHED_AT_ONCE,
    HOST,
    Activity,
    Devices,
    MetricWindow,
    NonFiniteError,
)


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def features(rows, source, target):
    return {
        "encoder_input_tokens": np.zeros((rows, source)),
        "decoder_target_tokens": np.zeros((rows, target)),
    }


def row(loss, tokens=10, **more):
    return {"loss": jnp.float32(loss), "gradient_norm": jnp.float32(0.5), "tokens": jnp.int32(tokens), **more}


def test_what_is_done_for_how_long(clock):
    activity = Activity(0, clock)
    clock.now += 1
    with activity.doing(COMPUTE):
        assert (activity.name, activity.since) == (COMPUTE, 101.0)
        clock.now += 4
    assert (activity.name, activity.since) == (HOST, 105.0)
    with pytest.raises(ValueError), activity.doing(COMPUTE):
        clock.now += 2
        raise ValueError
    assert activity.seconds == {HOST: 1.0, COMPUTE: 6.0}


def test_waiting_for_items(clock):
    activity = Activity(0, clock)

    def slow():
        for item in "ab":
            clock.now += 3
            yield item
        clock.now += 1

    seen = []
    for item in activity.each(slow()):
        clock.now += 10
        seen.append((item, activity.name))
    assert seen == [("a", HOST), ("b", HOST)]
    assert activity.seconds == {DATA: 7.0, HOST: 20.0}


def test_an_interval_by_hand(clock):
    """Two updates of 10 and 30 tokens in 11 seconds, of which 1 compiled: 4 tokens a second on 2 devices.

    Operations: 2·3·4 + 2·5·6 = 84 in 10 s, on devices of 21 a second.
    """
    activity = Activity(5, clock)
    window = MetricWindow(activity, Devices(2, 21.0, lambda rows, source, target: rows * source * target))
    with activity.doing(COMPILE):
        clock.now += 1
    with activity.doing(DATA):
        clock.now += 2
    window.add(row(1.0, 10), features(2, 3, 4))
    clock.now += 5
    with activity.doing(COMPUTE):
        clock.now += 3
    window.add(row(2.0, 30), features(2, 5, 6))
    found = window.finish()
    assert found.pop("train/host_memory_mb") > 10
    assert found == {
        "train/loss": 1.5,
        "train/gradient_norm": 0.5,
        "train/tokens_per_second": 4.0,
        "train/tokens_per_second_per_device": 2.0,
        "train/step_seconds": 5.0,
        "train/data_seconds": 1.0,
        "train/compute_seconds": 1.5,
        "train/host_seconds": 2.5,
        "train/compile_seconds": 1.0,
        "train/mfu": pytest.approx(84 / 10 / (2 * 21)),
    }
    assert activity.step == 7
    # The next interval begins with nothing.
    window.start()
    clock.now += 1
    window.add(row(3.0, 7), features(2, 3, 4))
    again = window.finish()
    assert again["train/loss"] == 3.0 and again["train/step_seconds"] == again["train/host_seconds"] == 1.0


def test_no_utilisation_without_a_peak(clock):
    window = MetricWindow(Activity(0, clock), Devices(2, None, lambda *shape: 1))
    window.add(row(1.0), features(2, 3, 4))
    clock.now += 1
    assert "train/mfu" not in window.finish()


def test_the_update_that_is_not_finite_is_named(clock):
    activity = Activity(40, clock)
    window = MetricWindow(activity, Devices(1, None, lambda *shape: 1))
    for loss in (1.0, 2.0, np.inf, np.nan):
        window.add(row(loss), features(2, 3, 4))
    clock.now += 1
    with pytest.raises(NonFiniteError, match="step 43: the training loss is inf, the gradient norm 0.5") as raised:
        window.finish()
    assert raised.value.step == 43


def test_an_interval_of_any_length_holds_few_metrics(clock):
    """And its means are those of all updates."""
    window = MetricWindow(Activity(0, clock), Devices(1, None, lambda *shape: 1))
    held = []
    for number in range(2 * FETCHED_AT_ONCE + 50):
        metrics = row(number)
        held.append(weakref.ref(metrics["loss"]))
        window.add(metrics, features(2, 3, 4))
        del metrics
    assert sum(each() is not None for each in held) <= FETCHED_AT_ONCE
    clock.now += 5
    found = window.finish()
    assert found["train/loss"] == (2 * FETCHED_AT_ONCE + 49) / 2
    assert found["train/tokens_per_second"] == 10 * len(held) / 5 and found["train/step_seconds"] == 5 / len(held)


def test_in_a_long_interval_it_is_noticed_soon_if_one_is_not_finite(clock):
    window = MetricWindow(Activity(7, clock), Devices(1, None, lambda *shape: 1))
    with pytest.raises(NonFiniteError, match="step 37: the training loss is nan"):
        for number in range(FETCHED_AT_ONCE + 1):
            window.add(row(np.nan if number == 29 else 1.0), features(2, 3, 4))


def test_means_leave_out_what_was_skipped(clock):
    activity = Activity(0, clock)
    window = MetricWindow(activity, Devices(1, None, lambda *shape: 1))
    for loss, skipped in ((1.0, 0.0), (np.nan, 1.0), (3.0, 0.0)):
        window.add(row(loss, skipped=jnp.float32(skipped)), features(2, 3, 4))
    clock.now += 1
    found = window.finish()
    assert (found["train/loss"], found["train/skipped"], found["train/tokens_per_second"]) == (2.0, 1.0, 30.0)


def test_training_ends_when_a_hundred_in_a_row_were_skipped_however_long_an_interval_is(clock):
    window = MetricWindow(Activity(0, clock), Devices(1, None, lambda *shape: 1))

    def interval(*skipped):
        for flag in skipped:
            window.add(row(np.nan if flag else 2.0, skipped=jnp.float32(flag)), features(2, 3, 4))
        clock.now += 1
        found = window.finish()
        window.start()
        return found

    for _ in range(2):
        alone = interval(1)
        assert alone["train/skipped"] == 1.0 and "train/loss" not in alone
    assert interval(0, *[1] * 98)["train/loss"] == 2.0
    interval(1)
    with pytest.raises(NonFiniteError, match="step 103: no update since step 4 had a finite loss and gradient"):
        interval(1, 0)
