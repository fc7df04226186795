import jax
import jax.numpy as jnp
import numpy as np
import pytest

from padir.errors import PadirError
from padir.topics.masked_language_modelling import (
    CROSS_ENTROPY,
    SQUARED,
    MaskingConfig,
    batch_of,
    expected_rows,
    frequencies_after_masking,
    masked,
    weighted_loss,
)
from padir.topics.topic_model import MASK, Documents, Lengths, TopicModel, sample_few_topics, sample_lda

MASKING = MaskingConfig()


def test_frequencies_after_masking():
    """Of 100,000 positions with 3 of 10 topics: within 5 standard deviations of (2.17)."""
    model = TopicModel()
    p_w = model.documents(3)[0]
    generator = np.random.default_rng(0)
    words = generator.choice(model.vocabulary, 100_000, p=p_w).astype(np.int32)[None]
    documents = Documents(words, np.ones_like(words, bool), np.zeros((1, 10)))
    tokens, chosen = masked(generator, documents, model.words, MASKING)

    def check(number, of, probability):
        assert abs(number - of * probability) < 5.0 * np.sqrt(of * probability * (1.0 - probability))

    expected = frequencies_after_masking(p_w, MASKING)
    assert expected.sum() == pytest.approx(1.0)
    a = 1.0 - 0.9 * 0.15
    # p_0, p_1 of a word whose topic is present, p_2 of one whose topic is absent.
    np.testing.assert_allclose(expected[[0, 1, 100]], [0.15 * 0.8, a / 30 + 0.015 / 100, 0.015 / 100])
    for token in range(model.vocabulary):
        check((tokens == token).sum(), 100_000, expected[token])
    assert (tokens[~chosen] == words[~chosen]).all()
    check(chosen.sum(), 100_000, 0.15)
    inside = chosen.sum()
    check((tokens[chosen] == MASK).sum(), inside, 0.8)
    # A random word may be the right one.
    check((tokens[chosen] == words[chosen]).sum(), inside, 0.1 + 0.1 / 100)


def test_a_batch_has_what_each_masked_position_needs():
    """Against loops over positions; documents have different numbers of masked positions."""
    model, generator = TopicModel(4, 2), np.random.default_rng(1)
    documents = sample_lda(generator, model, (3, 5), Lengths(6, 20), 0.5)
    tokens, chosen = masked(generator, documents, model.words, MaskingConfig(0.5, 0.3, 0.3))
    batch = batch_of(documents, tokens, chosen, model.vocabulary)
    for step in range(3):
        rows = jax.tree.map(lambda leaf, step=step: leaf[step], batch).rows()
        found = np.zeros((5, 9, 9))
        np.add.at(found, (np.asarray(rows.document), np.asarray(rows.query)), np.asarray(rows.labels))
        expected = np.zeros((5, 9, 9))
        for document in range(5):
            positions = np.flatnonzero(chosen[step, document])
            for position in positions:
                cell = document, tokens[step, document, position], documents.words[step, document, position]
                expected[cell] += 1.0 / (5 * len(positions))
            inside = tokens[step, document][documents.inside[step, document]]
            np.testing.assert_array_equal(rows.counts[document], np.bincount(inside, minlength=9))
        np.testing.assert_allclose(found, expected, atol=1e-7)
        assert found.sum() == pytest.approx(1.0, abs=1e-6)


def test_expected_rows_are_the_mean_of_sampled_ones():
    model, masking = TopicModel(3, 2), MaskingConfig(0.5, 0.2, 0.3)
    generator = np.random.default_rng(2)
    documents = sample_few_topics(generator, model, 3, Lengths(200_000, 200_000), 1)
    tokens, chosen = masked(generator, documents, model.words, masking)
    rows = batch_of(documents, tokens, chosen, 7).rows()
    found = np.zeros((7, 7))
    np.add.at(found, np.asarray(rows.query), np.asarray(rows.labels))
    expected = expected_rows(model.documents(3), masking)
    np.testing.assert_allclose(found, expected.labels, atol=0.005)
    np.testing.assert_allclose(rows.counts[0] / 200_000, expected.counts[0], atol=0.005)
    # With a random word, the label is any of six; of kept words it is the word.
    np.testing.assert_allclose(expected.labels[1], np.array([0, 0.05 + 0.2, *[0.05] * 5]) / 6)


def test_losses():
    logits, labels = jnp.array([[0.0, 1.0, 2.0], [3.0, 0.0, 0.0]]), jnp.array([[0.0, 0.25, 0.25], [0.5, 0.0, 0.0]])
    nats = [0.25 * (np.log(np.exp([0, 1, 2]).sum()) - x) for x in (1, 2)] + [0.5 * (np.log(np.exp(3) + 2) - 3)]
    assert weighted_loss(logits, labels, CROSS_ENTROPY) == pytest.approx(sum(nats), rel=1e-6)
    # ‖(0, 1, 2) - (0, 1, 0)‖² = 4, ‖(0, 1, 2) - (0, 0, 1)‖² = 2, ‖(3, 0, 0) - (1, 0, 0)‖² = 4.
    assert weighted_loss(logits, labels, SQUARED) == pytest.approx(0.25 * 4 + 0.25 * 2 + 0.5 * 4, rel=1e-6)


def test_mistakes():
    with pytest.raises(PadirError, match=r"MaskingConfig.p_m: 1.5 is not in \[0, 1\]"):
        MaskingConfig(p_m=1.5)
    with pytest.raises(PadirError, match="nothing becomes MASK"):
        MaskingConfig(p_c=0.5, p_r=0.5)
