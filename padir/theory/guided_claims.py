"""Checks the claims of section 3.3 with the data of `value_guided` and `error_amplification`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from padir.theory.claims import Claim


def value_guided_claims(data: dict[str, Any]) -> list[Claim]:
    """All claims about VGB's law, its speed, and accurate values.

    Args:
      data: the result of `value_guided`.
    """
    return [
        *_law_claims(data),
        *_exact_claims(data["trees"], data["one_way"]),
        *_first_leaf_claims(data),
        *_accuracy_claims(data["by_kappa"]),
        *_dyck_claims(data["dyck"]),
    ]


def _law_claims(data: dict[str, Any]) -> list[Claim]:
    """The stationary law, for any values."""
    trees = data["trees"]

    def worst(name: str) -> float:
        return max(tree[name] for tree in trees)

    return [
        Claim(
            f"VGB has π̃ ∝ the conductance at a prefix as stationary law, {len(trees)} trees, V̂ with large errors: "
            "largest |π̃P - π̃|",
            worst("stationarity"), "<=", 1e-12,
        ),
        Claim(
            "VGB is reversible for π̃: largest |π̃(x)P(x, y) - π̃(y)P(y, x)|", worst("reversibility"), "<=", 1e-12
        ),
        Claim(
            "π̃ restricted to leaves is π*, for any V̂ that equals τ there and is positive where V* is: largest total "
            "variation",
            worst("leaf_law"), "<=", 1e-12,
        ),
        Claim(
            "π̃ restricted to leaves is π* if V̂ = τ there, as printed: total variation with V̂ = 0 at one inner prefix "
            "where V* > 0",
            data["cut_off"], "<=", 1e-12,
            "what lies behind that prefix is never reached; V̂ must be positive where V* is",
        ),
        Claim(
            "VGB needs its laziness to have a stationary law, as printed: largest |π̃P - π̃| without it",
            worst("not_lazy"), ">", 1e-12,
            "the walk without laziness has the same stationary law; it has period 2 and does not converge to it",
        ),
        Claim(
            "without laziness the walk has period 2: largest distance of its smallest eigenvalue from -1",
            max(abs(tree["smallest_eigenvalue"] + 1.0) for tree in trees), "<=", 1e-12,
        ),
    ]  # fmt: skip


def _exact_claims(trees: list[dict[str, Any]], one_way: float) -> list[Claim]:
    """With V̂ = V*."""
    level = [tree for tree in trees if tree["kind"] != "any length"]

    def apart(name: str, formula: Any) -> float:
        return max(abs(tree[name] / formula(tree) - 1.0) for tree in level)

    return [
        Claim(
            "V̂ = V*: π̃ has 1 / (2 E[length]) at leaves, outputs of one length (1 / (2H)) and of several: largest "
            "difference",
            max(abs(tree["leaf_mass"] - tree["leaf_mass_formula"]) for tree in trees), "<=", 1e-12,
        ),
        Claim(
            "V̂ = V*: depth alone is a walk that goes up with probability 1/2: largest difference",
            max(tree["up"] for tree in trees), "<=", 1e-12,
        ),
        Claim(
            "V̂ = V*: the spectral gap is (1 - cos(π / 2H)) / 2: largest relative difference",
            apart("gap", lambda tree: tree["gap_formula"]), "<=", 1e-9,
        ),
        Claim(
            "and larger if only one child of the root has V* > 0: difference", one_way, ">", 0.0
        ),
        Claim(
            "V̂ = V*: the first leaf takes H² moves: largest relative difference",
            apart("moves", lambda tree: tree["depth"] ** 2), "<=", 1e-9,
        ),
        Claim(
            "V̂ = V*: the first leaf takes H (H + 1) / 2 queries: largest relative difference",
            apart("queries", lambda tree: tree["depth"] * (tree["depth"] + 1) / 2), "<=", 1e-9,
        ),
        Claim(
            "V̂ = V*: the first leaf has the law π*, outputs of one length: largest total variation",
            max(tree["first_leaf"] for tree in level), "<=", 1e-12,
        ),
        Claim(
            "V̂ = V*: with outputs of several lengths it has not, because short ones come first: largest total "
            "variation",
            max(tree["first_leaf"] for tree in trees if tree["kind"] == "any length"), ">", 1e-3,
        ),
    ]  # fmt: skip


def _first_leaf_claims(data: dict[str, Any]) -> list[Claim]:
    """Three ways of computing the law and the time of the first leaf."""
    return [
        Claim(
            "the first leaf by the recursion of conductances and by solving linear equations: largest difference",
            max(tree["recursion"] for tree in data["trees"]), "<=", 1e-9,
        ),
        Claim(
            f"{data['settings']['walks']} walks, frequencies of leaves and mean moves: largest difference in standard "
            "errors",
            data["simulated"], "<=", 5.0,
        ),
    ]  # fmt: skip


def _accuracy_claims(by_kappa: list[dict[str, Any]]) -> list[Claim]:
    """With V* / κ ≤ V̂ ≤ κ V*."""

    def excess(entry: dict[str, Any]) -> float:
        low, high = entry["leaf_mass_bounds"]
        return max(low / entry["leaf_mass"], entry["leaf_mass"] / high) - 1.0

    return [
        Claim(
            f"V̂ within a factor κ of V*, {len(by_kappa)} cases: the leaves have at least 1 / (2 (1 + (H - 1) κ)) and "
            "at most 1 / (2 (1 + (H - 1) / κ)); largest relative excess",
            max(map(excess, by_kappa)), "<=", 1e-9,
        ),
        Claim(
            "V̂ within a factor κ of V*: smallest ratio of the gap to (1 - cos(π / 2H)) / (2κ²), plus 1e-9",
            min(entry["gap"] / entry["gap_bound"] for entry in by_kappa) + 1e-9, ">=", 1.0,
        ),
        Claim(
            "V̂ within a factor κ of V*: largest total variation / δ after 2κ² / (1 - cos(π / 2H)) ln(κ √(2H) / (2δ)) "
            "steps from the root",
            max(entry["distance"] for entry in by_kappa), "<=", 1.0,
        ),
        Claim(
            "1 - cos(π / 2H) >= 1 / H², so that these steps are at most 2κ² H² ln(κ √(2H) / (2δ)): smallest ratio, "
            "H up to 100, plus 1e-9",
            min((1.0 - math.cos(math.pi / (2 * h))) * h**2 for h in range(1, 101)) + 1e-9, ">=", 1.0,
        ),
    ]  # fmt: skip


def _dyck_claims(by_length: dict[str, Any]) -> list[Claim]:
    """Dyck words: the exact value, and a yes or no as value."""
    longer = {int(d): entry for d, entry in by_length.items() if int(d) > 2}
    verifiers = [entry["verifier"] for entry in longer.values()]
    gains = np.array([entry["verifier"]["moves"] / entry["value"]["moves"] for entry in longer.values()])
    masses = np.array([d * entry["verifier"]["leaf_mass"] for d, entry in longer.items()])
    return [
        Claim(
            "Dyck words, V̂ = V* or a perfect verifier: π̃ at leaves is uniform; largest total variation",
            max(entry["stationary"] for both in by_length.values() for entry in both.values()), "<=", 1e-12,
        ),
        Claim(
            "Dyck words, V̂ = V*: the first leaf is uniform; largest total variation",
            max(entry["value"]["first_leaf"] for entry in by_length.values()), "<=", 1e-12,
        ),
        Claim(
            "Dyck words, a perfect verifier as V̂: the first leaf is nearer to uniform than tokenwise rejection; "
            f"largest ratio of total variations, D = {', '.join(map(str, longer))}",
            max(entry["first_leaf"] / entry["action_level"] for entry in verifiers), "<", 1.0,
        ),
        Claim(
            "Dyck words: a perfect verifier as V̂ takes more moves to the first leaf than V*; smallest ratio",
            float(np.min(gains)), ">", 1.0,
        ),
        Claim(
            "and the longer the words, the more: smallest growth of this ratio between neighbouring D",
            float(np.min(gains[1:] / gains[:-1])), ">", 1.0,
        ),
        Claim(
            "Ω(1 / H) at leaves needs accurate values: with a perfect verifier as V̂, H times the leaves' mass falls; "
            "largest ratio between neighbouring D",
            float(np.max(masses[1:] / masses[:-1])), "<", 1.0,
        ),
    ]  # fmt: skip


def error_amplification_claims(data: dict[str, Any]) -> list[Claim]:
    """How errors of the value compound with length.

    Args:
      data: the result of `error_amplification`.
    """
    entries = list(data["by_kappa"].values())
    lengths = np.array(data["settings"]["lengths"])

    def stack(name: str) -> np.ndarray:
        return np.array([entry[name] for entry in entries])

    action_level, first = stack("action_level"), stack("first_leaf")
    kappas = np.array(data["settings"]["kappas"])[:, None]
    shown = ", ".join(map(str, lengths))
    return [
        Claim(
            f"action-level sampling's total variation to π* grows with H = {shown}: smallest difference between "
            "neighbouring H",
            float(np.min(np.diff(action_level, axis=1))), ">", 0.0,
        ),
        Claim(
            "its largest density relative to π* is (2κ² / (1 + κ²))^(H - 1): largest relative difference",
            float(np.max(np.abs(stack("density") / stack("density_formula") - 1.0))), "<=", 1e-9,
        ),
        Claim(
            f"VGB's first leaf stays near π* for κ <= {kappas.max():g}: largest total variation",
            float(np.max(first)), "<", 0.25,
        ),
        Claim(
            "VGB's first leaf is nearer to π* than action-level sampling: largest ratio of total variations",
            float(np.max(first / action_level)), "<", 1.0,
        ),
        Claim(
            "VGB's stationary law at leaves is π*: largest total variation", float(np.max(stack("stationary"))),
            "<=", 1e-12,
        ),
        Claim(
            "VGB's cost is quadratic in H: largest expected moves / (κ H)² until the first leaf",
            float(np.max(stack("moves") / (kappas * lengths) ** 2)), "<=", 1.0,
        ),
    ]  # fmt: skip
