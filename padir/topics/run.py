"""`padir learn topics`: what a one-layer Transformer learns from topics, held against closed forms (section 2.1)."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from padir.errors import PadirError
from padir.files.atomic import make_folder
from padir.files.paths import local_path
from padir.theory.claims import Claim
from padir.theory.experiment import Part, Result, run
from padir.topics import claims, exact, learned, pictures
from padir.topics.settings import TopicsConfig

Data = dict[str, Any]
Decide = Callable[[Data], list[Claim]]


# What computes, decides and draws each part, and whether JAX computes in float64.
PARTS: dict[str, tuple[Callable[[TopicsConfig], Data], Decide, Callable[[Path, Data], None], bool]] = {
    "optima": (exact.optima, claims.optima_claims, pictures.draw_optima, True),
    "attention": (exact.attention_optima, claims.attention_claims, pictures.draw_attention, True),
    "landscapes": (exact.landscapes, claims.landscape_claims, pictures.draw_landscapes, True),
    "stages": (learned.two_stages, claims.stages_claims, pictures.draw_stages, False),
    "lengths": (exact.length_correction, claims.length_claims, pictures.draw_lengths, True),
    "value": (learned.value_matrices, claims.value_claims, pictures.draw_value, False),
    "second_stage": (learned.second_stage, claims.second_stage_claims, pictures.draw_second_stage, False),
    "all_trained": (learned.all_trained, claims.all_trained_claims, pictures.draw_all_trained, False),
    "joint": (learned.joint, claims.joint_claims, pictures.draw_joint, False),
}
# Those that --quick makes if nothing else is asked for.
QUICK = ("optima", "attention", "landscapes", "stages", "lengths")

_NOTES: Mapping[str, Sequence[str]] = {
    "optima": [
        "W maps token frequencies after masking to logits. Lemma 2.1.1 fixes sums over topics, not entries; the sums "
        "include the word itself. Definition 2.1.2 leaves row 0 free; it is 0 here. Theorem 2.1.1's b_pred is of words "
        "only; MASK has 0.",
        "c_1 to c_3 mean different things in Theorem 2.1.2 and in Assumption 2.1.2, and some ranges end at T v + 1 for "
        "T v: optima.py has them as the proofs do.",
    ],
    "attention": [
        "'words' is the thesis's convention: MASK is no key, but q counts it. 'literal' takes MASK as a topic of "
        "weight 1. Queries MASK are left out of the loss.",
        "α* of the diagonal W^V lies on a flat plateau, so only α* < λ_5 β* is claimed.",
        "The comparison after Theorem 2.1.5 has c_4 / (1 + c_4 p_m p_r) for (1 + c_4 p_m p_r) / c_5, and in its proof "
        "1 / (v - 1) < (...)² is an equality: none of our numbers depends on either.",
    ],
    "landscapes": ["The chapter does not give its grid."],
    "stages": [
        "The chapter does not give its learning rates. The recipe is ours: cross-entropy, SGD 10, L2 3e-4 on all three "
        "matrices, which start at N(0, 0.001²).",
    ],
    "lengths": [
        "Tables 2.3 to 2.5 and Figure 2.9 need pretrained models and Wikipedia. padir analyze topics computes the "
        "tables from arrays of your own.",
    ],
    "value": [
        "The loss is summed over the vocabulary. The authors' code takes its mean, which makes gradients T v + 1 times "
        "smaller, and its L2 term has no gradient. That explains the weak blocks of the thesis's squared error with "
        "SGD.",
    ],
    "second_stage": [
        "W^V is frozen at an optimum of stage 1. In 7 of the thesis's 10 runs a W^V close to diagonal arose by itself; "
        "how, it does not say. With cross-entropy ('joint') none did here; with squared error see 'all_trained'.",
    ],
    "joint": ["Attention is measured on documents without masks; a position and itself count as the same word."],
    "all_trained": ["SGD has a third of its learning rate for cross-entropy and a tenth for squared error."],
}


def learn_topics(
    *,
    output_dir: str,
    config: TopicsConfig,
    quick: bool = False,
    parts: Sequence[str] = (),
    seed: int | None = None,
    seeds: int | None = None,
    processes: int = 2,
) -> dict[str, Any]:
    """Computes optima, trains models, draws them and checks the chapter's claims, on the CPU; prints a line per claim.

    Writes `topics_<part>.png` and `topics_<part>.json` into `output_dir` for each part. The JSON file has facts of the
    run, settings, data, and the claims with the measured numbers.

    Args:
      output_dir: the folder to write to.
      config: the settings.
      quick: whether to make only exact parts and the one of two stages, with one seed, which takes about a minute.
      parts: the parts to make: optima, attention, landscapes, stages, lengths, value, second_stage, all_trained, joint.
        By default all, or the quick ones.
      seed: the first seed, instead of the configuration's.
      seeds: runs of each kind, instead of the configuration's.
      processes: number of child processes, each of which works on one part at a time; 1 uses this process only.

    Returns:
      The contents of each part's JSON file, by part.

    Raises:
      PadirError: there is no such part, a number is out of range, or `output_dir` cannot be created.
    """
    if isinstance(parts, str) or (unknown := sorted(set(parts) - set(PARTS))):
        wrong = parts if isinstance(parts, str) else ", ".join(unknown)
        raise PadirError(f"learn_topics.parts: no {wrong}; there are {', '.join(PARTS)}")
    if processes < 1:
        raise PadirError(f"learn_topics.processes: {processes} must be at least 1")
    config = config.quick() if quick else config
    given = {name: value for name, value in (("seed", seed), ("num_seeds", seeds)) if value is not None}
    config = dataclasses.replace(config, **given)
    names = list(dict.fromkeys(parts)) or (list(QUICK) if quick else list(PARTS))
    folder = local_path(output_dir)
    make_folder(folder)
    about = {"quick": quick, "settings": dataclasses.asdict(config)}
    made = [
        Part(
            name=name,
            compute=functools.partial(_compute, name, config),
            draw=PARTS[name][2],
            notes=_NOTES[name],
            about=about,
            float64=PARTS[name][3],
        )
        for name in names
    ]
    return run(made, folder, "topics", min(processes, len(made)))


def _compute(name: str, config: TopicsConfig) -> Result:
    """The data of a part, and its claims."""
    compute, decide, _, _ = PARTS[name]
    data = compute(config)
    return data, decide(data)
