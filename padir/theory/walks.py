"""VGB, the value-guided random walk on the tree of prefixes (thesis, Algorithm 2), as a network of conductances.

The edge above a prefix v has conductance c(v) = π_ref(v) V̂(v), and the walk moves along the edges at v in proportion to
them. All that the thesis says of the walk follows from this: it is reversible whatever V̂ is, and where it ends first
is a question of currents.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np

from padir.theory.level_laws import Levels, PrefixTree


@dataclass(frozen=True)
class Walk:
    """A walk on a tree.

    Attributes:
      tree: its prefixes.
      conductances: c(v) of the edge above each prefix; 0 for the root, and for what cannot be reached.
    """

    tree: PrefixTree
    conductances: Levels

    @classmethod
    def of(cls, tree: PrefixTree, values: Levels) -> Walk:
        """The walk guided by V̂.

        Args:
          tree: prefixes and the base model π_ref.
          values: V̂ ≥ 0 of each prefix; at complete outputs the outcome reward τ. That of the root is not used.
        """
        levels, reached = [np.zeros(1)], np.ones(1, bool)
        for probability, value, parents in zip(tree.probabilities()[1:], values[1:], tree.parents, strict=True):
            # Behind a prefix of value 0 nothing is ever reached.
            reached = reached[parents] & (probability * value > 0)
            levels.append(np.where(reached, probability * value, 0.0))
        return cls(tree, levels)

    def weights(self) -> Levels:
        """The conductance of all edges at each prefix; the stationary law is proportional to it."""
        below = [self.tree.sums(height, c) for height, c in enumerate(self.conductances[1:])]
        return [c + sums for c, sums in zip(self.conductances, [*below, np.zeros(1)], strict=True)]

    def stationary(self) -> Levels:
        """The stationary law π̃, with or without laziness."""
        weights = self.weights()
        total = sum(float(np.sum(level)) for level in weights)
        return [level / total for level in weights]

    def leaf_law(self) -> tuple[float, Levels]:
        """(The stationary probability of being at a leaf, the law of the leaf given this, 0 elsewhere)."""
        law = [np.where(leaf, p, 0.0) for leaf, p in zip(self.tree.leaves(), self.stationary(), strict=True)]
        mass = sum(float(np.sum(level)) for level in law)
        return mass, [level / mass for level in law]

    def first_leaf(self) -> FirstLeaf:
        """Where and when the walk from the root is at a leaf first.

        With every leaf grounded, C_v is the conductance from v's parent through v to the leaves: c(v) at a leaf,
        elsewhere 1 / C_v = 1 / c(v) + 1 / Σ C over children. The walk leaves a subtree through the child w with
        probability C_w / Σ C. The expected number of visits to v is its weight times its potential, for a current of
        1 from the root to the leaves.
        """
        tree, leaves, weights = self.tree, self.tree.leaves(), self.weights()
        through, onward = [self.conductances[-1]], []
        for height in range(tree.depth - 1, -1, -1):
            below, own = tree.sums(height, through[0]), self.conductances[height]
            onward.insert(0, below)
            series = np.divide(own * below, own + below, out=np.zeros_like(own), where=own + below > 0)
            through.insert(0, np.where(leaves[height], own, series))
        potential, law = 1.0 / onward[0], np.ones(1)
        moves, laws = float(weights[0][0] * potential[0]), [np.zeros(1)]
        for height, parents in enumerate(tree.parents, 1):
            own, up = self.conductances[height], through[height]
            total = onward[height - 1][parents]
            law = np.divide(law[parents] * up, total, out=np.zeros_like(own), where=total > 0)
            drop = np.divide(up, own, out=np.ones_like(own), where=own > 0)
            potential = potential[parents] * (1.0 - drop)
            laws.append(np.where(leaves[height], law, 0.0))
            moves += float(np.sum(np.where(leaves[height], 0.0, weights[height] * potential)))
        length = sum(height * float(np.sum(level)) for height, level in enumerate(laws))
        return FirstLeaf(laws, moves, (moves + length) / 2.0)


@dataclass(frozen=True)
class FirstLeaf:
    """The first leaf that a walk reaches.

    Attributes:
      law: the probability of each leaf; 0 elsewhere.
      moves: expected number of moves; the lazy walk takes twice as many steps.
      queries: expected number of moves down, each of which draws a token.
    """

    law: Levels
    moves: float
    queries: float


@dataclass(frozen=True)
class Chain:
    """A walk as a matrix over the prefixes that it can reach, level by level, for trees of up to about 1,000.

    Attributes:
      transition: [X, X], without laziness.
      lengths: [X] int, tokens of each prefix.
      leaves: [X] bool.
      stationary: [X], the stationary law.
      parents: [X] int, where each prefix's parent is; -1 of the root.
    """

    transition: np.ndarray
    lengths: np.ndarray
    leaves: np.ndarray
    stationary: np.ndarray
    parents: np.ndarray

    @classmethod
    def of(cls, walk: Walk) -> Chain:
        """Writes out the matrix."""
        sizes = walk.tree.sizes()
        offsets = np.cumsum([0, *sizes])
        parents = np.concatenate([[-1], *(p + o for p, o in zip(walk.tree.parents, offsets[:-2], strict=True))])
        c = np.concatenate(walk.conductances)
        matrix = np.zeros((len(c), len(c)))
        children = np.arange(1, len(c))
        matrix[children, parents[1:]] = matrix[parents[1:], children] = c[1:]
        kept = np.flatnonzero(np.sum(matrix, axis=1) > 0)
        matrix = matrix[np.ix_(kept, kept)]
        renumbered = np.full(len(c) + 1, -1)
        renumbered[kept] = np.arange(len(kept))
        return cls(
            matrix / np.sum(matrix, axis=1, keepdims=True),
            np.repeat(np.arange(len(sizes)), sizes)[kept],
            np.concatenate(walk.tree.leaves())[kept],
            np.sum(matrix, axis=1) / np.sum(matrix),
            renumbered[parents[kept]],
        )

    def lazy(self) -> np.ndarray:
        """The transition matrix [X, X] of Algorithm 2, which stays with probability 1/2."""
        return (self.transition + np.eye(len(self.transition))) / 2.0

    @functools.cached_property
    def spectrum(self) -> tuple[np.ndarray, np.ndarray]:
        """(Eigenvalues of the walk without laziness, ascending, [X]; eigenvectors of the symmetric form, [X, X]).

        The symmetric form has the entries √π̃(x) P(x, y) / √π̃(y). The lazy walk has the eigenvalues (1 + λ) / 2.
        """
        root = np.sqrt(self.stationary)
        symmetric = root[:, None] * self.transition / root[None, :]
        return np.linalg.eigh((symmetric + symmetric.T) / 2.0)

    def gap(self) -> float:
        """The spectral gap of the lazy walk."""
        return float(1.0 - self.spectrum[0][-2]) / 2.0

    def first_leaf(self) -> tuple[np.ndarray, float]:
        """(The law of the first leaf [leaves], expected moves), by solving linear equations."""
        inner = ~self.leaves
        among = np.eye(int(np.sum(inner))) - self.transition[np.ix_(inner, inner)]
        visits = np.linalg.solve(among.T, (np.arange(len(among)) == 0).astype(float))
        return visits @ self.transition[np.ix_(inner, self.leaves)], float(np.sum(visits))

    def from_root(self, steps: int) -> np.ndarray:
        """The law [X] of the lazy walk after so many steps from the root."""
        eigenvalues, vectors = self.spectrum
        root = np.sqrt(self.stationary)
        return (vectors @ (((1.0 + eigenvalues) / 2.0) ** steps * vectors[0])) * root / root[0]

    def simulate(self, random: np.random.Generator, runs: int) -> tuple[np.ndarray, np.ndarray]:
        """Walks from the root to the first leaf: (leaf of each run [runs] int, its moves [runs] int)."""
        cumulative = np.cumsum(self.transition, axis=1)
        at, moves = np.zeros(runs, int), np.zeros(runs, int)
        while not np.all(self.leaves[at]):
            going = np.flatnonzero(~self.leaves[at])
            # Scaled by the last entry, which rounding may leave below 1.
            drawn = random.random((len(going), 1)) * cumulative[at[going], -1:]
            at[going] = np.argmax(cumulative[at[going]] > drawn, axis=1)
            moves[going] += 1
        return at, moves


def gap_with_exact_values(depth: int) -> float:
    """The lazy walk's spectral gap if V̂ = V*, and V* > 0 for two children of the root: (1 - cos(π / 2H)) / 2."""
    return (1.0 - math.cos(math.pi / (2 * depth))) / 2.0


def leaf_mass_bounds(depth: int, kappa: float) -> tuple[float, float]:
    """Bounds on the stationary probability of the leaves if V* / κ ≤ V̂ ≤ κ V* at inner prefixes."""
    return 0.5 / (1.0 + (depth - 1) * kappa), 0.5 / (1.0 + (depth - 1) / kappa)


def gap_bound(depth: int, kappa: float) -> float:
    """The least spectral gap of the lazy walk if V̂ is accurate up to the factor κ, by comparison of Dirichlet forms."""
    return gap_with_exact_values(depth) / kappa**2


def mixing_steps(depth: int, kappa: float, delta: float) -> int:
    """Steps after which the lazy walk from the root is within total variation `delta` of its stationary law."""
    return math.ceil(math.log(kappa * math.sqrt(2 * depth) / (2 * delta)) / gap_bound(depth, kappa))
