"""Claims about constructed weights (B1 to B5), and misprints of section 2.2 that a number can show."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from padir.brackets import balance
from padir.brackets.construction import Construction
from padir.brackets.exact import generator_of
from padir.brackets.language import DyckLanguage, tokens_of
from padir.brackets.lemmas import norm_c
from padir.brackets.settings import BracketsConfig
from padir.brackets.thesis import PRINTED_PREFIX, TEST_PREFIX
from padir.brackets.transformer import features
from padir.theory.claims import Claim

Results = Mapping[str, Any]


def of_distribution(found: Results) -> list[Claim]:
    """B1: (2.39) and the samplers."""
    sums = np.abs(np.array(found["sums"]) - 1.0).max()
    counts = np.abs(np.array(found["prefixes"]) - np.array(found["by_depth"])).max()
    # Several tests, so that the smallest p-value is multiplied by their number.
    p_value = min(1.0, min(found["p_values"].values()) * len(found["p_values"]))
    return [
        Claim("B1: |Σ P(w) - 1| over prefixes of one length, the largest of lengths 1 to 8", sums, "<=", 1e-12),
        Claim("B1: prefixes enumerated minus paths of depths counted, the largest of lengths", counts, "<=", 0),
        Claim("B1: sampled sequences that leave the language, or words that do not end at depth 0",
              found["invalid"] + found["not_complete"], "<=", 0),
        Claim("B1: p-value of χ² of samplers against (2.39), smallest of three, corrected", p_value, ">", 0.001),
    ]  # fmt: skip


def of_constructed(found: Results) -> list[Claim]:
    """B2: balance is sufficient, for Theorem 2.2.1's values."""
    asked = sum(row["asked"] for row in found.values())
    small = [row["mlp"] for scale, row in found.items() if float(scale) <= 1.0]
    claims = [
        Claim(f"B2: wrong types among {asked:,} closing queries of random balanced layers",
              sum(row["errors"] for row in found.values()), "<=", 0),
        Claim("B2: largest error of a probability, read by a table", max(row["table"] for row in found.values()),
              "<=", 1e-9),
        Claim("B2: β of these layers, the largest", max(row["beta"] for row in found.values()), "<=", 1e-9),
    ]  # fmt: skip
    if small:
        text = "B2: largest error of a probability, read by an MLP of Lemmas 2.2.15 and 2.2.17, weights of sd <= 1"
        claims.append(Claim(text, max(small), "<=", 1e-6))
    return claims


def of_uniform(found: Results) -> list[Claim]:
    """B4: uniform attention in both layers."""
    return [
        Claim(f"B4: wrong types of the uniform two-layer model, lengths up to {max(found['lengths']):,}",
              found["wrong"], "<=", 0),
        Claim("B4: its largest error of a probability", max(found["errors"]), "<=", 1e-6),
        Claim("B4: layer 1's direction depends on the depth alone, largest change with length",
              found["direction"], "<=", 1e-12),
        Claim("B4: distance of the closest directions of two depths", found["closest_depths"], ">=", 1e-3),
        Claim("B4: without the start token, p and p ⊕ p have outputs that differ by",
              found["outputs_without_start"], "<=", 1e-12),
        Claim("B4: while their exact distributions differ by", found["exact_without_start"], ">=", 0.1),
    ]  # fmt: skip


def of_solutions(found: Results) -> list[Claim]:
    """B5: optimal layers have all kinds of attention."""
    rows = found["by_scale"]
    least = min(row["variation"] for scale, row in rows.items() if float(scale) >= 1.5)
    return [
        Claim("B5: wrong types of all balanced solutions, all prefixes up to length 8",
              sum(row["errors"] for row in rows.values()), "<=", 0),
        Claim("B5: their attention variation / random baseline, weights of sd >= 1.5, the least",
              least / found["baseline"], ">=", 1.0),
    ]  # fmt: skip


def of_gpt_layer(found: Results) -> list[Claim]:
    """What (2.85) lacks."""
    return [
        Claim("(2.85): slope of log ‖attention output‖ by log length, of a balanced layer", found["slope"], "<=", -0.9)
    ]


