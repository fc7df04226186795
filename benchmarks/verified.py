"""Verified decoding with trained models: whether its output is that of greedy decoding, rounds, and where time goes.

    python benchmarks/verified.py --teacher=demo/teacher --student=demo/student_on_distilled_data --data=demo/data \\
        --output=benchmarks/results/verified_demo_cpu.json

Other ways to draft and to accept need not give the output of greedy decoding: they are scored against the references.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from padir.benchmark.facts import run_facts
from padir.benchmark.latency import Asked
from padir.benchmark.measure import take_turns
from padir.benchmark.systems import Opened
from padir.benchmark.workloads import fitting_requests
from padir.data.records import PreparedSet
from padir.decoding.acceptance import AcceptClose, AcceptSampled
from padir.decoding.autoregressive import START_ID, Autoregressive
from padir.decoding.refinement import Refinement
from padir.decoding.sampling import Sampling, log_probabilities
from padir.decoding.verified import Verified
from padir.evaluation.evaluate import decode_examples, score
from padir.files.atomic import write_text
from padir.inference.translator import Translator, load
from padir.metrics.bootstrap import paired_bootstrap
from padir.models.kinds import DecodeConfig
from padir.types import Array

COMPUTE_TYPES = (None, "bfloat16", "int8")
LENGTH_BEAMS = (1, 3)
GREEDY, SAMPLED = "AR greedy", "AR sampled"
# Each with what it needs of `Verified`.
WAYS: dict[str, dict[str, Any]] = {
    "verified, 1 draft a round": {},
    "verified, 3 drafts a round": {"length_beam": 3},
    "verified, drafts of 4 steps": {"draft_steps": 4, "redraft_steps": 4},
    "verified, close tokens stand": {"accept": AcceptClose()},
    "verified, sampled": {"accept": AcceptSampled()},
}
# What a way is compared with, other than greedy decoding.
AGAINST = {"verified, sampled": SAMPLED}


# Sentences decoded at a time; all 2,000 of a corpus at once would need most of the memory of a small machine.
_BATCH = 128


@dataclass(frozen=True)
class Decoded:
    """What became of B sentences, int32.

    Attributes:
      tokens: output [B, max_target_length], padded with 0.
      lengths: of the outputs, EOS included [B].
      rounds: passes of the verifier [B]; 0 without one.
      passes: of either decoder [B].
    """

    tokens: np.ndarray
    lengths: np.ndarray
    rounds: np.ndarray
    passes: np.ndarray


def decoded(translator: Translator, sources: list[list[int]], decode: DecodeConfig) -> Decoded:
    """Decodes sentences, those of like lengths together."""
    order = np.argsort([len(ids) for ids in sources], kind="stable")
    tokens = np.zeros((len(sources), translator.model.max_target_length), np.int32)
    lengths, rounds, passes = np.zeros((3, len(sources)), np.int32)
    for begin in range(0, len(sources), _BATCH):
        rows = order[begin : begin + _BATCH]
        found = translator.decode_ids([sources[row] for row in rows], decode)
        of_rows = (np.s_[: len(rows)], 0)
        tokens[rows, : found.tokens.shape[-1]] = found.tokens[of_rows]
        lengths[rows], passes[rows] = found.predicted_lengths[of_rows], found.steps_run[of_rows]
        rounds[rows] = 0 if found.rounds is None else found.rounds[of_rows]
    return Decoded(tokens, lengths, rounds, passes)


def padded(sources: list[list[int]]) -> np.ndarray:
    """Ids of sentences as one batch [B, longest] int32."""
    batch = np.zeros((len(sources), max(map(len, sources))), np.int32)
    for row, ids in enumerate(sources):
        batch[row, : len(ids)] = ids
    return batch


def margins(teacher: Translator, source: np.ndarray, greedy: np.ndarray, verified: np.ndarray) -> list[float]:
    """By how many nats the teacher prefers its greedy token where outputs [B, L] first differ; of those that do."""
    model, differ = teacher.model, (greedy != verified).any(-1)

    @jax.jit
    def log_probs(source: Array, tokens: Array) -> Array:
        network = model.module(teacher.decoding_params).network
        inputs = jnp.pad(tokens[:, :-1], ((0, 0), (1, 0)), constant_values=START_ID)
        plan = network.plan(network.encode(source), source, tokens.shape[1])
        return log_probabilities(network.logits(network.decode(inputs, plan).hidden), model.ids)

    if not differ.any():
        return []
    source, greedy, verified = source[differ], greedy[differ], verified[differ]
    said, first = np.array(log_probs(source, greedy)), (greedy != verified).argmax(-1)
    return [
        float(of_row[place, ours[place]] - of_row[place, theirs[place]])
        for of_row, place, ours, theirs in zip(said, first, greedy, verified, strict=True)
    ]


def agreement(options: argparse.Namespace, compute_type: str | None, buckets: tuple[int, ...]) -> dict[str, Any]:
    """Of all test sentences: outputs equal to greedy decoding, margins of the others, and rounds."""
    teacher = load(options.teacher, compute_type=compute_type)
    student = load(options.student, verify_with=options.teacher, compute_type=compute_type)
    test = PreparedSet.open(options.data).split(options.split)
    sources = [list(example.source_ids) for example in test.read(range(len(test)))]
    greedy = decoded(teacher, sources, Autoregressive())
    found = {"sentences": len(sources), "tokens": float(greedy.lengths.mean())}
    for beam in LENGTH_BEAMS:
        print(f"agreement: {compute_type or 'float32'}, length_beam={beam}", file=sys.stderr)
        verified = decoded(student, sources, Verified(length_beam=beam, target_buckets=buckets))
        found[f"{beam} draft{'s' if beam > 1 else ''}"] = {
            "equal": int((verified.tokens == greedy.tokens).all(-1).sum()),
            "margins": margins(teacher, padded(sources), greedy.tokens, verified.tokens),
            "mean_rounds": float(verified.rounds.mean()),
            "one_round": float((verified.rounds == 1).mean()),
            "mean_draft_passes": float((verified.passes - verified.rounds).mean()),
            "tokens_per_round": float(greedy.lengths.sum() / verified.rounds.sum()),
        }
    return found


def ways(options: argparse.Namespace, buckets: tuple[int, ...]) -> dict[str, Any]:
    """BLEU and rounds of greedy decoding, of sampling, and of each of `WAYS`, and how many outputs are greedy ones.

    A way whose outputs are others has the p-value of the difference in BLEU to what it is compared with.
    """
    data = PreparedSet.open(options.data)
    split = data.split(options.split)
    examples, checker = split.read(range(len(split))), data.manifest.checker
    teacher, student = load(options.teacher), load(options.student, verify_with=options.teacher)
    systems: dict[str, tuple[Translator, DecodeConfig]] = {
        GREEDY: (teacher, Autoregressive()),
        SAMPLED: (teacher, Autoregressive(sampling=Sampling(temperature=1.0))),
    }
    for name, given in WAYS.items():
        systems[name] = student, Verified(target_buckets=buckets, **given)
    references = [example.target_text for example in examples]
    found: dict[str, Any] = {}
    texts: dict[str, list[str]] = {}
    for name, (translator, decode) in systems.items():
        translations = decode_examples(translator, examples, decode, batch_size=64, label=name)
        texts[name] = [translation.text for translation in translations]
        scores = score(translations, examples, checker, predicts_length=False, with_ter=False)
        kept = ("bleu", "bleu_signature", "mean_rounds", "mean_draft_passes", "tokens_per_round")
        equal = sum(ours == theirs for ours, theirs in zip(texts[name], texts[GREEDY], strict=True))
        found[name] = {"equal": equal} | {key: scores[key] for key in kept if key in scores}
        others = texts[AGAINST.get(name, GREEDY)]
        if texts[name] != others:
            compared = paired_bootstrap(texts[name], others, references)["bleu"]
            found[name] |= {"against": AGAINST.get(name, GREEDY), "p_value": compared.to_dict()["p_value"]}
    return found


def median_ms(function: Callable[..., Any], *arguments: Any, repeats: int = 300) -> float:
    """Median milliseconds of a jitted function."""
    compiled, samples = jax.jit(function), []
    jax.block_until_ready(compiled(*arguments))
    for _ in range(repeats):
        began = time.perf_counter()
        jax.block_until_ready(compiled(*arguments))
        samples.append(1e3 * (time.perf_counter() - began))
    return float(np.median(samples))


def profile(options: argparse.Namespace, source_tokens: int, target_tokens: int) -> dict[str, Any]:
    """Median milliseconds of what rounds are made of, for one sentence of so many tokens."""
    teacher, student = load(options.teacher), load(options.student)
    source = np.full((1, source_tokens), 5, np.int32)
    tokens = np.full((1, target_tokens), 5, np.int32)

    def encoded(translator: Translator) -> Callable[[Any], Array]:
        def run(params: Any) -> Array:
            return translator.model.module(params).network.encode(source)

        return run

    def passed(translator: Translator, positions: int | None) -> Callable[[Any], Array]:
        def run(params: Any) -> Array:
            network = translator.model.module(params).network
            target = target_tokens if translator is teacher else tokens
            plan = network.plan(network.encode(source), source, target)
            if positions is None:
                return network.logits(network.decode(tokens, plan).hidden)
            output = network.decode(tokens[:, :positions], plan, network.empty_cache(1, target_tokens))
            return network.logits(output.hidden)

        return run

    def greedy(params: Any, steps: np.ndarray) -> Array:
        return teacher.model.decode(params, source, jax.random.key(0), Autoregressive(), lengths=steps).tokens

    encoder = {
        name: median_ms(encoded(each), each.decoding_params)
        for name, each in (("teacher", teacher), ("student", student))
    }
    few, many = (median_ms(greedy, teacher.decoding_params, np.array([steps])) for steps in (2, target_tokens - 2))
    return {
        "source_tokens": source_tokens,
        "target_tokens": target_tokens,
        "encoder_ms": encoder,
        "draft_pass_ms": median_ms(passed(student, None), student.decoding_params) - encoder["student"],
        "verify_pass_ms": median_ms(passed(teacher, target_tokens), teacher.decoding_params) - encoder["teacher"],
        "verify_window_ms": median_ms(passed(teacher, 8), teacher.decoding_params) - encoder["teacher"],
        "greedy_step_ms": (many - few) / (target_tokens - 4),
    }


def latencies(options: argparse.Namespace, buckets: tuple[int, ...]) -> dict[str, Any]:
    """Text-to-text latency of single sentences, systems in turns."""
    data = PreparedSet.open(options.data)
    teacher, student = load(options.teacher), load(options.student)
    verifying = load(options.student, verify_with=options.teacher)
    systems = {
        GREEDY: (teacher, Autoregressive()),
        "PaDIR, 1 step": (student, Refinement(num_steps=1, target_buckets=buckets)),
        **{name: (verifying, Verified(target_buckets=buckets, **given)) for name, given in WAYS.items()},
    }
    examples = data.split(options.split).read(range(options.requests))
    texts = [example.source_text for example in examples]
    requests = fitting_requests(texts, data.vocabulary(), teacher.model.max_source_length)
    timings = take_turns(
        {name: Asked(name, Opened(*system)) for name, system in systems.items()},
        [(request,) for request in requests],
        repeats=options.repeats,
        seed=0,
    )
    return {name: timing.to_dict() for name, timing in timings.items()}


def main() -> None:
    """Measures, prints and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--teacher", required=True, help="run directory of an autoregressive model")
    parser.add_argument("--student", required=True, help="run directory of a PaDIR model")
    parser.add_argument("--data", required=True, help="prepared set")
    parser.add_argument("--split", default="test", help="of the set")
    parser.add_argument("--output", type=Path, required=True, help="the JSON file to write")
    parser.add_argument("--buckets", default="12,20,32", help="padded target lengths")
    parser.add_argument("--requests", type=int, default=100, help="sentences that are timed")
    parser.add_argument("--repeats", type=int, default=3, help="how often each is timed")
    options = parser.parse_args()
    buckets = tuple(map(int, options.buckets.split(",")))
    result: dict[str, Any] = {"facts": run_facts()}
    parts: dict[str, Callable[[], Any]] = {
        "profile": lambda: profile(options, 15, 20),
        "latency_ms": lambda: latencies(options, buckets),
        "agreement": lambda: {str(kind): agreement(options, kind, buckets) for kind in COMPUTE_TYPES},
        "ways": lambda: ways(options, buckets),
    }
    for name, measure in parts.items():
        result[name] = measure()
        # What was measured is kept even if a later part fails.
        write_text(options.output, json.dumps(result, indent=1) + "\n")
    for name, timing in result["latency_ms"].items():
        print(f"{name}: median {timing['median']:.2f} ms, p99 {timing['p99']:.2f} ms, n = {timing['n']}")
    print(json.dumps(result["profile"], indent=1))
    print(json.dumps({name: result[name] for name in ("agreement", "ways")}, indent=1))


if __name__ == "__main__":
    main()
