"""Optima in closed form under uniform attention and squared loss (Lemma 2.1.1, Theorems 2.1.1, 2.1.2 and 2.1.4).

Everything is NumPy in float64. W is the map from token frequencies after masking to logits, [T v + 1, T v + 1]: W^V for
one-hot embeddings, or the Gram matrix of embeddings. Row and column 0 belong to MASK.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import optax

from padir.topics.masked_language_modelling import MaskingConfig, frequencies_after_masking
from padir.topics.topic_model import TopicModel


@dataclass(frozen=True)
class Constants:
    """The chapter's constants.

    Attributes:
      a: 1 - (1 - p_c) p_m, the share of tokens that masking leaves.
      p_0: the share of MASK.
      c_1, c_2, c_3: of Lemma 2.1.1; c_3 = c_4 = 1 / a.
    """

    a: float
    p_0: float
    c_1: float
    c_2: float
    c_3: float

    @classmethod
    def of(cls, model: TopicModel, masking: MaskingConfig) -> Constants:
        """The constants for a model and its masking."""
        a = 1.0 - (1.0 - masking.p_c) * masking.p_m
        left = 1.0 - masking.p_c - masking.p_r
        p_0 = masking.p_m * left
        return cls(a, p_0, masking.p_r / (left * a * model.words), 1.0 / p_0 - 1.0, 1.0 / a)


def lemma_member(
    model: TopicModel, masking: MaskingConfig, u: np.ndarray, within: np.ndarray | None = None
) -> np.ndarray:
    """A minimiser of Lemma 2.1.1.

    Args:
      model, masking: the setting.
      u: [T v + 1], free numbers; zeros give D^V of Theorem 2.1.4.
      within: [T v + 1, T v], more free numbers: how entries of one block differ in each row, their mean taken out. None
        gives constant blocks, but for c_3 on the diagonal.
    """
    constants = Constants.of(model, masking)
    weights = np.repeat(u[:, None], model.vocabulary, axis=1)
    weights[:, 0] = -constants.c_1 - constants.c_2 * u
    weights[0, 0] = -constants.c_2 * u[0]
    words = np.arange(1, model.vocabulary)
    weights[words, words] += constants.c_3
    if within is not None:
        blocks = within.reshape(model.vocabulary, model.topics, model.words_per_topic)
        weights[:, 1:] += (blocks - blocks.mean(axis=-1, keepdims=True)).reshape(within.shape)
    return weights


def diagonal_value(model: TopicModel, masking: MaskingConfig) -> np.ndarray:
    """D^V of Theorem 2.1.4: c_3 on the diagonal and -c_1 in column 0."""
    return lemma_member(model, masking, np.zeros(model.vocabulary))


def block_value(model: TopicModel, masking: MaskingConfig) -> np.ndarray:
    """W^V* of Theorem 2.1.2, the minimiser of least norm: one number for the same topic, one for different topics."""
    constants, words = Constants.of(model, masking), model.words
    scale = constants.c_2**2 + words
    different = -(constants.c_1 * constants.c_2 + constants.c_3) / scale
    weights = np.zeros((model.vocabulary, model.vocabulary))
    weights[1:, 1:] = different
    weights[same_topic(model)] += constants.c_3 / model.words_per_topic
    weights[1:, 0] = (constants.c_2 * constants.c_3 - constants.c_1 * words) / scale
    return weights


def same_topic(model: TopicModel) -> np.ndarray:
    """Which pairs of words have the same topic, [T v + 1, T v + 1] bool; none with MASK."""
    topics = model.topic_of_tokens()
    return (topics[:, None] == topics) & (topics >= 0)


def lemma_residual(weights: np.ndarray, model: TopicModel, masking: MaskingConfig) -> float:
    """The largest violation of Lemma 2.1.1's equations, with the u that column 0 says.

    Args:
      weights: W [T v + 1, T v + 1].
      model, masking: the setting.
    """
    constants = Constants.of(model, masking)
    u = np.concatenate([[-weights[0, 0] / constants.c_2], -(weights[1:, 0] + constants.c_1) / constants.c_2])
    sums = weights @ model.indicators().T
    expected = np.repeat(u[:, None] * model.words_per_topic, model.topics, axis=1)
    expected[1:] += constants.c_3 * model.indicators().T[1:]
    return float(np.abs(sums - expected).max())


def topic_gap(weights: np.ndarray, model: TopicModel) -> np.ndarray:
    """Δ_i of each word: the sum of its row over its own topic, minus the mean of the sums over the others, [T v]."""
    indicators = model.indicators()
    sums = weights[1:] @ indicators.T
    own = (sums * indicators.T[1:]).sum(axis=1)
    return own - (sums.sum(axis=1) - own) / (model.topics - 1)


def excess(weights: np.ndarray, model: TopicModel, masking: MaskingConfig, present: int, bias: float = 0.0) -> float:
    """The mean squared distance ‖W ỹ + b - p_w‖² over all documents of τ = `present` topics; 0 at optima.

    The squared loss is more by 1 - 1 / (τ v), which no model can predict.
    """
    documents = model.documents(present)
    predicted = frequencies_after_masking(documents, masking) @ weights.T
    predicted[:, 1:] += bias
    return float(((predicted - documents) ** 2).sum(axis=1).mean())


def minimum_norm(model: TopicModel, masking: MaskingConfig, present: int) -> np.ndarray:
    """The minimiser of least norm over all documents of τ topics, by the pseudoinverse."""
    documents = model.documents(present)
    return documents.T @ np.linalg.pinv(frequencies_after_masking(documents, masking).T)


def ridge(model: TopicModel, masking: MaskingConfig, present: int, l2: float) -> np.ndarray:
    """The minimiser of the mean of ‖W ỹ - p_w‖² over documents plus λ ‖W‖²."""
    documents = model.documents(present)
    after = frequencies_after_masking(documents, masking)
    gram = after.T @ after / len(documents) + l2 * np.eye(model.vocabulary)
    return np.linalg.solve(gram, after.T @ documents / len(documents)).T


def embedding_bias(model: TopicModel, masking: MaskingConfig) -> float:
    """b_pred of every word in Theorem 2.1.1. MASK's is 0."""
    constants = Constants.of(model, masking)
    return -masking.p_m * masking.p_r / (constants.a * model.words)


