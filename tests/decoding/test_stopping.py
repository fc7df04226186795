"""When rows stop."""

import jax.numpy as jnp
import pytest

from padir.decoding.stopping import StopNever, StopWhenConfident, StopWhenUnchanged
from padir.errors import PadirError

READ = jnp.array([[5, 6, 0], [5, 6, 0], [5, 6, 7]])
SURE = jnp.zeros(3)
NEXT = jnp.array([[5, 6, 0], [5, 7, 0], [4, 6, 7]])


def test_unchanged_rows_stop():
    assert StopWhenUnchanged()(READ, NEXT, SURE).tolist() == [True, False, False]


def test_never():
    assert StopNever()(READ, READ, SURE).tolist() == [False, False, False]


def test_confident_rows_stop_and_so_do_unchanged_ones():
    # Log-probabilities of the least likely tokens: 0.81, 0.79, and a row with a remasked position.
    confidence = jnp.log(jnp.array([0.81, 0.79, 0.0]))
    changed = READ + 1
    assert StopWhenConfident(0.8)(READ, changed, confidence).tolist() == [True, False, False]
    assert StopWhenConfident(0.8)(READ, NEXT, jnp.log(jnp.array([0.1, 0.9, 0.1]))).tolist() == [True, True, False]


def test_a_threshold_is_a_probability():
    for threshold in (0.0, 1.5):
        with pytest.raises(PadirError, match=r"StopWhenConfident.threshold: .* is not in \(0, 1\]"):
            StopWhenConfident(threshold)
