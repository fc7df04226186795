"""Masking of documents and its loss (thesis, section 2.1.1, (2.1) to (2.4))."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from padir.checks import finite
from padir.errors import PadirError
from padir.topics.topic_model import MASK, counts_of
from padir.types import Array

CROSS_ENTROPY, SQUARED = "cross_entropy", "squared"
LOSSES = (CROSS_ENTROPY, SQUARED)


@dataclass(frozen=True)
class MaskingConfig:
    """Probabilities of masking.

    Attributes:
      p_m: probability that a position is masked, that is, joins M.
      p_c: probability that a position of M keeps its word.
      p_r: probability that a position of M gets a random word, which may be its own. Otherwise it gets MASK.
    """

    p_m: float = 0.15
    p_c: float = 0.1
    p_r: float = 0.1

    def __post_init__(self):
        for name in ("p_m", "p_c", "p_r"):
            finite(f"MaskingConfig.{name}", getattr(self, name))
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise PadirError(f"MaskingConfig.{name}: {getattr(self, name)} is not in [0, 1]")
        if self.p_m == 0.0 or self.p_c + self.p_r >= 1.0:
            raise PadirError("MaskingConfig: nothing becomes MASK; set p_m > 0 and p_c + p_r < 1")


class Rows(NamedTuple):
    """What a model without positions must predict in a batch: a row for each query, with the words that were there.

    Attributes:
      counts: [B, V] float32, how often each token is in each masked document.
      document: [Q] int32, the document of each row.
      query: [Q] int32, the token at the masked positions of the row.
      labels: [Q, V] float32, the weight of each word that was at these positions. A position's weight is 1 / (B |M|),
        so that the sum over rows and words is the mean over documents of the mean over M. Rows not in use are 0.
    """

    counts: Array
    document: Array
    query: Array
    labels: Array


def masked(key: Array, words: Array, inside: Array, words_count: int, masking: MaskingConfig) -> tuple[Array, Array]:
    """Masks documents.

    Args:
      key: a JAX key.
      words: [B, L] int32.
      inside: [B, L] bool, positions within each document.
      words_count: T v; random words are 1..T v.
      masking: the probabilities.

    Returns:
      The masked documents [B, L] int32, and M as [B, L] bool.
    """
    of_choice, of_kind, of_word = jax.random.split(key, 3)
    chosen = inside & (jax.random.uniform(of_choice, words.shape) < masking.p_m)
    kind = jax.random.uniform(of_kind, words.shape)
    random = jax.random.randint(of_word, words.shape, 1, words_count + 1)
    instead = jnp.where(kind < masking.p_c, words, jnp.where(kind < masking.p_c + masking.p_r, random, MASK))
    return jnp.where(chosen, instead, words), chosen


def frequencies_after_masking(frequencies: Array, masking: MaskingConfig) -> Array:
    """Token frequencies of infinite documents after masking (2.17).

    Args:
      frequencies: p_w [..., T v + 1] of words, with 0 for MASK; NumPy or JAX.
      masking: the probabilities.

    Returns:
      [..., T v + 1]: the share p_m (1 - p_c - p_r) of MASK, and (1 - (1 - p_c) p_m) p_w(i) + p_m p_r / (T v) of word i.
    """
    kept = 1.0 - (1.0 - masking.p_c) * masking.p_m
    words = kept * frequencies + masking.p_m * masking.p_r / (frequencies.shape[-1] - 1)
    is_mask = np.arange(frequencies.shape[-1]) == MASK
    numpy = np if isinstance(frequencies, np.ndarray) else jnp
    return numpy.where(is_mask, masking.p_m * (1.0 - masking.p_c - masking.p_r), words)


def most_other(positions: int, masking: MaskingConfig) -> int:
    """A number of masked positions without MASK that a batch never has: 10 standard deviations above their mean."""
    mean = positions * masking.p_m * (masking.p_c + masking.p_r)
    return min(positions, 1 + math.ceil(mean + 10.0 * math.sqrt(mean)))


def rows_of(words: Array, tokens: Array, chosen: Array, inside: Array, vocabulary: int, masking: MaskingConfig) -> Rows:
    """The rows of a batch: one for all MASKs of each document, and one for each other masked position.

    Args:
      words: [B, L] int32 documents.
      tokens: [B, L] int32, the same after masking.
      chosen: [B, L] bool, M.
      inside: [B, L] bool, positions within each document.
      vocabulary: T v + 1.
      masking: what they were masked with.
    """
    batch, size = len(words), most_other(words.size, masking)
    weight = 1.0 / (batch * jnp.maximum(chosen.sum(axis=1), 1))
    others = chosen & (tokens != MASK)
    document, position = jnp.nonzero(others, size=size, fill_value=0)
    used = jnp.arange(size) < others.sum()
    of_others = jnp.where(used, weight[document], 0.0)[:, None] * jax.nn.one_hot(words[document, position], vocabulary)
    of_masks = weight[:, None] * counts_of(words, chosen & (tokens == MASK), vocabulary)
    return Rows(
        counts_of(tokens, inside, vocabulary),
        jnp.concatenate([jnp.arange(batch), document]),
        jnp.concatenate([jnp.full(batch, MASK), tokens[document, position]]),
        jnp.concatenate([of_masks, of_others]),
    )


def expected_rows(frequencies: Array, masking: MaskingConfig) -> Rows:
    """All rows of infinite documents (Assumption 2.1.1), with the expected weights of words.

    Args:
      frequencies: p_w of each document, [B, V]; NumPy or JAX.
      masking: the probabilities.

    Returns:
      B V rows. Counts are the documents' frequencies after masking.
    """
    batch, vocabulary = frequencies.shape
    # A kept word is its own label. A random word, or MASK, says nothing of the label.
    apart = np.full(vocabulary, masking.p_r / (vocabulary - 1))
    apart[MASK] = 1.0 - masking.p_c - masking.p_r
    kept = masking.p_c * frequencies[:, :, None] * np.eye(vocabulary)
    labels = (kept + apart[:, None] * frequencies[:, None, :]) / batch
    return Rows(
        frequencies_after_masking(frequencies, masking),
        np.repeat(np.arange(batch), vocabulary),
        np.tile(np.arange(vocabulary), batch),
        labels.reshape(-1, vocabulary),
    )


def weighted_loss(logits: Array, labels: Array, kind: str) -> Array:
    """The loss of all rows: cross-entropy in nats (2.4), or squared error to one-hot labels, summed over V (2.3).

    Args:
      logits: [Q, V].
      labels: [Q, V], the weight of each label.
      kind: 'cross_entropy' or 'squared'.

    Returns:
      A scalar of the logits' type.
    """
    of_labels = (labels * logits).sum()
    weight = labels.sum(axis=1)
    if kind == CROSS_ENTROPY:
        return (weight * jax.nn.logsumexp(logits, axis=1)).sum() - of_labels
    return (weight * jnp.square(logits).sum(axis=1)).sum() - 2.0 * of_labels + weight.sum()
