"""Named random streams."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_models

from padir import rng


def data(key):
    return jax.random.key_data(key).tolist()


def test_same_seed_name_and_step_give_the_same_key():
    assert data(rng.stream(7, "dropout", 3)) == data(rng.stream(7, "dropout", 3))


def test_every_part_of_the_name_matters():
    keys = [
        rng.stream(7, "dropout", 3),
        rng.stream(8, "dropout", 3),
        rng.stream(7, "corruption", 3),
        rng.stream(7, "dropout", 4),
        rng.stream(7, "dropout", 0),
        rng.stream(7, "dropout"),
    ]
    assert len({tuple(data(key)) for key in keys}) == len(keys)


def test_a_seed_and_its_key_are_the_same():
    assert data(rng.stream(jax.random.key(7), "dropout", 3)) == data(rng.stream(7, "dropout", 3))


def test_a_traced_step_gives_the_key_of_the_plain_step():
    traced = jax.jit(lambda step: rng.stream(7, "dropout", step))(jnp.int32(3))
    assert data(traced) == data(rng.stream(7, "dropout", 3))


@pytest.mark.parametrize(
    ("name", "step", "expected"),
    [("parameters", None, [103_927_609, 3_769_285_879]), ("corruption", 1000, [3_195_786_807, 518_778_055])],
)
def test_streams_never_change_between_versions(name, step, expected):
    """A checkpoint resumed with newer code must go on with the same randomness."""
    assert data(rng.stream(0, name, step)) == expected


def test_sources_have_numbers_of_their_own():
    sources = tiny_models.rows(200, 9, seed=3)
    numbers = rng.number_of_source(sources)
    np.testing.assert_array_equal(numbers, rng.number_of_source(jnp.pad(sources, ((0, 0), (0, 5)))))
    distinct = len(np.unique(np.asarray(sources), axis=0))
    assert len(np.unique(numbers)) == distinct
    # Not the same tokens in another order.
    assert len(set(rng.number_of_source(jnp.array([[3, 4, 5, 1], [4, 3, 5, 1], [5, 4, 3, 1]])).tolist())) == 3


def test_a_source_keeps_its_key_whatever_lies_beside_it():
    sources = jnp.array([[3, 4, 1], [5, 6, 1], [3, 4, 1]])
    keys = rng.of_sources(jax.random.key(0), sources)
    first, second, third = map(data, keys)
    assert first == third != second
    assert data(rng.of_sources(jax.random.key(0), jnp.pad(sources[:1], ((0, 0), (0, 2))))[0]) == first
    assert data(rng.folded(keys, 7)[1]) == data(jax.random.fold_in(keys[1], 7))
    assert (
        data(rng.numbered(keys, 4)[1, 3]) == data(rng.numbered(keys, 9)[1, 3]) == data(jax.random.fold_in(keys[1], 3))
    )
