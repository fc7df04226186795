"""`padir learn dyck`: constructs and trains Transformers that know bounded Dyck languages, and checks the claims."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from padir.brackets import approximation, exact, exact_claims, pictures, trained, trained_claims
from padir.brackets.settings import EXACT, BracketsConfig
from padir.brackets.thesis import RANDOM_ROWS
from padir.errors import PadirError
from padir.files.atomic import make_folder
from padir.files.paths import local_path
from padir.theory.experiment import Part, Result, run


def learn_dyck(
    *,
    output_dir: str,
    config: BracketsConfig,
    quick: bool = False,
    parts: Sequence[str] = (),
    seed: int | None = None,
    seeds: int | None = None,
    processes: int = 2,
) -> dict[str, Any]:
    """Runs the parts of the experiment on the CPU, and prints one line per claim.

    Writes `brackets_<part>.png` and `brackets_<part>.json` into `output_dir` for each part. The JSON file has facts of
    the run, settings, data, and the claims with the measured numbers.

    Args:
      output_dir: the folder to write to.
      config: the settings.
      quick: whether to run the exact parts in small and one pair of short training runs. Numbers of trained networks
        mean little then.
      parts: the parts to make; those of `config` by default, see `BracketsConfig`.
      seed: the base seed; that of `config` if None.
      seeds: number of pairs of runs, with and without the contrastive term; that of `config` if None.
      processes: number of child processes, each of which works on one part at a time; 1 uses this process only.

    Returns:
      The contents of each part's JSON file, by part.

    Raises:
      PadirError: there is no such part, `processes` is below 1, or `output_dir` cannot be created.
    """
    if isinstance(parts, str):
        raise PadirError(f"learn_dyck.parts: {parts!r} is no list; there are {', '.join(PARTS)}")
    if processes < 1:
        raise PadirError(f"learn_dyck.processes: {processes} must be at least 1")
    config = dataclasses.replace(config, parts=tuple(parts)) if parts else config
    config = config.quick() if quick else config
    given = {name: value for name, value in (("seed", seed), ("seeds", seeds)) if value is not None}
    config = dataclasses.replace(config, **given)
    folder = local_path(output_dir)
    make_folder(folder)
    settings = dataclasses.asdict(config)
    parts = [
        Part(
            name=name,
            compute=functools.partial(PARTS[name][0], config),
            draw=PARTS[name][1],
            notes=_NOTES.get(name, []),
            about={"quick": quick, "settings": settings},
            float64=name in EXACT,
            cheap=quick and name in EXACT,
        )
        for name in dict.fromkeys(config.parts)
    ]
    return run(parts, folder, "brackets", processes)


def _balance(config: BracketsConfig) -> Result:
    data = {
        "distribution": exact.distribution(config),
        "constructed": exact.constructed(config),
        "uniform": exact.uniform(config),
        "solutions": exact.solutions(config),
        "gpt_layer": exact.gpt_layer(config),
    }
    claims = [
        *exact_claims.of_distribution(data["distribution"]),
        *exact_claims.of_constructed(data["constructed"]),
        *exact_claims.of_uniform(data["uniform"]),
        *exact_claims.of_solutions(data["solutions"]),
        *exact_claims.of_gpt_layer(data["gpt_layer"]),
        *exact_claims.of_misprints(config),
    ]
    return data, claims


def _violation(config: BracketsConfig) -> Result:
    data = exact.violations(config)
    return data, exact_claims.of_violations(data)


def _approximation(config: BracketsConfig) -> Result:
    data = {"prunings": approximation.prunings(config), "lemmas": approximation.lemma_ratios(config)}
    return data, [*approximation.of_prunings(data["prunings"]), *approximation.of_lemmas(data["lemmas"])]


def _pairs(data: str, config: BracketsConfig) -> Result:
    found = trained.pairs_of_runs(config, data)
    return found, trained_claims.of_pairs(found)


def _variation(config: BracketsConfig) -> Result:
    found = trained.variations(config)
    return found, trained_claims.of_variations(found)


def _architectures(config: BracketsConfig) -> Result:
    found = trained.architectures(config)
    return found, trained_claims.of_architectures(found)


def _copying(config: BracketsConfig) -> Result:
    found = trained.copying(config)
    return found, trained_claims.of_copying(found)


# The functions that compute and draw each part.
PARTS: dict[str, tuple[Callable[[BracketsConfig], Result], Callable[[Path, dict[str, Any]], None]]] = {
    "balance": (_balance, pictures.draw_balance),
    "violation": (_violation, pictures.draw_violation),
    "approximation": (_approximation, pictures.draw_approximation),
    "complete": (functools.partial(_pairs, "complete"), pictures.draw_pairs),
    "prefixes": (functools.partial(_pairs, "prefixes"), pictures.draw_pairs),
    "copying": (_copying, pictures.draw_copying),
    "variation": (_variation, pictures.draw_variation),
    "architectures": (_architectures, pictures.draw_architectures),
}

# What the reader of a part must know.
_NOTES = {
    "balance": [
        "Theorem 2.2.1's necessity is checked by violating balance, in the part 'violation'. That every optimal layer "
        "is balanced is a statement about all layers, which no number can check.",
        "Proposition 2.2.1, that any attention goes with outputs 0 if W_head = 0, is not checked, nor that layers "
        "beyond the second do nothing if their W_V = 0: both are seen from the formulas.",
        "With weights of large standard deviation the least coefficient that the MLP must tell from 0 is below what "
        "rounding leaves in float64, so its errors are claimed for standard deviations up to 1 and reported for the "
        "others. The table, which compares types, has no such limit.",
        "Misprints that change no number here: lengths '< 28' and '<= 28'; P_{d,i} for P_{d,j} in Corollary 2.2.2; "
        "indices in (2.48) to (2.54), (2.70), (2.73), (2.75) and (2.80) beside those above; R of Lemma 2.2.1.",
    ],
    "violation": [
        "Theorem 2.2.2's hypothesis cannot be met by training: at k = 2, q = 0.5 the excess loss must be below "
        "(1/16)^33. Corollary 2.2.2 does not name its λ_N. Only their conclusion is shown, on constructed weights.",
        "One noise matrix for each layer, scaled by ε.",
    ],
    "approximation": [
        "Theorem 2.2.3 as a whole cannot be checked: its sizes are given up to constants. What is checked is its core, "
        "Lemma 2.2.2 on subset sums, and that two pruned networks may share a matrix (Corollary 2.2.3).",
        "Lemma 2.2.20 is not checked: our specification names its misprint, a transpose, but does not state it. Of the "
        "printed Lemma 2.2.19 it states the fault, not the formula; the formula checked is Lemma 2.2.17's gate.",
    ],
    "complete": [
        "Accuracy among closing brackets and among all brackets are both given, because the thesis does not say which "
        "it means. They differ on long prefixes, where an opening bracket may overtake.",
        "The thesis gives no numbers for Figs 2.13 and 2.17, and no weight for the contrastive term.",
    ],
    "prefixes": ["The thesis finds no correlation of β and accuracy here (Fig 2.17). Ours is given without a claim."],
    "copying": [
        "A layer counts as structured if the rows of its pattern are at a mean total variation distance of at least "
        f"{trained_claims.STRUCTURED} from uniform ones (ours).",
    ],
    "variation": [
        f"The thesis's random baseline is {RANDOM_ROWS}; ours is of causal patterns with rows uniform on the simplex.",
        "The thesis does not say T_max of its linear positions; ours is the longest length in training.",
        "The thesis calls the networks of Fig 2.11 GPT-2-like, and trains on complete words and on prefixes. Ours have "
        "the layer (2.42) and are trained on complete words. BracketNetwork.layer = 'gpt' and BracketTraining.data = "
        "'prefixes' choose the others.",
    ],
    "architectures": ["Sentences are complete words of 18 brackets: 19 positions with the start token."],
}
