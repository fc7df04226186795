"""What a result is of: the facts by which `padir tables` finds its place."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from padir.data.manifest import Manifest
from padir.decoding.autoregressive import Autoregressive
from padir.decoding.beam import BeamSearch
from padir.decoding.refinement import Refinement
from padir.errors import PadirError
from padir.models.kinds import DecodeConfig
from padir.runs.directory import trained_on as recorded_training_data

TRAINING_DATA = ("raw", "distilled")


def describe_task(manifest: Manifest) -> dict[str, str]:
    """The task that a set was prepared from, also for a distilled one: name, module, source and target language."""
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
    """The kind of a system, as JSON values.

    Args:
      run_dir: the trained model.
      decode: how it decodes.
      rescored: whether an autoregressive model ranks its hypotheses.
      compute_type: what factors of products with weights were rounded to, if to anything.
      trained_on: 'raw' or 'distilled', where the run directory does not know; None otherwise.

    Returns:
      kind ('autoregressive' or 'parallel'); decoding ('greedy', 'sampling', 'beam', 'padir' for the paper's recipe
      and 'refinement' for any other, e.g. mask-predict); steps (None for an autoregressive system); hypotheses (the
      beam, or all of a parallel decode); trained_on ('raw', 'distilled' or None: not known); rescored;
      compute_type.

    Raises:
      PadirError: `trained_on` is none of its values, or not what the run directory says.
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
    if isinstance(decode, BeamSearch):
        return {"kind": "autoregressive", "decoding": "beam", "steps": None, "hypotheses": decode.beam_size}
    assert isinstance(decode, Autoregressive)
    decoding = "greedy" if decode.sampling.temperature == 0 else "sampling"
    return {"kind": "autoregressive", "decoding": decoding, "steps": None, "hypotheses": decode.num_samples}


def _is_papers_recipe(decode: Refinement) -> bool:
    """MASK start, stutter remasked, repeats dropped at the end (paper, section 4.2.3): our defaults.

    The paper's hypotheses are the likeliest lengths, one of each. Padded lengths change no token, nor does a trace.
    """
    plain = Refinement()
    free = {"num_steps", "num_hypotheses", "target_buckets", "return_trace", "return_attentions"}
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
