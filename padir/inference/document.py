"""A traced translation as a document: what each step read and wrote, how sure it was, and why; ready for JSON.

The page (`padir/serving/page`) shows such documents. The form, with P pieces of the source and L of a hypothesis:

    format        "padir-trace/1"
    model         {name, kind, step}, if it is known
    source        {text, pieces [P]}, as it was written if that is known, else as token ids spell it
    decode        {kind, …}: options of the configuration
    translation   {text, score, steps_run, predicted_length, cut_off, failed, rounds, constraint_met}
    hypotheses    best first: {text, score, …}, and of a refinement
                  {length, steps_run, stopped, steps, dropped, attention}
      steps       [steps_run] of {read [L], write [L], ids [L], confidence [L], remasked}, where `remasked` lists
                  {position, why}: what the next step did not read
      dropped     positions whose repeats were dropped at the end
      attention   [steps_run, L, P], mean over layers and heads, or null
                  of a model that writes from left to right, the best one has
                  {pieces [L], ids [L], confidence [L] or null, attention [L, P] or null}
    lengths       [{length, probability}] by the length predictor, likeliest first, or null
    edited        of an edited hypothesis {clamped [L], pieces [L], ids [L]}, or null
    timings       {total_ms} or null; of a refinement also served_ms, as an ordinary request without a trace, if it was
                  timed, as the server, `padir trace` and the demo do

Probabilities and attention are rounded to three places; a score that is not finite is null.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Protocol

import numpy as np

from padir.decoding.refinement import Refinement
from padir.decoding.state import Trace
from padir.inference.origin import Origin
from padir.inference.reasons import why_remasked, why_stopped
from padir.types import PAD_ID

FORMAT = "padir-trace/1"
Document = dict[str, Any]


class Traced(Protocol):
    """What a document tells of: a `Translation` with its origin."""

    text: str
    score: float
    steps_run: int
    predicted_length: int
    hypotheses: tuple[tuple[str, float], ...]
    cut_off: bool
    rounds: int | None
    trace: Trace | None
    failed: bool
    constraint_met: bool | None
    origin: Origin


def document(translation: Traced) -> Document:
    """What a translation and its origin tell without the model; `trace.trace_document` adds the rest."""
    origin = translation.origin
    refined = isinstance(origin.decode, Refinement)
    names = ("text", "score", "steps_run", "predicted_length", "cut_off", "failed", "rounds", "constraint_met")
    found = {name: getattr(translation, name) for name in names}
    hypotheses = [{"text": text, "score": _finite(score)} for text, score in translation.hypotheses]
    if translation.trace is not None:
        of_each = enumerate(zip(hypotheses, origin.steps_run, strict=True))
        # Under a constraint repeats stay, and the release drops none.
        dropped = origin.decode.drop_repeats and not origin.decode.t5x_compat
        drops = dropped and translation.constraint_met is None
        hypotheses = [said | _refined(translation.trace, row, steps, origin, drops) for row, (said, steps) in of_each]
    elif not refined and hypotheses:
        hypotheses[0] |= {"pieces": pieces(origin, origin.tokens), "ids": list(origin.tokens)}
        hypotheses[0] |= {"confidence": None, "attention": None}
    edited = None
    if origin.edited:
        edited = {"clamped": list(origin.clamped), "pieces": pieces(origin, origin.edited), "ids": list(origin.edited)}
    return {
        "format": FORMAT,
        "model": None,
        "source": {"text": origin.vocabulary.decode(origin.source), "pieces": pieces(origin, origin.source)},
        "decode": _described(origin.decode),
        "translation": found | {"score": _finite(translation.score)},
        "hypotheses": hypotheses,
        "lengths": None,
        "edited": edited,
        "timings": None,
    }


def pieces(origin: Origin, ids: Any) -> list[str]:
    """Printable names of token ids."""
    return origin.vocabulary.pieces(ids)


def rounded(values: np.ndarray) -> list:
    """Numbers in [0, 1] of any shape as lists, rounded to three places."""
    return np.round(np.asarray(values, np.float64), 3).tolist()


def _finite(score: float) -> float | None:
    return round(score, 4) if math.isfinite(score) else None


def _described(decode: Any) -> Document:
    """The options of a configuration that are not what they are by default, and those that every view shows."""
    shown = {"num_steps", "num_hypotheses", "remask", "stop", "drop_repeats", "beam_size"}
    hidden = {"return_trace", "return_attentions", "target_buckets"}
    described: Document = {"kind": type(decode).__name__}
    for option in dataclasses.fields(decode):
        value = getattr(decode, option.name)
        if option.name in shown or (value != option.default and option.name not in hidden):
            described[option.name] = value if isinstance(value, bool | int | float | str | None) else repr(value)
    return described


def _refined(trace: Trace, row: int, steps: int, origin: Origin, drops: bool) -> Document:
    """The steps of one hypothesis of a trace without the axis of sources; `drops` if repeats are dropped at the end."""
    config = origin.decode
    length = int((trace.inputs[0, row] != PAD_ID).sum())
    read, written = trace.inputs[:steps, row, :length], trace.proposals[:steps, row, :length]
    log_probs = trace.log_probs[:steps, row, :length]
    found = []
    for step in range(steps):
        remasked = []
        if step + 1 < steps:
            for position in np.flatnonzero(read[step + 1] != written[step]).tolist():
                why = why_remasked(config.remask, written[step].tolist(), position)
                remasked.append({"position": position, "why": why})
        found.append(
            {
                "read": pieces(origin, read[step]),
                "write": pieces(origin, written[step]),
                "ids": written[step].tolist(),
                "confidence": rounded(np.exp(log_probs[step])),
                "remasked": remasked,
            }
        )
    dropped, stopped = [], "it had nothing to do"
    if steps:
        stopped = why_stopped(config, read[-1], written[-1], log_probs[-1], steps)
        dropped = _repeats(written[-1], origin.clamped) if drops else []
    attention = None
    if trace.cross_attentions is not None:
        weights = trace.cross_attentions[:steps, row].astype(np.float32).mean(axis=(1, 2))
        attention = rounded(weights[:, :length, : len(origin.source)])
    return {
        "length": length,
        "steps_run": steps,
        "stopped": stopped,
        "steps": found,
        "dropped": dropped,
        "attention": attention,
    }


def _repeats(written: np.ndarray, clamped: tuple[bool, ...]) -> list[int]:
    """Positions whose token repeats its left neighbour and is not clamped."""
    free = ~np.array(clamped) if clamped else np.ones(len(written), bool)
    same = np.zeros(len(written), bool)
    same[1:] = (written[1:] == written[:-1]) & free[1:] & free[:-1]
    return np.flatnonzero(same).tolist()
