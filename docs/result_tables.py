"""What the templates of result pages make of figures: words, lists and Markdown tables."""

from __future__ import annotations

import re
from typing import Any


def number(value: float, digits: int | None = None) -> str:
    """A figure with so many decimals; without a count, with three significant digits (two decimals below 1)."""
    if digits is None:
        digits = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:,.{digits}f}"


def times(value: float, digits: int = 2) -> str:
    """A ratio: '2.23x'."""
    return f"{value:.{digits}f}x"


def interval(bounds: list[float]) -> str:
    """A 95% confidence interval: '247–255'."""
    return "–".join(number(bound) for bound in bounds)


def table(head: list[str], rows: list[list[Any]]) -> str:
    """A Markdown table; columns after the first are numbers and stand on the right."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def folded(title: str, text: str) -> str:
    """Text that a reader opens by clicking on its title."""
    return f"<details><summary>{title}</summary>\n\n{text.strip()}\n\n</details>"


def request_ms(found: dict[str, Any], name: str, statistic: str = "median") -> float:
    """A statistic of the latency of a system, in ms."""
    return found["systems"][name]["latency_ms"][statistic]


def latency_table(found: dict[str, Any], names: list[str], greedy: str, beam: str) -> str:
    """Median, interval, p99 and operations of systems, and their speed-ups over two of them."""
    systems = found["systems"]
    median = {name: systems[name]["latency_ms"]["median"] for name in systems}
    rows = []
    for name in names:
        measured = systems[name]["latency_ms"]
        ratios = [times(median[base] / median[name]) for base in (greedy, beam)]
        figures = [number(measured["median"]), interval(measured["median_ci95"]), number(measured["p99"])]
        rows.append([name, *figures, number(systems[name]["gflops"], 1), *ratios])
    head = ["system", "median ms", "95% interval", "p99 ms", "GFLOP", f"over {greedy}", f"over {beam}"]
    return table(head, rows)


def batches_table(found: dict[int, dict[str, Any]], greedy: str, beam: str) -> str:
    """Median and p99 of systems at several batch sizes, and in each their speed-ups over two of them."""
    rows = []
    for name in next(iter(found.values()))["systems"]:
        row = [name]
        for result in found.values():
            median = request_ms(result, name)
            ratios = " / ".join(times(request_ms(result, base) / median, 1) for base in (greedy, beam))
            row += [f"{number(median)} ({number(request_ms(result, name, 'p99'))})", ratios]
        rows.append(row)
    head = [title for size in found for title in (f"batch {size}: median ms (p99)", "over greedy / beam 5")]
    return table(["system", *head], rows)


def quality_table(systems: dict[str, Any]) -> str:
    """Scores of systems, and the time of a request."""
    rows = []
    for name, scores in systems.items():
        valid = "" if scores["validity"] is None else number(scores["validity"], 1)
        times_ms = scores["latency_ms"]
        rows.append(
            [
                name,
                number(scores["bleu"], 1),
                number(scores["chrf"], 1),
                valid,
                number(scores["stutter_per_100_words"], 2),
                number(scores["mean_steps_run"], 1),
                number(times_ms["median"]),
                number(times_ms["p99"]),
                times(scores["speed_up"]),
            ]
        )
    head = ["system", "BLEU", "chrF", "valid %", "stutter / 100 words", "steps run", "median ms", "p99 ms", "speed-up"]
    if not any(row[3] for row in rows):
        head.pop(3)
        rows = [row[:3] + row[4:] for row in rows]
    return table(head, rows)


def comparison_table(found: dict[str, Any], all: bool = False) -> str:
    """The systems of a comparison on real text: all, or one checkpoint of each model, not rescored, with 4 steps.

    Of PaDIR's own one step is shown as well.
    """
    rows = []
    left_out = ("rescored", "averaged", "lowest loss", "10 steps", "1 step")
    for name, scores in found["systems"].items():
        if not all and name != "PaDIR, 1 step" and any(word in name for word in left_out):
            continue
        p_values = ""
        if tests := scores.get("against_baseline"):
            both = tests["bleu"], scores["approximate_randomization"]["bleu"]
            p_values = " / ".join(number(test["p_value"], 3) for test in both)
        figures = [number(scores[key], 2) for key in ("bleu", "chrf", "stutter_per_100_words")]
        figures.append("" if scores["length_accuracy"] is None else number(scores["length_accuracy"], 0))
        figures += [number(scores["mean_steps_run"], 1), p_values]
        if latency := scores.get("latency_ms"):
            figures += [number(latency["median"]), number(latency["p99"]), times(scores["speed_up"])]
        rows.append([name, *figures, *[""] * (9 - len(figures))])
    head = ["system", "BLEU", "chrF", "stutter / 100 words", "length %", "steps run", "p", "median ms", "p99 ms"]
    return table([*head, "speed-up"], rows)


def signatures(found: dict[str, Any]) -> str:
    """sacreBLEU's signatures of a comparison's scores."""
    scores = next(iter(found["systems"].values()))
    return f"BLEU is `{scores['bleu_signature']}`, chrF `{scores['chrf_signature']}`."


def sittings(found: dict[str, Any]) -> str:
    """Between which medians the system that all are compared with lay, in ms, in the sittings of the models."""
    timed = [row for row in found["systems"].values() if "latency_ms" in row]
    medians = [row["speed_up"] * row["latency_ms"]["median"] for row in timed]
    return f"{number(min(medians))} to {number(max(medians))} ms"


def pairs_table(found: dict[str, Any]) -> str:
    """Pairs of a comparison's models, and whether their difference is significant."""
    rows = [
        [f"{pair['better']} against {pair['worse']}", number(pair["difference"], 2)]
        + [number(pair[test], 3) for test in ("bootstrap", "randomization")]
        for pair in found["pairs"]
    ]
    return table(["systems", "BLEU", "p, paired bootstrap", "p, approximate randomisation"], rows)


