import jax
import jax.numpy as jnp
import numpy as np
import pytest

from padir.topics.block_statistics import matrix_statistics
from padir.topics.learned import _fitted, members_of
from padir.topics.masked_language_modelling import SQUARED, MaskingConfig, expected_rows
from padir.topics.optima import (
    Constants,
    block_value,
    diagonal_value,
    excess,
    hessian_rank,
    lemma_member,
    lemma_residual,
    minimum_norm,
    ridge,
    topic_gap,
    train_embeddings,
)
from padir.topics.settings import TopicsConfig
from padir.topics.single_layer import Parameters
from padir.topics.topic_model import TopicModel
from padir.topics.training import rows_loss

MASKING = MaskingConfig()


def test_constants():
    constants = Constants.of(TopicModel(), MASKING)
    assert (constants.a, constants.p_0) == pytest.approx((0.865, 0.12))
    assert (constants.c_1, constants.c_2, constants.c_3) == pytest.approx((0.00144509, 7.33333, 1.156069), rel=1e-5)


def test_the_optimum_of_theorem_2_1_2():
    weights = block_value(TopicModel(10, 10), MASKING)
    found = weights[1, 2], weights[1, 11], weights[1, 0]
    assert found == pytest.approx((0.10802023, -0.00758671, 0.05419075), abs=1e-8)
    assert weights[1, 1] == weights[1, 2] and np.abs(weights[0]).max() == 0.0
    large = block_value(TopicModel(100, 300), MASKING)
    assert large[1, -1] == pytest.approx(-3.84679e-5, rel=1e-5)
    assert large[1, 1] == pytest.approx(0.00381510, rel=1e-5) and large[1, 0] == pytest.approx(2.77281e-4, rel=1e-5)


@pytest.mark.parametrize("topics, present, v", [(5, 2, 3), (6, 3, 2), (4, 3, 2), (6, 1, 3)])
def test_it_is_the_minimum_norm_solution(topics, present, v):
    model = TopicModel(topics, v)
    weights = block_value(model, MASKING)
    np.testing.assert_allclose(minimum_norm(model, MASKING, present), weights, atol=1e-13)
    np.testing.assert_allclose(ridge(model, MASKING, present, 1e-9), weights, atol=1e-6)
    np.testing.assert_allclose(topic_gap(weights, model), 1.0 / 0.865)
    assert hessian_rank(model, MASKING, present) == topics


def test_members_of_lemma_2_1_1_reach_the_least_loss_and_others_do_not():
    model, generator = TopicModel(5, 3), np.random.default_rng(0)
    member = lemma_member(model, MASKING, generator.standard_normal(16), generator.standard_normal((16, 15)))
    # Entries of one block differ.
    assert member[1, 4:7].std() > 0.1
    with jax.enable_x64(True):
        rows = expected_rows(model.documents(2), MASKING)

        def loss(weights):
            return float(rows_loss(Parameters(value=jnp.asarray(weights)), rows, SQUARED))

        for weights in (diagonal_value(model, MASKING), member, block_value(model, MASKING)):
            assert loss(weights) == pytest.approx(1.0 - 1.0 / 6.0, abs=1e-12)
            assert lemma_residual(weights, model, MASKING) < 1e-12 and excess(weights, model, MASKING, 2) < 1e-24
        noise = 0.01 * generator.standard_normal((16, 16))
        assert loss(member + noise) > 1.0 - 1.0 / 6.0 + 1e-5
        # The excess is the loss above its least.
        assert loss(member + noise) - 5.0 / 6.0 == pytest.approx(excess(member + noise, model, MASKING, 2), rel=1e-9)
        assert lemma_residual(member + noise, model, MASKING) > 1e-3


def test_training_embeddings_reaches_theorem_2_1_1():
    """Topic sums without L2; equal blocks and rank T with it."""
    model, constants = TopicModel(4, 2), Constants.of(TopicModel(4, 2), MASKING)
    (free,) = train_embeddings(model, MASKING, 2, seed=0, count=1, steps=4000, l2=0.0)
    np.testing.assert_allclose(topic_gap(free, model), constants.c_3, atol=1e-6)
    assert free[0, 0] == pytest.approx(constants.c_2**2 * (-free[1:, 0] / constants.c_2).mean(), abs=1e-6)
    (regular,) = train_embeddings(model, MASKING, 2, seed=0, count=1, steps=8000, l2=1e-3)
    blocks = np.kron(np.eye(4), np.full((2, 2), constants.c_3 / 2))
    np.testing.assert_allclose(regular[1:, 1:], blocks, atol=0.02)
    assert np.linalg.matrix_rank(regular, tol=1e-3) == 4


def test_least_squares_on_lda_documents():
    """20,000 documents: an extra diagonal of about p_c, since a kept word votes for itself."""
    config = TopicsConfig()
    weights = _fitted(config)
    found = matrix_statistics(weights, members_of(config.model))
    assert found["same word"] - found["same topic"] == pytest.approx(0.1, abs=0.03)
    assert topic_gap(weights, config.model).mean() == pytest.approx(1.145, abs=0.01)
    assert found["same topic"] == pytest.approx(0.102, abs=0.003)
    assert found["different topic"] == pytest.approx(-0.0015, abs=5e-4)
