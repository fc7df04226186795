"""The key-value cache by hand."""

import jax.numpy as jnp

from padir.nn import cache
from padir.nn.attention import KeyValue


def test_an_empty_cache_has_room_and_nothing_in_it():
    empty = cache.empty_cache(2, 3, 5, (4, 6), jnp.dtype("bfloat16"))
    assert len(empty.layers) == 2 and empty.position == 0
    for layer in (each.self_attention for each in empty.layers):
        assert layer.key.shape == layer.value.shape == (3, 5, 4, 6)
        assert layer.key.dtype == layer.value.dtype == jnp.bfloat16
        assert not layer.key.any() and not layer.value.any()


def test_write_touches_only_the_new_positions():
    layer = KeyValue(jnp.zeros((1, 4, 1, 1)), jnp.full((1, 4, 1, 1), 9.0))
    new = KeyValue(jnp.array([1.0, 2.0]).reshape(1, 2, 1, 1), jnp.array([3.0, 4.0]).reshape(1, 2, 1, 1))
    written = cache.write(layer, new, jnp.int32(1))
    assert written.key.ravel().tolist() == [0, 1, 2, 0]
    assert written.value.ravel().tolist() == [9, 3, 4, 9]


def test_positions_of_each_row_are_written_and_read():
    old = {"a": jnp.arange(8.0).reshape(2, 4), "b": jnp.zeros((2, 4, 1, 3), jnp.bfloat16)}
    position = jnp.array([[3, 0], [1, 2]])
    new = {"a": jnp.array([[30.0, 31.0], [40.0, 41.0]]), "b": jnp.full((2, 2, 1, 3), 5.0)}
    written = cache.write(old, new, position)
    assert written["a"].tolist() == [[31, 1, 2, 30], [4, 40, 41, 7]]
    assert written["b"][..., 0, 2].tolist() == [[5, 0, 0, 5], [0, 5, 5, 0]]
    assert written["b"].dtype == jnp.bfloat16
    assert cache.read(written["a"], jnp.int32(1), 3).tolist() == [[1, 2, 30], [40, 41, 7]]
    found = cache.read(written, position, 2)
    assert found["a"].tolist() == new["a"].tolist() and found["b"].shape == (2, 2, 1, 3)


def test_queries_of_positions_by_row():
    """Of weights that all rows share, and of each row's own."""
    weights = jnp.arange(24.0).reshape(1, 2, 4, 3)
    position = jnp.array([[3, 0], [1, 1]])
    shared = cache.queries(position, 2, weights)
    assert shared.shape == (2, 2, 2, 3)
    own = cache.queries(position, 2, jnp.concatenate([weights, weights + 100]))
    assert shared[0].tolist() == own[0].tolist() == weights[0][:, jnp.array([3, 0])].tolist()
    assert (shared[1] + 100).tolist() == own[1].tolist() == (weights[0][:, jnp.array([1, 1])] + 100).tolist()
    assert cache.queries(jnp.int32(1), 2, weights).tolist() == weights[:, :, 1:3].tolist()
