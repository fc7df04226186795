"""When rows stop."""

import jax.numpy as jnp

from padir.decoding.stopping import StopNever, StopWhenUnchanged

READ = jnp.array([[5, 6, 0], [5, 6, 0], [5, 6, 7]])
NEXT = jnp.array([[5, 6, 0], [5, 7, 0], [4, 6, 7]])


def test_unchanged_rows_stop():
    assert StopWhenUnchanged()(READ, NEXT).tolist() == [True, False, False]


def test_never():
    assert StopNever()(READ, READ).tolist() == [False, False, False]