def train_embeddings(
    model: TopicModel, masking: MaskingConfig, present: int, *, seed: int, count: int, steps: int, l2: float
) -> np.ndarray:
    """Trains W^E with W^V = I and uniform attention on the exact squared loss (the setting of Theorem 2.1.1).

    Adam in float64, from N(0, 0.3²), with a learning rate that falls from 0.01 like half a cosine.

    Args:
      model, masking, present: the setting.
      seed, count: of the starts, and how many there are.
      steps, l2: of the training; λ is that of a penalty λ ‖W^E‖².

    Returns:
      The Gram matrix E^T E of each start, [count, T v + 1, T v + 1].
    """
    documents = model.documents(present)
    after = frequencies_after_masking(documents, masking)
    bias = np.where(np.arange(model.vocabulary) > 0, embedding_bias(model, masking), 0.0)
    optimizer = optax.adam(optax.cosine_decay_schedule(0.01, steps))

    def objective(embedding):
        predicted = (jnp.asarray(after) @ embedding.T) @ embedding + bias
        return jnp.square(predicted - documents).sum(axis=1).mean() + l2 * jnp.square(embedding).sum()

    def update(carry, _):
        embedding, state = carry
        change, state = optimizer.update(jax.grad(objective)(embedding), state)
        return (optax.apply_updates(embedding, change), state), None

    def run(embedding):
        return jax.lax.scan(update, (embedding, optimizer.init(embedding)), None, steps)[0][0]

    start = 0.3 * np.random.default_rng(seed).standard_normal((count, model.vocabulary, model.vocabulary))
    with jax.enable_x64(True):
        embeddings = np.asarray(jax.jit(jax.vmap(run))(jnp.asarray(start)))
    return embeddings.transpose(0, 2, 1) @ embeddings


def least_squares(counts: np.ndarray, sums: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The map that training on finite documents must reach under uniform attention and squared loss.

    Args:
      counts: [B, V] token frequencies of masked documents, rows that sum to 1.
      sums: [B, V], each document's weights of labels at its masked positions, as rows of `masked_language_modelling`
        have them, summed over the document.
      weights: [B], their sums over words.

    Returns:
      W [V, V], which minimises the sum over documents and labels x of weight ‖W y - onehot(x)‖².
    """
    return np.linalg.lstsq((counts * weights[:, None]).T @ counts, counts.T @ sums, rcond=None)[0].T


def hessian_rank(model: TopicModel, masking: MaskingConfig, present: int) -> int:
    """The rank of the squared loss's Hessian in one row of W: the number of independent masked documents."""
    after = frequencies_after_masking(model.documents(present), masking)
    return int(np.linalg.matrix_rank(after, tol=1e-10))