def of_violations(found: Results) -> list[Claim]:
    """B3: what violation costs."""
    lengths, chance = np.array(found["lengths"], float), 1.0 / found["types"]
    accuracy = np.array([row["accuracy"] for row in found["rows"]])
    by_mean = np.array([row["beta"] for row in found["rows"]])[:, None] * lengths
    by_largest = np.array([row["largest"] for row in found["rows"]])[:, None] * lengths
    claims = []
    if (by_mean >= 100).any():
        reached = accuracy[by_mean >= 100]
        text = (
            f"B3: |accuracy - 1/k| where β · length >= 100, of the mean of {len(reached)} points (of one alone at most "
            f"{np.abs(reached - chance).max():.2f})"
        )
        claims.append(Claim(text, abs(reached.mean() - chance), "<=", 0.1))
    if (by_mean <= 3).any():
        times = by_largest[:, 0] / by_mean[:, 0]
        reason = (
            f"β is a mean over pairs and queries. Some pair of a layer violates balance {times.min():.0f} to "
            f"{times.max():.0f} times more, relative to their P, and they decide where errors begin; the limit was "
            "found on one layer"
        )
        claims.append(Claim("B3: least accuracy of a layer where β · length <= 3", accuracy[by_mean <= 3].min(),
                            ">=", 0.99, reason))  # fmt: skip
    # This limit was set after measuring.
    if (by_largest <= 1).any():
        claims.append(Claim("B3: the same where the largest ‖S‖ / P, not their mean, times length is <= 1",
                            accuracy[by_largest <= 1].min(), ">=", 0.99))  # fmt: skip
    return claims


def of_misprints(config: BracketsConfig) -> list[Claim]:
    """Claims that fail as the thesis prints them, each beside what holds."""
    language = config.language
    k, depth, ranks = language.types, language.depth, language.ranks
    pairs = [(t, d) for t in range(1, language.tokens) for d in range(t % 2, depth + t % 2)]
    printed, corrected = ({rule(t, d) for t, d in pairs} for rule in (
        lambda t, d: (t - 1) * depth + d, lambda t, d: int(language.rank(t, d))))  # fmt: skip
    of_basis = [(i - 1) * depth + d for i in range(1, k + 1) for d in range(1, depth + 1)]
    prefixes = {name: int(language_depth(text)) for name, text in (("as printed", PRINTED_PREFIX), ("", TEST_PREFIX))}
    logits, gaps = balance.random_balanced(language, generator_of(config, "misprints"), 1.0)
    made = Construction(language, logits, gaps)
    swapped, right = (balance.violation(language, logits, made.values, swapped=of).beta for of in (True, False))
    with np.errstate(invalid="ignore"):
        zero_norm = np.isfinite(np.zeros(4) / max(np.linalg.norm(np.zeros(4)), 0.0)).all()
    rank_of = {of: int(np.linalg.matrix_rank(features(language, of))) for of in ("rank", "type_depth", "angle")}
    collide = "τ of type 2i at depth 0 and of type 2i - 1 at depth D get one index"
    return [
        Claim("(2.55): distinct embeddings / pairs of a token and a depth, index (t - 1)D + d as printed",
              len(printed) / len(pairs), ">=", 1.0, collide),
        Claim("(2.55): the same with the index r(t, d) of (2.60)", len(corrected) / len(pairs), ">=", 1.0),
        Claim("(2.56): depths of brackets minus slots of onehot(d), D slots as printed",
              float(len({d for _, d in pairs}) - depth), "<=", 0.0, "depths run from 0 to D: D + 1 slots are needed"),
        Claim("(2.56): the same with D + 1 slots", float(len({d for _, d in pairs}) - depth - 1), "<=", 0.0),
        Claim("(2.56): rank of the embeddings / (2kD + 1), which sufficiency in Theorem 2.2.1 needs",
              rank_of["type_depth"] / ranks, ">=", 1.0, "it is proved for independent embeddings of all pairs"),
        Claim("(2.57): the same", rank_of["angle"] / ranks, ">=", 1.0, "as for (2.56)"),
        Claim("(2.55), corrected: the same", rank_of["rank"] / ranks, ">=", 1.0),
        Claim("Theorem 2.2.1: largest index of b / kD, index tD + d as printed",
              max(t * depth + d for t in range(1, k + 1) for d in range(1, depth + 1)) / (k * depth), "<=", 1.0,
              "it must be (t - 1)D + d"),
        Claim("Theorem 2.2.1: the same with (t - 1)D + d", max(of_basis) / (k * depth), "<=", 1.0),
        Claim("LN_C as printed is finite at 0 for C = 0", float(zero_norm), ">=", 1.0, "LN_0(0) must be set to 0"),
        Claim("LN_C with LN_0(0) = 0 is finite at 0 for C = 0", float(np.isfinite(norm_c(np.zeros(4), 0.0)).all()),
              ">=", 1.0),
        Claim(f"depth of the test prefix {PRINTED_PREFIX} of Fig 2.11", prefixes["as printed"], "<=", 4,
              "it has five round brackets where four fit"),
        Claim(f"depth of {TEST_PREFIX}", prefixes[""], "<=", 4),
        Claim("(2.46): rows of W_E with 2k rows as printed / tokens", 2 * k / language.tokens, ">=", 1.0,
              "the start token needs one, too: 2k + 1"),
        Claim("(2.46): the same with 2k + 1 rows", (2 * k + 1) / language.tokens, ">=", 1.0),
        Claim("β of a balanced layer, arguments of u swapped as in (2.49) to (2.54)", swapped, "<=", 1e-9,
              "the query's logits must be those in which it is the query"),
        Claim("β of the same layer, arguments as in (2.48)", right, "<=", 1e-9),
        Claim("(2.51): largest depth of a closing query, d for d in 2..D as printed / D - 1", depth / (depth - 1),
              "<=", 1.0, "after a closing bracket the depth is at most D - 1; Q and the proof use d - 1"),
        Claim("(2.51): largest depth after a closing bracket, of all prefixes of 2D tokens / D - 1",
              _deepest_closing(language) / (depth - 1), "<=", 1.0),
        *_of_norms(config),
        *_of_excess(config),
    ]  # fmt: skip


