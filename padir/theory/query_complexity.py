"""What a process verifier saves: expected queries of section 3.1's samplers on instances that can be enumerated.

A query is one token drawn from the generator, whether it is kept or not (`padir.decoding.queries`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from padir.theory.dyck_words import dyck_tree, grammar_law, number_of_words, tokenwise_queries
from padir.theory.level_laws import (
    Levels,
    PrefixTree,
    block_law,
    exact_values,
    full_tree,
    target_law,
    total_variation,
)
from padir.theory.measured import run_samplers
from padir.theory.settings import require_ascending, require_in


@dataclass(frozen=True)
class QueryComplexitySettings:
    """The instances.

    Attributes:
      lengths: values of D for strings of two letters.
      blocks: tokens of a block in blockwise rejection, besides 1 and D.
      candidates: values of n of block best-of-n.
      measured_lengths: values of D for which samplers are run.
      measured_best_of: tokens of a block, and n, of block best-of-n as it is run.
      runs: outputs of each sampler for each D.
      parity_lengths: values of D for the search for a hidden prefix of D - 1 bits.
      searches: number of searches that are run for each D.
      enumerated_orders: for up to so many hidden prefixes, all orders of asking are enumerated.
      knapsack: the weights X.
      target: c.
      knapsacks: number of random knapsacks.
      dyck_lengths: lengths of Dyck words, all of which are enumerated.
      long_dyck: lengths of Dyck words that are only counted.
      seed: random seed.
    """

    lengths: Sequence[int] = tuple(range(1, 13))
    blocks: Sequence[int] = (2, 4)
    candidates: Sequence[int] = (2, 4, 8)
    measured_lengths: Sequence[int] = tuple(range(1, 9))
    measured_best_of: tuple[int, int] = (2, 4)
    runs: int = 200
    parity_lengths: Sequence[int] = tuple(range(2, 8))
    searches: int = 4000
    enumerated_orders: int = 8
    knapsack: Sequence[int] = (3, 34, 4, 12, 5, 2)
    target: int = 9
    knapsacks: int = 100
    dyck_lengths: Sequence[int] = (4, 6, 8, 10, 12)
    long_dyck: Sequence[int] = (16, 24, 32)
    seed: int = 0

    def __post_init__(self):
        # A tree of two letters has 2^(D + 1) prefixes; Dyck words of 14 letters have 130,000.
        require_in(self, "lengths", 1, 16)
        require_in(self, "measured_lengths", 1, 10)
        require_in(self, "parity_lengths", 2, 10)
        require_in(self, "dyck_lengths", 2, 14)
        require_in(self, "enumerated_orders", 2, 8)
        require_in(self, "knapsack", 1)
        require_in(self, "runs", 2)
        require_in(self, "searches", 2)
        for name in ("blocks", "candidates", "measured_best_of", "target", "knapsacks"):
            require_in(self, name, 1)
        for name in ("lengths", "measured_lengths", "parity_lengths", "dyck_lengths", "long_dyck"):
            require_ascending(self, name)


def query_complexity(settings: QueryComplexitySettings) -> dict[str, Any]:
    """Expected queries and laws of all instances.

    Returns:
      A dictionary with the settings and the following keys, each by D unless said otherwise.

      * one_answer: Proposition 3.1.1; see `one_answer`.
      * measured: the samplers run on this; see `run_samplers`; not by D.
      * one_zero: Proposition 3.1.2; see `one_zero`.
      * hidden: Theorem 3.1.1; see `hidden`.
      * knapsack: Theorem 3.1.2's problem, see `knapsack`; not by D.
      * dyck: Dyck words; see `dyck`.
      * long_dyck: expected queries of rejection and of tokenwise rejection on longer Dyck words.
    """
    random = np.random.default_rng(settings.seed)
    return {
        "settings": asdict(settings),
        "one_answer": {str(d): one_answer(d, settings.blocks, settings.candidates) for d in settings.lengths},
        "measured": run_samplers(
            settings.measured_lengths, settings.blocks, settings.measured_best_of, settings.runs, settings.seed
        ),
        "one_zero": {str(d): one_zero(d) for d in settings.lengths},
        "hidden": {
            str(d): hidden(d, settings.searches, settings.enumerated_orders, random) for d in settings.parity_lengths
        },
        "knapsack": knapsack(settings.knapsack, settings.target, settings.knapsacks, random),
        "dyck": {str(d): dyck(d) for d in settings.dyck_lengths},
        "long_dyck": {
            str(d): {"rejection": d * 4.0**d / number_of_words(d), "tokenwise": tokenwise_queries(d)}
            for d in settings.long_dyck
        },
    }


def perfect_verifier(tree: PrefixTree, outcome: Levels) -> Levels:
    """V: 1 for prefixes that the generator can complete to an output with τ > 0, and 0 for others."""
    return [(values > 0).astype(float) for values in exact_values(tree, outcome)]


def at_the_end(tree: PrefixTree, reward: np.ndarray) -> Levels:
    """The outcome reward [outputs] of a tree all of whose outputs have D tokens, as levels."""
    return [*(np.zeros(size) for size in tree.sizes()[:-1]), np.asarray(reward, float)]


def one_answer(length: int, blocks: Sequence[int], candidates: Sequence[int]) -> dict[str, Any]:
    """Proposition 3.1.1's instance: two letters, the uniform generator, and 0…0 as the only valid output.

    Returns:
      A dictionary with the following keys.

      * queries: expected queries of blockwise rejection by tokens of a block: 1 (tokenwise rejection), those of
        `blocks` that divide D, and D (rejection).
      * best_of: of block best-of-n, by tokens of a block and n: (probability of a valid output, expected queries).
    """
    tree = full_tree(2, length)
    verifier = perfect_verifier(tree, at_the_end(tree, np.arange(2**length) == 0))
    sizes = sorted({1, length, *(block for block in blocks if length % block == 0)})
    chosen = {(block, n): block_law(tree, verifier, block, n) for block in sizes for n in candidates}
    return {
        "queries": {str(block): block_law(tree, verifier, block).queries for block in sizes},
        "best_of": [
            {"block": block, "n": n, "valid": 1.0 - law.stuck, "queries": n * length}
            for (block, n), law in chosen.items()
        ],
    }


def one_zero(length: int) -> dict[str, float]:
    """Proposition 3.1.2's instance: two letters, the uniform generator; valid are the strings with at least one 0.

    Returns:
      A dictionary with the following keys.

      * law_difference: tokenwise rejection's largest difference from the law that the proposition states: 1…10 has
        probability 2^-(D - 1), other strings of A have 2^-D.
      * everywhere_difference: the same over all strings, as the proof prints it.
      * total_variation: from tokenwise rejection to π*, which is uniform on A.
      * formula: (2^D - 2) / (2^D (2^D - 1)).
    """
    tree, count = full_tree(2, length), 2**length
    outcome = at_the_end(tree, np.arange(count) < count - 1)
    law = block_law(tree, perfect_verifier(tree, outcome)).outputs
    stated = np.full(count, 2.0**-length)
    stated[count - 2] = 2.0 ** -(length - 1)
    return {
        "law_difference": float(np.max(np.abs(law - stated)[:-1])),
        "everywhere_difference": float(np.max(np.abs(law - stated))),
        "total_variation": total_variation([law], [target_law(tree, outcome)[-1]]),
        "formula": (count - 2) / (count * (count - 1)),
    }


def minimax_queries(hidden_prefixes: int) -> float:
    """(M + 1) / 2 - 1 / M: expected queries that finding one of M hidden prefixes takes; the last needs no query."""
    return (hidden_prefixes + 1) / 2 - 1 / hidden_prefixes


def hidden(length: int, searches: int, enumerated: int, random: np.random.Generator) -> dict[str, Any]:
    """Theorem 3.1.1's instances: strings of even parity, and a generator that ends evenly after one hidden ŝ only.

    Returns:
      A dictionary with the following keys.

      * printed: 2^(D - 1), the theorem's lower bound.
      * formula: `minimax_queries`.
      * recursion: E(M), where E(1) = 0 and E(m) = 1 / m + (m - 1) / m (1 + E(m - 1)).
      * orders: exact expected queries of asking in a random order, (fewest, most) over ŝ; NaN for more prefixes than
        `enumerated`.
      * measured: (mean, standard error) of searches that ask the generator in a random order, each for a random ŝ.
      * stuck, stuck_formula: the probability that tokenwise rejection, with a perfect verifier of A, comes to a prefix
        without acceptable continuation, for the ŝ where it differs most from 1 - 2^-(D - 1).
      * answers_by_calls: in what share of ŝ the generator can produce what |Σ| D calls of A's verifier lead to.
      * aware_answers_by_calls: the same with a verifier of A ∩ supp p_O.
      * aware_queries: expected queries of tokenwise rejection with that verifier, (fewest, most) over ŝ.
    """
    count = 2 ** (length - 1)
    recursion = 0.0
    for m in range(2, count + 1):
        recursion = 1.0 / m + (m - 1) / m * (1.0 + recursion)
    asked = [_queries_until(count, answer, random) for answer in random.integers(count, size=searches)]
    orders = [np.nan]
    if count <= enumerated:
        places = np.array(list(itertools.permutations(range(count))))
        orders = np.mean(np.minimum(places + 1, count - 1), axis=0).tolist()
    instances = [_with_verifiers(length, answer) for answer in range(count)]
    stuck_formula = 1.0 - 2.0 ** -(length - 1)
    return {
        "printed": float(count),
        "formula": minimax_queries(count),
        "recursion": recursion,
        "orders": [min(orders), max(orders)],
        "measured": [float(np.mean(asked)), float(np.std(asked, ddof=1) / math.sqrt(searches))],
        "stuck": max((entry["stuck"] for entry in instances), key=lambda stuck: abs(stuck - stuck_formula)),
        "stuck_formula": stuck_formula,
        "answers_by_calls": float(np.mean([entry["answered"] for entry in instances])),
        "aware_answers_by_calls": float(np.mean([entry["aware_answered"] for entry in instances])),
        "aware_queries": [pick(entry["aware_queries"] for entry in instances) for pick in (min, max)],
    }


def even_after(length: int, answer: int) -> np.ndarray:
    """The chances [2^D] of the last bit: even parity after the hidden prefix, odd parity after all others."""
    strings = np.arange(2**length)
    odd = np.bitwise_count(strings) % 2
    return np.where(strings // 2 == answer, 1.0 - odd, odd)


def _queries_until(count: int, answer: int, random: np.random.Generator) -> int:
    """Queries of asking for the last bit after random prefixes, until it is even or one prefix is left."""
    chances = even_after(count.bit_length(), answer).reshape(count, 2)
    for asked, prefix in enumerate(random.permutation(count)[: count - 1], 1):
        last = int(np.argmax(chances[prefix]))
        if (int(prefix).bit_count() + last) % 2 == 0:
            return asked
    return count - 1


def _with_verifiers(length: int, answer: int) -> dict[str, Any]:
    """Theorem 3.1.1's instance for one ŝ, with a verifier of A and with one of A ∩ supp p_O."""
    tree = full_tree(2, length, even_after(length, answer))
    even = at_the_end(tree, np.bitwise_count(np.arange(2**length)) % 2 == 0)
    # Every shorter prefix has a completion of even parity, whatever the generator thinks of it.
    of_set = [*(np.ones(size) for size in tree.sizes()[:-1]), even[-1]]
    of_support = perfect_verifier(tree, even)
    return {
        "stuck": block_law(tree, of_set).stuck,
        "answered": tree.probabilities()[-1][led_by_verifier(of_set)] > 0,
        "aware_answered": tree.probabilities()[-1][led_by_verifier(of_support)] > 0,
        "aware_queries": block_law(tree, of_support).queries,
    }


