"""What `quality.py` makes of its results: comparisons of pairs, a table, a picture, outputs side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from quality_models import MODELS, REFERENCE, main_system

from padir.data.records import Example
from padir.metrics.bootstrap import paired_bootstrap
from padir.metrics.counts import count_sentences
from padir.metrics.randomization import approximate_randomization

Rows = Mapping[str, Mapping[str, Any]]
# Colour-blind readers can tell them apart.
_COLOURS = ("black", "#0072B2", "#56B4E9", "#009E73", "#E69F00", "#CC79A7", "#666666", "#D55E00", "#882255", "#999933")
_SHOWN = 50


def compared_pairs(
    rows: Rows, references: Sequence[str], tokenize: str = "13a", *, beside: str = main_system("padir")
) -> list[dict[str, Any]]:
    """Compares each of these systems, in the order of BLEU, with the next better one, and one of them with all others.

    Args:
      rows: results of `padir evaluate` with `outputs`, by name.
      references: one per sentence.
      tokenize: sacreBLEU's tokenizer.
      beside: the system that is compared with all others, if it is among them.

    Returns:
      For each pair the names of `better` and `worse`, the `difference` of their BLEU, and p-values by paired
      `bootstrap` and by approximate `randomization`.
    """
    ranked = sorted(rows, key=lambda name: -rows[name]["bleu"])
    pairs = list(zip(ranked, ranked[1:], strict=False))
    if beside in rows:
        at = ranked.index(beside)
        pairs += [(name, beside) for name in ranked[: max(at - 1, 0)]] + [(beside, name) for name in ranked[at + 2 :]]
    counts = {name: count_sentences(rows[name]["outputs"], references, tokenize) for name in ranked}
    found = []
    for better, worse in pairs:
        texts = [rows[name]["outputs"] for name in (better, worse)]
        of_both = counts[better], counts[worse]
        bootstrap = paired_bootstrap(*texts, references, tokenize=tokenize, counts=of_both)["bleu"].to_dict()
        randomization = approximate_randomization(*of_both)["bleu"].to_dict()
        found.append(
            {
                "better": better,
                "worse": worse,
                "difference": bootstrap["difference"],
                "bootstrap": bootstrap["p_value"],
                "randomization": randomization["p_value"],
            }
        )
    return found


def table(rows: Rows) -> str:
    """The systems as a Markdown table."""
    head = ("system", "BLEU", "chrF", "stutter/100 words", "length %", "steps", "p", "median ms", "p99 ms", "speed-up")
    lines = [f"| {' | '.join(head)} |", "|---|" + "---:|" * (len(head) - 1)]
    for name, row in rows.items():
        cells = [f"{row['bleu']:.2f}", f"{row['chrf']:.2f}", f"{row['stutter_per_100_words']:.2f}"]
        cells += [_optional(row["length_accuracy"], ".1f"), f"{row['mean_steps_run']:.2f}"]
        cells += [_optional(row.get("against_baseline", {}).get("bleu", {}).get("p_value"), ".3f")]
        times = row.get("latency_ms", {})
        cells += [_optional(times.get(key), ".2f") for key in ("median", "p99")] + [
            _optional(row.get("speed_up"), ".2f")
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _optional(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def frontier(rows: Rows) -> list[str]:
    """Names of the timed systems that no other one beats in BLEU without being slower, fastest first."""
    timed = {name: (_over_reference(row), -row["bleu"]) for name, row in rows.items() if "latency_ms" in row}
    best, found = float("inf"), []
    for name in sorted(timed, key=timed.get):
        if timed[name][1] < best:
            best = timed[name][1]
            found.append(name)
    return found


def _over_reference(row: Mapping[str, Any]) -> float:
    """Time of a sentence over that of the reference in turns with it; models are not all timed in one go."""
    return 1 / row["speed_up"]


def draw(path: Path, rows: Rows, models: Mapping[str, str], title: str) -> None:
    """Draws BLEU against latency over the reference's: a colour for each model, a line through the frontier.

    Args:
      path: the PNG file to write.
      rows: by name of the system; those without latency are left out.
      models: of each system the model, a name in `MODELS`.
      title: what the picture shows.
    """
    figure = Figure(figsize=(9, 5.5), layout="constrained")
    axes = figure.subplots()
    for colour, model in zip(_COLOURS, MODELS, strict=True):
        names = [name for name, row in rows.items() if models[name] == model and "latency_ms" in row]
        if names:
            points = [(_over_reference(rows[name]), rows[name]["bleu"]) for name in names]
            marker = "s" if MODELS[model].autoregressive else "o"
            axes.plot(*zip(*points, strict=True), marker, color=colour, label=MODELS[model].title, alpha=0.8)
    edge = [(_over_reference(rows[name]), rows[name]["bleu"]) for name in frontier(rows)]
    axes.plot(*zip(*edge, strict=True), "-", color="#999999", linewidth=1, zorder=0, label="frontier")
    axes.set_xscale("log")
    axes.set_xlabel(f"median time of a sentence alone, over that of {REFERENCE}")
    axes.set_ylabel("sacreBLEU")
    axes.set_title(title)
    axes.grid(alpha=0.3, which="both")
    axes.legend()
    figure.savefig(path, dpi=120)


def outputs_page(title: str, examples: Sequence[Example], outputs: Mapping[str, Sequence[str]]) -> str:
    """An HTML page of sentences, evenly spread over the split, with what each system makes of them.

    Args:
      title: of the page.
      examples: the split.
      outputs: of each system, one text for each example.
    """
    chosen = range(0, len(examples), max(len(examples) // _SHOWN, 1))[:_SHOWN]
    parts = []
    for index in chosen:
        lines = {"source": examples[index].source_text, "reference": examples[index].target_text}
        lines |= {name: texts[index] for name, texts in outputs.items()}
        cells = (
            f'<tr{" class=right" if text == lines["reference"] else ""}><th>{escape(name)}<td dir="auto">{escape(text)}'
            for name, text in lines.items()
        )
        parts.append(f"<h2>{index + 1}</h2><table>{''.join(cells)}</table>")
    return _PAGE.format(title=escape(title), body="\n".join(parts))


_PAGE = """<!doctype html>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>
body {{ font: 15px/1.4 sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em }}
h2 {{ font-size: 1em; margin: 1.5em 0 .3em }}
th {{ text-align: left; font-weight: normal; color: #666; width: 15em; vertical-align: top }}
.right td {{ color: #070 }}
</style>
<h1>{title}</h1>
<p>What equals the reference is green.</p>
{body}
"""