def _deepest_closing(language: DyckLanguage) -> float:
    """The largest depth that any prefix of 2D tokens has right after a closing bracket."""
    tokens = language.prefixes(2 * language.depth)
    return float(language.parse(tokens).depths[:, 1:][tokens % 2 == 0].max())


def language_depth(text: str) -> int:
    """The greatest number of brackets that a text has open at once."""
    return int(np.cumsum([1 if token % 2 else -1 for token in tokens_of(text)]).max())


def _of_norms(config: BracketsConfig) -> list[Claim]:
    """Definition 2.2.6's "row" norm, and (2.72)'s total variation."""
    generator = generator_of(config, "misprints/norms")
    matrix = generator.standard_normal((3, 5))
    formula = np.linalg.norm(matrix, axis=0).max()
    one, other = generator.dirichlet(np.ones(4), 2)
    distance = np.abs(one - other).sum()
    # Total variation by its definition: the largest difference of an event's probabilities.
    variation = np.maximum(one - other, 0.0).sum()
    return [
        Claim("Definition 2.2.6: |its formula - the largest norm of a row| of a random matrix",
              abs(formula - np.linalg.norm(matrix, axis=1).max()), "<=", 1e-12, "its formula is of columns"),
        Claim("Definition 2.2.6: |its formula - the largest norm of a column|",
              abs(formula - np.sqrt((matrix**2).sum(axis=0)).max()), "<=", 1e-12),
        Claim("(2.72): L1 distance / total variation of two random laws, called TV", distance / variation, "<=",
              1 + 1e-9, "L1 is twice the total variation"),
        Claim("(2.72): half the L1 distance / total variation", distance / 2 / variation, "<=", 1 + 1e-9),
    ]  # fmt: skip


def _of_excess(config: BracketsConfig) -> list[Claim]:
    """Theorem 2.2.2 bounds the excess loss: the loss itself has a minimum that is far above the bound."""
    language = config.language
    length = 8 * language.depth + 1
    q = language.open_probability
    bound = (q * (1 - q) / language.types**2) ** length
    # Squared error of the exact distribution to one-hot labels, at depth 1.
    exact = language.next_probabilities(np.array(1), np.array(0))
    least = float((exact * ((np.eye(len(exact)) - exact) ** 2).sum(axis=1)).sum())
    excess = least - (1.0 - float((exact**2).sum()))
    reason = "squared error to one-hot labels has a positive minimum; the loss in excess of it is meant"
    return [
        Claim("Theorem 2.2.2: loss of the exact distribution at depth 1, against the bound for ε = 1",
              least, "<=", bound, reason),
        Claim("Theorem 2.2.2: its loss in excess of the least", abs(excess), "<=", max(bound, 1e-15)),
    ]  # fmt: skip
