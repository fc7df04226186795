"""Formats the result of an evaluation for the terminal and as a Markdown page."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from padir.metrics.quality import QualityScores, tokenizer_in
from padir.metrics.stutter import unspaced


def summary(result: Mapping[str, Any]) -> str:
    """The terminal output: scores with signatures, length errors, steps, and the difference from the baseline."""
    quality = QualityScores(**{field.name: result[field.name] for field in dataclasses.fields(QualityScores)})
    lines = [f"{result['name']} on {result['split']} of {result['data_dir']}", str(quality)]
    lines += [
        f"{name} {result[key]:.2f}  ({result[f'{key}_signature']})"
        for key, name in (("bleurt", "BLEURT"), ("comet", "COMET"))
        if key in result
    ]
    lines.append(_steps(result))
    for metric, test in result.get("against_baseline", {}).items():
        lines.append(
            f"{metric} against {result['baseline']}: {test['difference']:+.2f} (p = {test['p_value']:.3f}, "
            f"{test['signature']}; p = {result['approximate_randomization'][metric]['p_value']:.4f} by approximate "
            "randomisation)"
        )
    return "\n".join(lines)


def markdown(result: Mapping[str, Any]) -> str:
    """The Markdown page: scores, stutter, scores by source length and, with a baseline, the comparison."""
    sections = [f"# {_cell(result['name'])} on {result['split']} of {_cell(result['data_dir'])}", _scores(result)]
    sections.append(f"{_steps(result)}. `{result['decode']}`")
    sections += ["## Stutter", _stutter(result), "## By source length", _by_length(result)]
    if "baseline" in result:
        sections += ["## Against the baseline", _comparison(result)]
    return "\n\n".join(sections) + "\n"


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose first column is left-aligned and whose other columns are right-aligned."""
    ruler = "|".join(["---", *["---:"] * (len(headings) - 1)])
    return "\n".join([f"| {' | '.join(headings)} |", f"|{ruler}|", *(f"| {' | '.join(row)} |" for row in rows)])


def _cell(text: object) -> str:
    return str(text).replace("|", "\\|")


def _lengths(result: Mapping[str, Any]) -> str:
    if result["length_accuracy"] is None:
        return ""
    return (
        f"length accuracy {result['length_accuracy']:.2f}%, error {result['length_error']:.2f} tokens "
        f"(bias {result['length_bias']:+.2f}), "
    )


def _steps(result: Mapping[str, Any]) -> str:
    rounds = ""
    if "mean_rounds" in result:
        rounds = (
            f" ({result['mean_draft_passes']:.1f} drafts, {result['mean_rounds']:.1f} verifications, "
            f"{result['tokens_per_round']:.2f} tokens a round)"
        )
    return f"{_lengths(result)}{result['mean_steps_run']:.1f} steps per sentence{rounds}{_cost(result)}"


def _cost(result: Mapping[str, Any]) -> str:
    """What generation under a verifier or a constraint cost, and how many sentences obey, if there was either."""
    if "queries_per_token" not in result:
        return ""
    per_token = "-" if result["queries_per_token"] is None else f"{result['queries_per_token']:.2f}"
    failed = f"{result['failed']} of {result['n']} sentences failed"
    if "constraint_met" in result:
        met = f"{result['constraint_met']:.2f}% meet the constraint, which concerns {result['constraint_concerns']}"
        return f", {per_token} queries per output token; {met}, {failed}"
    return (
        f", {result['mean_queries']:.1f} queries ({per_token} per output token), "
        f"{result['mean_verifier_calls']:.1f} verifier calls, {result['mean_backtracks']:.2f} backtracks; {failed}"
    )


def _scores(result: Mapping[str, Any]) -> str:
    """A table with one row for all available scores, and below it their signatures."""
    names = {
        "bleu": "BLEU",
        "bleu_intl": "BLEU (intl)",
        "chrf": "chrF",
        "ter": "TER ↓",
        "validity": "valid %",
        "bleurt": "BLEURT",
        "comet": "COMET",
    }
    there = {key: heading for key, heading in names.items() if result.get(key) is not None}
    rows = [[_cell(result["name"]), str(result["n"]), *(f"{result[key]:.2f}" for key in there)]]
    signatures = [f"- {names[key]}: `{result[f'{key}_signature']}`" for key in there if f"{key}_signature" in result]
    return table(["system", "n", *there.values()], rows) + "\n\n" + "\n".join(signatures)


def _stutter(result: Mapping[str, Any]) -> str:
    """A table of repeats in output and reference, and of stutter, for the system and the baseline."""
    systems = {result["name"]: result}
    if "baseline" in result:
        systems[result["baseline"]] = result["baseline_stutter"]
    rows = [
        [
            f"{_cell(name)}, per 100 {unit}",
            *(f"{rates[f'{key}_per_100_{unit}']:.2f}" for key in ("repeats", "reference_repeats", "stutter")),
        ]
        for name, rates in systems.items()
        for unit in ("words", "tokens")
    ]
    unspaced_text = unspaced(tokenizer_in(result["bleu_signature"]))
    note = "\n\nEach character counts as a word, because the text has no spaces." if unspaced_text else ""
    return table(["adjacent repeats", "output", "reference", "stutter (not matched by the reference)"], rows) + note


def _by_length(result: Mapping[str, Any]) -> str:
    headings = ["source tokens", "n", "BLEU", "chrF", "stutter/100 words", "stutter/100 tokens"]
    keys = ("bleu", "chrf", "stutter_per_100_words", "stutter_per_100_tokens")
    others = result.get("baseline_by_source_length")
    rows = []
    for index, bucket in enumerate(result["by_source_length"]):
        row = [f"{bucket['from']}–{bucket['to'] or ''}", str(bucket["n"]), *(f"{bucket[key]:.2f}" for key in keys)]
        rows.append(row + ([f"{others[index][key]:.2f}" for key in keys[:2]] if others else []))
    return table(headings + (["baseline BLEU", "baseline chrF"] if others else []), rows)


def _comparison(result: Mapping[str, Any]) -> str:
    rows = []
    for metric, test in result["against_baseline"].items():
        shuffled = result["approximate_randomization"][metric]
        rows.append(
            [
                {"bleu": "BLEU", "chrf": "chrF"}[metric],
                *(f"{test[key]:.2f}" for key in ("baseline_score", "score")),
                f"{test['difference']:+.2f}",
                f"{test['p_value']:.4f}",
                f"{shuffled['p_value']:.4f}",
            ]
        )
    shuffled = result["approximate_randomization"]["bleu"]
    how = "\n".join(
        [f"- Bootstrap: `{test['signature']}`" for test in result["against_baseline"].values()]
        + [f"- Approximate randomisation: {shuffled['trials']} trials, seed {shuffled['seed']}."]
    )
    headings = ["metric", "baseline", "system", "difference", "p, paired bootstrap", "p, approximate randomisation"]
    return f"Baseline: `{result['baseline']}`\n\n{table(headings, rows)}\n\n{how}"
