"""Whether claims depend on the seed: `python benchmarks/verdicts.py RUN RUN … --output=F`.

Each RUN is the output folder of one experiment (`padir learn dyck`, `padir learn topics`), run with another `--seed`.
The claims of each of its parts are compared one by one. Parts that not all runs have are left out, and named.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

from padir.brackets import trained

FACTS = ("date", "device", "cpu", "cpu_features", "cpu_count", "platform", "python", "versions", "command")


def parts_of(folder: Path) -> dict[str, dict[str, Any]]:
    """The result files of a run, by part.

    Raises:
      SystemExit: there is none.
    """
    found = {}
    for path in sorted(folder.glob("*.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        if "claims" in result and "figure" in result:
            found[result["figure"]] = result
    if not found:
        raise SystemExit(f"{folder}: no results of an experiment here; name an output folder of padir learn")
    return found


def compared(runs: list[dict[str, dict[str, Any]]]) -> dict[str, Any]:
    """Each claim with what every run measured.

    Args:
      runs: parts of each run; see `parts_of`.

    Returns:
      'seeds', 'commits', 'facts' and 'seconds' of the runs, 'parts' with lists of {claim, relation, limit, measured,
      passed}, the last two one for each run, and 'left_out' parts. Facts are by name what the parts say of their run.
      'pooled': by part that trains pairs, what `padir.brackets.trained.compared` says of the pairs of all runs.

    Raises:
      SystemExit: two runs have the same seed, or their claims differ.
    """
    seeds = [next(iter(run.values()))["settings"]["seed"] for run in runs]
    if len(set(seeds)) < len(seeds):
        raise SystemExit(f"the seeds of the runs are {seeds}: give runs of different seeds")
    shared = [name for name in runs[0] if all(name in run for run in runs)]
    parts = {}
    for name in shared:
        claims = [run[name]["claims"] for run in runs]
        # Some claims count what was drawn.
        texts = [[re.sub(r"[\d,.]+", "#", claim["claim"]) for claim in each] for each in claims]
        if any(each != texts[0] for each in texts):
            raise SystemExit(f"{name}: the runs have other claims; run all of them with one version of padir")
        parts[name] = [
            {key: each[0][key] for key in ("claim", "relation", "limit")}
            | {key: [claim[key] for claim in each] for key in ("measured", "passed")}
            for each in zip(*claims, strict=True)
        ]
    return {
        "seeds": seeds,
        "commits": [sorted({run[name]["facts"]["commit"] for name in shared}) for run in runs],
        "facts": [facts_of([run[name]["facts"] for name in shared]) for run in runs],
        "seconds": [sum(run[name]["seconds"] for name in shared) for run in runs],
        "parts": parts,
        "pooled": {name: pooled([run[name]["data"] for run in runs]) for name in shared if _has_pairs(runs[0][name])},
        "left_out": sorted({name for run in runs for name in run} - set(shared)),
    }


def _has_pairs(part: dict[str, Any]) -> bool:
    return "comparison" in part["data"]


def pooled(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """The comparison of all pairs, as if one run had trained them, with their number."""
    together = {
        kind: {name: sum((part[kind][name] for part in parts), []) for name in ("beta", "long_closing", "long_every")}
        for kind in ("standard", "contrastive")
    }
    return {
        "pairs": len(together["standard"]["beta"]),
        **trained.compared(together["standard"], together["contrastive"]),
    }


def facts_of(parts: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """What some parts of a run depend on, each value once: by name, see `run_facts`.

    A part may be of another day or command than the others.
    """
    found: dict[str, list[Any]] = {name: [] for name in FACTS}
    for facts in parts:
        for name, values in found.items():
            if facts[name] not in values:
                values.append(facts[name])
    return found


def main() -> None:
    """Compares, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--output", required=True, help="JSON file to write")
    options = parser.parse_args()
    if len(options.runs) < 2:
        parser.error("give two or more runs")
    result = compared([parts_of(folder) for folder in options.runs])
    Path(options.output).write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    claims = [claim for part in result["parts"].values() for claim in part]
    changing = [claim for claim in claims if len(set(claim["passed"])) > 1]
    for claim in changing:
        print(f"{claim['claim']}: {claim['measured']} {claim['relation']} {claim['limit']}")
    print(f"{len(claims) - len(changing)} of {len(claims)} claims have one verdict with the seeds {result['seeds']}")


if __name__ == "__main__":
    main()
