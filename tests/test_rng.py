"""Named random streams."""

import jax
import jax.numpy as jnp
import pytest

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
