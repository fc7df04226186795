"""Balanced words of two types of brackets: their number, their tree of prefixes, and the laws of the grammar."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from padir.theory.level_laws import PrefixTree

# '[', ']', '(' and ')'.
LETTERS = 4
TYPES = 2


def number_of_words(length: int) -> int:
    """Catalan(length / 2) times 2^(length / 2): the number of words of two types of brackets."""
    pairs = length // 2
    return math.comb(2 * pairs, pairs) // (pairs + 1) * TYPES**pairs


def completions(length: int) -> list[list[int]]:
    """Entry (i, d) is in how many ways a prefix of i letters and depth d can be completed: [length + 1][length + 2]."""
    ways = [[0] * (length + 2) for _ in range(length + 1)]
    ways[length][0] = 1
    for at in range(length - 1, -1, -1):
        for depth in range(length + 1):
            closed = ways[at + 1][depth - 1] if depth else 0
            ways[at][depth] = TYPES * ways[at + 1][depth + 1] + closed
    return ways


def tokenwise_queries(length: int) -> float:
    """E[queries] of tokenwise rejection with a uniform generator of 4 letters and a perfect verifier.

    The share of letters that the verifier accepts depends on the depth alone, so the law is that of the depth.
    """
    ways = completions(length)
    law, queries = {0: 1.0}, 0.0
    for at in range(length):
        after: dict[int, float] = {}
        for depth, probability in law.items():
            moves = [(depth + 1, TYPES), (depth - 1, 1)]
            fine = [(to, letters) for to, letters in moves if to >= 0 and ways[at + 1][to]]
            accepted = sum(letters for _, letters in fine)
            queries += probability * LETTERS / accepted
            for to, letters in fine:
                after[to] = after.get(to, 0.0) + probability * letters / accepted
        law = after
    return queries


@dataclass(frozen=True)
class DyckTree:
    """All prefixes of words of a length.

    Attributes:
      tree: the prefixes, under the uniform generator of 4 letters.
      depths: for h = 0..H: [prefixes of h letters], their numbers of open brackets.
      kinds: for h = 1..H: [prefixes of h letters], the type of the last bracket, 0 or 1.
    """

    tree: PrefixTree
    depths: list[np.ndarray]
    kinds: list[np.ndarray]


def dyck_tree(length: int) -> DyckTree:
    """All prefixes of words of `length` letters, an even number. There are 809 of words of 8."""
    depth, stacks = np.zeros(1, int), np.zeros((1, length // 2 + 1), int)
    parents, depths, kinds = [], [depth], []
    for at in range(length):
        # A bracket can be opened while there is room to close it.
        opens = np.flatnonzero(depth + 1 <= length - at - 1)
        closes = np.flatnonzero(depth > 0)
        parent = np.concatenate([*[opens] * TYPES, closes])
        opened = np.repeat(np.arange(TYPES), len(opens))
        closed = stacks[closes, depth[closes] - 1]
        stacks = stacks[parent]
        stacks[np.arange(len(opened)), depth[parent[: len(opened)]]] = opened
        change = np.where(np.arange(len(parent)) < len(opened), 1, -1)
        depth = depth[parent] + change
        parents.append(parent)
        depths.append(depth)
        kinds.append(np.concatenate([opened, closed]))
    chances = [np.full(len(parent), 1.0 / LETTERS) for parent in parents]
    return DyckTree(PrefixTree(parents, chances), depths, kinds)


def grammar_law(words: DyckTree, first: float, opening: float, *, as_printed: bool = False) -> np.ndarray:
    """Probabilities of the words of Dyck(p, q) (thesis, section 3.2.1): [words].

    At depth 0 a bracket is opened, of the first type with probability p. Where the open brackets just fit into what is
    left, one is closed. Elsewhere a bracket is opened with probability q, of a type as before, or one is closed.

    Args:
      words: the words.
      first: p.
      opening: q.
      as_printed: whether to charge 1 - q for every closing bracket, as (3.4) does with its "≤"; with "<", forced ones
        cost nothing.
    """
    length, law = words.tree.depth, np.ones(1)
    for at, (parent, kind) in enumerate(zip(words.tree.parents, words.kinds, strict=True)):
        before, after = words.depths[at][parent], words.depths[at + 1]
        of_type = np.where(kind == 0, first, 1.0 - first)
        forced = (before == length - at) & (not as_printed)
        chance = np.where(after > before, of_type * np.where(before == 0, 1.0, opening), 1.0 - opening)
        law = law[parent] * np.where((after < before) & forced, 1.0, chance)
    return law
