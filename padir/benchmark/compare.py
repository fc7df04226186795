"""`padir benchmark compare`: compares two results of `padir benchmark latency`, system by system."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from padir.errors import PadirError

# If one of these facts differs, a difference in latency may not come from the systems.
_CONDITIONS = ("device", "device_count", "cpu", "cpu_count", "xla_flags", "versions")


def compare(*, before: str, after: str) -> dict[str, Any]:
    """Prints how the latency of each system has changed between two results, and which conditions differ.

    Systems are matched by name. A change is called clear if the 95% intervals of the two medians do not overlap.

    Args:
      before, after: JSON files of `padir benchmark latency`.

    Returns:
      {'systems': {name: {'before': ms, 'after': ms, 'ratio': after / before, 'clear': bool}},
      'conditions': {condition that differs: [before, after]}}.

    Raises:
      PadirError: a file is not a result of `padir benchmark latency`, or the files have no system in common.
    """
    old, new = _read(before), _read(after)
    shared = [name for name in new["systems"] if name in old["systems"]]
    if not shared:
        raise PadirError(f"{before} and {after} have no system of the same name")
    systems = {}
    for name in shared:
        was, now = (result["systems"][name]["latency_ms"] for result in (old, new))
        apart = was["median_ci95"][1] < now["median_ci95"][0] or now["median_ci95"][1] < was["median_ci95"][0]
        systems[name] = {
            "before": was["median"],
            "after": now["median"],
            "ratio": now["median"] / was["median"],
            "clear": apart,
        }
    conditions = {
        name: [old["facts"].get(name), new["facts"].get(name)]
        for name in _CONDITIONS
        if old["facts"].get(name) != new["facts"].get(name)
    }
    conditions |= {key: [old[key], new[key]] for key in ("workload", "batch_size") if old[key] != new[key]}
    types = {name: [result["systems"][name].get("compute_type") for result in (old, new)] for name in shared}
    conditions |= {f"compute_type of {name}": pair for name, pair in types.items() if pair[0] != pair[1]}
    for name, (was, now) in conditions.items():
        print(f"differs: {name}: {was} → {now}")
    print("| system | before ms | after ms | after / before | clear |\n|---|---:|---:|---:|---|")
    for name, row in systems.items():
        clear = "yes" if row["clear"] else "no"
        print(f"| {name} | {row['before']:.2f} | {row['after']:.2f} | {row['ratio']:.3f} | {clear} |")
    return {"systems": systems, "conditions": conditions}


def _read(path: str) -> dict[str, Any]:
    try:
        result = json.loads(Path(path).read_text(encoding="utf-8"))
        for system in result["systems"].values():
            system["latency_ms"]["median_ci95"]
        result["facts"], result["workload"], result["batch_size"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PadirError(f"{path}: not a JSON file of padir benchmark latency ({error!r})") from error
    return result
