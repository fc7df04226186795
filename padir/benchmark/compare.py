"""`padir benchmark compare`: compares two results of `padir benchmark latency`, or two of `padir compile`."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from padir.benchmark.measure import ratio_interval
from padir.errors import PadirError
from padir.files.paths import as_path

# If one of these facts differs, a difference in latency may not come from the systems.
_CONDITIONS = ("device", "device_count", "cpu", "cpu_count", "cpu_features", "xla_flags", "versions")
_OF_SYSTEMS = ("decode", "run_dir", "verify_with", "rescore_with", "parameters", "dtype", "compute_type")


def compare(*, before: str, after: str) -> dict[str, Any]:
    """Prints how the latency of each system has changed between two results, and which conditions differ.

    Systems are matched by name. Of the same requests, the ratio of medians has a 95% interval, for which requests are
    drawn, and a change is called clear if 1 is outside. (That a machine may be faster on another day is not in it.) Of
    other requests, or of results that an earlier padir wrote, a change is called clear if the 95% intervals of the two
    medians do not overlap.

    Of two results of `padir compile`, which vary with nothing but the code, the compiler and the topology, estimated
    cycles of each program are compared, and a change by more than 2% is called clear.

    Args:
      before, after: JSON files of `padir benchmark latency`, or of `padir compile`.

    Returns:
      {'systems': {name: {'before': ms, 'after': ms, 'ratio': after / before, 'ratio_ci95': [low, high] or None,
      'clear': bool}},
      'conditions': {condition that differs: [before, after]}}. Of `padir compile` millions of cycles instead of ms.

    Raises:
      PadirError: a file is neither, the files are of different kinds, or they have no system in common.
    """
    if estimates := _estimates(before, after):
        return _compared_estimates(before, after, *estimates)
    old, new = _read(before), _read(after)
    shared = [name for name in new["systems"] if name in old["systems"]]
    if not shared:
        raise PadirError(f"{before} and {after} have no system of the same name")
    same = all(old[key] == new[key] for key in ("workload", "batch_size"))
    systems = {name: _change(old["systems"][name], new["systems"][name], same) for name in shared}
    conditions = {
        name: [old["facts"].get(name), new["facts"].get(name)]
        for name in _CONDITIONS
        if old["facts"].get(name) != new["facts"].get(name)
    }
    conditions |= {key: [old[key], new[key]] for key in ("workload", "batch_size") if old[key] != new[key]}
    for name in shared:
        pairs = {key: [result["systems"][name].get(key) for result in (old, new)] for key in _OF_SYSTEMS}
        conditions |= {f"{key} of {name}": pair for key, pair in pairs.items() if pair[0] != pair[1]}
    for name, (was, now) in conditions.items():
        print(f"differs: {name}: {was} → {now}")
    print("| system | before ms | after ms | after / before | 95% interval | clear |\n|---|---:|---:|---:|---:|---|")
    for name, row in systems.items():
        clear = "yes" if row["clear"] else "no"
        interval = "–" if row["ratio_ci95"] is None else "{:.3f}–{:.3f}".format(*row["ratio_ci95"])
        print(f"| {name} | {row['before']:.2f} | {row['after']:.2f} | {row['ratio']:.3f} | {interval} | {clear} |")
    return {"systems": systems, "conditions": conditions}


def _change(before: dict[str, Any], after: dict[str, Any], same: bool) -> dict[str, Any]:
    """How a system's latency has changed; `same` says whether both results are of the same requests."""
    was, now = before["latency_ms"], after["latency_ms"]
    samples = [np.array(system.get("request_ms", ())) for system in (before, after)]
    interval = ratio_interval(*samples) if same and 1 < len(samples[0]) == len(samples[1]) else None
    if interval is None:
        clear = was["median_ci95"][1] < now["median_ci95"][0] or now["median_ci95"][1] < was["median_ci95"][0]
    else:
        clear = not interval[0] <= 1.0 <= interval[1]
    ratio = now["median"] / was["median"]
    return {"before": was["median"], "after": now["median"], "ratio": ratio, "ratio_ci95": interval, "clear": clear}


def _read(path: str) -> dict[str, Any]:
    try:
        result = json.loads(as_path(path).read_text(encoding="utf-8"))
        for system in result["systems"].values():
            system["latency_ms"]["median_ci95"]
        result["facts"], result["workload"], result["batch_size"]
    except PadirError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PadirError(f"{path}: not a JSON file of padir benchmark latency ({error!r})") from error
    return result


# Estimates of equal programs are equal; this much is within what a change may cost without being mentioned.
_CLEAR = 0.02


def _estimates(*paths: str) -> list[dict[str, Any]] | None:
    """The files, if all are results of `padir compile`."""
    try:
        results = [json.loads(as_path(path).read_text(encoding="utf-8")) for path in paths]
        return results if all("programs" in result for result in results) else None
    except (OSError, ValueError, TypeError):
        return None


def _compared_estimates(before: str, after: str, old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    shared = [name for name in new["programs"] if name in old["programs"]]
    if not shared:
        raise PadirError(f"{before} and {after} have no program of the same name")
    conditions = {}
    for name, pick in {
        "versions": lambda result: result["facts"]["versions"],
        "topology": lambda result: result.get("topology"),
    }.items():
        if pick(old) != pick(new):
            conditions[name] = [pick(old), pick(new)]
    for name, (was, now) in conditions.items():
        print(f"differs: {name}: {was} → {now}")
    print("| program | before M cycles | after M cycles | after / before | clear |\n|---|---:|---:|---:|---|")
    systems = {}
    for name in shared:
        programs = [result["programs"][name] for result in (old, new)]
        was, now = (program.get("estimated_cycles") for program in programs)
        if was is None or now is None:
            shown = list(map(_fits, programs))
            print(f"| {name} | {shown[0]} | {shown[1]} | | {'no' if shown[0] == shown[1] else 'yes'} |")
            continue
        ratio = now / was
        systems[name] = {"before": was / 1e6, "after": now / 1e6, "ratio": ratio, "clear": abs(ratio - 1) > _CLEAR}
        clear = "yes" if systems[name]["clear"] else "no"
        print(f"| {name} | {was / 1e6:.3f} | {now / 1e6:.3f} | {ratio:.3f} | {clear} |")
    return {"systems": systems, "conditions": conditions}


def _fits(program: dict[str, Any]) -> str:
    """What is known of a program; there are no cycles of programs for GPUs."""
    cycles = program.get("estimated_cycles")
    return "does not fit" if not program["fits"] else "fits" if cycles is None else f"{cycles / 1e6:.3f}"
