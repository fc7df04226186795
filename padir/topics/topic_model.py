"""Documents of a topic model, exact and sampled (thesis, section 2.1.1).

Token 0 is MASK, and words are 1..T v. Topics are disjoint, and the words of a topic are equally likely: word i belongs
to topic (i - 1) // v, counted from 0.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np

from padir.checks import whole
from padir.errors import PadirError

MASK = 0
# Exact documents are enumerated, one row of T v + 1 numbers for each set of topics.
MOST_DOCUMENTS = 100_000


@dataclass(frozen=True)
class TopicModel:
    """T topics of v words each.

    Attributes:
      topics: T, at least 2.
      words_per_topic: v.
    """

    topics: int = 10
    words_per_topic: int = 10

    def __post_init__(self):
        whole("TopicModel.topics", self.topics)
        whole("TopicModel.words_per_topic", self.words_per_topic)
        if self.topics < 2:
            raise PadirError(f"TopicModel.topics: {self.topics} leaves nothing to tell apart; use at least 2")

    @property
    def words(self) -> int:
        """T v."""
        return self.topics * self.words_per_topic

    @property
    def vocabulary(self) -> int:
        """T v + 1, with MASK."""
        return self.words + 1

    def topic_of_tokens(self) -> np.ndarray:
        """The topic of each token, [T v + 1] int64; -1 for MASK, which has none."""
        return np.concatenate([[-1], np.repeat(np.arange(self.topics), self.words_per_topic)])

    def indicators(self) -> np.ndarray:
        """Which words each topic has, [T, T v + 1] float64 of 0 and 1; column 0, MASK, is 0."""
        return (self.topic_of_tokens() == np.arange(self.topics)[:, None]).astype(float)

    def documents(self, present: int) -> np.ndarray:
        """All documents of infinite length with so many topics (Assumption 2.1.1).

        Args:
          present: τ, the number of topics in a document.

        Returns:
          p_w, the word frequencies of each of the C(T, τ) documents, [C(T, τ), T v + 1] float64.

        Raises:
          PadirError: τ is not from 1 to T, or there are too many documents.
        """
        if not 1 <= present <= self.topics:
            raise PadirError(f"present: {present} topics of {self.topics} cannot be in a document; use 1 to T")
        if (count := math.comb(self.topics, present)) > MOST_DOCUMENTS:
            raise PadirError(f"present: {count} documents cannot be enumerated; use fewer topics")
        chosen = np.array(list(itertools.combinations(range(self.topics), present)))
        return self.indicators()[chosen].sum(axis=1) / (present * self.words_per_topic)


@dataclass(frozen=True)
class Lengths:
    """Documents of N tokens, N uniform from shortest to longest, both included."""

    shortest: int = 100
    longest: int = 150

    def __post_init__(self):
        whole("Lengths.shortest", self.shortest)
        whole("Lengths.longest", self.longest)
        if self.longest < self.shortest:
            raise PadirError(f"Lengths.longest: {self.longest} is below Lengths.shortest = {self.shortest}")


@dataclass(frozen=True)
class Documents:
    """Sampled documents, padded.

    Attributes:
      words: [..., L] int32; MASK beyond a document's length.
      inside: [..., L] bool, positions within each document.
      proportions: [..., T] float64, the probability of each topic at each position.
    """

    words: np.ndarray
    inside: np.ndarray
    proportions: np.ndarray


def sample_lda(
    generator: np.random.Generator, model: TopicModel, shape: tuple[int, ...], lengths: Lengths, concentration: float
) -> Documents:
    """Draws documents whose topic proportions are symmetric Dirichlet, the data of the thesis's experiments.

    Args:
      generator: draws them.
      model: the topics.
      shape: of the array of documents, e.g. (steps, batch).
      lengths: of documents.
      concentration: of the Dirichlet distribution, positive; the thesis's is 0.1.
    """
    return _sample(generator, model, generator.dirichlet([concentration] * model.topics, shape), lengths)


def sample_few_topics(
    generator: np.random.Generator, model: TopicModel, present: np.ndarray | int, lengths: Lengths, count: int
) -> Documents:
    """Draws documents of τ different topics, each equally likely at each position.

    Args:
      generator: draws them.
      model: the topics.
      present: τ of all documents, or of each, [count].
      lengths: of documents.
      count: how many.
    """
    present = np.broadcast_to(present, count)[:, None]
    ranks = np.argsort(np.argsort(generator.random((count, model.topics)), axis=1), axis=1)
    return _sample(generator, model, (ranks < present) / present, lengths)


def _sample(generator: np.random.Generator, model: TopicModel, proportions: np.ndarray, lengths: Lengths) -> Documents:
    """Documents with these proportions of topics [..., T]."""
    shape = (*proportions.shape[:-1], lengths.longest)
    length = generator.integers(lengths.shortest, lengths.longest + 1, (*shape[:-1], 1))
    inside = np.arange(lengths.longest) < length
    # Topics by inversion: how many of the cumulated proportions lie at or below a uniform number. The last sum may be
    # rounded below 1, and is not compared.
    number = generator.random(shape, np.float32)
    topic = np.zeros(shape, np.int32)
    for share in np.moveaxis(np.cumsum(proportions, axis=-1)[..., :-1], -1, 0):
        topic += share[..., None].astype(np.float32) <= number
    v = model.words_per_topic
    words = 1 + topic * v + generator.integers(0, v, shape, np.int32)
    return Documents(np.where(inside, words, np.int32(MASK)), inside, proportions)


def counts_of(tokens: np.ndarray, inside: np.ndarray, vocabulary: int) -> np.ndarray:
    """How often each token is in each document: [..., L] and [..., L] to [..., V] float32."""
    documents = tokens.reshape(-1, tokens.shape[-1])
    cells = documents + vocabulary * np.arange(len(documents))[:, None]
    counts = np.bincount(cells[inside.reshape(documents.shape)], minlength=vocabulary * len(documents))
    return counts.reshape(*tokens.shape[:-1], vocabulary).astype(np.float32)