def led_by_verifier(verifier: Levels) -> int:
    """The output, in a full tree, of taking the first letter that the verifier accepts: at most |Σ| D calls."""
    letters, at = len(verifier[1]), 0
    for level in verifier[1:]:
        at = at * letters + int(np.argmax(level[at * letters : (at + 1) * letters] > 0))
    return at


def reachability(weights: Sequence[int], target: int) -> Levels:
    """A perfect verifier of Σ s_i X_i = c, by dynamic programming, for each prefix of the full tree of 0 and 1.

    Its table of (i, remaining sum) is pseudo-polynomial, D · c. The difficulty of the task is in the verifier.
    """
    table = [np.arange(target + 1) == 0]
    for weight in reversed(weights):
        shifted = np.zeros(target + 1, bool)
        shifted[weight:] = table[0][: max(0, target + 1 - weight)]
        table.insert(0, table[0] | shifted)
    levels, rest = [table[0][[target]]], np.array([target])
    for row, weight in zip(table[1:], weights, strict=True):
        rest = (rest[:, None] - np.array([0, weight])).ravel()
        levels.append((rest >= 0) & row[np.maximum(rest, 0)])
    return [level.astype(float) for level in levels]


def greedy_fills(weights: Sequence[int], target: int) -> bool:
    """Whether taking every weight that still fits, from the last to the first, sums to the target."""
    for weight in reversed(weights):
        target -= weight if weight <= target else 0
    return target == 0


