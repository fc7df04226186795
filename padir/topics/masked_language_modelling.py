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
from padir.topics.topic_model import MASK, Documents, counts_of
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


class Batch(NamedTuple):
    """The same of sampled documents, with less memory; leading axes, such as one of steps, are possible.

    Attributes:
      counts: [..., B, V] float32, how often each token is in each masked document.
      of_masks: [..., B, V] float32, the weights of labels at each document's MASKs.
      document, query, label: [..., R] int32, those of masked positions without MASK.
      weight: [..., R] float32, their weights.
    """

    counts: Array
    of_masks: Array
    document: Array
    query: Array
    label: Array
    weight: Array

    def rows(self) -> Rows:
        """As rows: one for all MASKs of each document, and one for each other masked position; without leading axes."""
        batch, vocabulary = self.counts.shape
        of_others = self.weight[:, None] * jax.nn.one_hot(self.label, vocabulary)
        return Rows(
            self.counts,
            jnp.concatenate([jnp.arange(batch), self.document]),
            jnp.concatenate([jnp.full(batch, MASK), self.query]),
            jnp.concatenate([self.of_masks, of_others]),
        )


def masked(
    generator: np.random.Generator, documents: Documents, words: int, masking: MaskingConfig
) -> tuple[np.ndarray, np.ndarray]:
    """Masks documents.

    Args:
      generator: draws the masks.
      documents: the documents.
      words: T v; random words are 1..T v.
      masking: the probabilities.

    Returns:
      The masked documents [..., L] int32, and M as [..., L] bool.
    """
    shape = documents.words.shape
    chosen = documents.inside & (generator.random(shape, np.float32) < masking.p_m)
    kind = generator.random(shape, np.float32)
    random = generator.integers(1, words + 1, shape, np.int32)
    instead = np.where(kind < masking.p_c + masking.p_r, random, np.int32(MASK))
    return np.where(chosen & (kind >= masking.p_c), instead, documents.words), chosen


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


def batch_of(documents: Documents, tokens: np.ndarray, chosen: np.ndarray, vocabulary: int) -> Batch:
    """What a model must predict in masked documents; see `masked`.

    Args:
      documents: [..., B, L].
      tokens: [..., B, L], the same after masking.
      chosen: [..., B, L] bool, M.
      vocabulary: T v + 1.

    Returns:
      The batch. Its last axis R is as long as the largest number of masked positions without MASK, rounded up to
      hundreds, so that compiled programs fit the next one, too.
    """
    words, shape = documents.words, tokens.shape
    weight = 1.0 / (shape[-2] * np.maximum(chosen.sum(axis=-1), 1))
    others = (chosen & (tokens != MASK)).reshape(-1, shape[-2] * shape[-1])
    number = others.sum(axis=1)
    size = 100 * math.ceil(max(1, number.max()) / 100)
    batch, at = np.nonzero(others)
    place = np.arange(len(batch)) - np.repeat(np.cumsum(number) - number, number)

    def gathered(values: np.ndarray, dtype: type) -> np.ndarray:
        padded = np.zeros((len(others), size), dtype)
        padded[batch, place] = values.reshape(len(others), -1)[batch, at]
        return padded.reshape(*shape[:-2], size)

    everywhere = np.broadcast_to(weight[..., None], shape)
    return Batch(
        counts_of(tokens, documents.inside, vocabulary),
        (weight[..., None] * counts_of(words, chosen & (tokens == MASK), vocabulary)).astype(np.float32),
        gathered(np.broadcast_to(np.arange(shape[-2])[:, None], shape), np.int32),
        gathered(tokens, np.int32),
        gathered(words, np.int32),
        gathered(everywhere, np.float32),
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
