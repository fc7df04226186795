"""A terminology as a constraint: whether it is obeyed, what it costs in quality, and how many tokens are generated.

    python benchmarks/constraints.py --data=../shared/data/tatoeba_de_en \\
      --output=benchmarks/results/constraints_tatoeba_de_en_cpu.json

The terminology comes from the references: a word of a source becomes a term if one word of its reference is its usual
partner in the training text. So each reference obeys it, and an unconstrained translation often does not.
"""

from __future__ import annotations

import argparse
import collections
import gzip
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from padir.benchmark.facts import run_facts
from padir.data.constraints import Constraint
from padir.decoding.autoregressive import Autoregressive
from padir.decoding.beam import BeamSearch
from padir.decoding.refinement import Refinement
from padir.evaluation.cost import held_against, queries_per_token
from padir.files.atomic import write_text
from padir.inference.translator import load
from padir.metrics.quality import evaluate_hypotheses
from padir.models.kinds import DecodeConfig

# Partners share at least this much of the sentences that have either, and a term is in few sentences, but in several.
LEAST_DICE = 0.3
LEAST_COUNT = 5
MOST_SHARE = 0.005
SHORTEST_WORD = 4


def words(text: str) -> set[str]:
    """Words of a text, in lower case."""
    return {word for word in re.findall(r"\w+", text.lower()) if len(word) >= SHORTEST_WORD and not word.isdigit()}


def read(path: Path) -> list[str]:
    """Lines of a compressed file."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [line.rstrip("\n") for line in lines]


def terminology(pairs: Sequence[tuple[str, str]], training: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    """Terms that the references of `pairs` obey.

    Args:
      pairs: (source, reference) to translate.
      training: (source, target) that partners are counted in.

    Returns:
      Of each term its targets: the usual partners that stand in references. A word without one in some reference is
      none.
    """
    wanted = [(words(source), words(reference)) for source, reference in pairs]
    of_source = {word for source, _ in wanted for word in source}
    of_target = {word for _, reference in wanted for word in reference}
    left, right, together = collections.Counter(), collections.Counter(), collections.Counter()
    for source, target in training:
        here, there = words(source) & of_source, words(target) & of_target
        left.update(here)
        right.update(there)
        together.update((one, other) for one in here for other in there)
    most = MOST_SHARE * len(training)
    found: dict[str, set[str]] = collections.defaultdict(set)
    refused = set()
    for source, reference in wanted:
        for word in source:
            dice = {other: 2 * together[word, other] / (left[word] + right[other]) for other in reference if left[word]}
            best = max(sorted(dice), key=dice.get, default=None)
            if best is None or dice[best] < LEAST_DICE or not LEAST_COUNT <= left[word] <= most:
                refused.add(word)
            else:
                found[word].add(best)
    return {word: sorted(targets) for word, targets in sorted(found.items()) if word not in refused}


def measured(
    run: str, decode: DecodeConfig, pairs: Sequence[tuple[str, str]], spec: dict[str, Any], batch_size: int
) -> dict[str, Any]:
    """Scores of one system, with the constraint and without."""
    sources, references = [source for source, _ in pairs], [reference for _, reference in pairs]
    constraint, found = Constraint.read(spec), {}
    for name, given in (("unconstrained", None), ("constrained", spec)):
        translator = load(run, constraint=given)
        translations = translator.translate(sources, decode, batch_size=batch_size)
        texts = [each.text for each in translations]
        quality = evaluate_hypotheses(texts, references, with_ter=False)
        found[name] = {
            "valid": sum(each.constraint_met for each in held_against(constraint, sources, translations)),
            "failed": sum(each.failed for each in translations),
            "bleu": quality.bleu,
            "bleu_signature": quality.bleu_signature,
            "chrf": quality.chrf,
            "chrf_signature": quality.chrf_signature,
            "queries_per_token": queries_per_token(translations, decode),
            "mean_tokens": sum(each.predicted_length for each in translations) / len(translations),
            "mean_steps": sum(each.steps_run for each in translations) / len(translations),
        }
    return found


def main() -> None:
    """Translates, and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with train.de.gz, valid.en.gz, …")
    parser.add_argument("--languages", default="de,en", help="source and target")
    parser.add_argument("--ar", default="tatoeba_de_en_ar", help="run or pretrained model for greedy and beam search")
    parser.add_argument("--parallel", default="tatoeba_de_en_padir", help="that for parallel refinement")
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    split = {}
    for name in ("train", "valid"):
        both = [read(options.data / f"{name}.{language}.gz") for language in options.languages.split(",")]
        split[name] = list(zip(*both, strict=True))
    models = {run: load(run) for run in (options.ar, options.parallel)}
    longest = min(model.longest_source for model in models.values())
    vocabulary = models[options.ar].vocabulary
    # A sentence counts where its own terms do: a terminology leaves most short sentences as they are.
    fitting = [pair for pair in split["valid"] if len(vocabulary.encode(pair[0])) < longest]
    spec = {"terms": terminology(fitting, split["train"]), "ignore_case": True}
    constraint = Constraint.read(spec)
    pairs = [pair for pair in fitting if constraint.demanded(pair[0])][: options.sentences]
    systems = {
        "AR greedy": (options.ar, Autoregressive()),
        "AR beam 5": (options.ar, BeamSearch(beam_size=5)),
        "parallel refinement": (options.parallel, Refinement()),
    }
    demanded = [len(constraint.demanded(source)) for source, _ in pairs]
    result = {
        "facts": run_facts(),
        "data": options.data.name,
        "sentences": len(pairs),
        "terms": len(spec["terms"]),
        "mean_terms_per_sentence": sum(demanded) / len(pairs),
        "valid_references": sum(constraint.met(source, reference) for source, reference in pairs),
        "systems": {},
    }
    for name, (run, decode) in systems.items():
        result["systems"][name] = measured(run, decode, pairs, spec, options.batch_size)
        print(name, json.dumps(result["systems"][name]), flush=True)
    write_text(options.output, json.dumps(result, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
