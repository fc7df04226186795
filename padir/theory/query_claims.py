"""Checks the claims of section 3.1, and of section 3.2.1's grammar, with the data of `query_complexity`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from padir.theory.claims import Claim
from padir.theory.dyck_words import LETTERS


def query_complexity_claims(data: dict[str, Any]) -> list[Claim]:
    """All claims of the figure.

    Args:
      data: the result of `query_complexity`.
    """
    return [
        *_one_answer_claims(data["one_answer"]),
        *_measured_claims(data),
        *_one_zero_claims(data["one_zero"]),
        *_hidden_claims(data["hidden"]),
        *_verifier_claims(data["hidden"]),
        *_knapsack_claims(data["knapsack"], data["settings"]),
        *_dyck_claims(data),
        *_grammar_claims(data["dyck"]),
    ]


def _one_answer_claims(by_length: dict[str, Any]) -> list[Claim]:
    """Proposition 3.1.1."""

    def worst(costs: Any) -> float:
        return max(abs(queries / formula - 1.0) for queries, formula in costs)

    cases = [(int(d), int(b), queries) for d, one in by_length.items() for b, queries in one["queries"].items()]
    best_of = [(int(d), entry) for d, one in by_length.items() for entry in one["best_of"]]
    longest = max(map(int, by_length))
    return [
        Claim(
            f"Proposition 3.1.1, rejection takes D 2^D queries: largest relative difference, D up to {longest}",
            worst((queries, d * 2.0**d) for d, b, queries in cases if b == d), "<=", 1e-12,
        ),
        Claim(
            "Proposition 3.1.1, tokenwise rejection takes 2 D queries: largest relative difference",
            worst((queries, 2.0 * d) for d, b, queries in cases if b == 1), "<=", 1e-12,
        ),
        Claim(
            f"blockwise rejection takes D 2^b queries, {len(cases)} cases: largest relative difference",
            worst((queries, d * 2.0**b) for d, b, queries in cases), "<=", 1e-12,
        ),
        Claim(
            "block best-of-n succeeds with probability (1 - (1 - 2^-b)^n)^(D / b): largest difference",
            max(
                abs(entry["valid"] - (1 - (1 - 2.0 ** -entry["block"]) ** entry["n"]) ** (d // entry["block"]))
                for d, entry in best_of
            ), "<=", 1e-12,
        ),
    ]  # fmt: skip


def _measured_claims(data: dict[str, Any]) -> list[Claim]:
    """Samplers of `padir.decoding.rejection`, run on Proposition 3.1.1's instance."""
    rejection, best_of = data["measured"]["rejection"], data["measured"]["best_of"]
    runs = data["settings"]["runs"]
    apart = [abs(one["mean"] - one["length"] * 2.0 ** one["block"]) / one["standard_error"] for one in rejection]
    chances = [(1 - (1 - 2.0 ** -one["block"]) ** one["n"]) ** (one["length"] / one["block"]) for one in best_of]
    missed = [
        abs(one["valid"] - chance) / math.sqrt(chance * (1 - chance) / runs)
        for one, chance in zip(best_of, chances, strict=True)
    ]
    return [
        Claim(
            f"rejection, tokenwise and blockwise rejection as run, {len(rejection)} cases of {runs} outputs: largest "
            "difference of mean queries in standard errors",
            max(apart), "<=", 5.0,
        ),
        Claim(
            "these outputs are valid: smallest share", min(one["valid"] for one in rejection), ">=", 1.0,
        ),
        Claim(
            f"block best-of-n as run, {len(best_of)} cases: largest difference of the share of valid outputs in "
            "standard errors",
            max(missed), "<=", 5.0,
        ),
        Claim(
            "block best-of-n as run takes n D queries: largest difference",
            max(abs(one["queries"] - one["n"] * one["length"]) for one in best_of), "<=", 0,
        ),
    ]  # fmt: skip


