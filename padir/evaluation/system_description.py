"""Describes the task and the system behind a result, so that `padir tables` can find the cell it belongs to."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from padir.data.manifest import Manifest
from padir.decoding.autoregressive import Autoregressive
from padir.decoding.beam import BeamSearch
from padir.decoding.guided import Guided
from padir.decoding.refinement import Refinement
from padir.decoding.verified import Verified
from padir.errors import PadirError
from padir.models.kinds import DecodeConfig
from padir.runs.directory import trained_on as recorded_training_data

TRAINING_DATA = ("raw", "distilled")


def describe_task(manifest: Manifest) -> dict[str, str]:
    """The task that a data set was prepared from: name, module, source language and target language.

    For a distilled set this is the task of the set that the teacher translated.
    """
    task = manifest.original_task
    return {
        "name": task.name,
        "module": task.module,
        "source_language": manifest.source_language,
        "target_language": manifest.target_language,
    }


def describe_system(
    run_dir: str | os.PathLike,
    decode: DecodeConfig,
    *,
    rescored: bool,
    compute_type: str | None = None,
    trained_on: str | None = None,
) -> dict[str, Any]:
    """Describes a system in JSON values.

    Args:
      run_dir: the run directory of the trained model.
      decode: how the system decodes.
      rescored: whether an autoregressive model ranks its hypotheses.
      compute_type: the type that the factors of products with weights are rounded to, or None.
      trained_on: 'raw' or 'distilled', if the run directory does not record it; None otherwise.

    Returns:
      A dictionary with the following keys.

      * kind: 'autoregressive' or 'parallel'.
      * decoding: 'greedy', 'sampling', 'beam', 'guided', 'verified', 'padir' (the paper's recipe) or 'refinement' (any
        other parallel recipe, e.g. mask-predict).
      * steps: refinement steps; None for an autoregressive or verified system.
      * hypotheses: beam size or number of samples, or all hypotheses per source of a parallel system.
      * trained_on: 'raw', 'distilled', or None if it is not known.
      * rescored and compute_type: as given.

    Raises:
      PadirError: `trained_on` is neither value, or contradicts the run directory.
    """
    known = {"trained_on": _training_data(run_dir, trained_on), "rescored": rescored, "compute_type": compute_type}
    return {**_decoding(decode), **known}


def _decoding(decode: DecodeConfig) -> dict[str, Any]:
    if isinstance(decode, Refinement):
        return {
            "kind": "parallel",
            "decoding": "padir" if _is_papers_recipe(decode) else "refinement",
            "steps": decode.num_steps,
            "hypotheses": decode.hypotheses_per_source,
        }
    if isinstance(decode, Verified):
        return {"kind": "parallel", "decoding": "verified", "steps": None, "hypotheses": 1}
    if isinstance(decode, BeamSearch):
        return {"kind": "autoregressive", "decoding": "beam", "steps": None, "hypotheses": decode.beam_size}
    if isinstance(decode, Guided):
        return {"kind": "autoregressive", "decoding": "guided", "steps": None, "hypotheses": decode.num_samples}
    assert isinstance(decode, Autoregressive)
    decoding = "greedy" if decode.sampling.temperature == 0 else "sampling"
    return {"kind": "autoregressive", "decoding": decoding, "steps": None, "hypotheses": decode.num_samples}


def _is_papers_recipe(decode: Refinement) -> bool:
    """Whether a decode is the paper's recipe (section 4.2.3), which is our default.

    It starts from MASK, remasks stutter and drops repeats at the end. Its hypotheses have the most likely lengths,
    one hypothesis per length. The fields that are ignored here do not belong to the recipe: some are free parameters
    of it, and padding and traces change no token.
    """
    plain = Refinement()
    free = {"num_steps", "num_hypotheses", "target_buckets", "return_trace", "return_attentions", "self_conditioning"}
    return all(
        getattr(decode, field.name) == getattr(plain, field.name)
        for field in dataclasses.fields(Refinement)
        if field.name not in free
    )


def _training_data(run_dir: str | os.PathLike, given: str | None) -> str | None:
    if given is not None and given not in TRAINING_DATA:
        raise PadirError(f"evaluate.trained_on: unknown {given!r}; choose raw or distilled")
    recorded = recorded_training_data(run_dir)
    if given is not None and recorded is not None and given != recorded:
        raise PadirError(f"evaluate.trained_on: {given!r}, but {run_dir} was trained on {recorded} data; leave it out")
    return recorded or given
