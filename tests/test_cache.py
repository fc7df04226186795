"""The key-value cache by hand."""

import jax.numpy as jnp

from padir import cache
from padir.attention import KeyValue


def test_an_empty_cache_has_room_and_nothing_in_it():
    empty = cache.empty_cache(2, 3, 5, 4, 6, jnp.dtype("bfloat16"))
    assert len(empty.layers) == 2 and empty.position == 0
    for layer in empty.layers:
        assert layer.key.shape == layer.value.shape == (3, 5, 4, 6)
        assert layer.key.dtype == layer.value.dtype == jnp.bfloat16
        assert not layer.key.any() and not layer.value.any()


def test_write_touches_only_the_new_positions():
    layer = KeyValue(jnp.zeros((1, 4, 1, 1)), jnp.full((1, 4, 1, 1), 9.0))
    new = KeyValue(jnp.array([1.0, 2.0]).reshape(1, 2, 1, 1), jnp.array([3.0, 4.0]).reshape(1, 2, 1, 1))
    written = cache.write(layer, new, jnp.int32(1))
    assert written.key.ravel().tolist() == [0, 1, 2, 0]
    assert written.value.ravel().tolist() == [9, 3, 4, 9]
