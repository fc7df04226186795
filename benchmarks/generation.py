"""Generation under a verifier with a demo's teacher: valid %, chrF, and what they cost, beside plain sampling.

The embedded pair's grammar is the perfect verifier: all valid translations of a source are known. The trained one is a
linear probe of the teacher's hidden states; it is trained first, unless its folder is there already.

    python benchmarks/generation.py --teacher=demo/teacher --data=demo/data --verifier=demo/verifier \\
        --output=benchmarks/results/generation_demo_cpu.json
"""

from __future__ import annotations

import argparse
import functools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from padir import rng
from padir.benchmark.facts import run_facts
from padir.data.records import Example, PreparedSet
from padir.data.synthetic import is_valid, valid_translations
from padir.decoding.autoregressive import Autoregressive
from padir.decoding.backtracking import Backtracking
from padir.decoding.blocks import Block
from padir.decoding.generation import Verifier
from padir.decoding.guided import Guided
from padir.decoding.listed import Listed
from padir.decoding.queries import Queries
from padir.decoding.rejection import BlockBestOf, LocallyConstrained, TokenwiseRejection
from padir.decoding.sampling import Sampling
from padir.decoding.verifiers import AlwaysAccept, RandomVerifier
from padir.files.atomic import write_text
from padir.inference.decoder import source_width
from padir.inference.translator import Translator, load
from padir.metrics.counts import SCORES, count_sentences
from padir.metrics.randomization import approximate_randomization, randomized_mean
from padir.models.guided import Judge
from padir.progress import progress
from padir.runs.saved_verifier import RECORD_FILE, load_verifier
from padir.types import Array
from padir.verifier.run import train_verifier
from padir.verifier.samples import padded_lists, token_sequences

PLAIN, GREEDY, PERFECT, TRAINED = "sampling", "greedy", "locally constrained, perfect", "backtracking 4 x 4, trained"
RANDOM, BLOCKS = "backtracking 4 x 4, random", "block best of 4, trained"
LISTED = "listed"
COSTS = ("queries", "verifier_calls", "decoder_passes", "backtracks", "erased")


class System(NamedTuple):
    """How sentences are translated.

    `judge` is a verifier of prefixes, or a `Judge` that says which layer it reads; `LISTED` for lists of each sentence;
    None of greedy decoding.
    """

    config: Autoregressive | Guided
    judge: Verifier | Judge | str | None = None
    is_random: bool = True


class Outputs(NamedTuple):
    """What a system has written with one seed: texts, and numbers [n] of the sentences."""

    texts: list[str]
    valid: np.ndarray
    lengths: np.ndarray
    failed: np.ndarray
    costs: dict[str, np.ndarray]


