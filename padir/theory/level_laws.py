"""Generation tasks small enough to enumerate: a tree of prefixes, and the exact laws of samplers on it.

A tree is kept level by level, and so is everything about it: `Levels` is a list of float64 arrays, one number for each
prefix of h tokens. Every law is one sweep over the levels; no matrix of prefixes is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Levels = list[np.ndarray]


@dataclass(frozen=True)
class PrefixTree:
    """The prefixes that a generator may pass through.

    Prefixes that no sampler of interest reaches may be missing. Then the chances of a prefix's children sum to less
    than 1, and what is missing counts as rejected.

    Attributes:
      parents: for h = 1..H: [prefixes of h tokens], where in level h - 1 the prefix without its last token is.
      chances: for h = 1..H: [prefixes of h tokens], the probability of the last token given the others, under the
        generator (O, or π_ref).
    """

    parents: Sequence[np.ndarray]
    chances: Sequence[np.ndarray]

    @property
    def depth(self) -> int:
        """H, the length of the longest prefix."""
        return len(self.parents)

    def sizes(self) -> list[int]:
        """The number of prefixes of 0..H tokens."""
        return [1, *map(len, self.parents)]

    def probabilities(self) -> Levels:
        """The generator's probability of each prefix."""
        levels = [np.ones(1)]
        for parents, chances in zip(self.parents, self.chances, strict=True):
            levels.append(levels[-1][parents] * chances)
        return levels

    def sums(self, height: int, values: np.ndarray) -> np.ndarray:
        """Sums over the children of each prefix of `height` tokens: [prefixes of height + 1] → [prefixes of height]."""
        return np.bincount(self.parents[height], values, minlength=self.sizes()[height])

    def leaves(self) -> list[np.ndarray]:
        """Which prefixes have no children, and are therefore complete outputs: bool arrays, one a level."""
        inner = [self.sums(height, np.ones(len(parents))) > 0 for height, parents in enumerate(self.parents)]
        return [~has_children for has_children in inner] + [np.ones(self.sizes()[-1], bool)]

    def ancestors(self, height: int, up: int) -> np.ndarray:
        """Where in level `height - up` each prefix of `height` tokens has its first `height - up` tokens."""
        index = np.arange(self.sizes()[height])
        for level in range(height, height - up, -1):
            index = self.parents[level - 1][index]
        return index


def full_tree(letters: int, depth: int, last: np.ndarray | None = None) -> PrefixTree:
    """All strings of up to `depth` letters under the uniform generator.

    The prefix of h letters at index i spells i in base `letters`, the first letter first.

    Args:
      letters: size of the vocabulary.
      depth: D.
      last: [letters ** depth], other chances for the last letter.
    """
    sizes = [letters**height for height in range(1, depth + 1)]
    chances = [np.full(size, 1.0 / letters) for size in sizes]
    if last is not None:
        chances[-1] = last
    return PrefixTree([np.arange(size) // letters for size in sizes], chances)


def exact_values(tree: PrefixTree, outcome: Levels) -> Levels:
    """V*(prefix), the expected outcome reward of completing it with the generator (the root's is Z).

    Args:
      tree: the tree.
      outcome: the reward τ of complete outputs; what it says of other prefixes is ignored.
    """
    leaves, values = tree.leaves(), [np.where(tree.leaves()[-1], outcome[-1], 0.0)]
    for height in range(tree.depth - 1, -1, -1):
        mean = tree.sums(height, tree.chances[height] * values[0])
        values.insert(0, np.where(leaves[height], outcome[height], mean))
    return values


def target_law(tree: PrefixTree, outcome: Levels) -> Levels:
    """π*, the generator's law of complete outputs times τ, normalised; 0 for other prefixes."""
    weights = [
        np.where(leaf, probability * reward, 0.0)
        for leaf, probability, reward in zip(tree.leaves(), tree.probabilities(), outcome, strict=True)
    ]
    total = sum(float(np.sum(level)) for level in weights)
    return [level / total for level in weights]


def total_variation(one: Levels, other: Levels) -> float:
    """Half the sum of absolute differences."""
    return 0.5 * sum(float(np.sum(np.abs(a - b))) for a, b in zip(one, other, strict=True))


@dataclass(frozen=True)
class SamplerLaw:
    """What a sampler that accepts or rejects blocks of tokens does.

    Attributes:
      outputs: [prefixes of H tokens], the probability of each output.
      stuck: the probability that some block has no acceptable continuation, or that no candidate is acceptable.
      queries: expected number of queries, except for those at prefixes that have no acceptable continuation, where
        drawing would never end.
    """

    outputs: np.ndarray
    stuck: float
    queries: float


def block_law(tree: PrefixTree, values: Levels, block: int = 1, candidates: int | None = None) -> SamplerLaw:
    """The law of blockwise rejection, and of block best-of-n.

    At each prefix, blocks are drawn until one is accepted. With blocks of one token this is tokenwise rejection
    (Definition 3.1.5), which has the law of locally constrained decoding. With one block it is rejection sampling
    (Definition 3.1.4). A block is accepted with probability proportional to the value of the prefix after it, so that
    values other than 0 and 1 give action-level value-guided sampling.

    Args:
      tree: a tree whose leaves all have H tokens.
      values: of each prefix, from 0 to 1.
      block: tokens of a block; it must divide H.
      candidates: with n, n blocks are drawn at each prefix and the best is kept (block best-of-n; `values` must be 0
        or 1). A run whose candidates are all rejected counts as stuck.
    """
    probabilities, reach, queries = tree.probabilities(), np.ones(1), 0.0
    for end in range(block, tree.depth + 1, block):
        start = tree.ancestors(end, block)
        weights = probabilities[end] / probabilities[end - block][start] * values[end]
        accepted = np.bincount(start, weights, minlength=len(reach))
        alive = accepted > 0
        rate = np.where(alive, accepted, 1.0)
        draws = 1.0 / rate if candidates is None else np.full(len(reach), float(candidates))
        queries += float(np.sum(block * (reach * draws)[alive]))
        found = reach if candidates is None else reach * (1.0 - (1.0 - rate) ** candidates)
        reach = (np.where(alive, found / rate, 0.0))[start] * weights
    return SamplerLaw(reach, 1.0 - float(np.sum(reach)), queries)
