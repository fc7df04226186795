"""Which drafted tokens stand, worked by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from padir.decoding.acceptance import AcceptClose, AcceptGreedy, AcceptSampled
from padir.errors import PadirError

# Two positions of one row: probabilities of the tokens 0 to 3.
LOG_PROBS = jnp.log(jnp.array([[[0.0, 0.5, 0.3, 0.2], [0.0, 0.1, 0.6, 0.3]]]))


def test_greedy():
    accepted, replacement = AcceptGreedy()(LOG_PROBS, jnp.array([[1, 3]]))
    assert accepted.tolist() == [[True, False]] and replacement.tolist() == [[1, 2]]


@pytest.mark.parametrize(
    ("top", "margin", "draft", "expected"),
    [
        (1, 9.0, [1, 2], [True, True]),
        (1, 9.0, [2, 3], [False, False]),
        (2, 9.0, [2, 3], [True, True]),
        (3, 9.0, [3, 1], [True, True]),
        # log(0.5 / 0.3) = 0.51 and log(0.6 / 0.3) = 0.69.
        (3, 0.6, [2, 3], [True, False]),
        (3, 0.0, [1, 2], [True, True]),
        # A forbidden token, as where nothing was drafted.
        (4, 9.0, [0, 0], [False, False]),
    ],
)
def test_close(top, margin, draft, expected):
    accepted, replacement = AcceptClose(top, margin)(LOG_PROBS, jnp.array([draft]))
    assert accepted.tolist() == [expected] and replacement.tolist() == [[1, 2]]


def test_sampled_accepts_by_the_ratio_and_replaces_from_the_rest():
    policy, draws = AcceptSampled(1.0), 4000
    offered = jnp.log(jnp.array([[[0.0, 0.25, 0.5, 0.25]] * 2]))
    draft = jnp.array([[2, 2]])
    keys = jax.random.split(jax.random.key(0), draws)
    accepted, replacement = jax.vmap(lambda key: policy(LOG_PROBS, draft, offered, key[None]))(keys)
    # min(1, 0.3 / 0.5) = 0.6 and min(1, 0.6 / 0.5) = 1.
    np.testing.assert_allclose(accepted.mean(0)[0], [0.6, 1.0], atol=0.03)
    # max(0, p - q) = (0, 0.25, 0, 0): always 1. In the other position (0, 0, 0.1, 0.05).
    assert (replacement[:, 0, 0] == 1).all()
    np.testing.assert_allclose((replacement[:, 0, 1] == 2).mean(), 2 / 3, atol=0.03)


def test_sampled_draws_from_the_verifier_where_nothing_was_drafted():
    keys = jax.random.split(jax.random.key(0), 4000)
    for logits in (None, jnp.zeros((1, 2, 4))):
        accepted, replacement = jax.vmap(
            lambda key, logits=logits: AcceptSampled(1.0)(LOG_PROBS, jnp.zeros((1, 2), int), logits, key[None])
        )(keys)
        assert not accepted.any()
        np.testing.assert_allclose((replacement[:, 0, 0] == 1).mean(), 0.5, atol=0.03)


@pytest.mark.parametrize("temperature", [1e-2, 1e-10, 1e-40])
def test_sampled_near_temperature_0_is_greedy(temperature):
    """The drafter would write 2 and 1, the verifier 1 and 2."""
    offered = jnp.log(jnp.array([[[0.0, 0.2, 0.5, 0.3], [0.0, 0.5, 0.2, 0.3]]]))
    keys = jax.random.split(jax.random.key(0), 1)
    for draft, logits, stands in (([2, 1], offered, False), ([1, 2], LOG_PROBS, True)):
        accepted, replacement = AcceptSampled(temperature)(LOG_PROBS, jnp.array([draft]), logits, keys)
        assert accepted.tolist() == [[stands, stands]] and replacement.tolist() == [[1, 2]]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AcceptClose(top=0), "AcceptClose.top: 0 is not a whole number of at least 1"),
        (lambda: AcceptClose(margin=-1.0), "AcceptClose.margin: -1.0 is not a finite number of at least 0"),
        (lambda: AcceptSampled(0.0), "AcceptSampled.temperature: 0.0 is not a positive number; for 0 use AcceptGreedy"),
    ],
)
def test_bad_settings_are_refused(make, message):
    with pytest.raises(PadirError, match=message):
        make()