def pair_of(found: dict[str, Any], one: str, other: str) -> dict[str, Any] | None:
    """The test of two models' difference, counted from the second; None if they were not compared."""
    for pair in found["pairs"]:
        if {pair["better"], pair["worse"]} == {one, other}:
            return pair | {"difference": pair["difference"] * (1 if pair["better"] == one else -1)}
    return None


def p_of(found: dict[str, Any], one: str, other: str) -> str:
    """The p-value of two models' difference in brackets; nothing if they were not compared."""
    pair = pair_of(found, one, other)
    return f" (p = {number(pair['bootstrap'], 3)})" if pair else ""


def updates_table(found: dict[str, Any]) -> str:
    """How many updates each model of a comparison made, how long they took, and after how many its loss was lowest."""
    rows = [
        [name, *(number(model[key], 0) for key in ("updates", "best_after"))]
        + [number(1e3 * model["update_seconds"], 0), number(model["seconds"] / 60, 1)]
        for name, model in found["models"].items()
    ]
    return table(["model", "updates", "lowest validation loss after", "ms for an update", "minutes"], rows)


def decodes_table(rows: dict[str, Any]) -> str:
    """Scores of ways to decode the same text, each compared with the plain decode of as many hypotheses."""
    lines = []
    for name, row in rows.items():
        compared = ["", ""]
        if "against_plain" in row:
            compared = [number(row["unchanged"], 1), number(row["against_plain"]["bleu"]["p_value"], 3)]
        label = name.replace("1 hypotheses", "1 hypothesis")
        lines.append([label, number(row["bleu"], 2), number(row["validity"], 1), *compared])
    return table(["decode", "BLEU", "valid %", "unchanged %", "p"], lines)


def compared_with_plain(rows: dict[str, Any], ending: str) -> dict[str, float]:
    """Largest change of BLEU and smallest p-value among the decodes whose names end so."""
    bleu = [row["against_plain"]["bleu"] for name, row in rows.items() if name.endswith(ending)]
    return {"change": max(abs(row["difference"]) for row in bleu), "p_value": min(row["p_value"] for row in bleu)}


def aims_table(head: list[str], aims: list[tuple[str, str, float, list[float | None]]]) -> str:
    """Ratios that are aimed at, bold where they reach the aim.

    Args:
      head: what the columns after the aim say.
      aims: for each row its text, "at least" or "at most", the ratio aimed at, and those reached (None: not measured).
    """
    rows = []
    for text, relation, aim, reached in aims:
        row = [f"{text}: {relation} {aim:g}x"]
        for ratio in reached:
            good = ratio is not None and (ratio >= aim if relation == "at least" else ratio <= aim)
            row.append("–" if ratio is None else f"**{times(ratio)}**" if good else times(ratio))
        rows.append(row)
    return table(["aim", *head], rows)