class Bench:
    """Sentences with everything that is valid, and the model that translates them."""

    def __init__(self, translator: Translator, examples: Sequence[Example], batch_size: int):
        self.translator, self.examples, self.batch_size = translator, examples, batch_size
        self.references = [example.target_text for example in examples]
        texts = [valid_translations(example.source_text) for example in examples]
        # One shape for all batches, so that one program serves each width of sources.
        self._listed = padded_lists([token_sequences(each, translator.vocabulary) for each in texts])

    def run(self, system: System, seeds: Sequence[int], label: str) -> list[Outputs]:
        """Translates all sentences with each seed; one program serves all of them."""
        decode = self._program(system)
        with progress(label=label, unit="sentences", total=len(seeds) * len(self.examples)) as bar:
            return [self._decoded(decode, rng.stream(seed, "decode"), bar.update) for seed in seeds]

    def _program(self, system: System) -> Callable[[np.ndarray, np.ndarray, Array], tuple]:
        """(sources, lists of valid outputs, key) → (tokens [B, L], then [B] each: lengths, failed, costs)."""
        model, config = self.translator.model, system.config

        @jax.jit
        def decode(params: Any, judge: Any, source: Array, listed: Array, key: Array) -> tuple:
            options = {}
            if isinstance(config, Guided):
                if system.judge == LISTED:
                    judge = Listed(listed, model.ids.vocab_size)
                options["judge"] = judge if isinstance(judge, Judge) else Judge(judge)
            found = model.decode(params, source, key, config, **options)
            lengths, account, failed = found.predicted_lengths, found.queries, found.failed
            if account is None:
                # Greedy decoding: a query for each token, of which it keeps all.
                nothing = jnp.zeros_like(lengths)
                account, failed = Queries(lengths, nothing, found.steps_run, nothing, nothing), nothing > 0
            return jax.tree.map(lambda field: field[:, 0], (found.tokens, lengths, failed, account))

        judge = None if system.judge == LISTED else system.judge
        return functools.partial(decode, self.translator.decoding_params, judge)

    def _decoded(self, decode: Callable[..., tuple], key: Array, done: Callable[[int], object]) -> Outputs:
        order = sorted(range(len(self.examples)), key=lambda row: len(self.examples[row].source_ids))
        found: list[Any] = [None] * len(order)
        for start in range(0, len(order), self.batch_size):
            rows = order[start : start + self.batch_size]
            tokens, lengths, failed, account = jax.device_get(decode(*self._batch(rows), key))
            for at, row in enumerate(rows):
                costs = [getattr(account, name)[at] for name in COSTS]
                found[row] = (tokens[at].tolist(), lengths[at], failed[at], costs)
            done(len(rows))
        tokens, lengths, failed, costs = zip(*found, strict=True)
        texts = [self.translator.vocabulary.decode(ids) for ids in tokens]
        pairs = zip(self.examples, texts, failed, strict=True)
        valid = np.array([not lost and is_valid(each.source_text, text) for each, text, lost in pairs])
        of_all = dict(zip(COSTS, np.array(costs).T, strict=True))
        return Outputs(texts, valid, np.array(lengths), np.array(failed), of_all)

    def _batch(self, rows: list[int]) -> tuple[np.ndarray, np.ndarray]:
        longest = max(len(self.examples[row].source_ids) for row in rows)
        source = np.zeros((self.batch_size, source_width(self.translator.model, longest)), np.int32)
        listed = np.zeros((self.batch_size, *self._listed.shape[1:]), np.int32)
        for at, row in enumerate(rows):
            ids = self.examples[row].source_ids
            source[at, : len(ids)], listed[at] = ids, self._listed[row]
        return source, listed

    def scores(self, outputs: Sequence[Outputs]) -> dict[str, Any]:
        """Quality beside cost, means over the seeds; standard errors are those of the mean over seeds."""
        chrf = [float(SCORES["chrf"](count_sentences(each.texts, self.references).chrf.sum(0))) for each in outputs]
        valid = [100.0 * float(each.valid.mean()) for each in outputs]
        written = sum(int(each.lengths.sum()) for each in outputs)
        spent = sum(int(each.costs["queries"].sum()) for each in outputs)
        return {
            **_mean("valid", valid),
            **_mean("chrf", chrf),
            "failed": [int(each.failed.sum()) for each in outputs],
            "tokens": float(np.mean([each.lengths.mean() for each in outputs])),
            "queries_per_token": spent / max(written, 1),
            **{f"mean_{name}": float(np.mean([each.costs[name].mean() for each in outputs])) for name in COSTS},
        }

    def compared(self, system: Sequence[Outputs], other: Sequence[Outputs]) -> dict[str, Any]:
        """p-values: of validity over all seeds, sentence by sentence; of chrF with the first seed of each."""
        valid = [np.mean([each.valid for each in outputs], axis=0) for outputs in (system, other)]
        counts = [count_sentences(outputs[0].texts, self.references) for outputs in (system, other)]
        validity, chrf = randomized_mean(*valid), approximate_randomization(*counts)["chrf"]
        return {
            "valid_difference": 100.0 * validity.difference,
            "valid_p": validity.p_value,
            "chrf_difference": chrf.difference,
            "chrf_p": chrf.p_value,
        }


def _mean(name: str, values: list[float]) -> dict[str, float]:
    error = float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else None
    return {name: float(np.mean(values)), f"{name}_standard_error": error}


def systems(trained: Judge, temperature: float) -> dict[str, System]:
    """By name; `RANDOM` is added when it is known how often the trained verifier objects."""
    sampling = Sampling(temperature=temperature)
    return {
        GREEDY: System(Autoregressive(), is_random=False),
        PLAIN: System(Guided(sampler=Backtracking(quota=0, sampling=sampling)), AlwaysAccept()),
        PERFECT: System(Guided(sampler=LocallyConstrained(sampling=sampling)), LISTED),
        "backtracking 4 x 4, perfect": System(Guided(sampler=Backtracking(sampling=sampling)), LISTED),
        TRAINED: System(Guided(sampler=Backtracking(sampling=sampling)), trained),
        "backtracking 4 x 4, trained, drawn anew": System(
            Guided(sampler=Backtracking(sampling=sampling, rewrite_greedily=False)), trained
        ),
        "tokenwise rejection, trained": System(
            Guided(sampler=TokenwiseRejection(sampling=sampling, max_trials=100)), trained
        ),
        BLOCKS: System(Guided(sampler=BlockBestOf(sampling=sampling, block=Block(size=4))), trained),
    }


