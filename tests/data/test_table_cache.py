"""Tables that are kept for later sources."""

from types import SimpleNamespace

import numpy as np
import pytest

from padir.data.table_cache import TableCache


def table(size):
    return SimpleNamespace(steps=np.zeros(size, np.int8), name="other fields do not count")


def test_a_table_is_made_once_while_there_is_room():
    cache, made = TableCache(most_bytes=100), []

    def asked(name, size=40):
        def make():
            made.append(name)
            return table(size)

        return cache.get(((name,),), make)

    first = asked("a")
    assert asked("b") is not first and asked("a") is first
    # The one that was asked for longest ago goes: "b".
    asked("c")
    assert len(cache) == 2 and asked("a") is first
    asked("b")
    assert made == ["a", "b", "c", "b"]
    # One that is too large by itself takes the place of all.
    large = asked("large", 1000)
    assert len(cache) == 1 and asked("large") is large
    asked("a")
    assert len(cache) == 1 and made[-2:] == ["large", "a"]


def test_what_cannot_be_made_is_not_kept():
    cache = TableCache()
    with pytest.raises(ZeroDivisionError):
        cache.get((), lambda: 1 / 0)
    made = table(1)
    assert len(cache) == 0 and cache.get((), lambda: made) is made


def test_two_threads_that_make_the_same_get_the_same():
    """The second asks while the first is still at it: here from inside."""
    cache = TableCache()
    inner = []

    def make():
        inner.append(cache.get((), lambda: table(1)))
        return table(2)

    assert cache.get((), make) is inner[0] and len(cache) == 1
