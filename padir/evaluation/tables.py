"""`padir tables`: our results beside the paper's Tables 4.1 to 4.3, in the layout of those tables.

The facts that `padir evaluate` writes into a result decide its cell; its name does not matter::

    column   the WMT task of `tasks.wmt` (either direction), split test
    row      autoregressive with a beam of 5, or the paper's refinement with 4 or 10 steps and 5 hypotheses;
             trained on distilled data, like all systems of the tables; not rescored; no `compute_type`
    table    4.1: BLEU with the tokeniser of the target language; 4.2: BLEU with 'intl'; 4.3: BLEURT-20

Table 4.1 has a row for every system that we can run. A result that fits no cell of it is listed with the reason.
"""

from __future__ import annotations

import importlib.resources
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from padir.errors import PadirError, StorageError
from padir.evaluation.report import table
from padir.files.atomic import make_folder, write_text
from padir.files.paths import as_path
from padir.metrics.quality import tokenizer_of

NOT_RUN = "not run"
_TASK_MODULE = "tasks.wmt"
_BLEURT = "BLEURT-20"
_FACTS = ("task", "system", "split", "bleu", "bleu_signature", "bleu_intl")
_CHINESE_INTL = (
    "sacreBLEU's intl tokeniser leaves Chinese unsplit: our EN→ZH cell of this table is not comparable, and the "
    "paper's 32.59 there equals its tok.zh score of Table 4.1."
)


@dataclass(frozen=True)
class Result:
    """The result of one evaluation.

    Attributes:
      path: its JSON file.
      facts: the contents of the file, as `padir evaluate` wrote them.
    """

    path: Path
    facts: Mapping[str, Any]


def tables(*, output_dir: str, results: Sequence[str] = ()) -> dict[str, Any]:
    """Puts results beside the paper's Tables 4.1 to 4.3, prints them and writes `<output_dir>/tables.{md,json}`.

    Args:
      output_dir: the folder for the tables.
      results: JSON files of `padir evaluate`, or folders that contain such files. Without any, every cell of ours is
        marked as not run.

    Returns:
      The contents of tables.json. 'tables' holds the tables; each row has the values 'paper' and 'ours' by column, and
      a cell of 'ours' is {'score', 'difference', 'file'}, or None if nothing has been run for it. 'unplaced' lists the
      files that fit no cell, with the reason.

    Raises:
      PadirError: a file is not a result of `padir evaluate`, or two results belong in the same cell.
    """
    given = read_results(results)
    paper = paper_tables()
    laid = [_lay(paper_table, paper["columns"], given) for paper_table in paper["tables"]]
    # Only the first table is asked: it has a row for every system that we can run.
    reasons = {result.path: _misfit(result, paper["tables"][0], paper["columns"]) for result in given}
    unplaced = [{"file": str(path), "reason": reason} for path, reason in reasons.items() if reason]
    output = {"source": paper["source"], "columns": paper["columns"], "tables": laid, "unplaced": unplaced}
    directory = as_path(output_dir)
    make_folder(directory)
    text = markdown(output)
    write_text(directory / "tables.json", json.dumps(output, indent=2, ensure_ascii=False) + "\n")
    write_text(directory / "tables.md", text)
    print(text, end="")
    return output


def paper_tables() -> dict[str, Any]:
    """The numbers of the paper's tables, from a JSON file in this package."""
    return json.loads((importlib.resources.files("padir.evaluation") / "paper_tables.json").read_text(encoding="utf-8"))


def read_results(paths: Sequence[str]) -> list[Result]:
    """Reads results of `padir evaluate`.

    Args:
      paths: JSON files, or folders. In a folder, JSON files that are not such results are skipped.

    Returns:
      The results, without duplicates.

    Raises:
      PadirError: a path does not exist, a file is not a result of `padir evaluate`, or a folder contains none.
    """
    found: dict[Path, Result] = {}
    for name in paths:
        path = as_path(name)
        if path.is_dir():
            inside = [result for file in sorted(path.glob("*.json")) if isinstance(result := _read(file), Result)]
            if not inside:
                raise PadirError(f"{path}: contains no JSON file of padir evaluate")
        else:
            result = _read(path)
            if isinstance(result, str):
                raise PadirError(f"{path}: {result}")
            inside = [result]
        # A file may be given twice: by its name and as part of its folder.
        found |= {result.path.resolve(): result for result in inside}
    return list(found.values())


def _read(path: Path) -> Result | str:
    """The result in a file, or a text that says what is wrong with the file."""
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return "no such file or folder"
    except StorageError:
        raise
    except (OSError, ValueError) as error:
        return f"cannot be read ({error})"
    missing = [name for name in _FACTS if name not in facts] if isinstance(facts, dict) else _FACTS
    if missing:
        return f"not a result of padir evaluate, or written by an old version (no {', '.join(missing)}): evaluate again"
    return Result(path, facts)