def knapsack(weights: Sequence[int], target: int, instances: int, random: np.random.Generator) -> dict[str, Any]:
    """Theorem 3.1.2's problem, Σ s_i X_i = c: one instance, and random ones, under the uniform generator.

    Returns:
      A dictionary with the following keys.

      * solutions, rejection, tokenwise: the number of valid strings of the instance, and expected queries with and
        without the process verifier.
      * tokenwise_per_letter: expected queries of tokenwise rejection over D, (fewest, most) over random instances.
      * greedy_errors: targets of superincreasing random instances that `greedy_fills` decides wrongly.
    """

    def costs(weights: Sequence[int], target: int) -> tuple[int, float, float]:
        tree, verifier = full_tree(2, len(weights)), reachability(weights, target)
        own = [block_law(tree, verifier, block).queries for block in (len(weights), 1)]
        return int(np.sum(verifier[-1])), own[0], own[1]

    per_letter, wrong = [], 0
    for _ in range(instances):
        drawn = random.integers(1, 21, size=random.integers(3, 9)).tolist()
        # Some non-empty subset, so that there is a solution.
        chosen = int(random.integers(1, 2 ** len(drawn)))
        total = sum(weight for at, weight in enumerate(drawn) if chosen >> at & 1)
        per_letter.append(costs(drawn, total)[2] / len(drawn))
        growing: list[int] = []
        for extra in random.integers(0, 3, size=6).tolist():
            growing.append(max(1, sum(growing) + extra))
        wrong += sum(
            greedy_fills(growing, c) != bool(reachability(growing, c)[0][0]) for c in range(1, sum(growing) + 1)
        )
    solutions, rejection, tokenwise = costs(weights, target)
    return {
        "solutions": solutions,
        "rejection": rejection,
        "tokenwise": tokenwise,
        "tokenwise_per_letter": [min(per_letter), max(per_letter)],
        "greedy_errors": wrong,
    }


