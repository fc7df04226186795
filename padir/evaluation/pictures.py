"""Figures and the Markdown report of the demo."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from padir.decoding.state import Trace

# The page of a sentence being refined, beside the demo's report.
WATCHED = "refinement.html"

# Colour-blind readers can tell these colours apart.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


def quality_by_steps(
    path: Path, curves: Mapping[str, Mapping[int, Mapping[str, Any]]], baseline: Mapping[str, Any], baseline_name: str
) -> None:
    """Draws BLEU and validity against the number of refinement steps, with the baseline as a horizontal line.

    Args:
      path: the PNG file to write.
      curves: scores of each student for each number of steps: {student: {steps: {'bleu': …, 'validity': …}}}.
      baseline: scores of the autoregressive teacher.
      baseline_name: the teacher's name in the legend.
    """
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    for axes, metric in zip(figure.subplots(1, 2), ("bleu", "validity"), strict=True):
        axes.axhline(baseline[metric], color="black", linestyle="--", label=baseline_name)
        for colour, (name, by_steps) in zip(_COLOURS, curves.items(), strict=False):
            steps = sorted(by_steps)
            axes.plot(steps, [by_steps[step][metric] for step in steps], "o-", color=colour, label=name)
        axes.set_xscale("log", base=2)
        ticks = sorted({step for by_steps in curves.values() for step in by_steps})
        axes.set_xticks(ticks, [str(step) for step in ticks])
        axes.set_xlabel("maximum number of refinement steps")
        axes.set_title({"bleu": "BLEU", "validity": "valid translations, %"}[metric])
        axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)


def refinement_steps(
    path: Path,
    source: str,
    trace: Trace,
    steps: int,
    pieces: Callable[[list[int]], list[str]],
    *,
    drop_repeats: bool = True,
) -> None:
    """Draws how one sentence changes step by step, with each token coloured by its probability, and its output.

    Args:
      path: the PNG file to write.
      source: the source text, for the title.
      trace: the trace of one sentence: NumPy fields [T, L], 0 beyond the target's length.
      steps: how many of the T steps were run.
      pieces: maps a list of ids to a list of printable pieces.
      drop_repeats: whether the output lacks the tokens that repeat their left neighbour (`Refinement.drop_repeats`).
    """
    length = int((np.asarray(trace.inputs[0]) != 0).sum())
    figure = Figure(figsize=(max(6.0, 0.95 * length + 1.2), 0.62 * (steps + 2) + 1.5), layout="constrained")
    axes = figure.subplots()
    colours, norm = "RdYlGn", Normalize(0.0, 1.0)
    probabilities = np.full((steps + 2, length), np.nan)
    probabilities[1:-1] = np.exp(np.asarray(trace.log_probs)[:steps, :length])
    image = axes.imshow(probabilities, cmap=colours, norm=norm, aspect="auto", alpha=0.75)
    rows = [np.asarray(trace.inputs[0])[:length], *np.asarray(trace.proposals)[:steps, :length]]
    dropped = np.append(False, rows[-1][1:] == rows[-1][:-1]) & drop_repeats
    rows = [pieces(ids.tolist()) for ids in rows]
    rows.append(["" if gone else word for word, gone in zip(rows[-1], dropped, strict=True)])
    for row, words in enumerate(rows):
        for column, word in enumerate(words):
            axes.text(column, row, word.replace("▁", "_"), ha="center", va="center", fontsize=9)
    axes.set_yticks(range(steps + 2), ["start", *(f"step {step}" for step in range(1, steps + 1)), "output"])
    axes.set_xticks(range(length), [str(column + 1) for column in range(length)])
    axes.set_title(f"source: {source}", fontsize=10)
    figure.colorbar(image, ax=axes, label="probability", shrink=0.8)
    figure.savefig(path, dpi=120)


def comparison_table(systems: Mapping[str, Mapping[str, Any]]) -> str:
    """The demo's table in Markdown: quality, latency and speed-up of each system."""
    lines = [
        "| system | BLEU | chrF | valid % | stutter/100 words | steps run | median ms | p99 ms | speed-up |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name, system in systems.items():
        latency = system["latency_ms"]
        lines.append(
            f"| {name} | {system['bleu']:.1f} | {system['chrf']:.1f} | {system['validity']:.1f} | "
            f"{system['stutter_per_100_words']:.2f} | {system['mean_steps_run']:.1f} | {latency['median']:.2f} | "
            f"{latency['p99']:.2f} | {system['speed_up']:.2f}x |"
        )
    return "\n".join(lines)


def demo_page(result: Mapping[str, Any], table: str, pictures: Sequence[tuple[str, str]]) -> str:
    """The demo's report in Markdown.

    Args:
      result: the demo's result, as it is written to JSON.
      table: the comparison of the systems, from `comparison_table`.
      pictures: (file name, caption) of each figure.
    """
    first = next(iter(result["systems"].values()))
    phases = "\n".join(f"| {name} | {seconds:.0f} |" for name, seconds in result["facts"]["phase_seconds"].items())
    tests = "\n".join(
        f"- {name}: BLEU difference {test['bleu']['difference']:+.2f}, p = {test['bleu']['p_value']:.3f}; "
        f"chrF difference {test['chrf']['difference']:+.2f}, p = {test['chrf']['p_value']:.3f}"
        for name, test in result["paired_bootstrap"].items()
    )
    shown = "\n\n".join(f"![{caption}]({name})\n\n*{caption}*" for name, caption in pictures)
    facts = result["facts"]
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    return f"""# Parallel decoding by iterative refinement: the demo

The teacher writes one token at a time. The students rewrite all tokens at once in a few steps. Both translate the
built-in synthetic language pair, from an English-like to a German-like language. *Valid* is the share of outputs
that the pair's grammar accepts as a translation of their source. A source has several valid translations, and the
reference is only one of them, so BLEU stays far below 100 even for a perfect system. Latency is measured from text to
text, one sentence at a time, without compilation.

{table}

- BLEU: `{first["bleu_signature"]}`; chrF: `{first["chrf_signature"]}`; n = {first["n"]} test sentences.
- Latency: n = {first["latency_ms"]["n"]} requests per system; the systems take turns in random order.

Paired bootstrap:

{tests}

{shown}

[Watch that sentence]({WATCHED}) in a browser: every step, the lengths that were tried, what it looked at, and the
teacher beside it.

## The run

| phase | seconds |
|---|---:|
{phases}
| total | {facts["seconds"]:.0f} |

{facts["device"]}, {facts["cpu_count"]} cores, Python {facts["python"]}, {versions}; commit `{facts["commit"]}`;
peak memory {facts["peak_memory_mb"]:.0f} MB.

On real text, German to English: `echo "Ich habe heute keine Zeit." | padir translate --run_dir=tatoeba_de_en_padir`.
"""
