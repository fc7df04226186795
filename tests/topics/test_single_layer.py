"""The model by counts is the model by positions, in float64: logits, loss and gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from padir.topics.masked_language_modelling import CROSS_ENTROPY, SQUARED, MaskingConfig, batch_of, masked
from padir.topics.single_layer import Parameters, gathered, logits_by_counts, logits_by_positions
from padir.topics.topic_model import Lengths, TopicModel, sample_lda
from padir.topics.training import rows_loss

SHAPES = {
    **{"embedding": (4, 9), "key": (3, 4), "query": (3, 4), "value": (4, 4), "prediction_bias": (9,)},
    **{"key_bias": (3,), "query_bias": (3,), "value_bias": (4,)},
}


@pytest.fixture(scope="module")
def data():
    """Trained embeddings, biases, and documents with different numbers of masked positions."""
    generator = np.random.default_rng(0)
    parameters = Parameters(**{name: generator.standard_normal(shape) for name, shape in SHAPES.items()})
    documents = sample_lda(generator, TopicModel(4, 2), (3,), Lengths(4, 12), 0.5)
    tokens, chosen = masked(generator, documents, 8, MaskingConfig(0.5, 0.3, 0.2))
    assert len(set(chosen.sum(axis=1))) > 1
    return parameters, documents, tokens, chosen


def by_positions(parameters, documents, tokens, chosen, kind, mask_visible):
    """The objective (2.1), with loops over documents and positions."""
    total = 0.0
    for row in range(len(tokens)):
        inside = documents.inside[row]
        logits = logits_by_positions(parameters, tokens[row][inside], mask_visible)
        errors = []
        for position in np.flatnonzero(chosen[row]):
            x, label = logits[:, position], documents.words[row, position]
            if kind == CROSS_ENTROPY:
                errors.append(-jax.nn.log_softmax(x)[label])
            else:
                errors.append(((x - jax.nn.one_hot(label, 9)) ** 2).sum())
        total += sum(errors) / len(errors)
    return total / len(tokens)


@pytest.mark.parametrize("mask_visible", [True, False])
@pytest.mark.parametrize("kind", [CROSS_ENTROPY, SQUARED])
def test_loss_and_gradient(data, kind, mask_visible):
    parameters, documents, tokens, chosen = data
    with jax.enable_x64(True):
        batch = batch_of(documents, tokens, chosen, 9)
        # Weights in float64: those of a batch are rounded to float32.
        weight = np.where(batch.weight > 0, 1.0 / (3 * chosen.sum(axis=1)[batch.document]), 0.0)
        of_masks = np.zeros((3, 9))
        for row, position in np.argwhere(chosen & (tokens == 0)):
            of_masks[row, documents.words[row, position]] += 1.0 / (3 * chosen[row].sum())
        rows = batch._replace(counts=batch.counts.astype(float), weight=weight, of_masks=of_masks).rows()

        def objective(parameters):
            return rows_loss(parameters, rows, kind, mask_visible)

        found, gradient = jax.value_and_grad(objective)(parameters)
        expected, wanted = jax.value_and_grad(by_positions)(parameters, documents, tokens, chosen, kind, mask_visible)
        assert found.dtype == jnp.float64 and found == pytest.approx(float(expected), abs=1e-10)
        for name in SHAPES:
            np.testing.assert_allclose(getattr(gradient, name), getattr(wanted, name), atol=1e-10)
        assert np.abs(gradient.key).max() > 1e-4


def test_logits_and_weights(data):
    parameters, documents, tokens, _ = data
    with jax.enable_x64(True):
        inside = documents.inside[0]
        document = tokens[0][inside]
        counts = np.bincount(document, minlength=9).astype(float)[None]
        rows = np.zeros(len(document), int)
        logits = logits_by_counts(parameters, counts, rows, document)
        np.testing.assert_allclose(logits.T, logits_by_positions(parameters, document), atol=1e-10)
        weights = gathered(parameters, counts, rows, document)
        np.testing.assert_allclose(weights.sum(axis=1), 1.0)
        assert np.asarray(weights)[:, counts[0] == 0].max() == 0.0
        unseen = gathered(parameters, counts, rows, document, mask_visible=False)
        assert counts[0, 0] > 0 and np.asarray(unseen)[:, 0].max() == 0.0


def test_without_matrices_attention_is_uniform_and_passed_on():
    """Parts that are None: f(X) = X A + b."""
    found = logits_by_counts(Parameters(prediction_bias=jnp.ones(3)), jnp.array([[1.0, 3.0, 0.0]]), [0], [1])
    np.testing.assert_allclose(found, [[1.25, 1.75, 1.0]])