def _one_zero_claims(by_length: dict[str, Any]) -> list[Claim]:
    """Proposition 3.1.2."""
    longer = [entry for d, entry in by_length.items() if int(d) > 1]
    return [
        Claim(
            "Proposition 3.1.2, tokenwise rejection gives 1…10 probability 2^-(D - 1) and other strings of A 2^-D: "
            "largest difference",
            max(entry["law_difference"] for entry in by_length.values()), "<=", 1e-12,
        ),
        Claim(
            "Proposition 3.1.2 over Σ^D, as its proof prints it: largest difference of a string's probability",
            max(entry["everywhere_difference"] for entry in by_length.values()), "<=", 1e-12,
            "a misprint for A: 1…1 is not in A and has probability 0",
        ),
        Claim(
            "Proposition 3.1.2 as printed, tokenwise rejection does not sample from π*, for every D: smallest total "
            "variation",
            min(entry["total_variation"] for entry in by_length.values()), ">", 1e-12,
            "for D = 1 the set A has one string, which both return; the statement needs D >= 2",
        ),
        Claim(
            f"Proposition 3.1.2 for D >= 2, up to {max(map(int, by_length))}: smallest total variation",
            min(entry["total_variation"] for entry in longer), ">", 1e-12,
        ),
        Claim(
            "this total variation is (2^D - 2) / (2^D (2^D - 1)): largest difference",
            max(abs(entry["total_variation"] - entry["formula"]) for entry in by_length.values()), "<=", 1e-12,
        ),
    ]  # fmt: skip


def _hidden_claims(by_length: dict[str, Any]) -> list[Claim]:
    """Theorem 3.1.1."""
    entries = list(by_length.values())
    formula = np.array([entry["formula"] for entry in entries])
    ratios = formula / [entry["printed"] for entry in entries]
    orders = [entry for entry in entries if np.all(np.isfinite(entry["orders"]))]
    return [
        Claim(
            "Theorem 3.1.1, the expected queries E(m) = 1 / m + (m - 1) / m (1 + E(m - 1)) are (M + 1) / 2 - 1 / M "
            "for M = 2^(D - 1): largest difference",
            max(abs(entry["recursion"] - entry["formula"]) for entry in entries), "<=", 1e-12,
        ),
        Claim(
            "a random order attains this for every ŝ, all orders enumerated: largest difference",
            max((abs(end - entry["formula"]) for entry in orders for end in entry["orders"]), default=np.nan),
            "<=", 1e-12,
        ),
        Claim(
            f"searches in a random order attain it, D = {', '.join(by_length)}: largest difference in standard errors",
            max(
                abs(entry["measured"][0] - entry["formula"]) / max(entry["measured"][1], 1e-9) for entry in entries
            ), "<=", 5.0,
        ),
        Claim(
            "Theorem 3.1.1 as printed, no algorithm takes fewer than 2^(D - 1) queries: smallest ratio of queries of "
            "a random order to the bound",
            float(np.min(ratios)), ">=", 1.0,
            "its proof gives about (M + 1) / 2 for M = 2^(D - 1); only the worst ŝ of a fixed order takes about M",
        ),
        Claim(
            "Theorem 3.1.1 with 2^(D - 2): smallest ratio of the minimax queries to the bound",
            float(np.min(2.0 * ratios)), ">=", 1.0,
        ),
        Claim(
            "the growth is exponential nevertheless: ratio of queries per additional token, for the largest D",
            float(formula[-1] / formula[-2]) if len(formula) > 1 else np.nan, ">=", 1.9,
        ),
    ]  # fmt: skip


def _verifier_claims(by_length: dict[str, Any]) -> list[Claim]:
    """Which process verifier section 3.1 needs."""
    return [
        Claim(
            "a perfect verifier of A alone is not enough: tokenwise rejection is stuck with probability "
            "1 - 2^-(D - 1); largest difference, over D and ŝ",
            max(abs(entry["stuck"] - entry["stuck_formula"]) for entry in by_length.values()), "<=", 1e-12,
        ),
        Claim(
            "remark after Theorem 3.1.1 as printed, |Σ| D calls of A's verifier solve the task: smallest share of ŝ",
            min(entry["answers_by_calls"] for entry in by_length.values()), ">=", 1.0,
            "they lead to a string of A that the generator may never produce; it holds if the generator has full "
            "support, or for a verifier of A ∩ supp p_O",
        ),
        Claim(
            "with a verifier of A ∩ supp p_O, |Σ| D calls solve the task: smallest share of ŝ",
            min(entry["aware_answers_by_calls"] for entry in by_length.values()), ">=", 1.0,
        ),
        Claim(
            "with a verifier of A ∩ supp p_O, tokenwise rejection takes 2 D - 1 queries: largest difference",
            max(abs(end - 2 * int(d) + 1) for d, entry in by_length.items() for end in entry["aware_queries"]),
            "<=", 1e-12,
        ),
    ]  # fmt: skip


