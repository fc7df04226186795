"""All samplers on a few prompts: validity, diversity, the law of what they write, and what they cost in queries.

The restricted law π* of a prompt's completions is that of the language model among valid ones. It is exact here: there
are few words that begin with a prompt, and the model scores each. (The thesis gives no numbers for this comparison.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from padir.data.dyck import DyckOutcome, DyckVerifier
from padir.decoding.action_guided import ActionValueGuided
from padir.decoding.backtracking import Backtracking
from padir.decoding.blocks import Block
from padir.decoding.rejection import (
    BestOf,
    BlockBestOf,
    BlockRejection,
    LocallyConstrained,
    RejectionSampling,
    TokenwiseRejection,
)
from padir.decoding.value_guided import ValueGuided
from padir.decoding.verifiers import Probe
from padir.dyck.generator import NO_VERIFIER, Completed, Completion, Generator, Prefixes, draw_prompts, nucleus, plain
from padir.dyck.judges import ActionHead
from padir.dyck.unseen import QUOTA, STRIDE, distinct, standard_error
from padir.types import EOS_ID, PyTree

PLAIN, BACKTRACKING, ACTION, WALK = "plain sampling", "backtracking", "action-level value-guided", "VGB, first leaf"
CONSTRAINED, EXACT = "locally constrained", "exact draws"
AT_THE_END = "validity, of whole outputs"
BLOCK = 2
# Draws of a token or block that a verifier may reject: one that rejects nearly everything would take thousands.
MOST_TRIALS = 20
# Counts that add up over runs.
_COSTS = ("queries", "verifier_calls", "decoder_passes", "backtracks")
# Queries after which rejection of whole outputs gives up.
MOST_QUERIES = 1000


class System(NamedTuple):
    """A sampler, its judge, other arguments of its `generate`, and what the judge is."""

    sampler: Any
    judge: PyTree
    more: dict[str, PyTree]
    judged_by: str


def unmatched(generator: Generator, probe: Probe, head: ActionHead) -> dict[str, System]:
    """The samplers whose queries are what they are."""
    config, perfect = generator.config, DyckVerifier(generator.config.grammar)
    outcome = DyckOutcome(perfect)
    walk = ValueGuided(horizon=config.room - config.shortest)
    blocks = BlockRejection(Block(size=BLOCK), MOST_TRIALS, keep_last=True)
    return {
        PLAIN: System(plain(nucleus(1.0)), NO_VERIFIER, {}, "none"),
        # Of a complete output the verifier of prefixes says whether it is valid.
        "rejection": System(RejectionSampling(budget=MOST_QUERIES), perfect, {}, AT_THE_END),
        "tokenwise rejection": System(TokenwiseRejection(max_trials=MOST_TRIALS), probe, {}, "linear verifier"),
        f"block rejection, {BLOCK} tokens": System(blocks, probe, {}, "linear verifier"),
        CONSTRAINED: System(LocallyConstrained(), head, {}, "value, at least 0.5"),
        ACTION: System(ActionValueGuided(), head, {"outcome": outcome}, f"value; {AT_THE_END}"),
        BACKTRACKING: System(Backtracking(QUOTA, STRIDE), probe, {}, "linear verifier"),
        WALK: System(walk, head, {"outcome": outcome}, f"value; {AT_THE_END}"),
    }


def matched(probe: Probe, plain_queries: float, queries: float) -> dict[str, System]:
    """The samplers with a number of candidates, chosen so that they take about `queries`."""
    times = max(2, round(queries / plain_queries))
    return {
        f"best of {times}": System(BestOf(times), probe, {}, "linear verifier"),
        f"block best of {times}, {BLOCK} tokens": System(
            BlockBestOf(Block(size=BLOCK), times), probe, {}, "linear verifier"
        ),
    }


def first_valid(runs: Sequence[Completed]) -> Completed:
    """Of several completions of each prompt the first that is valid, else the last; it costs what all up to it do."""
    valid = np.stack([run.valid for run in runs])
    chosen = np.where(valid.any(axis=0), valid.argmax(axis=0), len(runs) - 1)
    places = chosen, np.arange(len(chosen))

    def of_chosen(*fields: np.ndarray) -> np.ndarray:
        return np.stack(fields)[places]

    def spent(*fields: np.ndarray) -> np.ndarray:
        return np.cumsum(np.stack(fields), axis=0)[places]

    outputs = Prefixes(*(of_chosen(*fields) for fields in zip(*(run.outputs for run in runs), strict=True)))
    costs = {name: spent(*(getattr(run, name) for run in runs)) for name in _COSTS}
    # What a run has written that is not the one chosen is discarded.
    kept = of_chosen(*(run.queries - run.erased for run in runs))
    return Completed(
        outputs=outputs,
        failed=of_chosen(*(run.failed for run in runs)),
        valid=of_chosen(*valid),
        erased=costs["queries"] - kept,
        **costs,
    )


def restricted_law(generator: Generator, prompt: Prefixes) -> tuple[np.ndarray, np.ndarray]:
    """π* of one prompt [1]: (all valid outputs [M, D + 1], their probabilities [M] float64)."""
    text = prompt.tokens[0, : prompt.lengths[0]].tolist()
    words = np.array([[*word, EOS_ID] for word in generator.config.grammar.completions(text)], np.int32)
    log_probs = generator.read(Prefixes(words, np.full(len(words), words.shape[1])))[1].astype(np.float64)
    scores = log_probs[:, prompt.lengths[0] :].sum(axis=1)
    weights = np.exp(scores - scores.max())
    return words, weights / weights.sum()


def distance(outputs: np.ndarray, counted: np.ndarray, words: np.ndarray, law: np.ndarray) -> float:
    """Total variation between the law of outputs and π*; outputs that are not valid are one outcome more.

    Args:
      outputs: [n, D + 1] int.
      counted: [n] bool, which of them are valid.
      words, law: of `restricted_law`.
    """
    number = {tuple(word): index for index, word in enumerate(words.tolist())}
    found = np.bincount([number[tuple(output)] for output in outputs[counted].tolist()], minlength=len(words))
    shares = found / len(outputs)
    return float((np.abs(shares - law).sum() + (~counted).mean()) / 2)


def compare(generator: Generator, probe: Probe, head: ActionHead) -> dict[str, Any]:
    """Completes a few prompts many times with every sampler.

    Returns:
      'systems': of each, what judges, validity, failures, distinct outputs of ten, distances from π* by prompt, their
      mean with its standard error over prompts, the same of outputs that are not failures, and of the difference to
      VGB's distance of the same prompt; and mean costs. The row of exact draws from π* says how far as many draws are
      from it by chance.
    """
    config = generator.config
    prompts = draw_prompts(config, config.ood_grammar, "laws/prompts", config.law_prompts)
    wide = prompts.repeated(config.law_draws)
    laws = [restricted_law(generator, prompts.some(np.array([at]))) for at in range(config.law_prompts)]
    rows = {EXACT: _of_exact_draws(generator, laws)}

    def add(systems: dict[str, System]) -> None:
        ways = [Completion(system.sampler, "laws", system.judge, system.more) for system in systems.values()]
        for (name, system), done in zip(systems.items(), generator.complete_all(wide, ways), strict=True):
            rows[name] = {"judge": system.judged_by, **_measured(generator, done, laws)}

    alone = unmatched(generator, probe, head)
    add(alone)
    costs = rows[PLAIN]["queries"], rows[BACKTRACKING]["queries"], rows[WALK]["queries"]
    add(matched(probe, costs[0], costs[1]) | matched(probe, costs[0], costs[2]))
    # What they reach for VGB's queries if they are told at the end what is valid, as VGB is.
    for name in (PLAIN, CONSTRAINED, ACTION, BACKTRACKING):
        if name in alone:
            system, times = alone[name], max(2, round(costs[2] / rows[name]["queries"]))
            ways = [Completion(system.sampler, f"laws/{run}", system.judge, system.more) for run in range(1, times + 1)]
            done = first_valid(generator.complete_all(wide, ways))
            judged_by = system.judged_by if AT_THE_END in system.judged_by else f"{system.judged_by}; {AT_THE_END}"
            rows[f"{name}, first valid of {times}"] = {"judge": judged_by, **_measured(generator, done, laws)}
    for row in rows.values():
        above = np.array(row["distances"]) - rows[WALK]["distances"]
        row |= {"above_walk": float(above.mean()), "above_walk_standard_error": standard_error(above)}
    return {
        "systems": rows,
        "prompts": config.law_prompts,
        "draws": config.law_draws,
        "valid_outputs": [len(law) for _, law in laws],
    }


def _measured(generator: Generator, done: Completed, laws: list[tuple[np.ndarray, np.ndarray]]) -> dict[str, Any]:
    draws = generator.config.law_draws
    tokens, valid = done.outputs.tokens.reshape(len(laws), draws, -1), done.valid.reshape(len(laws), draws)
    found = ~done.failed.reshape(valid.shape)
    distances = [distance(*of, *law) for *of, law in zip(tokens, valid, laws, strict=True)]
    # A prompt of which every draw failed says nothing of the others.
    of_found = [
        distance(of[there], fine[there], *law)
        for of, fine, there, law in zip(tokens, valid, found, laws, strict=True)
        if there.any()
    ]
    few = min(10, draws)
    return {
        **done.means(),
        "distinct_of_ten": float(distinct(tokens[:, :few].reshape(-1, tokens.shape[-1]), few).mean()),
        **_of_distances(distances),
        "distance_without_failures": float(np.mean(of_found)) if of_found else None,
    }


def _of_distances(distances: list[float]) -> dict[str, Any]:
    values = np.array(distances)
    return {
        "distances": np.round(values, 5).tolist(),
        "distance": float(values.mean()),
        "distance_standard_error": standard_error(values),
    }


def _of_exact_draws(generator: Generator, laws: list[tuple[np.ndarray, np.ndarray]]) -> dict[str, Any]:
    """The row of independent draws from π*."""
    random, draws = np.random.default_rng(generator.config.seed), generator.config.law_draws
    few, distances = min(10, draws), []
    counts = []
    for _, law in laws:
        drawn = random.choice(len(law), size=draws, p=law)
        distances.append(np.abs(np.bincount(drawn, minlength=len(law)) / draws - law).sum() / 2)
        counts.append(len(np.unique(drawn[:few])))
    return {
        "judge": "none",
        "valid": 1.0,
        "failed": 0.0,
        "distinct_of_ten": float(np.mean(counts)),
        **_of_distances(distances),
        "distance_without_failures": float(np.mean(distances)),
    }
