"""Ranking by hand."""

import jax.numpy as jnp
import numpy as np
import pytest

from padir.decoding.ranking import RankByLogProbability
from padir.errors import PadirError

LOG_PROBS = jnp.array([[-1.0, -3.0, -9.0, -9.0], [-1.0, -1.0, -1.0, -3.0], [-5.0, -5.0, -5.0, -5.0]])
INSIDE = jnp.array([[1, 1, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0]], bool)
LENGTH_LOG_PROBS = jnp.array([-0.5, -2.0, -jnp.inf])


@pytest.mark.parametrize(
    ("alpha", "scores"),
    [(0.0, [-4.0, -6.0, 0.0]), (1.0, [-2.0, -1.5, 0.0]), (0.5, [-4 / 2**0.5, -3.0, 0.0])],
)
def test_sum_over_length_to_the_alpha(alpha, scores):
    np.testing.assert_allclose(RankByLogProbability(alpha)(LOG_PROBS, INSIDE, LENGTH_LOG_PROBS), scores, rtol=1e-6)


def test_alpha_decides_whether_short_or_sure_wins():
    """The two-token row has the higher sum, the four-token row the higher mean."""
    assert RankByLogProbability(0.0)(LOG_PROBS[:2], INSIDE[:2], LENGTH_LOG_PROBS[:2]).argmax() == 0
    assert RankByLogProbability(1.0)(LOG_PROBS[:2], INSIDE[:2], LENGTH_LOG_PROBS[:2]).argmax() == 1


def test_impossible_tokens_outside_do_not_poison_the_score():
    log_probs = LOG_PROBS.at[0, 3].set(-jnp.inf)
    assert RankByLogProbability()(log_probs, INSIDE, LENGTH_LOG_PROBS)[0] == -2.0


@pytest.mark.parametrize("option", [{"alpha": float("nan")}, {"length_weight": float("inf")}])
def test_weights_that_are_no_numbers_are_refused(option):
    with pytest.raises(PadirError, match=f"RankByLogProbability.{next(iter(option))}: .* is not a finite number"):
        RankByLogProbability(**option)


def test_the_length_may_count():
    scores = RankByLogProbability(1.0, length_weight=0.5)(LOG_PROBS[:2], INSIDE[:2], LENGTH_LOG_PROBS[:2])
    np.testing.assert_allclose(scores, [-2.0 - 0.25, -1.5 - 1.0], rtol=1e-6)
