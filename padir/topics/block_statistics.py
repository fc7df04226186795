"""Means over pairs of words: the same word, another word of the same topic, a word of another topic (section 2.1.6).

The functions take arrays of any model. Attention here is [queries, keys], as most libraries return it: rows sum to 1.
Words that belong to no topic, such as stop words and MASK, take no part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from padir.errors import PadirError

SAME_WORD, SAME_TOPIC, DIFFERENT = "same word", "same topic", "different topic"
KINDS = (SAME_WORD, SAME_TOPIC, DIFFERENT)
# Weights are scaled to sentences of this length.
LENGTH = 100
# Embeddings are compared in blocks of so many words.
_BLOCK = 2048

Sentence = tuple[np.ndarray, np.ndarray]


def membership(topics: Sequence[Sequence[int]], vocabulary: int, several: bool = True) -> np.ndarray:
    """Which topics each word has.

    Args:
      topics: the words of each topic.
      vocabulary: number of words V; words are 0..V-1.
      several: whether a word may have several topics (Table 2.4). If not, a word of several topics has none
        (Table 2.3).

    Returns:
      [V, topics] bool.

    Raises:
      PadirError: a word is outside the vocabulary.
    """
    members = np.zeros((vocabulary, len(topics)), bool)
    for index, words in enumerate(topics):
        if outside := [word for word in words if not 0 <= word < vocabulary]:
            raise PadirError(f"topics: topic {index} has word {outside[0]}, which is not one of 0..{vocabulary - 1}")
        members[list(words), index] = True
    if not several:
        members[members.sum(axis=1) > 1] = False
    return members


def pair_masks(words: np.ndarray, others: np.ndarray, members: np.ndarray) -> dict[str, np.ndarray]:
    """Which pairs are of each kind.

    Args:
      words: [n] int, the first of each pair.
      others: [m] int, the second.
      members: [V, topics] bool.

    Returns:
      [n, m] bool by kind. A pair has the same topic if they have one in common. No kind holds if a word has no topic.
    """
    first, second = members[words], members[others]
    known = first.any(axis=1)[:, None] & second.any(axis=1)
    equal = words[:, None] == others
    # Products of small numbers are exact in float32, and much faster than those of bool.
    shared = first.astype(np.float32) @ second.astype(np.float32).T > 0.0
    return {SAME_WORD: known & equal, SAME_TOPIC: known & shared & ~equal, DIFFERENT: known & ~shared & ~equal}


@dataclass
class Means:
    """Sums over pairs of each kind, to which batches are added."""

    sums: dict[str, np.ndarray | float]
    pairs: dict[str, float]

    @classmethod
    def none(cls) -> Means:
        """Of no pair yet."""
        return cls(dict.fromkeys(KINDS, 0.0), dict.fromkeys(KINDS, 0.0))

    def add(self, values: np.ndarray, masks: dict[str, np.ndarray]) -> None:
        """Adds values [..., n, m] of pairs; leading axes, such as heads, stay apart."""
        for kind, mask in masks.items():
            self.sums[kind] = self.sums[kind] + values.reshape(*values.shape[:-2], -1) @ mask.ravel().astype(float)
            self.pairs[kind] += int(mask.sum())

    def mean(self, kind: str) -> np.ndarray | float:
        """The mean of a kind; NaN if there is no pair."""
        return self.sums[kind] / self.pairs[kind] if self.pairs[kind] else np.nan * np.asarray(self.sums[kind])

    def means(self) -> dict[str, float]:
        """The mean of each kind, over leading axes, too."""
        return {kind: float(np.mean(self.mean(kind))) for kind in KINDS}

    def ratio(self) -> float:
        """Same topic / different topic."""
        return float(np.mean(self.mean(SAME_TOPIC)) / np.mean(self.mean(DIFFERENT)))


def matrix_statistics(matrix: np.ndarray, members: np.ndarray) -> dict[str, float]:
    """Means of a matrix's entries by kind, and the standard deviation of entries of different topics.

    Args:
      matrix: [V, V].
      members: [V, topics] bool.
    """
    words = np.arange(len(matrix))
    masks = pair_masks(words, words, members)
    of = {kind: float(matrix[mask].mean()) if mask.any() else float("nan") for kind, mask in masks.items()}
    return of | {"sd of different": float(matrix[masks[DIFFERENT]].std())}


def embedding_statistics(embedding: np.ndarray, members: np.ndarray) -> dict[str, Means]:
    """Cosines and dot products of pairs of words that have topics.

    Args:
      embedding: [V, d].
      members: [V, topics] bool.

    Returns:
      'cosine' and 'dot'; both orders of a pair are counted.
    """
    words = np.flatnonzero(members.any(axis=1))
    vectors = np.asarray(embedding, np.float64)[words]
    directions = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-30)
    found = {"cosine": Means.none(), "dot": Means.none()}
    for start in range(0, len(words), _BLOCK):
        block = slice(start, start + _BLOCK)
        masks = pair_masks(words[block], words, members)
        found["cosine"].add(directions[block] @ directions.T, masks)
        found["dot"].add(vectors[block] @ vectors.T, masks)
    return found


def attention_statistics(sentences: Iterable[Sentence], members: np.ndarray, length_correction: bool = True) -> Means:
    """Attention between positions, by what their words have in common.

    Longer sentences have smaller weights. If lengths have to do with topics, kinds of pairs then differ for this reason
    alone. The thesis corrects it: weight · N / 100, whose mean is 1 / 100 in each sentence.

    Args:
      sentences: tokens [N] int, and weights [..., N, N] of queries and keys, e.g. with axes of layers and heads first.
      members: [V, topics] bool.
      length_correction: whether to correct.

    Returns:
      Means with the leading axes of the weights.
    """
    means = Means.none()
    for tokens, weights in sentences:
        scale = len(tokens) / LENGTH if length_correction else 1.0
        means.add(np.asarray(weights, np.float64) * scale, pair_masks(tokens, tokens, members))
    return means


def top_pairs(sentences: Iterable[np.ndarray], members: np.ndarray, count: int) -> list[tuple[int, int]]:
    """The pairs of different words, with topics, that occur together in most sentences, as in Table 2.5.

    Args:
      sentences: tokens [N] int of each.
      members: [V, topics] bool.
      count: how many pairs; of equal counts, lower words first.

    Returns:
      Pairs (i, j) with i < j, the most frequent first.
    """
    known = members.any(axis=1)
    counts: Counter[tuple[int, int]] = Counter()
    for tokens in sentences:
        words = [int(word) for word in np.unique(tokens) if known[word]]
        counts.update((word, other) for index, word in enumerate(words) for other in words[index + 1 :])
    return sorted(counts, key=lambda pair: (-counts[pair], pair))[:count]


def attention_of_pairs(sentences: Iterable[Sentence], pairs: Sequence[tuple[int, int]]) -> float:
    """The mean attention between positions that hold the words of these pairs, either way, corrected for length.

    Args:
      sentences: as for `attention_statistics`.
      pairs: pairs of words.

    Returns:
      The mean; NaN if no pair occurs.
    """
    wanted = set(pairs) | {(other, word) for word, other in pairs}
    total, count = 0.0, 0
    for tokens, weights in sentences:
        found = np.array([[(int(word), int(other)) in wanted for other in tokens] for word in tokens])
        scaled = np.asarray(weights, np.float64) * len(tokens) / LENGTH
        total += float(np.where(found, scaled, 0.0).sum(axis=(-2, -1)).mean())
        count += int(found.sum())
    return total / count if count else float("nan")


def cosine_of_pairs(embedding: np.ndarray, pairs: Sequence[tuple[int, int]]) -> float:
    """The mean cosine of the embeddings [V, d] of these pairs of words; NaN without pairs."""
    if not pairs:
        return float("nan")
    first, second = np.asarray(embedding, np.float64)[np.array(pairs).T]
    norms = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    return float(((first * second).sum(axis=1) / norms).mean())


def attention_of_counts(scores: np.ndarray, counts: np.ndarray, members: np.ndarray) -> Means:
    """Attention of the one-layer model without positions, over ordered pairs of positions of documents.

    Args:
      scores: S [V, V], the logit of key word i for query word b at [i, b].
      counts: [B, V], how often each word is in each document.
      members: [V, topics] bool.

    Returns:
      Means of raw weights. A position and itself count as the same word.
    """
    words = np.arange(len(scores))
    masks = pair_masks(words, words, members)
    exponentials = np.exp(scores - scores.max(axis=0))
    means = Means.none()
    for of_document in np.asarray(counts, np.float64):
        weights = exponentials / (of_document @ exponentials)
        pairs = of_document[:, None] * of_document
        for kind, mask in masks.items():
            means.sums[kind] += (weights * pairs)[mask].sum()
            means.pairs[kind] += pairs[mask].sum()
    return means
