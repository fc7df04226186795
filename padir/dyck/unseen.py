"""Completing unseen prompts out of distribution: errors, what they are, and how different completions are.

These are Tables 3.3, 3.5 and 3.16 of the thesis, and its analysis of errors.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from padir.data.dyck import DyckVerifier, FirstError, first_errors, text_of
from padir.decoding.backtracking import Backtracking
from padir.decoding.generation import Verifier
from padir.decoding.verifiers import RandomVerifier
from padir.dyck.generator import (
    GREEDY,
    NO_VERIFIER,
    Completed,
    Completion,
    Generator,
    Prefixes,
    draw_prompts,
    nucleus,
    plain,
)
from padir.dyck.settings import DyckConfig
from padir.types import PyTree

QUOTA, STRIDE = 4, 4
TOP_PS = (0.9, 1.0)
BASELINE, TRAINED, SAMPLED = "baseline", "backtracking", "backtracking without argmax"
GREEDILY = "greedy, no verifier"
# As in the authors' released program: tokens that are rewritten are checked, too.
CHECKED = "backtracking, rewritten tokens checked"
RANDOM, PERFECT = "random verifier", "perfect verifier"
# It objects to as large a share of the prefixes that it judges as the trained verifier does.
AS_OFTEN = "random verifier, objecting as often"
_RESAMPLES = 10_000


def named(kind: str, top_p: float) -> str:
    """Name of a row, as in the thesis's numbers."""
    return f"{kind}, top_p {top_p:.1f}"


def systems(config: DyckConfig, probe: Verifier) -> dict[str, tuple[Backtracking, PyTree]]:
    """The samplers of the table with their verifiers, by name, but for those that depend on what these do."""
    found: dict[str, tuple[Backtracking, PyTree]] = {GREEDILY: (plain(GREEDY), NO_VERIFIER)}
    for top_p in TOP_PS:
        sampling = nucleus(top_p)
        trained = Backtracking(QUOTA, STRIDE, sampling=sampling)
        random = Backtracking(QUOTA, STRIDE, threshold=config.random_threshold, sampling=sampling)
        found |= {
            named(BASELINE, top_p): (plain(sampling), NO_VERIFIER),
            named(TRAINED, top_p): (trained, probe),
            named(CHECKED, top_p): (dataclasses.replace(trained, check_rewritten=True), probe),
            named(RANDOM, top_p): (random, RandomVerifier()),
            named(PERFECT, top_p): (trained, DyckVerifier(config.grammar)),
        }
    sampled = Backtracking(QUOTA, STRIDE, sampling=nucleus(0.9), rewrite_greedily=False)
    return found | {named(SAMPLED, 0.9): (sampled, probe)}


def unseen_errors(generator: Generator, probe: Verifier) -> dict[str, Any]:
    """Completes all test prompts with every system, several times.

    Returns:
      'systems': of each, errors by run, their mean and standard error, and mean costs; 'p_values' of backtracking
      against the baseline at each top_p; 'objections', the share of prefixes that the trained verifier rejects, by
      top_p; 'mistakes', an analysis of those that remain.
    """
    config = generator.config
    prompts = draw_prompts(config, config.ood_grammar, "test/prompts", config.num_prompts)
    analysed = [named(kind, top_p) for kind in (TRAINED, CHECKED) for top_p in TOP_PS]
    completed = _several(generator, prompts, systems(config, probe))
    objections = {top_p: objected(completed[named(TRAINED, top_p)]) for top_p in TOP_PS}
    as_often = {
        named(AS_OFTEN, top_p): (
            Backtracking(QUOTA, STRIDE, threshold=share, sampling=nucleus(top_p)),
            RandomVerifier(),
        )
        for top_p, share in objections.items()
    }
    completed |= _several(generator, prompts, as_often)
    rows, wrong, mistakes = {}, {}, {}
    for name, runs in completed.items():
        errors = np.array([(~run.valid).sum() for run in runs], float)
        wrong[name] = np.mean([~run.valid for run in runs], axis=0)
        means = [run.means() for run in runs]
        rows[name] = {
            "errors": errors.tolist(),
            "mean": float(errors.mean()),
            "standard_error": standard_error(errors),
            **{of: float(np.mean([each[of] for each in means])) for of in means[0]},
        }
        if name in analysed:
            mistakes[name] = remaining(generator, runs)
    pairs = {top_p: (named(TRAINED, top_p), named(BASELINE, top_p)) for top_p in TOP_PS}
    return {
        "systems": rows,
        "p_values": {str(top_p): fewer_p_value(*map(wrong.get, pair), config.seed) for top_p, pair in pairs.items()},
        "objections": {str(top_p): share for top_p, share in objections.items()},
        "mistakes": mistakes,
        "prompts": config.num_prompts,
    }


