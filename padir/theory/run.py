"""`padir theory`: the figures of chapter 4's theory and the claims that go with them."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np

from padir.benchmark.facts import run_facts
from padir.errors import PadirError
from padir.files.atomic import write_text
from padir.progress import announce
from padir.theory import pictures
from padir.theory.claims import Claim
from padir.theory.estimation import EstimationSettings, estimation
from padir.theory.hitting import HittingSettings, hitting
from padir.theory.hitting_claims import hitting_claims, separation_claims
from padir.theory.learned import LearnedSettings, learned
from padir.theory.separation import SeparationSettings, separation
from padir.theory.theorems import TheoremSettings, theorems

Result = tuple[dict[str, Any], list[Claim]]


def _estimation(coupling: float, quick: bool) -> Result:
    settings = EstimationSettings(coupling)
    if quick:
        settings = dataclasses.replace(settings, sample_sizes=(1000, 16000), check_repetitions=200)
    return estimation(settings)


def _theorems(quick: bool) -> Result:
    return theorems(TheoremSettings(spins=(3,), models=8) if quick else TheoremSettings())


def _figure_4_3(quick: bool) -> Result:
    settings, cliques = HittingSettings(), SeparationSettings()
    if quick:
        settings = dataclasses.replace(
            settings,
            couplings=(4.0, 8.0),
            block_sizes=(3, 4, 10),
            wide_couplings=(2.0, 4.0, 8.0, 16.0, 32.0, 64.0),
            enumerated_spins=6,
        )
        cliques = SeparationSettings(cliques=(4, 32), deltas=(0.5,), corollary_steps=(10,), spares=(0,))
    data = {"hitting": hitting(settings), "separation": separation(cliques)}
    return data, hitting_claims(data["hitting"]) + separation_claims(data["separation"])


def _learned(quick: bool) -> Result:
    settings = LearnedSettings()
    if quick:
        settings = dataclasses.replace(
            settings,
            couplings=(0.1, 0.6),
            train_steps=200,
            batch_size=64,
            block_sizes=(1, 4),
            steps=(1, 4, 16, 256),
            loop_steps=16,
            runs=500,
        )
    return learned(settings)


# What computes each figure, and what draws it.
FIGURES: dict[str, tuple[Callable[[bool], Result], Callable[[Path, dict[str, Any]], None]]] = {
    "figure_4_1": (functools.partial(_estimation, 0.05), pictures.draw_estimation),
    "figure_4_2": (functools.partial(_estimation, 0.3), pictures.draw_estimation),
    "theorems": (_theorems, pictures.draw_theorems),
    "figure_4_3": (_figure_4_3, pictures.draw_hitting),
    "learned": (_learned, pictures.draw_learned),
}

# What a reader of a figure must know beside its numbers.
_NOTES = {
    "theorems": [
        "Theorem 4.1.3 is checked with the chain on states (Definition 4.1.8). Its proof writes the chain on pairs "
        "(x, K) of (4.26), which never changes K: that one has gap 0, and read with it the theorem is empty.",
        "'k times the gap' is Lee (2023), which the chapter cites.",
    ],
    "figure_4_3": [
        "The chapter's text does not print the figure's J; see HittingSettings.couplings for the choice.",
        "The figure's models (h = 5 for all 10 spins, 4 in the clique) do not meet Assumption 4.1.5: h_G = 20 is less "
        "than the 30 of the spins outside. Proposition 4.1.4's proof does not use that part, nor J_0 > 0.",
        "With |C| = 4 Proposition 4.1.5's T is below one step and Corollary 4.1.1 does not apply: the third panel "
        "checks them on larger cliques.",
    ],
    "learned": [
        "What the learnt chains keep of total variation at k = 1 is the network's error: it changes with the seed and "
        "falls with the samples trained on. A slow chain makes more of it than a fast one.",
        "Of R runs even the truth would measure a total variation of the order of 1 / sqrt(R): compare the loop "
        "with its chain, not with 0.",
    ],
}


@contextlib.contextmanager
def _cheap_programs(cheap: bool) -> Iterator[None]:
    """If `cheap`, XLA optimises little: at small sizes compiling takes longer than running."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", before or cheap)
    try:
        yield
    finally:
        jax.config.update("jax_disable_most_optimizations", before)


