"""When rows stop."""

import jax.numpy as jnp
import pytest

from padir.decoding.stopping import StopNever, StopWhenConfident, StopWhenUnchanged
from padir.errors import PadirError

READ = jnp.array([[5, 6, 0], [5, 6, 0], [5, 6, 7]])
NEXT = jnp.array([[5, 6, 0], [5, 7, 0], [4, 6, 7]])
SETTLED = jnp.array([True, False, False])
SURE = jnp.zeros(3)


def test_settled_rows_stop():
    assert StopWhenUnchanged()(READ, NEXT, SETTLED, SURE).tolist() == [True, False, False]


def test_never():
    assert StopNever()(READ, READ, SETTLED, SURE).tolist() == [False, False, False]


def test_confident_rows_stop_and_so_do_settled_ones():
    # Log-probabilities of the least likely tokens: 0.81, 0.79, and a row with a remasked position.
    confidence = jnp.log(jnp.array([0.81, 0.79, 0.0]))
    assert StopWhenConfident(0.8)(READ, NEXT, jnp.zeros(3, bool), confidence).tolist() == [True, False, False]
    assert StopWhenConfident(0.8)(READ, NEXT, SETTLED, jnp.log(jnp.array([0.1, 0.9, 0.1]))).tolist() == [
        True,
        True,
        False,
    ]


def test_a_threshold_is_a_probability():
    for threshold in (0.0, 1.5):
        with pytest.raises(PadirError, match=r"StopWhenConfident.threshold: .* is not in \(0, 1\]"):
            StopWhenConfident(threshold)