def _misfit(result: Result, paper_table: Mapping[str, Any], columns: Sequence[str]) -> str:
    """The reason why a result has no cell in a table; '' if it has one."""
    facts, system = result.facts, result.facts["system"]
    column = _column(facts, columns)
    if column is None:
        task = facts["task"]
        return f"task {task['name']} of {task['module']} ({_direction(task)}) is not in the paper's tables"
    if facts["split"] != "test":
        return f"split {facts['split']}, not test"
    if system["rescored"]:
        return "hypotheses were rescored by an autoregressive model"
    if facts.get("constraint") is not None:
        return "decoded under a constraint"
    if system.get("compute_type") is not None:  # Results of old versions do not have this key.
        return f"decoded with compute_type {system['compute_type']}"
    rows = [row["system"] for row in paper_table["rows"] if row["system"] is not None]
    if not any(_same(system, row, without="trained_on") for row in rows):
        steps = "" if system["steps"] is None else f", {system['steps']} steps"
        return f"no row for {system['decoding']}{steps}, {system['hypotheses']} hypotheses"
    if not any(_same(system, row) for row in rows):
        trained = system["trained_on"]
        return "trained on raw data" if trained == "raw" else "not known to be trained on distilled data (trained_on)"
    return _other_metric(facts, paper_table["metric"])


def _other_metric(facts: Mapping[str, Any], metric: str) -> str:
    """The reason why a result lacks the table's metric; '' if it has it."""
    if metric == "bleu":
        wanted = tokenizer_of(facts["task"]["target_language"])
        if f"tok:{wanted}|" not in facts["bleu_signature"]:
            return f"BLEU was not computed with tok:{wanted} ({facts['bleu_signature']})"
    if metric == "bleurt" and facts.get("bleurt_signature") != _BLEURT:
        return f"not scored with {_BLEURT}"
    return ""


def _column(facts: Mapping[str, Any], columns: Sequence[str]) -> str | None:
    task = facts["task"]
    fits = task["module"] == _TASK_MODULE and task["name"] in columns and task["name"].endswith(f"_{_direction(task)}")
    return task["name"] if fits else None


def _direction(task: Mapping[str, str]) -> str:
    return f"{task['source_language']}_{task['target_language']}"


def _same(system: Mapping[str, Any], row: Mapping[str, Any], without: str = "") -> bool:
    return all(system[name] == value for name, value in row.items() if name != without)


def _lay(paper_table: Mapping[str, Any], columns: Sequence[str], results: Sequence[Result]) -> dict[str, Any]:
    """One of the paper's tables with our results added."""
    fitting = [result for result in results if not _misfit(result, paper_table, columns)]
    rows = []
    for row in paper_table["rows"]:
        ours: dict[str, Any] | None = None
        if row["system"] is not None:
            mine = [result for result in fitting if _same(result.facts["system"], row["system"])]
            ours = {
                column: _cell(column, paper, mine, paper_table["metric"])
                for column, paper in zip(columns, row["paper"], strict=True)
            }
        rows.append({**row, "paper": dict(zip(columns, row["paper"], strict=True)), "ours": ours})
    return {**paper_table, "rows": rows}


def _cell(column: str, paper: float | None, results: Sequence[Result], metric: str) -> dict[str, Any] | None:
    found = [result for result in results if result.facts["task"]["name"] == column]
    if len(found) > 1:
        files = " and ".join(str(result.path) for result in found)
        raise PadirError(f"two results for one cell: {files} are the same system on {column}; give one of them")
    if not found:
        return None
    score = found[0].facts[metric]
    return {
        "score": score,
        "difference": None if paper is None else score - paper,
        "file": str(found[0].path),
    }


def markdown(output: Mapping[str, Any]) -> str:
    """The tables in Markdown. Below each of the paper's rows that we can run is a row with our scores."""
    headings = ["model", "# hyp.", "steps", *(_heading(column) for column in output["columns"])]
    sections = ["# The paper's tables and ours"]
    for laid in output["tables"]:
        rows = []
        for row in laid["rows"]:
            labels = [row["hypotheses"], row["steps"]]
            paper = ["-" if value is None else f"{value:.2f}" for value in row["paper"].values()]
            rows.append([f"{row['model']}, paper", *labels, *paper])
            if row["ours"] is not None:
                rows.append([f"{row['model']}, **ours**", *labels, *map(_shown, row["ours"].values())])
        sections += [f"## Table {laid['number']}: {laid['title']}", table(headings, rows)]
        cells = [cell for row in laid["rows"] if row["ours"] is not None for cell in row["ours"].values()]
        sections.append(f"{sum(cell is not None for cell in cells)} of our {len(cells)} cells have been run.")
        if laid["metric"] == "bleu_intl":
            sections.append(_CHINESE_INTL)
    if output["unplaced"]:
        listed = "\n".join(f"- `{entry['file']}`: {entry['reason']}" for entry in output["unplaced"])
        sections += ["## Results that fit no cell of Table 4.1", listed]
    sections.append(f"The paper's numbers: {output['source']}. In brackets: our score minus the paper's.")
    return "\n\n".join(sections) + "\n"


def _heading(column: str) -> str:
    """'wmt14_de_en' → 'WMT14 DE→EN'"""
    name, source, target = column.upper().split("_")
    return f"{name} {source}→{target}"


def _shown(cell: Mapping[str, Any] | None) -> str:
    if cell is None:
        return NOT_RUN
    difference = "" if cell["difference"] is None else f" ({cell['difference']:+.2f})"
    return f"{cell['score']:.2f}{difference}"