def phases_table(systems: dict[str, Any]) -> str:
    """Time of each phase of a request in ms, and what share of it the machine's bound explains."""
    phases = list(next(iter(systems.values())))
    rows = [
        [name, *(f"{number(found[phase]['ms'])} ({number(100 * found[phase]['of_bound'], 0)}%)" for phase in phases)]
        for name, found in systems.items()
    ]
    return table(["system", *phases], rows)


def literal(text: str) -> str:
    """Text of which Markdown shall make no table, emphasis or link."""
    return re.sub(r"([|*\[\]])", r"\\\1", text)


def claims_table(claims: list[dict[str, Any]]) -> str:
    """Claims of a figure of the theory, each with what was measured and its limit."""
    rows = []
    for claim in claims:
        verdict = "pass" if claim["passed"] else "**fail**"
        limit = f"{claim['relation']} {claim['limit']:.3g}"
        rows.append([literal(claim["claim"]), verdict, f"{claim['measured']:.3g}", limit])
    return table(["claim", "result", "measured", "limit"], rows)


def unsteady(found: dict[str, Any]) -> list[dict[str, Any]]:
    """The claims whose verdict depends on the seed; see benchmarks/verdicts.py."""
    return [claim for claims in found["parts"].values() for claim in claims if len(set(claim["passed"])) > 1]


def steady_of_all(found: dict[str, Any]) -> str:
    """How many claims get one verdict with all seeds: '9 of 10'."""
    count = sum(map(len, found["parts"].values()))
    return f"{count - len(unsteady(found))} of {count}"


def verdicts_table(found: dict[str, Any]) -> str:
    """What each seed measured of the claims whose verdict depends on it."""
    rows = []
    for claim in unsteady(found):
        figures = [
            f"{measured:.3g}" if passed else f"**{measured:.3g}**"
            for measured, passed in zip(claim["measured"], claim["passed"], strict=True)
        ]
        rows.append([literal(claim["claim"]), f"{claim['relation']} {claim['limit']:.3g}", *figures])
    return table(["claim", "limit", *[f"seed {seed}" for seed in found["seeds"]]], rows)


def mean(values: list[float]) -> float:
    """The mean of some numbers."""
    return sum(values) / len(values)


def signed(value: float, digits: int = 1) -> str:
    """A difference with its sign: '+2.1' or '−0.3'."""
    return f"{value:+.{digits}f}".replace("-", "−")


def failures(claims: list[dict[str, Any]]) -> str:
    """A list of the claims that fail, each with its reason; a Greek letter, a variable, begins a sentence as it is."""
    lines = []
    for claim in claims:
        if not claim["passed"]:
            reason = claim["reason"] or "we have not looked into the cause"
            reason = f"{reason[0].upper() if reason[0].isascii() else reason[0]}{reason[1:]}"
            found = f"{claim['measured']:.3g}, not {claim['relation']} {claim['limit']:.3g}"
            lines.append(f"* {literal(claim['claim'])}: {found}. {literal(reason)}.")
    return "\n".join(lines)


def explained(claims: list[dict[str, Any]], explanations: dict[str, str]) -> str:
    """A list of what failing claims mean.

    Args:
      claims: claims, of which some fail.
      explanations: for a part of a failing claim's text what it means; '{}' stands for what was measured.

    Raises:
      ValueError: a failing claim has no explanation, or an explanation has no failing claim.
    """
    measured: dict[str, list[str]] = {part: [] for part in explanations}
    for claim in claims:
        if not claim["passed"]:
            parts = [part for part in explanations if part in claim["claim"]]
            if len(parts) != 1:
                raise ValueError(f"{len(parts)} explanations of the claim that failed: {claim['claim']}")
            measured[parts[0]].append(f"{claim['measured']:.3g}")
    if idle := [part for part, values in measured.items() if not values]:
        raise ValueError(f"no failing claim is about: {idle}")
    return "\n".join(f"* {text.replace('{}', ' and '.join(measured[part]))}" for part, text in explanations.items())
