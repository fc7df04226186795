"""Checks the claims of Figure 4.3 and section 4.1.4.2 with the data of `hitting` and `separation`."""

from __future__ import annotations

from typing import Any

import numpy as np

from padir.theory.claims import Claim
from padir.theory.hitting import PARALLEL


def hitting_claims(data: dict[str, Any]) -> list[Claim]:
    """Claims about the simulation, the exact times and Proposition 4.1.4.

    Args:
      data: the result of `hitting`.
    """
    settings, exact = data["settings"], data["exact"]
    gibbs = [f"k = {k}" for k in range(1, settings["spins"] + 1)]
    expected = np.array([exact[name]["expected"] for name in gibbs])
    lumping = max(entry["largest_relative_difference"] for entry in data["lumping"].values())
    whole = [name for name in data["simulated"] if name != PARALLEL and int(name[4:]) >= settings["clique"]]
    reached = np.mean([data["simulated"][name]["reached"] for name in whole]) / settings["repetitions"]
    tails = data["tails"]
    ratio = max(
        float(np.max(np.array(data["wide"][name]) / np.array(bounds)))
        for form in data["bounds"].values()
        for name, bounds in form.items()
    )
    return [
        Claim(
            "Figure 4.3's models meet Assumption 4.1.5, which the propositions require: h_G minus Σ |h| outside C",
            settings["clique"] * settings["field"] - (settings["spins"] - settings["clique"]) * settings["field"],
            ">", 0.0, "h = 5 for all 10 spins, so the sums are 20 in the clique and 30 outside; the proof of "
            "Proposition 4.1.4 does not need the assumption",
        ),
        *_parallel_claims(data),
        Claim(
            f"k-Gibbs with k >= |C| reaches R_1 within the budget: share of runs ({', '.join(whole)})",
            reached, ">=", 0.95,
        ),
        Claim(
            "larger k is faster, exactly: smallest ratio of expected steps, k to k + 1",
            float(np.min(expected[:-1] / expected[1:])), ">", 1.0,
        ),
        Claim(
            "larger J is slower for every k < N, exactly: smallest ratio of expected steps, J to the next smaller J, "
            "minus 1",
            float(np.min(expected[:-1, 1:] / expected[:-1, :-1])) - 1.0, ">", 0.0,
        ),
        Claim(
            "simulated means equal exact means: largest difference in standard errors", _deviation(data), "<=", 5.0
        ),
        Claim(
            "the lumped chain is exact: largest relative difference to the chain on all 2^N states",
            lumping, "<=", 1e-9,
        ),
        Claim(
            "Proposition 4.1.4: largest ratio of expected steps to the bound 1 / (1 - c_{R_1}), minus 1",
            ratio - 1.0, "<=", 1e-9,
        ),
        Claim(
            f"Proposition 4.1.4, {sum(tail['cases'] for tail in tails)} cases: largest P(R_1 not reached within T) / "
            "delta",
            max(tail["missed"] / tail["delta"] for tail in tails), "<=", 1.0,
        ),
    ]  # fmt: skip


def _parallel_claims(data: dict[str, Any]) -> list[Claim]:
    """Claims about the independent parallel sampler."""
    parallel = data["simulated"][PARALLEL]
    return [
        Claim(
            "independent parallel never reaches R_1, simulated: number of runs that do, "
            f"of {np.size(parallel['steps'])}",
            sum(parallel["reached"]), "<=", 0,
        ),
        Claim(
            "independent parallel never reaches R_1, exactly: largest probability of reaching it within the budget",
            max(data["exact"][PARALLEL]["reached_within_budget"]), "<=", 0.01,
        ),
        Claim(
            "independent parallel never reaches R_1 for any J: largest probability over a wide range of J",
            max(data["parallel_reached"]), "<=", 0.01,
            f"below J = {_stuck_from(data):.3g} the fields turn single spins and R_1 is reached; the chapter does not "
            "give its values of J",
        ),
    ]  # fmt: skip


def _stuck_from(data: dict[str, Any]) -> float:
    """The smallest J from which independent parallel hardly ever reaches R_1; inf if it does at the largest J."""
    couplings = data["settings"]["wide_couplings"]
    arrives = [j for j, reached in zip(couplings, data["parallel_reached"], strict=True) if reached > 0.01]
    return min((j for j in couplings if j > max(arrives, default=0.0)), default=np.inf)


def _deviation(data: dict[str, Any]) -> float:
    """The largest difference between a simulated mean and the exact one, in standard errors."""
    worst = 0.0
    for name, runs in data["simulated"].items():
        exact = data["exact"][name]
        means = np.mean(runs["steps"], axis=1)
        # At least 0.001 steps, because some points have a standard deviation of 0.
        errors = np.maximum(np.array(exact["sd_within_budget"]) / np.sqrt(data["settings"]["repetitions"]), 1e-3)
        worst = max(worst, float(np.max(np.abs(means - np.array(exact["mean_within_budget"])) / errors)))
    return worst


def separation_claims(data: dict[str, Any]) -> list[Claim]:
    """Claims about Proposition 4.1.5, Corollary 4.1.1 and the constant of Proposition 4.1.4.

    Args:
      data: the result of `separation`.
    """
    speaking = [(entry, at) for entry in data["stuck"] for at in entry["by_delta"] if at["steps"] >= 1]
    larger = [entry for entry in data["constant"] if entry["clique"] > 2]
    fours = [at["steps"] for entry in data["stuck"] if entry["clique"] == 4 for at in entry["by_delta"]]
    return [
        Claim(
            "Proposition 4.1.5 covers at least one step for |C| = 4, as in Figure 4.3: largest T before rounding",
            max(fours, default=np.nan),
            ">=", 1.0, "for |C| = 4, c_stuck < 2 (|C| / 2 - 1)² / |C| = 1/2, so T < 0.83 delta for every J",
        ),
        Claim(
            "Proposition 4.1.5 covers at least one step for larger cliques: number of such cases",
            len(speaking), ">=", 1,
        ),
        Claim(
            "Proposition 4.1.5 for these cliques: largest P(Σ x_i > -2 within T) / delta, from the worst start",
            max((at["left"] / at["delta"] for _, at in speaking), default=np.nan), "<=", 1.0,
        ),
        Claim(
            f"Corollary 4.1.1, {len(data['corollary'])} cases: largest probability of failure / delta",
            max(entry["failure"] / entry["delta"] for entry in data["corollary"]), "<=", 1.0,
        ),
        Claim(
            "the models of Corollary 4.1.1 meet Assumption 4.1.5: share of models",
            float(np.mean([entry["assumption_4_1_5"] for entry in data["corollary"]])), ">=", 1.0,
        ),
        Claim(
            "Proposition 4.1.4 with 2^|C| - 2 in its constant is a bound: largest bound / P(R_1)",
            max(entry["bound_of_the_proof"] / entry["mode_probability"] for entry in data["constant"]), "<=", 1.0,
        ),
        Claim(
            "Proposition 4.1.4 with 2|C| - 2, as (4.49) prints it, is a bound: largest bound / P(R_1), |C| = 3 to 6",
            max(entry["bound_as_printed"] / entry["mode_probability"] for entry in larger), "<=", 1.0,
            "a misprint: 2^|C| - 2 states are in neither mode, as the proof says",
        ),
    ]  # fmt: skip
