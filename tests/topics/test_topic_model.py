import numpy as np
import pytest

from padir.errors import PadirError
from padir.topics.topic_model import Lengths, TopicModel, counts_of, sample_few_topics, sample_lda


def test_documents_are_all_sets_of_topics():
    documents = TopicModel(4, 3).documents(2)
    assert documents.shape == (6, 13)
    np.testing.assert_allclose(documents.sum(axis=1), 1.0)
    # The first has topics 0 and 1: words 1..6.
    np.testing.assert_allclose(documents[0], [0, *[1 / 6] * 6, *[0] * 6])
    assert len(np.unique(documents, axis=0)) == 6


def test_lda_documents_have_the_lengths_and_topics_that_are_said():
    """Most documents have 2 to 4 topics: shares of those above 5%, within 2 points."""
    model = TopicModel()
    documents = sample_lda(np.random.default_rng(0), model, (20_000,), Lengths(100, 150), 0.1)
    lengths = documents.inside.sum(axis=1)
    assert (lengths.min(), lengths.max()) == (100, 150)
    assert lengths.mean() == pytest.approx(125.0, abs=0.5)
    shares = np.bincount((documents.proportions > 0.05).sum(axis=1), minlength=7)[1:6] / 20_000
    np.testing.assert_allclose(shares, [0.12, 0.33, 0.34, 0.16, 0.04], atol=0.02)
    # Words are those of the topics' proportions, and all words of a topic are equally likely.
    counts = counts_of(documents.words, documents.inside, model.vocabulary)
    assert counts[:, 0].max() == 0.0
    expected = documents.proportions * lengths[:, None]
    difference = counts[:, 1:].reshape(-1, 10, 10).sum(axis=2) - expected
    spread = np.sqrt((expected * (1.0 - documents.proportions)).sum(axis=0))
    assert np.abs(difference.sum(axis=0) / spread).max() < 5.0
    by_word = counts.sum(axis=0)[1:].reshape(10, 10)
    np.testing.assert_allclose(by_word, by_word.mean(axis=1, keepdims=True) * np.ones(10), rtol=0.02)


def test_few_topics():
    documents = sample_few_topics(np.random.default_rng(0), TopicModel(5, 2), np.array([1, 2, 5]), Lengths(50, 50), 3)
    present = (documents.proportions > 0).sum(axis=1)
    np.testing.assert_array_equal(present, [1, 2, 5])
    np.testing.assert_allclose(documents.proportions.sum(axis=1), 1.0)
    assert set((documents.words[1] - 1) // 2) == set(np.flatnonzero(documents.proportions[1]))


def test_counts():
    tokens, inside = np.array([[1, 1, 3, 0], [2, 0, 0, 0]]), np.array([[1, 1, 1, 0], [1, 1, 0, 0]], bool)
    np.testing.assert_array_equal(counts_of(tokens, inside, 4), [[0, 2, 0, 1], [1, 0, 1, 0]])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TopicModel(1, 3), "TopicModel.topics: 1 leaves nothing to tell apart"),
        (lambda: TopicModel(3, 0), "TopicModel.words_per_topic: 0 is not a whole number"),
        (lambda: Lengths(3, 9.5), "Lengths.longest: 9.5 is not a whole number"),
        (lambda: Lengths(10, 9), "Lengths.longest: 9 is below Lengths.shortest = 10"),
        (lambda: TopicModel(3, 2).documents(4), "present: 4 topics of 3"),
        (lambda: TopicModel(40, 2).documents(20), "documents cannot be enumerated; use fewer topics"),
    ],
)
def test_mistakes(make, message):
    with pytest.raises(PadirError, match=message):
        make()
