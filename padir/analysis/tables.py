"""Statistics of pairs in the form of the paper's tables, and tests of its two hypotheses (section 4.2.4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from padir.analysis.pairs import CROSS, SELF, Pairs
from padir.analysis.paper import PAPER, Printed
from padir.analysis.permutation import compare
from padir.checks import finite_or_none

# Level of significance, not corrected for the number of statistics.
LEVEL = 0.05

_DIRECTIONS = {"self": ("forward", "backward")}
_KINDS = ("stutter", "no_stutter")

# For each hypothesis: the paper's finding, and the statistics that we judge by, with their relation to the values of
# other pairs. Table 4.4's probabilities are left out: the paper's own are slightly larger where it stutters.
_FINDINGS = (
    (
        1,
        "strongly dependent positions have larger self-attention between each other",
        "unlikely to hold: even on average, stuttering positions do not have larger self-attention",
        tuple((f"self_{over}", "not larger") for over in ("avg", "min", "max")),
    ),
    (
        2,
        "strongly dependent positions have similar cross-attention",
        "promising: stuttering positions have more similar cross-attention by every measure",
        (
            *((f"{distance}_{over}", "smaller") for distance in ("tv", "cosine") for over in ("avg", "min", "max")),
            ("cross_top1", "larger"),
            ("cross_top2", "larger"),
        ),
    ),
)


def summarize(pairs: Pairs, *, permutations: int, seed: int) -> dict[str, dict[str, Any]]:
    """Computes the means of each statistic, their difference, and its test.

    Args:
      pairs: pairs of which at least one stutters and one does not.
      permutations: number of random rotations, and of bootstrap samples.
      seed: random seed of both.

    Returns:
      One dictionary per statistic in `SELF` and `CROSS`. Those in `SELF` count both directions; the single directions
      are `<name>_forward` (t to t + 1) and `<name>_backward`. Each dictionary has 'stutter' and 'no_stutter', with
      'mean', 'sd' (n - 1 in the denominator; None if n = 1) and 'n'; and 'difference', 'difference_within_sentences',
      'p_value' and 'interval', as in `Comparison`.
    """
    groups = {}
    for name in (*SELF, *CROSS):
        groups[name] = pairs.values[name].astype(np.float64)
        for column, direction in enumerate(_DIRECTIONS.get(name.split("_")[0], ())):
            groups[f"{name}_{direction}"] = groups[name][:, column : column + 1]
    # A pair is one observation, so the test uses the mean of its two directions.
    means = np.stack([values.mean(1) for values in groups.values()], axis=1)
    test = compare(means, pairs.stutters, pairs.sentences, permutations=permutations, seed=seed)
    return {
        name: {
            "stutter": _moments(values[pairs.stutters]),
            "no_stutter": _moments(values[~pairs.stutters]),
            "difference": float(test.difference[index]),
            "difference_within_sentences": float(test.within[index]),
            "p_value": float(test.p_value[index]),
            "interval": [finite_or_none(test.low[index]), finite_or_none(test.high[index])],
        }
        for index, (name, values) in enumerate(groups.items())
    }


def claims(summary: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Checks the paper's two findings, with one claim per statistic.

    The claims 'larger' and 'smaller' pass if the difference of the means and the difference within sentences both have
    this sign, and p is below `LEVEL`. The claim 'not larger' passes if 'larger' would fail.

    Args:
      summary: the result of `summarize`.

    Returns:
      One dictionary per claim; its 'line' is for printing.
    """
    found = []
    for hypothesis, text, finding, judged in _FINDINGS:
        for name, relation in judged:
            row = summary[name]
            passed = _significant(row, "smaller" if relation == "smaller" else "larger") != (relation == "not larger")
            paper = PAPER[name][0][0] - PAPER[name][1][0]
            line = (
                f"{'PASS' if passed else 'FAIL'}  hypothesis {hypothesis}, {name} {relation} where it stutters: "
                f"difference {row['difference']:+.4f} (p = {row['p_value']:.4g}), in the paper {paper:+.4f}"
            )
            found.append(
                {
                    "hypothesis": hypothesis,
                    "text": text,
                    "paper": finding,
                    "statistic": name,
                    "relation": relation,
                    "difference": row["difference"],
                    "difference_within_sentences": row["difference_within_sentences"],
                    "p_value": row["p_value"],
                    "paper_difference": paper,
                    "passed": passed,
                    "line": line,
                }
            )
    return found


def verdicts(found: list[dict[str, Any]]) -> list[str]:
    """One line per hypothesis that says whether the result agrees with the paper."""
    lines = []
    for hypothesis, text, finding, _ in _FINDINGS:
        passed = [claim["passed"] for claim in found if claim["hypothesis"] == hypothesis]
        same = "agrees with the paper" if all(passed) else "does not fully agree with the paper"
        lines.append(
            f"hypothesis {hypothesis} ({text}): {same}, {sum(passed)} of {len(passed)} claims; "
            f"the paper's verdict: {finding}"
        )
    return lines


