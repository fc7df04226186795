"""Completing prefixes behind which the model went wrong: with one forced backtrack, and with a verifier's.

These are Tables 3.1, 3.2 and 3.4 of the thesis. A prefix here is a prompt, and all of it may be erased.
"""

from __future__ import annotations

import itertools
from typing import Any

import jax
import numpy as np

from padir.decoding.backtracking import Backtracking
from padir.decoding.verifiers import Probe, rejects
from padir.dyck.generator import GREEDY, Completed, Completion, Generator, Prefixes, nucleus, plain

FORCED_STRIDES = (0, 1, 2, 4, 8)
QUOTAS, STRIDES = (1, 2, 4), (2, 4, 6)
TOP_P = 0.9
# How texts that a verifier objected to are completed without it.
_WITHOUT = {"nucleus": nucleus(TOP_P), "greedy": GREEDY}


def forced_backtracks(generator: Generator, prefixes: Prefixes) -> dict[str, Any]:
    """Erases the last B tokens of each prefix, rewrites them and completes the rest with nucleus 0.9.

    Whether the thesis rewrites them greedily is not said. Here they are, and beside it drawn like all others.

    Returns:
      Accuracy by B: 'rewritten greedily' and 'drawn'; and 'greedy', of greedy completions.
    """
    by_stride: dict[str, dict[str, float]] = {"rewritten greedily": {}, "drawn": {}}
    for stride in FORCED_STRIDES:
        cut = prefixes.cut(np.maximum(prefixes.lengths - stride, 0))
        # A greedy EOS ends a text for good.
        rewritten = generator.complete(cut, plain(GREEDY), stream="forced/rewriting", limits=prefixes.lengths).outputs
        for name, start in (("rewritten greedily", rewritten), ("drawn", cut)):
            done = generator.complete(start, plain(nucleus(TOP_P)), stream=f"forced/{stride}")
            by_stride[name][str(stride)] = _accuracy(done)
    greedy = generator.complete(prefixes, plain(GREEDY), stream="forced/greedy")
    return {**by_stride, "greedy": _accuracy(greedy), "prefixes": len(prefixes.lengths)}


def _accuracy(done: Completed) -> float:
    return float(done.valid.mean())


def sampler_of(quota: int, stride: int, *, checked: bool = False) -> Backtracking:
    """Backtracking into the prompt, too; whether rewritten tokens are `checked`."""
    return Backtracking(quota, stride, sampling=nucleus(TOP_P), erasable_prompt=10_000, check_rewritten=checked)


def verifiers_backtracks(generator: Generator, prefixes: Prefixes, probe: Probe) -> dict[str, Any]:
    """Accuracy with the verifier for every quota and stride, and without backtracking from where it objected.

    Returns:
      Of each cell 'Q,B': accuracy, backtracks and queries; 'checked', the accuracy if rewritten tokens are checked,
      too, as in the authors' released program; and of completions without a verifier, nucleus 0.9 and greedy, of the
      texts that it objected to; None where it objected to none.
    """
    cells, quotas = {}, range(max(QUOTAS) + 1)
    ways = [Completion(sampler_of(quota, stride), "inducing", probe) for stride in STRIDES for quota in quotas]
    of_checked = list(itertools.product(QUOTAS, STRIDES))
    ways += [Completion(sampler_of(*cell, checked=True), "inducing", probe) for cell in of_checked]
    completed = generator.complete_all(prefixes, ways)
    checked = dict(zip(of_checked, completed[-len(of_checked) :], strict=True))
    completed = iter(completed)
    for stride in STRIDES:
        runs = list(itertools.islice(completed, len(quotas)))
        texts = objections(generator, prefixes, [run.outputs for run in runs[:-1]], probe)
        together = Prefixes(*(np.concatenate(fields) for fields in zip(*texts, strict=True)))
        number = np.repeat(np.arange(1, len(texts) + 1), [len(text.lengths) for text in texts])
        without = _without_verifier(generator, together) if number.size else {}
        for quota in QUOTAS:
            among = number <= quota
            cells[f"{quota},{stride}"] = {
                "accuracy": _accuracy(runs[quota]),
                "checked": _accuracy(checked[quota, stride]),
                "backtracks": int(runs[quota].backtracks.sum()),
                "queries": float(runs[quota].queries.mean()),
                "objections": int(among.sum()),
                **{name: float(without[name][among].mean()) if among.any() else None for name in _WITHOUT},
            }
    return cells


def _without_verifier(generator: Generator, texts: Prefixes) -> dict[str, np.ndarray]:
    """Which of these texts are completed to a valid one without a verifier, by the way of sampling."""
    ways = [Completion(plain(sampling), "objected") for sampling in _WITHOUT.values()]
    return {name: each.valid for name, each in zip(_WITHOUT, generator.complete_all(texts, ways), strict=True)}


def objections(generator: Generator, prefixes: Prefixes, outputs: list[Prefixes], probe: Probe) -> list[Prefixes]:
    """The texts that a verifier objected to, found from the outputs of quotas 0, 1, 2 … with the same random numbers.

    Up to its last backtrack a row does the same with any larger quota, and what it draws from there to the next
    objection, too. So the text of objection k + 1 is the shortest prefix of the output of quota k that is rejected,
    among those that are longer than the text of objection k: what was erased there was rewritten to the same length.

    Args:
      generator: the language model.
      prefixes: [n] the prompts.
      outputs: of all prompts, by quota.
      probe: the verifier.

    Returns:
      The texts of objections 1, 2, …, each of some of the prompts.
    """
    texts, before, going = [], prefixes.lengths, np.ones(len(prefixes.lengths), bool)
    for output in outputs:
        features = generator.read(output)[0]
        judged = jax.nn.sigmoid(probe.log_odds(features.reshape(-1, features.shape[-1])))
        length = np.arange(features.shape[1])
        rejected = np.asarray(rejects(judged, sampler_of(1, 1).threshold)).reshape(features.shape[:2])
        drawn = (length > before[:, None]) & (length <= output.lengths[:, None])
        objected = rejected & drawn & going[:, None]
        going, before = objected.any(axis=1), objected.argmax(axis=1)
        texts.append(output.cut(before).some(going))
    return texts
