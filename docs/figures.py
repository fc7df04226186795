"""Writes README.md and the pages of docs/results from templates and benchmarks/results: `make figures`.

A template holds the prose and says which figure of which result stands where; no figure is typed by hand. With --check
nothing is written, and a page that differs from what its template and the results say is an error.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

import jinja2

ROOT = Path(__file__).resolve().parents[1]
TEMPLATES = ROOT / "docs" / "templates"
RESULTS = ROOT / "benchmarks" / "results"


def result(name: str) -> dict[str, Any]:
    """A committed result, by its path below benchmarks/results."""
    found = json.loads((RESULTS / name).read_text(encoding="utf-8"))
    found["file"] = f"benchmarks/results/{name}"
    return found


def number(value: float, digits: int | None = None) -> str:
    """A figure with so many decimals; without a count, two significant decimals below 10 and none above."""
    if digits is None:
        digits = 0 if abs(value) >= 10 else 2
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


def source(found: dict[str, Any], count: Any = None) -> str:
    """Where a table comes from: file, commit, machine, count and command, as its result says."""
    facts = found["facts"]
    cpu = facts.get("cpu") or "CPU (the result does not name it)"
    features = facts.get("cpu_features")
    machine = f"{facts['cpu_count']} cores of {cpu}" + (f" ({', '.join(features)})" if features else "")
    device = "" if facts.get("device", "cpu") == "cpu" else f", {facts['device_count']} × {facts['device']}"
    words = [f"Result: `{found['file']}`", f"commit `{facts['commit'][:7]}`", f"{machine}{device}"]
    versions = facts["versions"]
    words += [f"{name} {versions[name]}" for name in (["jax"] if "jax" in versions else versions)]
    words += [f"on {facts['date']}"] if "date" in facts else []
    words += [f"n = {count}"] if count is not None else []
    return f"{', '.join(words)}. Command:\n\n```text\n{_wrapped(facts['command'])}\n```"


def _wrapped(command: str) -> str:
    lines, line = [], ""
    for word in command.split(" "):
        if line and len(line) + len(word) > 100:
            lines.append(f"{line} \\")
            line = " "
        line += f" {word}" if line else word
    return "\n".join([*lines, line])


def latency_table(found: dict[str, Any], names: list[str], greedy: str, beam: str) -> str:
    """Median, interval, p99 and operations of systems, and how they compare with two autoregressive ones."""
    systems = found["systems"]
    median = {name: systems[name]["latency_ms"]["median"] for name in systems}
    rows = []
    for name in names:
        measured = systems[name]["latency_ms"]
        ratios = [times(median[base] / median[name]) for base in (greedy, beam)]
        figures = [number(measured["median"]), interval(measured["median_ci95"]), number(measured["p99"])]
        rows.append([name, *figures, number(systems[name]["gflops"], 1), *ratios])
    head = ["system", "median ms", "95% interval", "p99 ms", "GFLOP", "greedy / it", "beam 5 / it"]
    return table(head, rows)


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
                number(scores["stutter_per_100_words"]),
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


def against(row: dict[str, Any]) -> str:
    """p-value of BLEU against the plain decode; '' for the plain decode itself."""
    return number(row["against_plain"]["bleu"]["p_value"], 3) if "against_plain" in row else ""


def claims(names: list[str]) -> dict[str, Any]:
    """All claims of the theory's figures, those that fail, and the first figure's facts."""
    figures = [result(f"theory/theory_{name}.json") for name in names]
    found = [claim | {"figure": figure["figure"]} for figure in figures for claim in figure["claims"]]
    seconds = sum(figure["seconds"] for figure in figures)
    failed = [claim for claim in found if not claim["passed"]]
    return {"all": found, "failed": failed, "seconds": seconds, "source": figures[0]}


HELPERS = (result, number, times, interval, table, source, latency_table, quality_table, against, claims)


def pages() -> dict[Path, str]:
    """Every page that has a template, by its path, as it should be."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        extensions=["jinja2.ext.do"],
    )
    environment.tests["search"] = lambda text, pattern: re.search(pattern, text) is not None
    environment.globals |= {helper.__name__: helper for helper in HELPERS}
    written = {}
    for template in sorted(TEMPLATES.rglob("*.md.j2")):
        name = template.relative_to(TEMPLATES).as_posix()
        path = ROOT / name.removesuffix(".j2") if "/" not in name else ROOT / "docs" / name.removesuffix(".j2")
        note = f"<!-- Written by `make figures` from docs/templates/{name}: change that, or the results. -->\n\n"
        written[path] = note + environment.get_template(name).render()
    return written


def main() -> int:
    """Writes the pages, or compares them; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page differs")
    check = parser.parse_args().check
    differing = [
        path for path, text in pages().items() if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    if check and differing:
        names = ", ".join(str(path.relative_to(ROOT)) for path in differing)
        print(f"{names}: not what the results say; run `make figures`", file=sys.stderr)
        return 1
    rendered = pages()
    for path in differing:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(rendered[path], encoding="utf-8")
        print(f"{path.relative_to(ROOT)}: written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
