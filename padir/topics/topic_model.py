"""Documents of a topic model, exact and sampled (thesis, section 2.1.1).

Token 0 is MASK, and words are 1..T v. Topics are disjoint, and the words of a topic are equally likely: word i belongs
to topic (i - 1) // v, counted from 0.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from padir.checks import whole
from padir.errors import PadirError
from padir.types import Array

MASK = 0
# Exact documents are enumerated, one row of T v + 1 numbers for each set of topics.
_MOST_DOCUMENTS = 100_000
_TRIES = 6


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
        if (count := math.comb(self.topics, present)) > _MOST_DOCUMENTS:
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
        if self.longest < self.shortest:
            raise PadirError(f"Lengths.longest: {self.longest} is below Lengths.shortest = {self.shortest}")


def sample_lda(
    key: Array, model: TopicModel, count: int, lengths: Lengths, concentration: float
) -> tuple[Array, Array, Array]:
    """Draws documents whose topic proportions are symmetric Dirichlet, the data of the thesis's experiments.

    Args:
      key: a JAX key.
      model: the topics.
      count: B, how many.
      lengths: of documents.
      concentration: of the Dirichlet distribution, positive; the thesis's is 0.1.

    Returns:
      words [B, longest] int32, whose entries beyond a document's length are MASK; inside [B, longest] bool; and
      proportions [B, T] float32.
    """
    of_topics, of_rest = jax.random.split(key)
    proportions = _dirichlet(of_topics, concentration, (count, model.topics))
    return (*_sample(of_rest, model, proportions, lengths), proportions)


def _dirichlet(key: Array, concentration: float, shape: tuple[int, int]) -> Array:
    """Symmetric Dirichlet: gamma variables by the method of Marsaglia and Tsang, as shares of their sum.

    `jax.random.dirichlet` loops over entries one by one on a CPU, which takes longer than the rest of a training step.
    Here all tries are made at once. Each is accepted with a probability above 0.95, so hardly ever none is; the last
    one is taken then.
    """
    of_normal, of_accept, of_power = jax.random.split(key, 3)
    shift = concentration + 1.0 - 1.0 / 3.0
    normal = jax.random.normal(of_normal, (_TRIES, *shape))
    cube = (1.0 + normal / (9.0 * shift) ** 0.5) ** 3
    bound = 0.5 * normal**2 + shift * (1.0 - cube + jnp.log(jnp.maximum(cube, 1e-30)))
    accepted = (cube > 0.0) & (jnp.log(jax.random.uniform(of_accept, normal.shape)) < bound)
    first = jnp.where(accepted.any(axis=0), jnp.argmax(accepted, axis=0), _TRIES - 1)
    gamma = jnp.log(shift * jnp.take_along_axis(cube, first[None], axis=0)[0].clip(1e-30))
    # A gamma variable of a smaller concentration by 1, in logarithms, since these are tiny.
    gamma = gamma + jnp.log(jax.random.uniform(of_power, shape, minval=1e-38)) / concentration
    return jax.nn.softmax(gamma, axis=-1)


def sample_few_topics(
    key: Array, model: TopicModel, count: int, lengths: Lengths, present: int
) -> tuple[Array, Array, Array]:
    """Draws documents of τ different topics, each equally likely at each position; arguments and result as above."""
    of_topics, of_rest = jax.random.split(key)
    ranks = jnp.argsort(jax.random.uniform(of_topics, (count, model.topics)), axis=-1)
    proportions = (ranks < present).astype(jnp.float32) / present
    return (*_sample(of_rest, model, proportions, lengths), proportions)


def _sample(key: Array, model: TopicModel, proportions: Array, lengths: Lengths) -> tuple[Array, Array]:
    """Words [B, longest] and which positions are inside, given the documents' proportions of topics [B, T]."""
    of_length, of_topic, of_word = jax.random.split(key, 3)
    shape = (len(proportions), lengths.longest)
    length = jax.random.randint(of_length, (shape[0], 1), lengths.shortest, lengths.longest + 1)
    inside = jnp.arange(lengths.longest) < length
    # Topics by inversion: how many of the cumulated proportions lie below a uniform number. The last sum may be
    # rounded below 1, and is not compared.
    below = jnp.cumsum(proportions, axis=-1)[:, None, :-1] <= jax.random.uniform(of_topic, shape)[..., None]
    topic = below.sum(axis=-1, dtype=jnp.int32)
    word = 1 + topic * model.words_per_topic + jax.random.randint(of_word, shape, 0, model.words_per_topic)
    return jnp.where(inside, word, MASK), inside


def counts_of(tokens: Array, inside: Array, vocabulary: int) -> Array:
    """How often each token is in each document: [B, L] and [B, L] to [B, V] float32."""
    rows = jnp.arange(len(tokens))[:, None]
    return jnp.zeros((len(tokens), vocabulary), jnp.float32).at[rows, tokens].add(inside.astype(jnp.float32))
