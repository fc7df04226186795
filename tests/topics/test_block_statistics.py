import numpy as np
import pytest

from padir.errors import PadirError
from padir.topics.block_statistics import (
    DIFFERENT,
    SAME_TOPIC,
    SAME_WORD,
    attention_of_counts,
    attention_of_pairs,
    attention_statistics,
    cosine_of_pairs,
    embedding_statistics,
    matrix_statistics,
    membership,
    top_pairs,
)
from padir.topics.exact import length_correction
from padir.topics.settings import TopicsConfig

# Words 1, 2 and 3, 4; 0 and 5 have no topic.
MEMBERS = membership([[1, 2], [3, 4]], 6)


def test_words_of_several_topics():
    np.testing.assert_array_equal(membership([[0, 1], [1, 2]], 3), [[1, 0], [1, 1], [0, 1]])
    np.testing.assert_array_equal(membership([[0, 1], [1, 2]], 3, several=False), [[1, 0], [0, 0], [0, 1]])
    with pytest.raises(PadirError, match=r"topic 1 has word 3, which is not one of 0..2"):
        membership([[0], [3]], 3)


def test_a_matrix():
    matrix = np.arange(36.0).reshape(6, 6)
    found = matrix_statistics(matrix, MEMBERS)
    assert found[SAME_WORD] == np.mean([7, 14, 21, 28])
    assert found[SAME_TOPIC] == np.mean([8, 13, 22, 27])
    others = [9, 10, 15, 16, 19, 20, 25, 26]
    assert (found[DIFFERENT], found["sd of different"]) == pytest.approx((np.mean(others), np.std(others)))


def test_embeddings():
    embedding = np.array([[9.0, 9.0], [1.0, 0.0], [2.0, 0.0], [0.0, 1.0], [0.0, 3.0], [9.0, 9.0]])
    found = embedding_statistics(embedding, MEMBERS)
    assert found["cosine"].means() == pytest.approx({SAME_WORD: 1.0, SAME_TOPIC: 1.0, DIFFERENT: 0.0})
    assert found["dot"].means()[SAME_TOPIC] == pytest.approx(2.5)
    assert cosine_of_pairs(embedding, [(1, 2), (1, 3)]) == pytest.approx(0.5)


def test_attention_of_sentences():
    """Two heads; the second has twice the weights. Corrected for length, weights of 2 positions are / 50."""
    weights = np.array([[0.75, 0.25], [0.4, 0.6]])
    sentences = [(np.array([1, 2]), np.stack([weights, 2 * weights])), (np.array([1, 3]), np.stack([weights] * 2))]
    raw = attention_statistics(sentences, MEMBERS, length_correction=False)
    np.testing.assert_allclose(raw.mean(SAME_TOPIC), [0.325, 0.65])
    np.testing.assert_allclose(raw.mean(DIFFERENT), [0.325, 0.325])
    assert raw.ratio() == pytest.approx(1.5)
    corrected = attention_statistics(sentences, MEMBERS)
    np.testing.assert_allclose(corrected.mean(SAME_TOPIC), [0.0065, 0.013])
    assert attention_of_pairs(sentences, [(2, 1)]) == pytest.approx(0.00975)


def test_pairs_that_occur_together_most_often():
    sentences = [np.array(tokens) for tokens in ([1, 3, 0], [3, 1, 1], [1, 2], [5, 4, 4])]
    assert top_pairs(sentences, MEMBERS, 1) == [(1, 3)]
    assert top_pairs(sentences, MEMBERS, 5) == [(1, 3), (1, 2)]


def test_attention_by_counts_is_that_of_positions():
    generator = np.random.default_rng(0)
    scores = generator.standard_normal((6, 6))
    tokens = np.array([1, 1, 2, 3, 0])
    exponentials = np.exp(scores[np.ix_(tokens, tokens)])
    weights = exponentials / exponentials.sum(axis=0)
    expected = {SAME_WORD: [], SAME_TOPIC: [], DIFFERENT: []}
    for key, first in enumerate(tokens):
        for query, second in enumerate(tokens):
            if first and second:
                topics = (first - 1) // 2 == (second - 1) // 2
                kind = SAME_WORD if first == second else SAME_TOPIC if topics else DIFFERENT
                expected[kind].append(weights[key, query])
    counts = np.bincount(tokens, minlength=6)[None]
    found = attention_of_counts(scores, counts, MEMBERS).means()
    assert found == pytest.approx({kind: np.mean(values) for kind, values in expected.items()})


def test_a_random_encoder_knows_no_topics_after_the_length_correction():
    found = length_correction(TopicsConfig(sentences=200))
    for of in found.values():
        assert of["corrected"]["ratio"] == pytest.approx(1.0, abs=0.01)
    assert found["lengths by topics"]["raw"]["ratio"] > 1.02
