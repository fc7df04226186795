"""VGB (section 3.3) on trees that can be enumerated: its laws, its speed, and what errors of the value do to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from padir.theory.dyck_words import dyck_tree
from padir.theory.level_laws import (
    Levels,
    PrefixTree,
    block_law,
    exact_values,
    full_tree,
    target_law,
    total_variation,
)
from padir.theory.settings import require_ascending, require_in
from padir.theory.walks import Chain, Walk, gap_bound, gap_with_exact_values, leaf_mass_bounds, mixing_steps

# Within a factor κ of V*: which power of κ each V̂ / V* is, given as many random numbers from -1 to 1.
ERRORS = {
    "random": lambda drawn: drawn,
    "κ or 1 / κ at random": np.sign,
    "κ everywhere": np.ones_like,
    "1 / κ everywhere": lambda drawn: -np.ones_like(drawn),
}


@dataclass(frozen=True)
class ValueGuidedSettings:
    """The trees.

    Attributes:
      letters, depths: |Σ| and H of each shape of tree; the last is drawn.
      trees: number of trees of each shape and kind.
      kappas: accuracies of V̂ for the bounds.
      deltas: total variations for the bound on the number of steps.
      walks: number of walks that are run on one tree.
      dyck_lengths: lengths of Dyck words.
      dyck_chain: the longest words for which the spectral gap is computed.
      seed: random seed.
    """

    letters: Sequence[int] = (3, 3, 2, 2, 2)
    depths: Sequence[int] = (3, 4, 3, 5, 7)
    trees: int = 3
    kappas: Sequence[float] = (1.1, 1.25, 1.5, 2.0, 3.0, 5.0)
    deltas: Sequence[float] = (0.1, 0.01)
    walks: int = 20000
    dyck_lengths: Sequence[int] = (2, 4, 6, 8, 10, 12)
    dyck_chain: int = 8
    seed: int = 0

    def __post_init__(self):
        require_in(self, "letters", 2, 4)
        # Trees of up to 500 prefixes, because their chains are written out as matrices.
        require_in(self, "depths", 2, 8)
        require_in(self, "kappas", 1.0)
        require_in(self, "deltas", 1e-6, 1.0)
        require_in(self, "dyck_lengths", 2, 14)
        require_in(self, "dyck_chain", 0, 8)
        require_in(self, "trees", 1)
        require_in(self, "walks", 2)
        for name in ("kappas", "dyck_lengths"):
            require_ascending(self, name)


def value_guided(settings: ValueGuidedSettings) -> dict[str, Any]:
    """Measures the walk on random trees and on Dyck words.

    Returns:
      A dictionary with the settings and the following keys.

      * trees: a list of `tree_measures`, with shape and kind ('any τ', 'binary τ' or 'any length').
      * by_kappa: a list of `kappa_measures`, with the shape.
      * one_way: the gap minus its closed form, where a single child of the root has V* > 0.
      * cut_off: total variation from the leaves' law to π*, where V̂ = 0 at an inner prefix with V* > 0.
      * simulated: largest difference of simulated from exact numbers, in standard errors; see `_simulated`.
      * dyck: by length, `dyck_measures`.
    """
    random = np.random.default_rng(settings.seed)
    trees, by_kappa = [], []
    for letters, depth in zip(settings.letters, settings.depths, strict=True):
        shape = {"letters": letters, "depth": depth}
        for _ in range(settings.trees):
            tree, ragged = random_tree(random, letters, depth), random_tree(random, letters, depth, ends=0.3)
            outcome = [random.random(size) for size in tree.sizes()]
            binary = binary_outcome(random, tree)
            cases = {"any τ": (tree, outcome), "binary τ": (tree, binary)}
            cases["any length"] = (ragged, [random.random(size) for size in ragged.sizes()])
            trees += [{**shape, "kind": kind, **tree_measures(random, *case)} for kind, case in cases.items()]
            by_kappa += [
                {**shape, **entry} for entry in kappa_measures(random, tree, outcome, settings.kappas, settings.deltas)
            ]
    return {
        "settings": asdict(settings),
        "trees": trees,
        "by_kappa": by_kappa,
        "one_way": _one_way(random),
        "cut_off": _cut_off(random),
        "simulated": _simulated(random, settings.walks),
        "dyck": {str(length): dyck_measures(length, length <= settings.dyck_chain) for length in settings.dyck_lengths},
    }


def random_tree(random: np.random.Generator, letters: int, depth: int, ends: float = 0.0) -> PrefixTree:
    """A tree with random chances; below the root, a prefix of fewer than `depth` tokens is complete with `ends`."""
    parents, chances, size = [], [], 1
    for _ in range(depth):
        # The first prefix goes on, so that the tree has this depth.
        goes_on = (random.random(size) >= ends) | (np.arange(size) == 0)
        parent = np.repeat(np.flatnonzero(goes_on), letters)
        drawn = random.dirichlet(np.ones(letters), size=int(np.sum(goes_on)))
        parents.append(parent)
        chances.append(drawn.ravel())
        size = len(parent)
    return PrefixTree(parents, chances)


def binary_outcome(random: np.random.Generator, tree: PrefixTree) -> Levels:
    """A random τ of 0 or 1 with valid outputs behind every child of the root; a third of all outputs is valid."""
    valid = random.random(tree.sizes()[-1]) < 1 / 3
    # The first output behind each child of the root.
    valid[np.unique(tree.ancestors(tree.depth, tree.depth - 1), return_index=True)[1]] = True
    return [*(np.zeros(size) for size in tree.sizes()[:-1]), valid.astype(float)]


def guided_by(tree: PrefixTree, outcome: Levels, inner: Levels) -> Levels:
    """V̂ with the outcome reward at complete outputs, and `inner` elsewhere."""
    return [np.where(leaf, known, own) for leaf, known, own in zip(tree.leaves(), outcome, inner, strict=True)]


def tree_measures(random: np.random.Generator, tree: PrefixTree, outcome: Levels) -> dict[str, float]:
    """What section 3.3 states, for the exact V* and for a V̂ with large errors.

    Returns:
      A dictionary with the following keys. Of the walk guided by V*:

      * leaf_mass, leaf_mass_formula: stationary probability of leaves; 1 / (2 E[length of an output under π*]).
      * up: the largest difference of the probability of moving up from 1/2.
      * gap, gap_formula: spectral gap; `gap_with_exact_values`.
      * moves, queries: expected moves, and moves down, until the first leaf.
      * first_leaf: total variation from its law to π*.

      Of V̂, which is wrong by a factor of e² (one standard deviation) and positive where V* is 0:

      * stationarity, not_lazy: the largest absolute entry of π̃P - π̃, with and without laziness.
      * reversibility: the largest absolute value of π̃(x)P(x, y) - π̃(y)P(y, x).
      * leaf_law: total variation from π̃ at leaves to π*.
      * recursion: the largest difference of the law and (relative) moves of the first leaf from solving equations.
      * smallest_eigenvalue: without laziness.
    """
    target, exact = target_law(tree, outcome), exact_values(tree, outcome)
    walk = Walk.of(tree, exact)
    chain, first = Chain.of(walk), walk.first_leaf()
    length = sum(height * float(np.sum(level)) for height, level in enumerate(target))
    inner = ~chain.leaves & (chain.lengths > 0)
    up = chain.transition[inner, chain.parents[inner]]
    wild_values = [np.exp(2 * random.normal(size=v.shape)) * np.where(v > 0, v, 0.1) for v in exact]
    wild = Walk.of(tree, guided_by(tree, outcome, wild_values))
    wrong, wrong_first = Chain.of(wild), wild.first_leaf()
    law, moves = wrong.first_leaf()
    reached = [recursion[recursion > 0] for recursion in wrong_first.law]
    flow = wrong.stationary[:, None] * wrong.lazy()
    return {
        "leaf_mass": walk.leaf_law()[0],
        "leaf_mass_formula": 0.5 / length,
        "up": float(np.max(np.abs(up - 0.5))),
        "gap": chain.gap(),
        "gap_formula": gap_with_exact_values(tree.depth),
        "moves": first.moves,
        "queries": first.queries,
        "first_leaf": total_variation(first.law, target),
        "stationarity": float(np.max(np.abs(wrong.stationary @ wrong.lazy() - wrong.stationary))),
        "not_lazy": float(np.max(np.abs(wrong.stationary @ wrong.transition - wrong.stationary))),
        "reversibility": float(np.max(np.abs(flow - flow.T))),
        "leaf_law": total_variation(wild.leaf_law()[1], target),
        "recursion": max(
            float(np.max(np.abs(np.concatenate(reached) - law))), float(abs(wrong_first.moves / moves - 1.0))
        ),
        "smallest_eigenvalue": float(wrong.spectrum[0][0]),
    }


def kappa_measures(
    random: np.random.Generator, tree: PrefixTree, outcome: Levels, kappas: Sequence[float], deltas: Sequence[float]
) -> list[dict[str, Any]]:
    """Leaf mass, gap and distance from the stationary law for V̂ within a factor κ of V*, with their bounds.

    Returns:
      For each κ and each of `ERRORS` a dictionary with the keys kappa, errors, leaf_mass, leaf_mass_bounds (low,
      high), gap, gap_bound, and distance: the largest total variation / delta after `mixing_steps` from the root.
    """
    exact, measures = exact_values(tree, outcome), []
    for kappa in kappas:
        for name, errors in ERRORS.items():
            inner = [v * kappa ** errors(random.uniform(-1.0, 1.0, size=v.shape)) for v in exact]
            walk = Walk.of(tree, guided_by(tree, outcome, inner))
            chain = Chain.of(walk)
            apart = [
                0.5 * float(np.sum(np.abs(chain.from_root(mixing_steps(tree.depth, kappa, delta)) - chain.stationary)))
                for delta in deltas
            ]
            measures.append({
                "kappa": kappa,
                "errors": name,
                "leaf_mass": walk.leaf_law()[0],
                "leaf_mass_bounds": leaf_mass_bounds(tree.depth, kappa),
                "gap": chain.gap(),
                "gap_bound": gap_bound(tree.depth, kappa),
                "distance": max(distance / delta for distance, delta in zip(apart, deltas, strict=True)),
            })  # fmt: skip
    return measures


def _one_way(random: np.random.Generator) -> float:
    tree = random_tree(random, 2, 4)
    outcome = [*(np.zeros(size) for size in tree.sizes()[:-1]), (np.arange(16) < 8).astype(float)]
    return Chain.of(Walk.of(tree, exact_values(tree, outcome))).gap() - gap_with_exact_values(4)


def _cut_off(random: np.random.Generator) -> float:
    tree = random_tree(random, 2, 4)
    outcome = [np.ones(size) for size in tree.sizes()]
    inner = exact_values(tree, outcome)
    inner[2][0] = 0.0
    return total_variation(Walk.of(tree, guided_by(tree, outcome, inner)).leaf_law()[1], target_law(tree, outcome))


def _simulated(random: np.random.Generator, walks: int) -> float:
    """Walks on a small tree: leaf frequencies and mean moves, the largest difference in standard errors."""
    tree = random_tree(random, 2, 3)
    outcome = [1.0 + random.random(size) for size in tree.sizes()]
    inner = [v * np.exp(random.normal(size=v.shape)) for v in exact_values(tree, outcome)]
    walk = Walk.of(tree, guided_by(tree, outcome, inner))
    chain, first = Chain.of(walk), walk.first_leaf()
    ends, moves = chain.simulate(random, walks)
    law = np.concatenate(first.law)
    frequencies = np.bincount(ends, minlength=len(law)) / walks
    apart = np.abs(frequencies - law)[law > 0] / np.sqrt(law * (1.0 - law) / walks)[law > 0]
    slower = abs(np.mean(moves) - first.moves) / (np.std(moves, ddof=1) / np.sqrt(walks))
    return float(max(np.max(apart), slower))


def dyck_measures(length: int, with_gap: bool) -> dict[str, dict[str, float]]:
    """VGB on Dyck words with the uniform generator, guided by V* ('value') or by a perfect verifier ('verifier').

    Returns:
      For 'value' and 'verifier' a dictionary with the following keys.

      * moves, queries: expected moves, and moves down, until the first leaf.
      * first_leaf, stationary, action_level: total variation to the uniform law of words, of the first leaf, of the
        stationary law at leaves, and of action-level sampling with the same values.
      * leaf_mass: stationary probability of leaves.
      * gap: spectral gap, if `with_gap`.
    """
    tree = dyck_tree(length).tree
    verifier = [np.ones(size) for size in tree.sizes()]
    target, measures = target_law(tree, verifier), {}
    for name, values in (("value", exact_values(tree, verifier)), ("verifier", verifier)):
        walk = Walk.of(tree, values)
        first, (mass, leaves) = walk.first_leaf(), walk.leaf_law()
        measures[name] = {
            "moves": first.moves,
            "queries": first.queries,
            "first_leaf": total_variation(first.law, target),
            "stationary": total_variation(leaves, target),
            "action_level": total_variation([block_law(tree, values).outputs], [target[-1]]),
            "leaf_mass": mass,
        } | ({"gap": Chain.of(walk).gap()} if with_gap else {})
    return measures


@dataclass(frozen=True)
class ErrorAmplificationSettings:
    """The instance: two letters, a uniform generator, τ = 1, and V̂ = κ after a 0 and 1 / κ after a 1.

    Attributes:
      kappas: values of κ.
      lengths: values of H.
    """

    kappas: Sequence[float] = (1.1, 1.25, 1.5, 2.0)
    lengths: Sequence[int] = (2, 4, 8, 12, 16)

    def __post_init__(self):
        require_in(self, "kappas", 1.0)
        require_in(self, "lengths", 1, 18)
        require_ascending(self, "kappas")
        require_ascending(self, "lengths")


def error_amplification(settings: ErrorAmplificationSettings) -> dict[str, Any]:
    """Total variation to π* of samplers that are guided by the same wrong values.

    Returns:
      A dictionary with the settings and by_kappa: for each κ, in the order of `lengths`,

      * action_level, first_leaf, stationary: total variation of action-level sampling (tokenwise rejection in
        proportion to V̂), of VGB's first leaf, and of VGB's stationary law at leaves.
      * density, density_formula: action-level sampling's largest probability relative to π*; (2κ² / (1 + κ²))^(H - 1).
      * moves: VGB's expected moves until the first leaf.
    """
    by_kappa: dict[str, Any] = {}
    for kappa in settings.kappas:
        cases = [_amplified(kappa, length) for length in settings.lengths]
        by_kappa[str(kappa)] = {name: [case[name] for case in cases] for name in cases[0]}
    return {"settings": asdict(settings), "by_kappa": by_kappa}


def _amplified(kappa: float, length: int) -> dict[str, float]:
    tree = full_tree(2, length)
    outcome = [np.ones(size) for size in tree.sizes()]
    target = target_law(tree, outcome)
    values = guided_by(tree, outcome, [np.where(np.arange(size) % 2, 1 / kappa, kappa) for size in tree.sizes()])
    action_level, walk = block_law(tree, values).outputs, Walk.of(tree, values)
    first = walk.first_leaf()
    return {
        "action_level": total_variation([action_level], [target[-1]]),
        "first_leaf": total_variation(first.law, target),
        "stationary": total_variation(walk.leaf_law()[1], target),
        "density": float(np.max(action_level / target[-1])),
        "density_formula": (2 * kappa**2 / (1 + kappa**2)) ** (length - 1),
        "moves": first.moves,
    }