def _knapsack_claims(found: dict[str, Any], settings: dict[str, Any]) -> list[Claim]:
    """One instance of Theorem 3.1.2's problem. The theorem itself is asymptotic."""
    letters = len(settings["knapsack"])
    instance = f"X = {', '.join(map(str, settings['knapsack']))}, c = {settings['target']}"
    return [
        Claim(
            f"knapsack {instance}, {found['solutions']} solutions: |queries of rejection / (D 2^D / solutions) - 1|",
            abs(found["rejection"] * found["solutions"] / (letters * 2.0**letters) - 1.0), "<=", 1e-12,
        ),
        Claim(
            "the same with the process verifier of dynamic programming: queries of tokenwise rejection, at most 2 D",
            found["tokenwise"], "<=", 2.0 * letters,
        ),
        Claim(
            f"{settings['knapsacks']} random knapsacks: largest queries of tokenwise rejection / D, at most 2",
            found["tokenwise_per_letter"][1], "<=", 2.0 + 1e-12,
        ),
        Claim(
            "the same: fewest, at least 1",
            found["tokenwise_per_letter"][0], ">=", 1.0 - 1e-12,
        ),
        Claim(
            "superincreasing weights: targets for which taking the largest weight that fits decides wrongly",
            found["greedy_errors"], "<=", 0,
        ),
    ]  # fmt: skip


def _dyck_claims(data: dict[str, Any]) -> list[Claim]:
    """Dyck words under the uniform generator of 4 letters."""
    entries = list(data["dyck"].values())
    long = data["dyck"] | data["long_dyck"]
    longest = max(map(int, long))
    variations = np.array([entry["total_variation"] for entry in entries])
    return [
        Claim(
            f"Dyck words of {', '.join(data['dyck'])} letters are Catalan(D / 2) 2^(D / 2): largest difference",
            max(abs(entry["words"] - entry["words_formula"]) for entry in entries), "<=", 0,
        ),
        Claim(
            "Dyck words: rejection takes D 4^D / words queries: largest relative difference",
            max(abs(entry["rejection"] / entry["rejection_formula"] - 1.0) for entry in entries), "<=", 1e-12,
        ),
        Claim(
            "Dyck words: tokenwise queries, by enumerating prefixes and by depth: largest relative difference",
            max(abs(entry["tokenwise"] / entry["tokenwise_by_depth"] - 1.0) for entry in entries), "<=", 1e-12,
        ),
        Claim(
            f"Dyck words: tokenwise rejection is linear in D: largest queries per letter, D up to {longest}",
            max(entry["tokenwise"] / int(d) for d, entry in long.items()), "<=", float(LETTERS),
        ),
        Claim(
            f"Dyck words: rejection is not: queries of rejection / tokenwise rejection for D = {longest}",
            long[str(longest)]["rejection"] / long[str(longest)]["tokenwise"], ">", 100.0,
        ),
        Claim(
            "Dyck words: the bias of tokenwise rejection grows with D: smallest difference of total variation between "
            "neighbouring D",
            float(np.min(np.diff(variations))) if len(variations) > 1 else np.nan, ">", 0.0,
        ),
    ]  # fmt: skip


def _grammar_claims(by_length: dict[str, Any]) -> list[Claim]:
    """Equation (3.4), the log-probability of a Dyck word."""
    sums = ", ".join(f"{entry['printed_sum']:.7g}" for entry in by_length.values())
    return [
        Claim(
            "(3.4) with '<': probabilities of Dyck(0.2, 0.5) sum to 1; largest difference",
            max(abs(entry["grammar_sum"] - 1.0) for entry in by_length.values()), "<=", 1e-12,
        ),
        Claim(
            "(3.4) as printed, with '≤': probabilities of Dyck(0.2, 0.5) sum to 1; smallest sum",
            min(entry["printed_sum"] for entry in by_length.values()), ">=", 1.0 - 1e-12,
            f"every valid prefix satisfies '≤', so that forced brackets are charged too; the sums are {sums} for D = "
            f"{', '.join(by_length)}",
        ),
        Claim(
            "(3.4) as printed and normalised, as its '∝' permits, is the grammar: largest total variation",
            max(entry["printed_total_variation"] for entry in by_length.values()), "<=", 1e-12,
            "words have different numbers of forced brackets; with '<' no normalisation is needed",
        ),
    ]  # fmt: skip
