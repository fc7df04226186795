"""The clock sees what it must, nothing else, in an order drawn from the seed."""

import itertools
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from padir.benchmark.measure import (
    Compilations,
    Timing,
    _draws,
    _medians,
    median_interval,
    ratio_interval,
    take_turns,
)


class Recorder:
    """A system that notes who is asked for what, and takes a given time."""

    def __init__(self, name, calls, seconds=0.0):
        self.name, self.calls, self.seconds = name, calls, seconds

    def __call__(self, request):
        self.calls.append((self.name, request))
        time.sleep(self.seconds)


def recorded(seed, repeats=3, **options):
    calls = []
    systems = {name: Recorder(name, calls) for name in ("a", "b")}
    timings = take_turns(systems, ["x", "y", "z"], repeats=repeats, seed=seed, **options)
    return calls, timings


def test_every_system_is_asked_everything_as_often_one_at_a_time():
    calls, timings = recorded(0)
    warm_up, timed = calls[:6], calls[6:]
    assert sorted(warm_up) == [(name, request) for name in "ab" for request in "xyz"]
    assert sorted(timed) == sorted(warm_up * 3)
    assert {name: len(timing.samples) for name, timing in timings.items()} == {"a": 9, "b": 9}
    # They take turns on the same request.
    for first, second in zip(timed[::2], timed[1::2], strict=True):
        assert first[1] == second[1] and first[0] != second[0]
    # Each round has every request once, and the samples say which they are of.
    assert [sorted(call[1] for call in timed[start : start + 6]) for start in (0, 6, 12)] == [list("xxyyzz")] * 3
    assert ["xyz"[index] for index in timings["a"].requests] == [request for name, request in timed if name == "a"]


def test_requests_of_one_shape_are_warmed_up_once():
    calls, _ = recorded(0, repeats=1, shape=lambda request: request == "z")
    assert calls[:4] == [("a", "z"), ("a", "x"), ("b", "z"), ("b", "x")]
    assert len(calls) == 4 + 6


def test_untimed_calls_come_right_before_a_sample():
    calls, timings = recorded(0, repeats=2, untimed=2)
    asked = calls[6:]
    assert len(asked) == 3 * 12 and len(timings["a"].samples) == 6
    assert asked[::3] == asked[1::3] == asked[2::3] == recorded(0, repeats=2)[0][6:]
    first = itertools.cycle([True, False])

    def slow_at_first(_):
        time.sleep(0.05 if next(first) else 0.0)

    # Asked once to warm up, then in pairs.
    next(first)
    assert take_turns({"system": slow_at_first}, ["x"], repeats=5, untimed=1)["system"].samples.max() < 40


def test_the_order_is_random_and_follows_the_seed():
    first, again, other = (recorded(seed, repeats=5)[0] for seed in (1, 1, 2))
    assert first == again != other
    assert {call[0] for call in first[6::2]} == {"a", "b"}, "one system always goes first"


def test_the_clock_sees_a_slow_system_and_leaves_warm_up_out():
    calls = []
    slow, fast = Recorder("slow", calls, 0.02), Recorder("fast", calls)
    timings = take_turns({"slow": slow, "fast": fast}, ["x", "y"], repeats=4)
    assert timings["slow"].samples.min() >= 20
    assert np.median(timings["fast"].samples) < 5
    assert timings["slow"].warm_up_seconds >= 0.04


def test_the_clock_waits_for_a_slow_callback_on_the_device():
    """What a program has only been asked to do does not count as done."""

    def wait(x):
        time.sleep(0.05)
        return x

    def program(x):
        return jax.pure_callback(wait, jax.ShapeDtypeStruct((), jnp.float32), x) + 1.0

    compiled = jax.jit(program)
    timings = take_turns({"slow": lambda _: np.asarray(compiled(jnp.float32(0.0)))}, [None], repeats=3)
    assert timings["slow"].samples.min() >= 50


