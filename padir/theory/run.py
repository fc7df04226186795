"""`padir theory`: draws the figures of the theory in chapters 3 and 4 and checks their claims."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from padir.errors import PadirError
from padir.files.atomic import make_folder
from padir.files.paths import local_path
from padir.theory import guided_pictures, pictures
from padir.theory.estimation import EstimationSettings, estimation
from padir.theory.experiment import Part, Result, run
from padir.theory.guided_claims import error_amplification_claims, value_guided_claims
from padir.theory.hitting import HittingSettings, hitting
from padir.theory.hitting_claims import hitting_claims, separation_claims
from padir.theory.learned import LearnedSettings, learned
from padir.theory.query_claims import query_complexity_claims
from padir.theory.query_complexity import QueryComplexitySettings, query_complexity
from padir.theory.separation import SeparationSettings, separation
from padir.theory.theorems import TheoremSettings, theorems
from padir.theory.value_guided import (
    ErrorAmplificationSettings,
    ValueGuidedSettings,
    error_amplification,
    value_guided,
)


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


def _query_complexity(quick: bool) -> Result:
    settings = QueryComplexitySettings()
    if quick:
        settings = dataclasses.replace(
            settings,
            lengths=(1, 2, 4, 8),
            measured_lengths=(2, 4),
            blocks=(2,),
            runs=50,
            parity_lengths=(2, 3, 4),
            searches=1000,
            knapsacks=10,
            dyck_lengths=(4, 6, 8),
        )
    data = query_complexity(settings)
    return data, query_complexity_claims(data)


def _value_guided(quick: bool) -> Result:
    settings = ValueGuidedSettings()
    if quick:
        settings = dataclasses.replace(
            settings, letters=(3, 2), depths=(3, 5), trees=1, walks=2000, dyck_lengths=(4, 6, 8), dyck_chain=6
        )
    data = value_guided(settings)
    return data, value_guided_claims(data)


def _error_amplification(quick: bool) -> Result:
    settings = ErrorAmplificationSettings(lengths=(2, 4, 8)) if quick else ErrorAmplificationSettings()
    data = error_amplification(settings)
    return data, error_amplification_claims(data)


# The functions that compute and draw each figure.
FIGURES: dict[str, tuple[Callable[[bool], Result], Callable[[Path, dict[str, Any]], None]]] = {
    "figure_4_1": (functools.partial(_estimation, 0.05), pictures.draw_estimation),
    "figure_4_2": (functools.partial(_estimation, 0.3), pictures.draw_estimation),
    "theorems": (_theorems, pictures.draw_theorems),
    "figure_4_3": (_figure_4_3, pictures.draw_hitting),
    "learned": (_learned, pictures.draw_learned),
    "query_complexity": (_query_complexity, guided_pictures.draw_query_complexity),
    "value_guided": (_value_guided, guided_pictures.draw_value_guided),
    "error_amplification": (_error_amplification, guided_pictures.draw_error_amplification),
}

# What the reader of a figure must know.
_NOTES = {
    "theorems": [
        "Theorem 4.1.3 is checked with the chain on states (Definition 4.1.8). Its proof uses the chain on pairs "
        "(x, K) of (4.26), which never changes K. That chain has a spectral gap of 0, so the theorem would be empty.",
        "The claim about k times the gap is by Lee (2023), whom the chapter cites.",
    ],
    "figure_4_3": [
        "The chapter does not give the values of J of its figure; HittingSettings.couplings explains our choice.",
        "The models of the figure (h = 5 for all 10 spins, 4 of them in the clique) do not meet Assumption 4.1.5: "
        "h_G = 20 is less than 30, the sum of the fields outside. The proof of Proposition 4.1.4 uses neither this "
        "part of the assumption nor J_0 > 0.",
        "With |C| = 4, T of Proposition 4.1.5 is below one step, and Corollary 4.1.1 does not apply. The third panel "
        "checks both on larger cliques.",
    ],
    "learned": [
        "At k = 1 the total variation that remains is the network's error. It depends on the seed and decreases with "
        "the number of training samples. A chain that mixes slowly amplifies it more than a fast one.",
        "Even R samples from the true distribution have a total variation of the order of 1 / sqrt(R). Therefore the "
        "loop should be compared with its chain, not with 0.",
    ],
    "query_complexity": [
        "Chapter 3, section 3.1. A query is one token drawn from the generator; calls of the verifier are not counted.",
        "Theorem 3.1.2, NP-hardness by reduction from knapsack, is asymptotic: no number can check it. One instance is "
        "shown instead. Its process verifier is a table of dynamic programming of D c entries, which is "
        "pseudo-polynomial: the hardness of the task has gone into the verifier.",
        "The minimax value of Theorem 3.1.1 is for asking prefixes of D - 1 bits in any order. The last of them needs "
        "no query.",
    ],
    "value_guided": [
        "Chapter 3, section 3.3, which states VGB's properties without constants. The constants here are derived: the "
        "walk is a network in which the edge above a prefix v has conductance π_ref(v) V̂(v).",
        "Rapid mixing for all inputs and the average-case guarantees of the paper on VGB cannot be checked on "
        "instances; the bound on the number of steps is.",
        "An output that ends early is a leaf where it ends. The stationary law at leaves is π* then, too, but the law "
        "of the first leaf is not, even for V*.",
    ],
    "error_amplification": [
        "The values are the same for all samplers: the true value is 1 everywhere, and V̂ is κ after a 0 and 1 / κ "
        "after a 1, but exact for complete outputs.",
    ],
}


def theory(
    output_dir: str, quick: bool = False, figures: Sequence[str] = tuple(FIGURES), processes: int = 2
) -> dict[str, Any]:
    """Draws figures and checks claims on the CPU, and prints one line per claim.

    Writes `theory_<figure>.png` and `theory_<figure>.json` into `output_dir` for each figure. The JSON file has facts
    of the run, settings, data, and the claims with the measured numbers.

    Args:
      output_dir: the folder to write to.
      quick: whether to use fewer models, sizes and repetitions, which takes less than a minute.
      figures: the figures to draw: figure_4_1, figure_4_2, theorems, figure_4_3 and learned of chapter 4;
        query_complexity, value_guided and error_amplification of chapter 3.
      processes: number of child processes, each of which works on one figure at a time; 1 uses this process only.

    Returns:
      The contents of each figure's JSON file, by figure.

    Raises:
      PadirError: there is no such figure, `processes` is below 1, or `output_dir` cannot be created.
    """
    if isinstance(figures, str) or not figures:
        raise PadirError(f"theory.figures: {figures!r} names no figure; give some of {', '.join(FIGURES)}")
    if unknown := sorted(set(figures) - set(FIGURES)):
        raise PadirError(f"theory.figures: no {', '.join(unknown)}; there are {', '.join(FIGURES)}")
    if processes < 1:
        raise PadirError(f"theory.processes: {processes} must be at least 1")
    folder = local_path(output_dir)
    make_folder(folder)
    parts = [
        Part(
            name=name,
            compute=functools.partial(FIGURES[name][0], quick),
            draw=FIGURES[name][1],
            notes=_NOTES.get(name, []),
            about={"quick": quick},
            cheap=quick,
        )
        for name in dict.fromkeys(figures)
    ]
    # Figures 4.1 and 4.2 share compiled programs, so one process draws both.
    return run(parts, folder, "theory", processes, together=[("figure_4_1", "figure_4_2")])
