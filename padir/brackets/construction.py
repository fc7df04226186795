"""Weights that are optimal: Theorem 2.2.1's for any balanced attention, and Corollary 2.2.1's, uniform in two layers.

Everything is float64. Embeddings and values have separate coordinates: m = (2kD + 1) + (kD + 1).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from padir.brackets import lemmas
from padir.brackets.balance import pairs
from padir.brackets.language import START, DyckLanguage
from padir.brackets.lemmas import Layer, norm_c

# C of LN_C. With C = 0 the rounding errors of a sum that should be 0, as at depth 0, would become a vector of norm 1; a
# larger C would leave some outputs on long prefixes shorter than 1.
FLOOR = 1e-12


@dataclass(frozen=True, eq=False)
class Construction:
    """One layer behind a minimal first one, with the values of Theorem 2.2.1.

    Attributes:
      language: the language.
      logits: [R, R], [query, key]: e(query)ᵀ W_QᵀW_K e(key).
      pair_gaps: [D, k], a_{i,d'}, which the values make up for. The layer is optimal if these are the logits' gaps.
      floor: C.
    """

    language: DyckLanguage
    logits: np.ndarray
    pair_gaps: np.ndarray
    floor: float = FLOOR

    @cached_property
    def basis(self) -> np.ndarray:
        """b_{i,d}: [D, k, m], orthonormal and orthogonal to 1: rows of a Helmert matrix in coordinates of their own."""
        size = self.language.types * self.language.depth
        helmert = np.zeros((size, size + 1))
        for n in range(1, size + 1):
            helmert[n - 1, :n], helmert[n - 1, n] = 1.0, -float(n)
        helmert /= np.linalg.norm(helmert, axis=1, keepdims=True)
        padded = np.concatenate([np.zeros((size, self.language.ranks)), helmert], axis=1)
        return padded.reshape(self.language.depth, self.language.types, -1)

    @cached_property
    def embeddings(self) -> np.ndarray:
        """e of ranks: [R, m], one-hot."""
        return np.eye(self.language.ranks, self.basis.shape[-1])

    @cached_property
    def values(self) -> np.ndarray:
        """W_V e of ranks: [R, m]: b_{i,d} of opening brackets, -exp(a_{i,d}) b_{i,d} of their closing ones."""
        opening, closing = pairs(self.language)
        values = np.zeros((self.language.ranks, self.basis.shape[-1]))
        values[opening] = self.basis
        values[closing] = -np.exp(self.pair_gaps)[..., None] * self.basis
        return values

    def attention(self, ranks: np.ndarray) -> np.ndarray:
        """Attention pattern of one sequence: ranks [L] int → [L, L], [query, key]."""
        seen = np.tri(len(ranks), dtype=bool)
        return lemmas.softmax(np.where(seen, self.logits[ranks][:, ranks], -np.inf))

    def output(self, counts: np.ndarray, ranks: np.ndarray) -> np.ndarray:
        """LN_C of the attention's output: counts [..., R] of prefixes, last ranks [...] → [..., m]."""
        seen = np.where(counts > 0, self.logits[ranks], -np.inf)
        weights = counts * np.exp(seen - seen.max(axis=-1, keepdims=True))
        return norm_c((weights / weights.sum(axis=-1, keepdims=True)) @ self.values, self.floor)

    def top_types(self, output: np.ndarray, ranks: np.ndarray) -> np.ndarray:
        """The type of the last unmatched opening bracket, read by a table: [..., m], [...] → [...] int, -1 for none.

        At depth d it is the type i with the largest coefficient of b_{i,d}. An opening bracket tells its own type.
        """
        token, depth = _token_and_depth(self.language, ranks)
        coefficients = np.einsum("...m,dim->...di", output, self.basis)
        at_depth = np.take_along_axis(coefficients, np.maximum(depth - 1, 0)[..., None, None], axis=-2)[..., 0, :]
        read = np.where(token % 2 == 1, (token - 1) // 2, at_depth.argmax(axis=-1))
        return np.where(depth > 0, read, -1)

    def probabilities(self, counts: np.ndarray, ranks: np.ndarray) -> np.ndarray:
        """Next-token probabilities with the table: counts [..., R], last ranks [...] → [..., 2k]."""
        read = self.top_types(self.output(counts, ranks), ranks)
        return self.language.next_probabilities(_token_and_depth(self.language, ranks)[1], read)

    def margin(self) -> float:
        """The least coefficient of b_{y,d} that the output can have for a query (j, d), if C is 0 and all balances."""
        least = np.inf
        opening, _ = pairs(self.language)
        for kind in range(self.language.types):
            for depth in range(1, self.language.depth):
                row = self.logits[self.language.closing(kind, depth)]
                weights = np.exp(row[opening[:depth]] - row[opening[:depth]].max())
                others = (weights[:-1].max(axis=1) ** 2).sum()
                least = min(least, (weights[-1] / np.sqrt(weights[-1] ** 2 + others)).min())
        return float(least)

    def readout(self) -> list[Layer]:
        """The MLP g, from X + LN_C(..) [.., m] to probabilities [.., 2k]: four hidden layers, width O(kD).

        Layer 1 turns coefficients of b into 0 and 1 after closing brackets; layer 2 picks those of the current depth by
        Lemma 2.2.17; layer 3 says whether anything is open and whether depth is D; layer 4 interpolates the
        probabilities by Lemma 2.2.15. It is exact where coefficients are 0 or at least `margin`.
        """
        return [*_indicators(self), *_probabilities(self.language)]

    def mlp_probabilities(self, counts: np.ndarray, ranks: np.ndarray) -> np.ndarray:
        """As `probabilities`, with the MLP of `readout`."""
        return lemmas.evaluate(self.readout(), self.embeddings[ranks] + self.output(counts, ranks))


def _token_and_depth(language: DyckLanguage, ranks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and depths of ranks; 0 and 0 of the start token."""
    token, place = np.divmod(ranks, language.depth)
    start = ranks == language.ranks - 1
    return np.where(start, START, token + 1), np.where(start, 0, place + (token + 1) % 2)


def counts_of(language: DyckLanguage, ranks: np.ndarray) -> np.ndarray:
    """How often each rank came up to each position: [N, L] int → [N, L, R] float64."""
    return np.cumsum(np.eye(language.ranks)[ranks], axis=1)


def _indicators(made: Construction) -> list[Layer]:
    """Two layers, each with a ReLU behind it: [m] → k numbers y_i, 1 for the type on top, and depth > 0, depth = D."""
    language, m = made.language, made.basis.shape[-1]
    k, depths = language.types, language.depth
    token, depth = _token_and_depth(language, np.arange(language.ranks))
    closes, threshold = (token > 0) & (token % 2 == 0), made.margin() / 2
    # Twice kD units that rise from 0 to 1 between coefficients 0 and `threshold`, unless the last token opens; then
    # kD units for opening brackets, and the depth.
    step = made.basis.reshape(k * depths, m).T / threshold
    gate = np.zeros((m, 1))
    gate[: language.ranks, 0] = np.where(closes, 0.0, -2.0 / threshold)
    opened = np.zeros((m, k * depths))
    for i in range(k):
        for d in range(1, depths + 1):
            opened[language.opening(i, d), (d - 1) * k + i] = 1.0
    at_depth = np.zeros((m, 1))
    at_depth[: language.ranks, 0] = depth
    first = np.concatenate([step + gate, step + gate, opened, at_depth], axis=1)
    bias = np.concatenate([np.zeros(k * depths), -np.ones(k * depths), np.zeros(k * depths + 1)])
    # Lemma 2.2.17 with M = 1 for each type: two units for each depth; y is the depth.
    units = 2 * k * depths
    second, shift = np.zeros((first.shape[1], units + 3)), np.zeros(units + 3)
    for i in range(k):
        for d in range(1, depths + 1):
            at, unit = (d - 1) * k + i, 2 * ((d - 1) * k + i)
            for column, offset in ((unit, d), (unit + 1, d + 1)):
                second[[at, k * depths + at, 2 * k * depths + at], column] = 1.0, -1.0, 1.0
                second[-1, column], shift[column] = 1.0, -float(offset)
    # The depth itself, for - M (y - 1); then units that make 1[depth > 0] and 1[depth = D] of it.
    second[-1, units:] = 1.0
    shift[units + 1 :] = -1.0, -(depths - 1.0)
    return [{"kernel": first, "bias": bias}, {"kernel": second, "bias": shift}]


def _probabilities(language: DyckLanguage) -> list[Layer]:
    """Three layers: from the units of `_indicators` to probabilities, through the index of one of 2k + 1 states."""
    k, depths = language.types, language.depth
    units = 2 * k * depths
    # y_i + open - 1 and y_i + full - 1, where open = depth - ReLU(depth - 1) and full = ReLU(depth - D + 1).
    third, bias = np.zeros((units + 3, 2 * k)), np.zeros(2 * k)
    for i in range(k):
        for d in range(depths):
            unit = 2 * (d * k + i)
            third[unit, [i, k + i]], third[unit + 1, [i, k + i]] = 1.0, -1.0
        third[units, [i, k + i]], bias[[i, k + i]] = -1.0, 1.0
        third[units, i] += 1.0
        third[units + 1, i] -= 1.0
        third[units + 2, k + i] += 1.0
    bias -= 1.0
    # State 0: nothing is open. State i: type i is open, below depth D. State k + i: at depth D, where both units are 1.
    index = np.concatenate([np.arange(1, k + 1), np.full(k, k)])[:, None].astype(float)
    states = np.arange(2 * k + 1.0)[:, None]
    # At D = 1 no depth lies between.
    depth = np.concatenate([[0], np.full(k, min(1, depths)), np.full(k, depths)])
    kinds = np.concatenate([[-1], np.arange(k), np.arange(k)])
    points = lemmas.interpolation(states, language.next_probabilities(depth, kinds), np.ones(1))
    # The index is linear in the third layer's units, so the fourth layer reads it from them.
    fourth = {"kernel": index @ points[0]["kernel"], "bias": points[0]["bias"]}
    return [{"kernel": third, "bias": bias}, fourth, points[1]]


@dataclass(frozen=True, eq=False)
class UniformModel:
    """Corollary 2.2.1: two layers whose attention is uniform, without positions, for prefixes of any length.

    Attributes:
      language: the language.
      starts: whether the start token stands first. Without it a layer cannot tell p from p ⊕ p.
    """

    language: DyckLanguage
    starts: bool = True

    @cached_property
    def values(self) -> np.ndarray:
        """W_V of layer 1: tokens [2k + 1, 4]. Counts become (depth, 1, -depth, -1), which is orthogonal to 1."""
        sign = np.array([0.0, *[1.0, -1.0] * self.language.types])
        first = np.zeros((self.language.tokens, 4))
        first[:, 0], first[:, 2] = sign, -sign
        first[START, 1], first[START, 3] = 1.0, -1.0
        return first

    def direction(self, depths: np.ndarray) -> np.ndarray:
        """What LN makes of layer 1's output: a function of the depth alone, [...] → [..., 4]."""
        ones = np.ones_like(depths, float)
        return norm_c(np.stack([depths * ones, ones, -depths * ones, -ones], axis=-1), 0.0)

    @cached_property
    def first_mlp(self) -> list[Layer]:
        """g of layer 1, from (token, direction) [2k + 1 + 4] to ranks [R]: Lemma 2.2.15 for the depth, then 'and'."""
        language = self.language
        directions = self.direction(np.arange(language.depth + 1.0))
        along = np.array([1.0, 0.0, 0.0, 0.0])
        of_depth = lemmas.interpolation(directions, np.eye(language.depth + 1), along)
        hidden = of_depth[0]["kernel"].shape[1]
        first = np.zeros((language.tokens + 4, language.tokens + hidden))
        first[: language.tokens, : language.tokens] = np.eye(language.tokens)
        first[language.tokens :, language.tokens :] = of_depth[0]["kernel"]
        bias = np.concatenate([np.zeros(language.tokens), of_depth[0]["bias"]])
        token, depth = _token_and_depth(language, np.arange(language.ranks))
        second = np.concatenate([np.eye(language.tokens)[:, token], of_depth[1]["kernel"][:, depth]])
        return [
            {"kernel": first, "bias": bias},
            {"kernel": second, "bias": -np.ones(language.ranks)},
            {"kernel": np.eye(language.ranks), "bias": np.zeros(language.ranks)},
        ]

    @cached_property
    def second(self) -> Construction:
        """Layer 2: no logits, so gaps of 0."""
        language = self.language
        zeros = np.zeros((language.ranks, language.ranks)), np.zeros((language.depth, language.types))
        return Construction(language, *zeros)

    def probabilities(self, tokens: np.ndarray) -> np.ndarray:
        """Next-token probabilities after each token of one sequence: tokens [L] int → [L (+ 1), 2k].

        Args:
          tokens: without the start token, which is put first if the model has one.
        """
        tokens = np.concatenate([[START], tokens]) if self.starts else np.asarray(tokens)
        seen = np.arange(1.0, len(tokens) + 1)[:, None]
        mixed = norm_c(np.cumsum(self.values[tokens], axis=0) / seen, 0.0)
        one_hot = np.eye(self.language.tokens)[tokens]
        ranks = lemmas.evaluate(self.first_mlp, np.concatenate([one_hot, mixed], axis=1))
        mixed = norm_c(np.cumsum(ranks @ self.second.values, axis=0) / seen, self.second.floor)
        return lemmas.evaluate(self.second.readout(), ranks @ self.second.embeddings + mixed)