def markdown(result: Mapping[str, Any]) -> str:
    """The Markdown page: verdicts, claims, and both tables beside the paper's.

    Args:
      result: the result of `padir.analysis.attention.attention`.
    """
    counts = result["counts"]
    summary = result["statistics"]
    lines = [
        "# Attention of adjacent output positions that stutter and of those that do not",
        "",
        f"Last decoder layer ({result['layer']}) of `{result['run_dir']}` (step {result['step']}), {result['split']} "
        f"of `{result['data_dir']}`: {counts['sentences']} sentences, {counts['stutter_pairs']} pairs of adjacent "
        f"positions with the same token (in {counts['sentences_that_stutter']} sentences), "
        f"{counts['other_pairs']} others.",
        f"Decoded with `{result['decode']}`.",
        "",
        *(f"* {line}" for line in result["verdicts"]),
        "",
        "```",
        *(claim["line"] for claim in result["claims"]),
        "```",
        "",
        *_table(
            "Self-attention between the two positions (the paper's Table 4.4)",
            summary,
            {
                "": {name: name for name in SELF},
                " t → t+1": {name: f"{name}_forward" for name in SELF},
                " t+1 → t": {name: f"{name}_backward" for name in SELF},
            },
        ),
        "",
        *_table(
            "Distance between their cross-attention (the paper's Table 4.5)",
            summary,
            {"": {name: name for name in CROSS}},
        ),
        "",
        *_legend(result["permutations"]),
        "",
    ]
    return "\n".join(lines)


def _legend(permutations: int) -> list[str]:
    """What the rows and columns of the tables mean."""
    return [
        "* min, avg and max are taken over the heads. Cells are mean ± standard deviation over pairs (and directions).",
        "* P{top-k} is computed for each head, and for the mean of the heads' distributions. The paper does not say "
        "which of the two it means.",
        "* difference: the mean over pairs that stutter minus the mean over the others. In brackets is its 95% "
        "bootstrap interval, with sentences resampled.",
        "* within sentences: the difference without the part that comes from differences between sentences. It may "
        "have another sign than the difference.",
        f"* p: the two-sided p-value of the difference within sentences. {permutations:,} permutations rotate the "
        "labels within each sentence. It is not corrected for the number of columns.",
        "* The claims 'larger' and 'smaller' pass if both differences have this sign and p < 0.05. The claim 'not "
        "larger' passes if 'larger' would fail.",
    ]


def _table(title: str, summary: Mapping[str, Any], blocks: Mapping[str, Mapping[str, str]]) -> list[str]:
    """The lines of one table; a block maps a suffix of its rows' names to the statistic that each column shows."""
    names = list(next(iter(blocks.values())))
    lines = [f"## {title}", "", f"| | {' | '.join(map(_heading, names))} |", f"|---|{'---:|' * len(names)}"]
    for index, kind in enumerate(_KINDS):
        cells = [_printed(PAPER[name][index] if name in PAPER else ()) for name in names]
        lines.append(_row(f"paper, {_words(kind)}", cells))
    for suffix, shown in blocks.items():
        for kind in _KINDS:
            lines.append(_row(f"here{suffix}, {_words(kind)}", [_measured(summary[shown[n]][kind], n) for n in names]))
        lines.append(_row(f"difference{suffix}", [_signed(summary[shown[n]]) for n in names]))
        within = [f"{summary[shown[n]]['difference_within_sentences']:+.2g}" for n in names]
        lines.append(_row(f"within sentences{suffix}", within))
        lines.append(_row(f"p{suffix}", [f"{summary[shown[n]]['p_value']:.2g}" for n in names]))
    return lines


def _row(name: str, cells: list[str]) -> str:
    return f"| {name} | {' | '.join(cells)} |"


def _words(kind: str) -> str:
    return kind.replace("_", " ")


def _heading(name: str) -> str:
    """'cross_mean_top2' → 'P{top-2}, mean of heads'."""
    if "_top" in name:
        return f"P{{top-{name[-1]}}}" + (", mean of heads" if "_mean_" in name else "")
    first, over = name.split("_")
    return {"self": "", "tv": "total variation ", "cosine": "cosine "}[first] + over


def _printed(values: Printed) -> str:
    return " ± ".join(f"{value:g}" for value in values) or "–"


def _measured(moments: Mapping[str, Any], name: str) -> str:
    digits = ".2g" if abs(moments["mean"]) < 0.01 else ".3f"
    spread = moments["sd"]
    return f"{moments['mean']:{digits}}" + ("" if "_top" in name or spread is None else f" ± {spread:{digits}}")


def _signed(row: Mapping[str, Any]) -> str:
    low, high = row["interval"]
    return f"{row['difference']:+.2g}" + ("" if low is None else f" [{low:+.2g}, {high:+.2g}]")


def _significant(row: Mapping[str, Any], relation: str) -> bool:
    sign = 1 if relation == "larger" else -1
    return row["p_value"] < LEVEL and min(sign * row["difference"], sign * row["difference_within_sentences"]) > 0


def _moments(values: np.ndarray) -> dict[str, Any]:
    return {
        "mean": float(values.mean()),
        "sd": float(values.std(ddof=1)) if values.size > 1 else None,
        "n": int(values.size),
    }
