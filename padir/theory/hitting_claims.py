"""What Figure 4.3 and section 4.1.4.2 claim, held against the data of `hitting` and `separation`."""

from __future__ import annotations

from typing import Any

import numpy as np

from padir.theory.claims import Claim
from padir.theory.hitting import PARALLEL


def hitting_claims(data: dict[str, Any]) -> list[Claim]:
    """Of the simulation, the exact times and Proposition 4.1.4; `data` is what `hitting` returns."""
    settings, exact = data["settings"], data["exact"]
    gibbs = [f"k = {k}" for k in range(1, settings["spins"] + 1)]
    expected = np.array([exact[name]["expected"] for name in gibbs])
    lumping = max(entry["largest_relative_difference"] for entry in data["lumping"].values())
    whole = [name for name in data["simulated"] if name != PARALLEL and int(name[4:]) >= settings["clique"]]
    reached = np.mean([data["simulated"][name]["reached"] for name in whole]) / settings["repetitions"]
    tails = data["tails"]
    parallel = data["simulated"][PARALLEL]
    ratio = max(
        float(np.max(np.array(data["wide"][name]) / np.array(bounds)))
        for form in data["bounds"].values()
        for name, bounds in form.items()
    )
    return [
        Claim(
            "Figure 4.3's models meet Assumption 4.1.5, under which the propositions stand: largest h_G - Σ|h outside|",
            settings["clique"] * settings["field"] - (settings["spins"] - settings["clique"]) * settings["field"],
            ">", 0.0, "h = 5 for all 10 spins: 20 in the clique, 30 outside; the proof of 4.1.4 does not need it",
        ),
        Claim(
            f"independent parallel never reaches R_1: runs that did, of {np.size(parallel['steps'])}",
            sum(parallel["reached"]), "<=", 0,
        ),
        Claim(
            "and exactly: its largest probability of reaching R_1 within the budget",
            max(exact[PARALLEL]["reached_within_budget"]), "<=", 0.01,
        ),
        Claim(
            "whatever J is: the largest such probability over the wide range of J", max(data["parallel_reached"]),
            "<=", 0.01, f"below J = {_stuck_from(data):.3g} the fields turn single spins and it arrives; the chapter "
            "does not print which J's it tried",
        ),
        Claim(f"k-Gibbs with k >= |C| reaches R_1 in time: share of runs ({', '.join(whole)})", reached, ">=", 0.95),
        Claim(
            "larger k is faster, exactly: smallest ratio of expected steps, k to k + 1",
            float(np.min(expected[:-1] / expected[1:])), ">", 1.0,
        ),
        Claim(
            "larger J is slower for every k < N, exactly: smallest ratio of expected steps, J to next smaller, less 1",
            float(np.min(expected[:-1, 1:] / expected[:-1, :-1])) - 1.0, ">", 0.0,
        ),
        Claim("simulated means are the exact ones: most standard errors apart", _deviation(data), "<=", 5.0),
        Claim("counting the clique is exact: largest relative difference to all 2^N states", lumping, "<=", 1e-9),
        Claim("Proposition 4.1.4: largest expected steps over 1 / (1 - c_{R_1}), less 1", ratio - 1.0, "<=", 1e-9),
        Claim(
            f"Proposition 4.1.4 at its T, {sum(tail['cases'] for tail in tails)} cases: largest P(R_1 missed) / delta",
            max(tail["missed"] / tail["delta"] for tail in tails), "<=", 1.0,
        ),
    ]  # fmt: skip


def _stuck_from(data: dict[str, Any]) -> float:
    """The J of the wide range from which on independent parallel hardly ever arrives; inf if it does at the largest."""
    couplings = data["settings"]["wide_couplings"]
    arrives = [j for j, reached in zip(couplings, data["parallel_reached"], strict=True) if reached > 0.01]
    return min((j for j in couplings if j > max(arrives, default=0.0)), default=np.inf)


def _deviation(data: dict[str, Any]) -> float:
    """How far simulated means are from the exact ones, at worst, in standard errors."""
    worst = 0.0
    for name, runs in data["simulated"].items():
        exact = data["exact"][name]
        means = np.mean(runs["steps"], axis=1)
        # At least a thousandth of a step: some points have no spread at all.
        errors = np.maximum(np.array(exact["sd_within_budget"]) / np.sqrt(data["settings"]["repetitions"]), 1e-3)
        worst = max(worst, float(np.max(np.abs(means - np.array(exact["mean_within_budget"])) / errors)))
    return worst


def separation_claims(data: dict[str, Any]) -> list[Claim]:
    """Of Proposition 4.1.5, Corollary 4.1.1 and the constant; `data` is what `separation` returns."""
    speaking = [(entry, at) for entry in data["stuck"] for at in entry["by_delta"] if at["steps"] >= 1]
    larger = [entry for entry in data["constant"] if entry["clique"] > 2]
    fours = [at["steps"] for entry in data["stuck"] if entry["clique"] == 4 for at in entry["by_delta"]]
    return [
        Claim(
            "Proposition 4.1.5 speaks of a step, with the |C| = 4 of Figure 4.3: largest T before rounding",
            max(fours, default=np.nan),
            ">=", 1.0, "c_stuck < 2 (|C| / 2 - 1)² / |C| = 1/2 for |C| = 4, so T < 0.83 delta whatever J is",
        ),
        Claim("Proposition 4.1.5: larger cliques in which it does", len(speaking), ">=", 1),
        Claim(
            "Proposition 4.1.5, in these: largest P(left Σ x_i <= -2 by T) / delta, from the worst start",
            max((at["left"] / at["delta"] for _, at in speaking), default=np.nan), "<=", 1.0,
        ),
        Claim(
            f"Corollary 4.1.1, {len(data['corollary'])} cases: largest probability of failure / delta",
            max(entry["failure"] / entry["delta"] for entry in data["corollary"]), "<=", 1.0,
        ),
        Claim(
            "its models meet Assumption 4.1.5: share",
            float(np.mean([entry["assumption_4_1_5"] for entry in data["corollary"]])), ">=", 1.0,
        ),
        Claim(
            "the constant of Proposition 4.1.4 with 2^|C| - 2 is a bound: largest bound / P(R_1)",
            max(entry["bound_of_the_proof"] / entry["mode_probability"] for entry in data["constant"]), "<=", 1.0,
        ),
        Claim(
            "with 2|C| - 2, as (4.49) prints it: largest bound / P(R_1), |C| = 3 to 6",
            max(entry["bound_as_printed"] / entry["mode_probability"] for entry in larger), "<=", 1.0,
            "a misprint: the states in neither mode are 2^|C| - 2, as the proof has it",
        ),
    ]  # fmt: skip
