"""BLEU and chrF of any part of a test set, from n-gram counts of each sentence.

Both metrics depend only on sums of counts over sentences. The sentences are counted once, with sacreBLEU. The counts
then give the score of the whole set, of a bucket of sentence lengths, of a single sentence, and of thousands of random
swaps of two systems' outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from padir.errors import PadirError
from padir.metrics.quality import make_metrics

_BLEU_ORDER = 4
_CHRF_ORDER = 6
_CHRF_BETA = 2


@dataclass(frozen=True)
class SentenceCounts:
    """The counts that sacreBLEU makes of each of n sentences.

    Attributes:
      bleu: int64 [n, 10]. The columns are the number of tokens of the hypothesis and of the reference, the matching
        1- to 4-grams (4 columns), and the 1- to 4-grams of the hypothesis (4 columns).
      chrf: int64 [n, 18]. For each order from 1 to 6 there are three columns: character n-grams of the hypothesis, of
        the reference, and matching ones.
    """

    bleu: np.ndarray
    chrf: np.ndarray

    def __len__(self) -> int:
        return len(self.bleu)


def count_sentences(hypotheses: Sequence[str], references: Sequence[str], tokenize: str = "13a") -> SentenceCounts:
    """Counts n-grams sentence by sentence.

    Args:
      hypotheses: one system's output.
      references: one reference for each.
      tokenize: sacreBLEU's tokeniser for BLEU.

    Returns:
      The counts, in the order of the sentences.

    Raises:
      PadirError: the numbers of sentences differ, or sacreBLEU has no such tokeniser.
    """
    if len(hypotheses) != len(references):
        raise PadirError(f"{len(hypotheses)} hypotheses but {len(references)} references: give one for each")
    counted = {
        # sacreBLEU's own significance tests call this method too; it has no public name.
        name: np.array(metric._extract_corpus_statistics(hypotheses, [references]), np.int64)
        for name, metric in make_metrics(tokenize).items()
    }
    return SentenceCounts(**counted)


def bleu_of(sums: np.ndarray, *, sentence: bool = False) -> np.ndarray:
    """BLEU from summed counts, computed as in sacreBLEU (with 'exp' smoothing).

    Args:
      sums: [..., 10], rows of `SentenceCounts.bleu` summed over sentences.
      sentence: whether to leave out n-gram orders of which a short hypothesis has no n-grams. This is sacreBLEU's
        effective order, its default for single sentences.

    Returns:
      float64 [...], 0 to 100.
    """
    sums = np.asarray(sums, np.float64)
    length, reference_length = sums[..., 0], sums[..., 1]
    matches, totals = sums[..., 2 : 2 + _BLEU_ORDER], sums[..., 2 + _BLEU_ORDER :]
    with np.errstate(divide="ignore", invalid="ignore"):
        # 'exp' smoothing: the first order without a match counts as half a match, the second as a quarter, ….
        halvings = np.cumsum((matches == 0) & (totals > 0), axis=-1)
        precisions = np.where(matches > 0, matches, 0.5**halvings) / totals
        logarithms = np.where(totals > 0, np.log(precisions), 0.0 if sentence else -np.inf)
        orders = (totals > 0).sum(axis=-1) if sentence else _BLEU_ORDER
        brevity = np.where(length < reference_length, np.exp(1 - reference_length / length), 1.0)
        score = 100.0 * brevity * np.exp(logarithms.sum(axis=-1) / orders)
    return np.where(matches.any(axis=-1), score, 0.0)


def chrf_of(sums: np.ndarray) -> np.ndarray:
    """chrF2 from summed counts, computed as in sacreBLEU.

    An n-gram order is left out if the hypothesis or the reference has no n-grams of it.

    Args:
      sums: [..., 18], rows of `SentenceCounts.chrf` summed over sentences.

    Returns:
      float64 [...], 0 to 100.
    """
    sums = np.asarray(sums, np.float64)
    hypothesis, reference, matches = (sums[..., first::3] for first in range(3))
    counted = (hypothesis > 0) & (reference > 0)
    orders = np.maximum(counted.sum(axis=-1), 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        precision = np.where(counted, matches / hypothesis, 0.0).sum(axis=-1) / orders
        recall = np.where(counted, matches / reference, 0.0).sum(axis=-1) / orders
        factor = _CHRF_BETA**2
        score = 100.0 * (1 + factor) * precision * recall / (factor * precision + recall)
    return np.where(precision + recall > 0, score, 0.0)


# The keys are the names of the scores in result files.
SCORES = {"bleu": bleu_of, "chrf": chrf_of}