def _several(
    generator: Generator, prompts: Prefixes, compared: Mapping[str, tuple[Backtracking, PyTree]]
) -> dict[str, list[Completed]]:
    """What several runs of each system make of the prompts, by name; one run of what draws nothing."""
    count = {name: 1 if name == GREEDILY else generator.config.num_seeds for name in compared}
    ways = [
        Completion(sampler, f"test/{seed}", judge)
        for name, (sampler, judge) in compared.items()
        for seed in range(count[name])
    ]
    completed = iter(generator.complete_all(prompts, ways))
    return {name: list(itertools.islice(completed, count[name])) for name in compared}


def objected(runs: Sequence[Completed]) -> float:
    """The share of judged prefixes that were rejected."""
    calls = sum(int(run.verifier_calls.sum()) for run in runs)
    return sum(int(run.backtracks.sum()) for run in runs) / max(calls, 1)


def standard_error(values: np.ndarray) -> float:
    """Of the mean of several runs; 0 of one run."""
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0


def fewer_p_value(ours: np.ndarray, theirs: np.ndarray, seed: int) -> float:
    """Paired bootstrap over prompts: in what share of resamples ours are not fewer.

    Args:
      ours, theirs: [n] share of runs in which each prompt was completed wrongly.
      seed: of the resamples.

    Returns:
      (that count + 1) / (resamples + 1).
    """
    values, counts = np.unique(np.round(ours - theirs, 9), return_counts=True)
    # What a resample draws of each value is multinomial, so that prompts need not be drawn one by one.
    drawn = np.random.default_rng(seed).multinomial(len(ours), counts / counts.sum(), size=_RESAMPLES)
    return float(((drawn @ values >= -1e-9).sum() + 1) / (_RESAMPLES + 1))


def remaining(generator: Generator, runs: list[Completed]) -> dict[str, Any]:
    """What the errors of all runs are, and examples with the probability of the wrong token."""
    texts = Prefixes(*(np.concatenate([run.outputs[of][~run.valid] for run in runs]) for of in (0, 1)))
    backtracks = np.concatenate([run.backtracks[~run.valid] for run in runs])
    if not len(backtracks):
        return {"mistakes": 0, "quota_spent": 0, "wrong_type": 0, "kinds": {}, "likelier_than_half": 0, "examples": []}
    faults = first_errors(*texts, generator.config.grammar)
    places, rows = faults.positions - 1, np.arange(len(faults.positions))
    _, log_probs, likeliest = generator.read(texts)
    chances, likeliest = np.exp(log_probs[rows, places]), likeliest[rows, places]
    kinds = {kind.name: int((faults.kinds == kind).sum()) for kind in FirstError}
    return {
        "mistakes": len(backtracks),
        "quota_spent": int((backtracks == QUOTA).sum()),
        "wrong_type": kinds[FirstError.TYPE.name],
        "kinds": {name: number for name, number in kinds.items() if number},
        "likelier_than_half": int((chances > 0.5).sum()),
        "examples": [
            {
                "prefix": text_of(tokens[:place]),
                "token": text_of(tokens[place : place + 1]),
                "probability": float(chance),
                "likeliest": text_of([best]),
                "quota_left": int(QUOTA - used),
            }
            for tokens, place, chance, best, used in itertools.islice(
                zip(texts.tokens, places, chances, likeliest, backtracks, strict=True), 10
            )
        ],
    }


def diversity(generator: Generator, probe: Verifier) -> dict[str, dict[str, float]]:
    """Distinct outputs among several of the same prompt: mean and standard deviation over prompts, by system."""
    config = generator.config
    prompts = draw_prompts(config, config.ood_grammar, "diversity/prompts", config.diversity_prompts)
    compared = {
        name: Completion(sampler, "diversity", judge)
        for name, (sampler, judge) in systems(config, probe).items()
        if name.rpartition(", top_p")[0] in (BASELINE, TRAINED, SAMPLED)
    }
    completed = generator.complete_all(prompts.repeated(config.diversity_draws), list(compared.values()))
    counts = {
        name: distinct(done.outputs.tokens, config.diversity_draws)
        for name, done in zip(compared, completed, strict=True)
    }
    return {
        name: {"mean": float(count.mean()), "standard_deviation": float(count.std())} for name, count in counts.items()
    }


def distinct(tokens: np.ndarray, draws: int) -> np.ndarray:
    """Tokens [n · draws, L], draws of one prompt beside one another → [n] distinct texts of each."""
    return np.array([len(np.unique(group, axis=0)) for group in tokens.reshape(-1, draws, tokens.shape[-1])])
