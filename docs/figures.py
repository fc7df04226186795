"""Writes README.md, docs/results and the headers of the WMT recipes from benchmarks/results: `make figures`.

A template holds the prose and says which figure of which result stands where; no figure is typed by hand. With --check
nothing is written, and a page that differs from what its template and the results say is an error.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

import jinja2

from padir.analysis.paper import PAPER
from padir.benchmark.serve import load_table
from padir.brackets import thesis as brackets_thesis
from padir.brackets.settings import EXACT, TRAINED
from padir.dyck.report import tables as dyck_tables
from padir.topics import thesis as topics_thesis
from padir.topics.run import PARTS as TOPICS_PARTS

ROOT = Path(__file__).resolve().parents[1]
TEMPLATES = ROOT / "docs" / "templates"
RESULTS = ROOT / "benchmarks" / "results"
# Longer commands are folded, and broken into lines of about this length.
_LINE = 100


def result(name: str) -> dict[str, Any]:
    """A committed result, by its path below benchmarks/results."""
    found = json.loads((RESULTS / name).read_text(encoding="utf-8"))
    found["file"] = f"benchmarks/results/{name}"
    return found


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


def commit(facts: dict[str, Any]) -> str:
    """A short commit, and whether the code differed from it."""
    changed = " with uncommitted changes" if re.search(r"-dirty|\+changes", facts["commit"]) else ""
    return f"`{facts['commit'][:7]}`{changed}"


def source(found: dict[str, Any], count: str = "") -> str:
    """Where a table comes from: file, commit, machine and command, as its result says, and how much was measured."""
    facts = found["facts"]
    cpu = facts.get("cpu") or "a CPU that the result does not name"
    features = facts.get("cpu_features")
    machine = f"{facts['cpu_count']} cores of {cpu}" + (f" ({', '.join(features)})" if features else "")
    device = "" if facts.get("device", "cpu") == "cpu" else f", {facts['device_count']} × {facts['device']}"
    words = [f"Result: `{found['file']}`", f"commit {commit(facts)}", f"{machine}{device}"]
    versions = facts["versions"]
    words += [f"{name} {versions[name]}" for name in (["jax"] if "jax" in versions else versions)]
    words += [f"on {facts['date']}"] if "date" in facts else []
    words += [count] if count else []
    command = facts["command"]
    if len(command) <= _LINE:
        return f"{', '.join(words)}. Command: `{command}`."
    block = f"```text\n{_wrapped(command)}\n```"
    return f"{', '.join(words)}.\n\n{folded('Command', block)}"


def _wrapped(command: str) -> str:
    lines, line = [], ""
    for word in command.split(" "):
        if line and len(line) + len(word) > _LINE:
            lines.append(f"{line} \\")
            line = " "
        line += f" {word}" if line else word
    return "\n".join([*lines, line])


def recipe(
    found: dict[str, Any], kind: str, topology: str, length: int, dtype: str, num_slices: int = 1
) -> dict[str, Any] | None:
    """One of the estimates of wmt_recipes.json; None if it was not compiled."""
    wanted = {"kind": kind, "topology": topology, "length": length, "dtype": dtype, "num_slices": num_slices}
    return next((each for each in found["recipes"] if wanted.items() <= each.items()), None)


def hardware(found: dict[str, Any], kind: str) -> str:
    """What the header of a WMT recipe says of hardware, as comment lines: estimates from wmt_recipes.json."""
    hours = []
    for topology in ("v3-32", "v4-32", "v5e-16", "v6e-16"):
        if (there := recipe(found, kind, topology, 40, "bfloat16")) is None:
            continue
        run = there["program"]["run"]
        hours.append(f"{number(run['hours'], 1)} hours on a {topology} ({number(run['chip_hours'], 0)} chip-hours)")
    wanted = {"kind": kind, "length": 128, "dtype": "bfloat16", "num_slices": 1}
    longest = {each["topology"]: each["remat"] for each in found["recipes"] if wanted.items() <= each.items()}
    plain = [topology for topology, remat in longest.items() if remat == "none"]
    remat = [topology for topology in longest if topology not in plain]
    needs = f" It fits a {' or '.join(plain)} as it is." if plain else ""
    needs += f" On a {' or '.join(remat)} it needs --remat=layer." if remat else ""
    text = (
        f"Hardware: a TPU slice. In bfloat16 all updates take {', '.join(hours)}, at the mean length of "
        f"WMT14's pairs, without exchanging gradients: estimated by XLA's compiler; not run.{needs}"
    )
    return "".join(f"{line}\n" for line in textwrap.wrap(text, 118, initial_indent="# ", subsequent_indent="# "))


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
    """The systems of a comparison on real text: all of them, or without the rescored and averaged ones and 10 steps."""
    rows = []
    for name, scores in found["systems"].items():
        if not all and ("rescored" in name or "averaged" in name or "10 steps" in name):
            continue
        tests = scores.get("against_baseline")
        figures = [number(scores[key], 2) for key in ("bleu", "chrf", "stutter_per_100_words")]
        figures.append("" if scores["length_accuracy"] is None else number(scores["length_accuracy"], 0))
        figures += [number(scores["mean_steps_run"], 1), number(tests["bleu"]["p_value"], 3) if tests else ""]
        if latency := scores.get("latency_ms"):
            figures += [number(latency["median"]), number(latency["p99"]), times(scores["speed_up"])]
        rows.append([name, *figures, *[""] * (9 - len(figures))])
    head = ["system", "BLEU", "chrF", "stutter / 100 words", "length %", "steps run", "p", "median ms", "p99 ms"]
    return table([*head, "speed-up"], rows)


def neighbours_table(found: dict[str, Any]) -> str:
    """Each model of a comparison beside the next worse one, and whether the difference is significant."""
    rows = [
        [f"{pair['better']} against {pair['worse']}", number(pair["difference"], 2)]
        + [number(pair[test], 3) for test in ("bootstrap", "randomization")]
        for pair in found["neighbours"]
    ]
    return table(["systems", "BLEU", "p, paired bootstrap", "p, approximate randomisation"], rows)


def updates_table(found: dict[str, Any]) -> str:
    """How many updates each model of a comparison made in its seconds."""
    rows = [
        [name, number(model["updates"], 0), number(1e3 * model["update_seconds"], 0)]
        for name, model in found["models"].items()
    ]
    return table(["model", "updates", "ms for an update, measured before"], rows)


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


def brackets_parts() -> list[str]:
    """The parts of `padir learn dyck` whose results are committed."""
    return _committed("brackets", (*EXACT, *TRAINED))


def topics_parts() -> list[str]:
    """The parts of `padir learn topics` whose results are committed."""
    return _committed("topics", tuple(TOPICS_PARTS))


def _committed(experiment: str, parts: tuple[str, ...]) -> list[str]:
    return [part for part in parts if (RESULTS / experiment / f"{experiment}_{part}.json").exists()]


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


HELPERS = (
    result,
    recipe,
    number,
    times,
    interval,
    table,
    folded,
    commit,
    source,
    request_ms,
    latency_table,
    quality_table,
    comparison_table,
    neighbours_table,
    updates_table,
    decodes_table,
    compared_with_plain,
    aims_table,
    phases_table,
    claims_table,
    explained,
    mean,
    signed,
    failures,
    brackets_parts,
    topics_parts,
)


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
    environment.globals |= {"paper_attention": PAPER, "dyck_tables": dyck_tables, "load_table": load_table}
    environment.globals |= {"brackets_thesis": brackets_thesis, "topics_thesis": topics_thesis}
    written = {}
    for template in sorted(TEMPLATES.rglob("*.md.j2")):
        name = template.relative_to(TEMPLATES).as_posix()
        path = ROOT / name.removesuffix(".j2") if "/" not in name else ROOT / "docs" / name.removesuffix(".j2")
        note = f"<!-- Written by `make figures` from docs/templates/{name}: change that, or the results. -->\n\n"
        written[path] = note + environment.get_template(name).render()
    found = result("wmt_recipes.json")
    for path in sorted((ROOT / "gin" / "runs").glob("wmt1*.gin")):
        said = hardware(found, path.stem.rpartition("_")[2])
        text = path.read_text(encoding="utf-8")
        written[path] = re.sub(r"# Hardware: .*?(?=# Expected result: )", said, text, flags=re.DOTALL)
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