def claims(rows: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """What should come out (spec, E4), with what did."""
    trained, plain = rows[TRAINED], rows[PLAIN]
    against = trained[f"against {PLAIN}"]
    ratio = trained["mean_queries"] / plain["mean_queries"]
    gained = {name: rows[name]["valid"] - plain["valid"] for name in (TRAINED, RANDOM)}
    blocks = rows[BLOCKS]["mean_queries"] / plain["mean_queries"]
    found = [
        ("with a perfect verifier every output is valid", rows[PERFECT]["valid"], rows[PERFECT]["valid"] == 100.0),
        ("the trained verifier makes more outputs valid", gained[TRAINED], gained[TRAINED] > 0),
        ("… with p < 0.05", against["valid_p"], gained[TRAINED] > 0 and against["valid_p"] < 0.05),
        ("… at most at 1.2 times the queries of sampling", ratio, ratio <= 1.2),
        ("a random verifier gains at most half as much", gained[RANDOM], gained[RANDOM] <= 0.5 * gained[TRAINED]),
        ("block best of 4 costs at least 2.5 times the queries", blocks, blocks >= 2.5),
    ]
    return [{"claim": claim, "measured": float(value), "holds": bool(holds)} for claim, value, holds in found]


def measured(bench: Bench, trained: Judge, seeds: int, temperature: float) -> dict[str, dict[str, Any]]:
    """Scores of all systems, by name."""
    every = systems(trained, temperature)
    outputs: dict[str, list[Outputs]] = {}

    def run(name: str) -> None:
        outputs[name] = bench.run(every[name], range(seeds if every[name].is_random else 1), name)

    for name in every:
        run(name)
    # It objects as often as the trained one, of as many prefixes.
    spent = [each.costs for each in outputs[TRAINED]]
    objections = sum(each["backtracks"].sum() for each in spent) / max(
        sum(each["verifier_calls"].sum() for each in spent), 1
    )
    sampler = Backtracking(sampling=Sampling(temperature=temperature), threshold=float(objections))
    every[RANDOM] = System(Guided(sampler=sampler), RandomVerifier())
    run(RANDOM)
    rows = {name: bench.scores(found) for name, found in outputs.items()}
    for name, found in outputs.items():
        rows[name]["decode"] = repr(every[name].config)
        for other in (PLAIN, GREEDY):
            if name != other:
                rows[name][f"against {other}"] = bench.compared(found, outputs[other])
    return rows


def main() -> None:
    """Measures, prints and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--teacher", required=True, help="run directory of an autoregressive model")
    parser.add_argument("--data", required=True, help="prepared set of the embedded pair with the same vocabulary")
    parser.add_argument("--verifier", type=Path, required=True, help="folder of a verifier; is trained if it is empty")
    parser.add_argument("--output", type=Path, required=True, help="the JSON file to write")
    parser.add_argument("--sentences", type=int, help="test sentences; all by default")
    parser.add_argument("--sources", type=int, default=4000, help="sentences that the verifier is trained on")
    parser.add_argument("--temperature", type=float, default=1.0, help="of all sampling")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each system that draws at random")
    parser.add_argument("--batch", type=int, default=64, help="sentences decoded at a time")
    options = parser.parse_args()
    if not (options.verifier / RECORD_FILE).exists():
        train_verifier(
            run_dir=options.teacher,
            data_dir=options.data,
            output_dir=str(options.verifier),
            num_sources=options.sources,
            sampling=Sampling(temperature=options.temperature),
            batch_size=options.batch,
        )
    teacher = load(options.teacher)
    test = PreparedSet.open(options.data).split("test")
    examples = test.read(range(min(options.sentences or len(test), len(test))))
    trained = Judge(*load_verifier(options.verifier, teacher.params))
    rows = measured(Bench(teacher, examples, options.batch), trained, options.seeds, options.temperature)
    result = {
        "facts": run_facts(),
        "sentences": len(examples),
        "seeds": options.seeds,
        "temperature": options.temperature,
        "verifier": json.loads((options.verifier / RECORD_FILE).read_text(encoding="utf-8")),
        "rows": rows,
        "claims": claims(rows),
    }
    write_text(options.output, json.dumps(result, indent=1) + "\n")
    for name, row in rows.items():
        print(
            f"{name}: {row['valid']:.2f}% valid, chrF {row['chrf']:.2f}, {row['queries_per_token']:.3f} queries a "
            f"token, {row['mean_decoder_passes']:.1f} passes, {sum(row['failed'])} failed"
        )
    for claim in result["claims"]:
        print(f"{'holds' if claim['holds'] else 'FAILS'}: {claim['claim']} ({claim['measured']:.4g})")


if __name__ == "__main__":
    main()