def test_compilations_are_counted_where_they_happen():
    def late(request, asked=[]):  # noqa: B006  one list for all calls
        asked.append(request)
        # The second call comes with a shape of its own.
        return np.asarray(jax.jit(lambda x: x * 2.0)(np.zeros(len(asked), np.float32)))

    timing = take_turns({"late": late}, [None], repeats=2)["late"]
    assert timing.compilations == 1 and timing.compile_seconds > 0 and timing.late_compilations == 2
    steady = jax.jit(lambda x: x * 3.0)
    timing = take_turns({"steady": lambda _: np.asarray(steady(np.zeros(2)))}, [None], repeats=2)["steady"]
    assert (timing.compilations, timing.late_compilations) == (1, 0)
    with Compilations() as outside:
        pass
    jax.jit(lambda x: x * 4.0)(np.zeros(3))
    assert outside.count == 0, "nothing is counted once the context is closed"


def test_summary_by_hand():
    """1 to 100 ms: percentiles interpolate linearly between samples."""
    summary = Timing(np.arange(1.0, 101.0)[::-1], np.zeros(100, int), 2.5, 3, 1.5, 0).to_dict()
    low, high = summary.pop("median_ci95")
    assert summary == {
        "n": 100,
        "median": 50.5,
        "mean": 50.5,
        "p90": pytest.approx(90.1),
        "p99": pytest.approx(99.01),
        "warm_up_seconds": 2.5,
        "compilations": 3,
        "compile_seconds": 1.5,
        "late_compilations": 0,
    }
    # The binomial interval of the 50th percentile of 100: order statistics 40 to 61.
    assert low == pytest.approx(40.5, abs=2) and high == pytest.approx(60.5, abs=2)


def test_the_interval_covers_the_median_as_often_as_it_says():
    draw = np.random.default_rng(0)
    intervals = [median_interval(draw.exponential(size=30)) for _ in range(200)]
    covered = np.mean([low <= np.log(2) <= high for low, high in intervals])
    assert 0.90 <= covered <= 0.99


def test_repeats_of_a_request_are_no_further_requests():
    """Of 30 requests, each timed five times with little noise: not narrower for the repeats."""
    draw, requests = np.random.default_rng(1), np.tile(np.arange(30), 5)
    covered, widths = [], []
    for _ in range(200):
        times = draw.exponential(size=30)
        low, high = median_interval(times[requests] + draw.normal(scale=1e-3, size=150), requests)
        covered.append(low <= np.log(2) <= high)
        widths.append((high - low) / np.subtract(*median_interval(times)[::-1]))
    assert 0.90 <= np.mean(covered) <= 0.99
    assert 0.9 < np.mean(widths) < 1.1


@pytest.mark.parametrize("count", [1, 6, 7])
def test_medians_of_what_is_drawn(count):
    samples = np.random.default_rng(2).exponential(size=count)
    counts = _draws(count, 3)
    expected = [np.median(np.repeat(samples, drawn)) for drawn in counts]
    np.testing.assert_allclose(_medians(samples, counts), expected, rtol=1e-12)


def test_a_ratio_of_the_same_requests_is_known_well_however_much_they_differ():
    """Requests differ by a factor of thirty; 3% are seen."""
    draw = np.random.default_rng(4)
    before = np.geomspace(1.0, 30.0, 60)
    after = 1.03 * before * draw.normal(1.0, 0.01, 60)
    low, high = ratio_interval(before, after)
    assert 1.0 < low < 1.03 < high < 1.06
    assert ratio_interval(before, before) == [1.0, 1.0]


def test_the_time_of_each_request_is_the_median_of_its_repeats():
    timing = Timing(np.array([5.0, 1.0, 7.0, 2.0, 6.0, 9.0]), np.array([1, 0, 1, 0, 1, 0]))
    assert timing.by_request() == [2.0, 6.0]
