"""Runs of 200 steps: the loss falls, the same seed gives the same numbers, frozen parts do not move."""

import jax.numpy as jnp
import numpy as np
import pytest

from padir.errors import PadirError
from padir.topics.masked_language_modelling import CROSS_ENTROPY, SQUARED, MaskingConfig
from padir.topics.topic_model import Lengths, TopicModel
from padir.topics.training import (
    ADAM,
    SGD,
    FewTopicsBatches,
    LdaBatches,
    TopicTraining,
    random_parameters,
    train,
)

MODEL = TopicModel(4, 2)
LDA = LdaBatches(MODEL, Lengths(20, 30), 0.1, MaskingConfig(), 8)
SHAPES = {"key": (9, 9), "query": (9, 9), "value": (9, 9), "query_bias": (9,)}


def start(key):
    return random_parameters(key, SHAPES, 0.1)


def test_everything_with_cross_entropy():
    training = TopicTraining(CROSS_ENTROPY, ADAM, 0.03, 200)
    first, again = (train([3, 4], start, tuple(SHAPES), training, LDA) for _ in range(2))
    for name in SHAPES:
        np.testing.assert_array_equal(getattr(first.parameters, name), getattr(again.parameters, name))
    assert not np.array_equal(first.parameters.value[0], first.parameters.value[1])
    # From about ln 9 = 2.2.
    assert first.history["loss"][:, 1].min() > 1.9 and first.history["loss"][:, -1].max() < 1.6
    assert first.history["value"].shape == (2, 21)
    assert first.history["value"][0, -1] == pytest.approx(np.linalg.norm(first.of(0).value), rel=1e-6)
    # A seed gives the same run, whichever seeds are beside it.
    alone = train([4], start, tuple(SHAPES), training, LDA)
    np.testing.assert_allclose(alone.of(0).value, first.of(1).value, atol=1e-4)


def test_frozen_parts_do_not_move_by_a_bit():
    value = jnp.eye(9)
    batches = FewTopicsBatches(MODEL, 2, MaskingConfig(), 4)

    def begin(key):
        return start(key)._replace(value=value)

    found = train([0], begin, ["key", "query"], TopicTraining(SQUARED, SGD, 3.0, 200, decay=0.5), batches)
    np.testing.assert_array_equal(found.parameters.value[0], value)
    np.testing.assert_array_equal(found.parameters.query_bias[0], np.zeros(9))
    assert found.history["loss"][0, -1] < found.history["loss"][0, 1]


def test_l2_shrinks():
    free, penalised = (
        train([0], start, ["value"], TopicTraining(SQUARED, SGD, 1.0, 200, l2), LDA).history["value"][0, -1]
        for l2 in (0.0, 0.01)
    )
    assert penalised < free


def test_the_learning_rate_falls():
    rates = TopicTraining(learning_rate=1.0, steps=10, decay=0.5, record_every=5).rates()
    np.testing.assert_allclose(rates, [1, 1, 1, 1, 1, 1, 0.8, 0.6, 0.4, 0.2])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TopicTraining(loss="l1"), "TopicTraining.loss: no 'l1'; choose cross_entropy or squared"),
        (lambda: TopicTraining(optimizer="x"), "TopicTraining.optimizer: no 'x'"),
        (lambda: TopicTraining(steps=15), "15 steps are not a multiple of 10"),
        (lambda: TopicTraining(learning_rate=0.0), "learning_rate must be positive"),
        (lambda: train([0], start, ["embedding"], TopicTraining(), LDA), "embedding cannot be trained"),
    ],
)
def test_mistakes(make, message):
    with pytest.raises(PadirError, match=message):
        make()
