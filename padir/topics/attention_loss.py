"""The exact loss of stage 2: attention of Assumption 2.1.2 on documents of τ topics (Theorems 2.1.3 and 2.1.5).

A key that is the query's word has β times the attention of a word of another topic, and another word of the same topic
has α times that. W^V is an optimum of stage 1, with equal blocks (Theorem 2.1.2) or diagonal (Theorem 2.1.4). Only
γ = ((v - 1) α + β) / v matters for equal blocks. The loss is that of queries which are words: E ‖f - onehot(x)‖² per
masked position, where positions with MASK count as 0.

Two conventions differ in what MASK is to a query. 'words', the thesis's: no key, so weights of words add up to 1 while
the other constants count MASK. 'literal': a topic of its own of weight 1, with the prediction of W^V as it stands.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from padir.errors import PadirError
from padir.topics.masked_language_modelling import MaskingConfig, frequencies_after_masking
from padir.topics.optima import Constants, block_value, diagonal_value
from padir.topics.topic_model import TopicModel

BLOCKS, DIAGONAL = "blocks", "diagonal"
WORDS, LITERAL = "words", "literal"
CONVENTIONS = (WORDS, LITERAL)
Numbers = np.ndarray | float


@dataclass(frozen=True)
class Landscape:
    """The loss over α and β.

    Attributes:
      topics, words_per_topic, present: T, v and τ; T may be too large to enumerate documents.
      masking: the probabilities.
      convention: 'words' or 'literal'.
    """

    topics: int
    words_per_topic: int
    present: int
    masking: MaskingConfig = dataclasses.field(default_factory=MaskingConfig)
    convention: str = WORDS

    def __post_init__(self):
        if not 1 <= self.present < self.topics:
            raise PadirError(f"Landscape.present: {self.present} is not from 1 to T - 1 = {self.topics - 1}")
        if self.convention not in CONVENTIONS:
            raise PadirError(f"Landscape.convention: no {self.convention!r}; choose {' or '.join(CONVENTIONS)}")

    @property
    def model(self) -> TopicModel:
        """The topics."""
        return TopicModel(self.topics, self.words_per_topic)

    @property
    def constants(self) -> Constants:
        """Those of the chapter."""
        return Constants.of(self.model, self.masking)

    @property
    def frequencies(self) -> tuple[float, float]:
        """p_1 and p_2 of (2.17): the frequency after masking of a word whose topic is present, and absent."""
        random = self.masking.p_m * self.masking.p_r / self.model.words
        return self.constants.a / (self.words_per_topic * self.present) + random, random

    def gamma(self, alpha: Numbers, beta: Numbers) -> Numbers:
        """The mean weight γ of a word of the query's topic."""
        v = self.words_per_topic
        return ((v - 1) * alpha + beta) / v

    def blocks(self, gamma: Numbers) -> Numbers:
        """The loss with W^V of equal blocks, for γ of any shape."""
        return self._loss(gamma, gamma, gamma, equal=True)

    def diagonal(self, alpha: Numbers, beta: Numbers) -> Numbers:
        """The loss with the diagonal W^V, for α and β of any shapes that broadcast."""
        return self._loss(alpha, beta, self.gamma(alpha, beta), equal=False)

    def _loss(self, alpha: Numbers, beta: Numbers, gamma: Numbers, equal: bool) -> Numbers:
        """With equal blocks predictions are means over topics; α and β are γ then, which gives just these."""
        T, v, tau, masking = self.topics, self.words_per_topic, self.present, self.masking
        p_1, p_2 = self.frequencies
        loss = 0.0
        # Queries of a present topic, and of an absent one. `p` is the frequency of a word of the query's topic;
        # `here` and `absent` are the numbers of other topics that are present and not.
        for p, here, absent in ((p_1, tau - 1, T - tau), (p_2, tau, T - tau - 1)):
            mass = gamma * p * v + p_1 * v * here + p_2 * v * absent
            if self.convention == LITERAL:
                mass = mass + self.constants.p_0
            own, of_topic, of_here, of_absent = (
                self._prediction(weight / mass, mass, equal) for weight in (beta * p, alpha * p, p_1, p_2)
            )
            squares = own**2 + (v - 1) * of_topic**2 + v * here * of_here**2 + v * absent * of_absent**2
            if here == tau - 1:
                # The label is the query itself, kept or by chance; another word of its topic; of another topic.
                random = masking.p_r / (T * v)
                loss = loss + (masking.p_c + random) * (squares + 1.0 - 2.0 * own)
                loss = loss + random * (v - 1) * (squares + 1.0 - 2.0 * of_topic)
                loss = loss + random * v * here * (squares + 1.0 - 2.0 * of_here)
            else:
                loss = loss + masking.p_r * absent_share(T, tau) * (squares + 1.0 - 2.0 * of_here)
        return loss

    def _prediction(self, weight: Numbers, mass: Numbers, equal: bool) -> Numbers:
        """The logit of a word which, or whose topic on average, gathers `weight`."""
        if self.convention == WORDS:
            masking = self.masking
            return (weight - masking.p_m * masking.p_r / self.model.words) / self.constants.a
        constants, of_mask = self.constants, self.constants.p_0 / mass
        u = 0.0
        if equal:
            u = -(constants.c_1 * constants.c_2 + constants.c_3) / (constants.c_2**2 + self.model.words)
        return constants.c_3 * weight + u * (1.0 - of_mask) - (constants.c_1 + constants.c_2 * u) * of_mask

    def optimal_gamma(self) -> tuple[float, float]:
        """γ* of equal blocks, and its loss."""
        logarithm = minimize(lambda x: self.blocks(np.exp(x)))
        return float(np.exp(logarithm)), float(self.blocks(np.exp(logarithm)))

    def optimal_pair(self) -> tuple[float, float, float]:
        """α* and β* of the diagonal W^V, and their loss. α* lies on a flat plateau."""

        def best_alpha(x: float) -> float:
            return minimize(lambda y: self.diagonal(np.exp(y), np.exp(x)))

        grid = np.log(np.logspace(-4.0, 9.0, 261))
        with np.errstate(over="ignore"):
            table = self.diagonal(np.exp(grid)[:, None], np.exp(grid)[None, :])
        start = int(table.min(axis=0).argmin())
        low, high = grid[max(0, start - 2)], grid[min(len(grid) - 1, start + 2)]
        x = golden_section(lambda x: float(self.diagonal(np.exp(best_alpha(x)), np.exp(x))), low, high)
        alpha, beta = float(np.exp(best_alpha(x))), float(np.exp(x))
        return alpha, beta, float(self.diagonal(alpha, beta))