def dyck(length: int) -> dict[str, float]:
    """Dyck words of two types of brackets: a uniform generator of 4 letters with a perfect verifier; the grammar.

    Returns:
      A dictionary with the following keys.

      * words, words_formula: the number of words, enumerated and by Catalan's formula.
      * rejection, rejection_formula, tokenwise, tokenwise_by_depth: expected queries, by enumeration of prefixes, and
        by the formula D 4^D / words or from the law of the depth.
      * total_variation: from tokenwise rejection to the uniform law of words.
      * largest_ratio: of tokenwise rejection's probability of a word to the uniform one.
      * grammar_sum, printed_sum: the sum over words of the grammar's probabilities for p = 0.2 and q = 0.5, with
        forced brackets free, and as (3.4) prints it.
      * printed_total_variation: from the grammar to (3.4) as printed, normalised.
    """
    words = dyck_tree(length)
    verifier = [np.ones(size) for size in words.tree.sizes()]
    count = len(verifier[-1])
    law = block_law(words.tree, verifier)
    grammar, printed = (grammar_law(words, 0.2, 0.5, as_printed=printed) for printed in (False, True))
    return {
        "words": count,
        "words_formula": number_of_words(length),
        "rejection": block_law(words.tree, verifier, length).queries,
        "rejection_formula": length * 4.0**length / number_of_words(length),
        "tokenwise": law.queries,
        "tokenwise_by_depth": tokenwise_queries(length),
        "total_variation": total_variation([law.outputs], [np.full(count, 1.0 / count)]),
        "largest_ratio": float(np.max(law.outputs) * count),
        "grammar_sum": float(np.sum(grammar)),
        "printed_sum": float(np.sum(printed)),
        "printed_total_variation": total_variation([grammar], [printed / np.sum(printed)]),
    }
