"""Compiled programs are dropped before they take all memory maps of a process."""

import warnings

import jax.numpy as jnp
import numpy as np
import pytest

from padir.inference.program import Program
from padir.runtime import host_memory


@pytest.fixture
def programs(monkeypatch):
    """Three programs, and what was traced. Memory maps are full as long as four shapes are compiled."""
    traced = []

    def program(factor):
        def run(weights, array, offset=None):
            traced.append((factor, *array.shape))
            return weights * factor * array + (0 if offset is None else offset)

        return Program(run)

    made = {factor: program(factor) for factor in (2, 3, 5)}
    compiled = lambda: sum(len(each._shapes) for each in made.values())  # noqa: E731
    monkeypatch.setattr(Program, "_known", set(made.values()))
    monkeypatch.setattr(host_memory, "share_of_maps", lambda: compiled() / 5 + 0.1)
    return made, traced


def called(program, size, **given):
    return np.asarray(program(np.float32(7), jnp.ones(size, jnp.float32), **given)).tolist()


def test_those_used_longest_ago_are_dropped(programs):
    made, traced = programs
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for factor, size in ((2, 1), (2, 3), (3, 1), (5, 1)):
            assert called(made[factor], size) == [7.0 * factor] * size
        assert called(made[2], 1) == [14.0]
    assert traced == [(2, 1), (2, 3), (3, 1), (5, 1)]
    with pytest.warns(UserWarning, match=r"sysctl -w vm\.max_map_count="):
        assert called(made[2], 4) == [14.0] * 4
    # That of 3 was dropped, which nobody had used since; that of 5 was not, nor those of 2.
    del traced[:]
    assert [called(made[factor], 1) for factor in (5, 2)] == [[35.0], [14.0]] and traced == []
    with pytest.warns(UserWarning, match="dropped"):
        assert called(made[3], 1) == [21.0]
    assert traced == [(3, 1)]


def test_what_is_given_by_name_has_a_shape_too(programs):
    made, traced = programs
    assert called(made[2], 2) == [14.0] * 2
    assert called(made[2], 2, offset=np.ones(2, np.float32)) == [15.0] * 2
    assert called(made[2], 2, offset=np.ones(1, np.float32)) == [15.0] * 2
    assert called(made[2], 2, offset=np.zeros(2, np.float32)) == [14.0] * 2
    assert len(traced) == len(made[2]._shapes) == 3


def test_the_only_program_is_dropped_when_nothing_else_is_left(programs):
    made, traced = programs
    for size in range(1, 5):
        called(made[2], size)
    with pytest.warns(UserWarning, match="dropped"):
        assert called(made[2], 5) == [14.0] * 5
    assert called(made[2], 1) == [14.0] and traced == [(2, size) for size in (1, 2, 3, 4, 5, 1)]
