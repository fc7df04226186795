"""Compiled programs are dropped before they take all memory maps of a process."""

import sys
import threading
import warnings
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from padir.inference import program
from padir.inference.program import Program
from padir.runtime import host_memory


@pytest.fixture(autouse=True)
def _no_others(monkeypatch):
    monkeypatch.setattr(program._Compiled, "_all", weakref.WeakSet())


@pytest.fixture
def scaled(monkeypatch):
    """make(factor) -> a program that scales; and what was traced. Maps are full as soon as a fifth is compiled."""
    traced, made = [], []

    def make(factor):
        def run(weights, array, offset=None):
            traced.append((factor, *array.shape))
            return weights * factor * array + (0 if offset is None else offset)

        made.append(Program(run))
        return made[-1]

    def in_use():
        return sum(each.run._cache_size() for one in made for each in list(one._compiled.values())), 7

    monkeypatch.setattr(host_memory, "memory_maps", in_use)
    return make, traced


def called(one, size, *, weights=None, **given):
    weights = np.float32(7) if weights is None else weights
    return np.asarray(one(weights, jnp.ones(size, jnp.float32), **given)).tolist()


def test_those_used_longest_ago_are_dropped(scaled):
    make, traced = scaled
    two, three = make(2), make(3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for one, size in ((two, 1), (three, 1), (two, 3), (three, 2)):
            assert called(one, size) == [14.0 if one is two else 21.0] * size
        assert called(two, 1) == [14.0]
    assert traced == [(2, 1), (3, 1), (2, 3), (3, 2)]
    said = r"^5 of the 7 memory maps .* dropped, 1 of those .* leaves 4; .*sysctl -w vm\.max_map_count="
    with pytest.warns(UserWarning, match=said):
        assert called(two, 4) == [14.0] * 4
    # Only the first one of 3 was dropped, which nobody had used since.
    del traced[:]
    assert [called(*each) for each in ((three, 2), (two, 1), (two, 3))] == [[21.0] * 2, [14.0], [14.0] * 3]
    assert traced == []
    with pytest.warns(UserWarning, match="dropped"):
        assert called(three, 1) == [21.0]
    assert traced == [(3, 1)]


@pytest.mark.parametrize("again", [{"weights": np.ones(2, np.float32)}, {"weights": np.int32(7)}])
def test_a_compilation_for_other_weights_makes_room_too(scaled, again):
    make, _ = scaled
    one = make(2)
    for size in (1, 2, 3, 4):
        called(one, size)
    with pytest.warns(UserWarning, match="dropped, 1 of those"):
        called(one, 2, **again)


def test_what_others_have_cleared_is_compiled_with_room(scaled):
    make, traced = scaled
    one = make(2)
    for size in (1, 2, 3, 4):
        called(one, size)
    jax.clear_caches()
    del traced[:]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for size in (1, 2, 3, 4):
            called(one, size)
    with pytest.warns(UserWarning, match="dropped, 1 of those"):
        called(one, 5)
    assert traced == [(2, size) for size in (1, 2, 3, 4, 5)]


def test_what_is_given_by_name_has_a_shape_too(scaled):
    make, traced = scaled
    one = make(2)
    assert called(one, 2) == [14.0] * 2
    assert called(one, 2, offset=np.ones(2, np.float32)) == [15.0] * 2
    assert called(one, 2, offset=np.ones(1, np.float32)) == [15.0] * 2
    assert called(one, 2, offset=np.zeros(2, np.float32)) == [14.0] * 2
    assert len(traced) == len(one._compiled) == 3


def test_it_goes_on_where_nothing_is_left_to_drop(scaled, monkeypatch):
    make, _ = scaled
    one = make(2)
    called(one, 1)
    monkeypatch.setattr(host_memory, "memory_maps", lambda: (9, 10))
    with pytest.warns(UserWarning, match=r"^9 of the 10 .* dropped, \d of those .* leaves 9;"):
        assert called(one, 2) == [14.0] * 2
    assert called(one, 2) == [14.0] * 2


def test_threads(scaled):
    """While some compile, which drops programs, others decode and make programs of their own."""
    make, _ = scaled
    shared, failures = make(2), []

    def work(factor):
        try:
            own = make(factor)
            for round_ in range(6):
                size = 1 + (round_ + factor) % 6
                assert called(own, size) == [7.0 * factor] * size
                assert called(shared, size) == [14.0] * size
        except Exception as error:
            failures.append(error)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        threads = [threading.Thread(target=work, args=(factor,)) for factor in range(3, 9)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failures == []


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells of memory maps")
def test_dropping_gives_memory_maps_back(monkeypatch):
    one = Program(lambda weights, array: jnp.sort(weights * array) @ jnp.cumsum(array))
    for size in range(2, 12):
        called(one, size)
    used, allowed = host_memory.memory_maps()
    monkeypatch.setattr(program._Compiled, "_FULL", used / allowed)
    with pytest.warns(UserWarning, match="dropped"):
        called(one, 12)
    assert sum(each.is_there for each in one._compiled.values()) < 11
    monkeypatch.setattr(program._Compiled, "_FULL", 0)
    with pytest.warns(UserWarning, match="dropped"):
        called(one, 13)
    assert [shapes for shapes, each in one._compiled.items() if each.is_there] == [((13,),)]
    assert host_memory.memory_maps()[0] < used
