"""Claims about trained networks: B6 to B10 and B13."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from padir.brackets.thesis import ACCURACY, COPYING, UNIFORM_ACCURACY
from padir.theory.claims import Claim

Results = Mapping[str, Any]

# From here on a pattern of the copying task counts as structured (ours): the mean total variation distance of its rows
# from uniform ones.
STRUCTURED = 0.2


def of_pairs(found: Results) -> list[Claim]:
    """B6 and B9, or B10, by what was trained on."""
    data, compared = found["data"], found["comparison"]
    complete = data == "complete"
    claims = []
    if complete:
        claims += [
            Claim("B6: least accuracy of a standard run among closing brackets", min(found["standard"]["closing"]),
                  ">=", ACCURACY),
            Claim("B6: least accuracy with uniform attention", min(found["uniform"]["closing"]), ">=",
                  UNIFORM_ACCURACY),
        ]  # fmt: skip
    name, count = ("B9" if complete else "B10"), len(found["standard"]["beta"])
    closing = compared["closing"]
    claims += [
        Claim(f"{name}: β with the contrastive term / without, median of {count} pairs", compared["beta_ratio"], "<=",
              0.7 if complete else 0.5),
        Claim(f"{name}: share of pairs with higher accuracy at lengths 400 to 500, among closing brackets",
              closing["higher"] / count, ">=", 0.75),
    ]  # fmt: skip
    if complete and count > 1:
        claims.append(Claim(f"B9: rank correlation of β and that accuracy, {2 * count} runs", closing["correlation"],
                            "<", 0.0))  # fmt: skip
    return claims


def of_variations(found: Results) -> list[Claim]:
    """B7."""
    networks = found["networks"]
    standard = {name: row for name, row in networks.items() if row["settings"]["network"]["inputs"] == "tokens"}
    minimal = {name: row for name, row in networks.items() if name not in standard}
    least = min(value for row in networks.values() for value in row["closing"])
    claims = [Claim("B7: least accuracy of all runs among closing brackets", least, ">=", ACCURACY)]
    for name, row in standard.items():
        claims.append(Claim(f"B7: attention variation of the last layer / random baseline, {name}",
                            row["variation"][-1] / row["baseline"], ">=", 0.5))  # fmt: skip
    for name, row in minimal.items():
        for other, of_other in standard.items():
            claims.append(Claim(f"B7: attention variation, {name} / {other}",
                                row["variation"][-1] / of_other["variation"][-1], "<", 0.5))  # fmt: skip
    return claims


def of_architectures(found: Results) -> list[Claim]:
    """B8, Table 2.6."""
    claims = [
        Claim("B8: least accuracy of all runs among closing brackets",
              min(min(row["closing"]) for row in found["rows"].values()), ">=", ACCURACY)
    ]  # fmt: skip
    for name, row in found["rows"].items():
        claims.append(Claim(f"B8: variation of layer 1 / layer 2, (k, D, layers) = ({name})",
                            row["mean"][0] / row["mean"][1], "<", 0.1))  # fmt: skip
        if len(row["mean"]) > 2:
            claims.append(Claim(f"B8: variation of layer 3 / layer 2, ({name})", row["mean"][2] / row["mean"][1],
                                ">", 1.0))  # fmt: skip
    return claims


def of_copying(found: Results) -> list[Claim]:
    """B13."""
    claims = []
    for layers, row in found["rows"].items():
        limit = COPYING.get(int(layers), min(COPYING.values()))
        claims.append(Claim(f"B13: least accuracy of copying, {layers} layers", min(row["accuracy"]), ">", limit))
    lost = [
        accuracy - uniform
        for row in found["rows"].values()
        for layer, of_layer in enumerate(row["uniform"])
        for seed, (accuracy, uniform) in enumerate(zip(row["accuracy"], of_layer, strict=True))
        if row["structure"][seed][layer] >= STRUCTURED
    ]
    text = "B13: accuracy lost with uniform attention, of layers that look structured, the least"
    claims.append(Claim(text, float(np.min(lost)) if lost else float("nan"), "<", 0.01))
    return claims
