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
from result_tables import (
    aims_table,
    batches_table,
    claims_table,
    compared_with_plain,
    comparison_table,
    decodes_table,
    explained,
    failures,
    folded,
    interval,
    latency_table,
    mean,
    number,
    p_of,
    pair_of,
    pairs_table,
    phases_table,
    quality_table,
    request_ms,
    signatures,
    signed,
    sittings,
    steady_of_all,
    table,
    times,
    unsteady,
    updates_table,
    verdicts_table,
)

from padir.analysis.paper import PAPER
from padir.benchmark.serve import load_table
from padir.brackets import thesis as brackets_thesis
from padir.dyck.report import prompts_of
from padir.dyck.report import tables as dyck_tables
from padir.topics import thesis as topics_thesis
from padir.topics.run import PARTS as TOPICS_PARTS

ROOT = Path(__file__).resolve().parents[1]
TEMPLATES = ROOT / "docs" / "templates"
RESULTS = ROOT / "benchmarks" / "results"
# Results with p-values of sacreBLEU's own bootstrap (see padir/metrics/bootstrap.py), by their commits: measured again,
# a result has another commit, and leaves the list.
SMALL_P_VALUES = {
    "acceptance_demo_cpu.json": "9a5ea1b",
    "acceptance_demo_noise_cpu.json": "9a5ea1b",
    "compute_types_demo_student_cpu.json": "5724c7d",
    "compute_types_demo_teacher_cpu.json": "2c17c0f",
    "demo_cpu.json": "3d793a3",
    "demo_cpu_intel.json": "0b2bd51",
    "joint_demo_cpu.json": "c2ca414",
    "lengths_demo_cpu.json": "747a4db",
    "quality_tatoeba_de_en_gpu.json": "0c985da",
    "self_conditioning_demo_cpu.json": "747a4db",
    "shallow_demo_cpu.json": "747a4db",
    "shortcuts_demo_cpu.json": "9f88d7d",
    "shortcuts_demo_lengths_01_cpu.json": "80328c7",
    "shortcuts_demo_lengths_cpu.json": "8a2018a",
}
# Longer commands are folded, and broken into lines of about this length.
_LINE = 100


def result(name: str) -> dict[str, Any]:
    """A committed result, by its path below benchmarks/results."""
    found = json.loads((RESULTS / name).read_text(encoding="utf-8"))
    found["file"] = f"benchmarks/results/{name}"
    return found


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
    name = Path(found["file"]).name
    small = " P-values of the bootstrap are [too small](../howto/evaluate.md#is-the-difference-real) here."
    told = small if facts["commit"].startswith(SMALL_P_VALUES.get(name, "none")) else ""
    if len(command) <= _LINE:
        return f"{', '.join(words)}.{told} Command: `{command}`."
    block = f"```text\n{_wrapped(command)}\n```"
    return f"{', '.join(words)}.{told}\n\n{folded('Command', block)}"


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


def topics_parts() -> list[str]:
    """The parts of `padir learn topics` whose results are committed."""
    return [part for part in TOPICS_PARTS if (RESULTS / "topics" / f"topics_{part}.json").exists()]


def seeds_of(experiment: str) -> dict[str, Any] | None:
    """What benchmarks/verdicts.py has said of an experiment with other seeds; None if it was not run."""
    name = f"{experiment}/seeds.json"
    return result(name) if (RESULTS / name).exists() else None


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
    batches_table,
    quality_table,
    comparison_table,
    pairs_table,
    p_of,
    pair_of,
    updates_table,
    decodes_table,
    compared_with_plain,
    aims_table,
    phases_table,
    claims_table,
    unsteady,
    signatures,
    sittings,
    steady_of_all,
    verdicts_table,
    explained,
    mean,
    signed,
    failures,
    topics_parts,
    seeds_of,
    load_table,
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
    environment.globals |= {"paper_attention": PAPER, "dyck_tables": dyck_tables, "prompts_of": prompts_of}
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