def absent_share(topics: int, present: int) -> float:
    """The probability that a random word is of an absent topic."""
    return 1.0 - present / topics


def minimize(loss: Callable[[Numbers], Numbers]) -> float:
    """The minimum over the logarithm of a positive number: a grid from 1e-4 to 1e9, then golden section."""
    grid = np.log(np.logspace(-4.0, 9.0, 521))
    best = int(np.argmin(loss(grid)))
    return golden_section(loss, grid[max(0, best - 1)], grid[min(len(grid) - 1, best + 1)])


def golden_section(loss: Callable[[float], Numbers], low: float, high: float) -> float:
    """The minimum of a unimodal function between two numbers, to 1e-7."""
    shrink = (5.0**0.5 - 1.0) / 2.0
    left, right = high - shrink * (high - low), low + shrink * (high - low)
    at_left, at_right = loss(left), loss(right)
    while high - low > 1e-7:
        if at_left < at_right:
            high, right, at_right = right, left, at_left
            left = high - shrink * (high - low)
            at_left = loss(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + shrink * (high - low)
            at_right = loss(right)
    return 0.5 * (low + high)


@dataclass(frozen=True)
class Intervals:
    """The bounds of Theorems 2.1.3 and 2.1.5 on optimal attention.

    Attributes:
      lambda_1_printed, lambda_1: γ* > λ_1 (τ - 1); as the theorem prints λ_1, and as its proof has it.
      lambda_2: γ* < λ_2 T.
      lambda_3, lambda_4: λ_3 τ < β* < λ_4 T.
      lambda_5: α* < λ_5 β*.
    """

    lambda_1_printed: float
    lambda_1: float
    lambda_2: float
    lambda_3: float
    lambda_4: float
    lambda_5: float

    @classmethod
    def of(cls, words_per_topic: int, masking: MaskingConfig) -> Intervals:
        """The bounds for v words of a topic."""
        v, gone = words_per_topic, (1.0 - masking.p_c) * masking.p_m
        a, random = 1.0 - gone, masking.p_m * masking.p_r
        return cls(
            (a + random) * (1.0 + gone) / (2.0 * a),
            (a + random) * (1.0 - 2.0 * gone) / (2.0 * a),
            100.0 * (a / random + 1.0),
            (a + random) * v / 100.0,
            a / ((v - 1) ** 0.5 - 1.0 - a) * (a + random) / random * v,
            1.0 / ((v - 1) * a),
        )


def limits(masking: MaskingConfig) -> dict[str, float]:
    """lim γ* / τ with equal blocks as T, τ and T / τ grow, by convention; derived by us, sharper than Theorem 2.1.3."""
    gone = (1.0 - masking.p_c) * masking.p_m
    return {WORDS: (1.0 - gone + masking.p_m * masking.p_r) / gone, LITERAL: 1.0 / gone}


def enumerated(landscape: Landscape, alpha: float, beta: float, value: str) -> float:
    """The loss of the model with this attention, by enumerating documents, queries and labels; 'literal' convention.

    Args:
      landscape: few topics and words.
      alpha, beta: the attention.
      value: 'blocks' or 'diagonal', which W^V the model has.
    """
    model, masking = landscape.model, landscape.masking
    topics = model.topic_of_tokens()
    same = topics[:, None] == topics
    attention = np.where(np.eye(len(topics), dtype=bool), beta, np.where(same, alpha, 1.0))
    # MASK is a topic of its own.
    attention[0, 0] = 1.0
    weights = (block_value if value == BLOCKS else diagonal_value)(model, masking)
    documents = model.documents(landscape.present)
    after = frequencies_after_masking(documents, masking)
    total = 0.0
    for (document, counts), query in itertools.product(zip(documents, after, strict=True), range(1, len(topics))):
        gathered = counts * attention[:, query]
        predicted = weights @ (gathered / gathered.sum())
        errors = ((predicted - np.eye(len(topics))) ** 2).sum(axis=1)
        total += masking.p_c * document[query] * errors[query]
        total += masking.p_r / model.words * (document @ errors)
    return total / len(documents)


def loss_limits(words_per_topic: int, masking: MaskingConfig) -> dict[str, float]:
    """What the least loss tends to as T, τ and T / τ grow, with W^V of equal blocks and diagonal; derived by us."""
    v, c_4 = words_per_topic, 1.0 / (1.0 - (1.0 - masking.p_c) * masking.p_m)
    return {
        "blocks": masking.p_r + masking.p_c * (1.0 - 1.0 / v),
        "diagonal": masking.p_r + masking.p_c * (c_4 - 1.0) ** 2 / v,
    }
