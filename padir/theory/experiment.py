"""Runs experiments whose results are decided by claims: computes their parts, draws them and writes their files."""

from __future__ import annotations

import contextlib
import json
import math
import multiprocessing
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np

from padir.benchmark.facts import run_facts
from padir.files.atomic import write_text
from padir.progress import announce
from padir.theory.claims import Claim

Result = tuple[dict[str, Any], list[Claim]]


@dataclass(frozen=True)
class Part:
    """One part of an experiment.

    A part may run in another process. Therefore its functions are functions of modules, or partials of them.

    Attributes:
      name: names its files, and stands in its JSON file as "figure".
      compute: returns the data and the claims about them.
      draw: draws the data into a PNG file, whose path it is given. Further pictures go beside it.
      notes: what a reader must know.
      about: further entries of the JSON file, e.g. {"quick": True}.
      float64: whether JAX computes in float64.
      cheap: whether XLA leaves out most of its optimisations: for small sizes, compiling takes longer than running.
    """

    name: str
    compute: Callable[[], Result]
    draw: Callable[[Path, dict[str, Any]], None]
    notes: Sequence[str] = ()
    about: Mapping[str, Any] = field(default_factory=dict)
    float64: bool = True
    cheap: bool = False


def run(
    parts: Sequence[Part], folder: Path, prefix: str, processes: int = 1, together: Sequence[Sequence[str]] = ()
) -> dict[str, dict[str, Any]]:
    """Runs the parts on the CPU and prints one line per claim.

    Writes `<prefix>_<part>.png` and `<prefix>_<part>.json` into the folder, which exists.

    Args:
      parts: the parts, with different names.
      folder: the folder to write to.
      prefix: what file names begin with, and messages.
      processes: number of child processes, each of which works on one part at a time; 1 uses this process only.
      together: names of parts that one process runs one after the other, e.g. because they share compiled programs.

    Returns:
      The contents of each part's JSON file, by name, in the order of `parts`.
    """
    results = {}
    for part, result in zip(parts, _results(parts, folder, prefix, processes, together), strict=True):
        results[part.name] = result
        print("\n".join([f"{part.name}:", *(f"  {claim['line']}" for claim in result["claims"])]), flush=True)
    passed = [claim["passed"] for result in results.values() for claim in result["claims"]]
    print(f"{sum(passed)} of {len(passed)} claims passed")
    return results


def _results(
    parts: Sequence[Part], folder: Path, prefix: str, processes: int, together: Sequence[Sequence[str]]
) -> Iterator[dict[str, Any]]:
    """The contents of each part's JSON file, in the order of the parts."""
    processes = min(processes, len(parts))
    if processes <= 1:
        for part in parts:
            announce(f"{prefix}: {part.name}")
            yield make(part, folder, prefix)
        return
    announce(f"{prefix}: {', '.join(part.name for part in parts)}")
    groups = [[part for part in parts if part.name in names] for names in together]
    alone = [[part] for part in parts if not any(part.name in names for names in together)]
    # From the last part on, and groups at the end: the longest jobs of the theory are not the last.
    jobs = alone[::-1] + [group for group in groups if group]
    # Spawned, because JAX does not survive a fork.
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), _stay_on_cpu) as pool:
        running = [pool.submit(_make_all, job, folder, prefix) for job in jobs]
        results = {name: result for each in running for name, result in each.result().items()}
    yield from (results[part.name] for part in parts)


def _make_all(parts: Sequence[Part], folder: Path, prefix: str) -> dict[str, dict[str, Any]]:
    """Makes several parts, one after the other."""
    return {part.name: make(part, folder, prefix) for part in parts}


def _stay_on_cpu() -> None:
    """Makes a child process use the CPU, because several processes cannot share an accelerator."""
    jax.config.update("jax_platforms", "cpu")


def make(part: Part, folder: Path, prefix: str) -> dict[str, Any]:
    """Computes a part, draws it, and writes and returns the contents of its JSON file: see `run`."""
    began = time.perf_counter()
    with jax.default_device(jax.devices("cpu")[0]), jax.enable_x64(part.float64), _cheap_programs(part.cheap):
        data, claims = part.compute()
    part.draw(folder / f"{prefix}_{part.name}.png", data)
    result = plain(
        {
            "figure": part.name,
            **part.about,
            "seconds": time.perf_counter() - began,
            "facts": run_facts(),
            "claims": [claim.to_dict() for claim in claims],
            "notes": list(part.notes),
            "data": rounded(data),
        }
    )
    write_text(folder / f"{prefix}_{part.name}.json", json.dumps(result, allow_nan=False) + "\n")
    return result


@contextlib.contextmanager
def _cheap_programs(cheap: bool) -> Iterator[None]:
    """If `cheap`, turns off most of XLA's optimisations."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", before or cheap)
    try:
        yield
    finally:
        jax.config.update("jax_disable_most_optimizations", before)


def rounded(value: Any, digits: int = 8) -> Any:
    """Rounds floats to so many significant digits, which makes files smaller. Claims' numbers are not rounded."""
    if isinstance(value, dict):
        return {key: rounded(item, digits) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item, digits) for item in value]
    return float(f"{value:.{digits}g}") if isinstance(value, float) else value


def plain(value: Any) -> Any:
    """Converts a value to JSON: tuples and arrays become lists, and non-finite numbers become None."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value