def theory(
    output_dir: str, quick: bool = False, figures: Sequence[str] = tuple(FIGURES), processes: int = 2
) -> dict[str, Any]:
    """Draws figures and checks claims; prints a line per claim. Computes on the CPU.

    Writes <output_dir>/theory_<figure>.png and .json per figure; the JSON has facts of the run, settings, data, and
    the claims with what was measured.

    Args:
      output_dir: folder to write to.
      quick: fewer models, sizes and repetitions, in about half a minute.
      figures: which of figure_4_1, figure_4_2, theorems, figure_4_3 and learned.
      processes: figures made at a time, each in a process of its own; 1 makes them in this one.

    Returns:
      By figure, what its JSON holds.

    Raises:
      PadirError: there is no such figure, no process, or `output_dir` is a file.
    """
    if isinstance(figures, str) or not figures:
        raise PadirError(f"theory.figures: {figures!r} names none; give some of {', '.join(FIGURES)}")
    if unknown := sorted(set(figures) - set(FIGURES)):
        raise PadirError(f"theory.figures: no {', '.join(unknown)}; there are {', '.join(FIGURES)}")
    if processes < 1:
        raise PadirError(f"theory.processes: {processes} is not at least 1")
    folder = Path(output_dir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise PadirError(f"theory.output_dir: {folder} is a file, or lies below one; choose a folder") from error
    names = list(dict.fromkeys(figures))
    results = {}
    for name, result in zip(names, _results(folder, names, quick, min(processes, len(names))), strict=True):
        results[name] = result
        print("\n".join([f"{name}:", *(f"  {claim['line']}" for claim in result["claims"])]), flush=True)
    passed = [claim["passed"] for result in results.values() for claim in result["claims"]]
    print(f"{sum(passed)} of {len(passed)} claims passed")
    return results


def _results(folder: Path, names: Sequence[str], quick: bool, processes: int) -> Iterator[dict[str, Any]]:
    """What each figure's JSON holds, in the order of the names."""
    if processes == 1:
        for name in names:
            announce(f"theory: {name}")
            yield _make(folder, name, quick)
        return
    announce(f"theory: {', '.join(names)}")
    # Figures 4.1 and 4.2 share their programs; the longest work comes first.
    pair = [name for name in names if name in ("figure_4_1", "figure_4_2")]
    others = sorted(set(names) - set(pair), key=list(FIGURES).index, reverse=True)
    jobs = [[name] for name in others] + [pair] * bool(pair)
    # Fresh processes, since JAX does not survive a fork.
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), _stay_on_cpu) as pool:
        running = [pool.submit(_make_all, folder, job, quick) for job in jobs]
        results = {name: result for each in running for name, result in each.result().items()}
    yield from (results[name] for name in names)


def _make_all(folder: Path, names: Sequence[str], quick: bool) -> dict[str, dict[str, Any]]:
    """Several figures, one after the other."""
    return {name: _make(folder, name, quick) for name in names}


def _stay_on_cpu() -> None:
    """Before a process's first computation: several of them cannot share an accelerator."""
    jax.config.update("jax_platforms", "cpu")


def _make(folder: Path, name: str, quick: bool) -> dict[str, Any]:
    """Computes a figure in float64, draws it, and writes and returns its JSON."""
    began = time.perf_counter()
    compute, draw = FIGURES[name]
    with jax.default_device(jax.devices("cpu")[0]), jax.enable_x64(True), _cheap_programs(quick):
        data, claims = compute(quick)
    draw(folder / f"theory_{name}.png", data)
    result = _plain(
        {
            "figure": name,
            "quick": quick,
            "seconds": time.perf_counter() - began,
            "facts": run_facts(),
            "claims": [claim.to_dict() for claim in claims],
            "notes": _NOTES.get(name, []),
            "data": _rounded(data),
        }
    )
    write_text(folder / f"theory_{name}.json", json.dumps(result, allow_nan=False) + "\n")
    return result


def _rounded(value: Any) -> Any:
    """Floats to 8 digits, for files of half the size; what the claims measured is kept whole."""
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return float(f"{value:.8g}") if isinstance(value, float) else value


def _plain(value: Any) -> Any:
    """The same as JSON can hold it: lists for tuples and arrays, None for what is not finite."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value
