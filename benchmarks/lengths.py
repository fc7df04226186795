"""Several target lengths with a demo's student: what ranking and `likeliest_first` do to quality and time.

    python benchmarks/lengths.py --demo=demo --output=benchmarks/results/lengths_demo_cpu.json

Decodes the test set with one length and with five, ranked with several weights of the lengths' own probability, all at
once and likeliest first. Scores are compared with one length by paired bootstrap. Single sentences are timed, systems
in turns.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import gin as gin_config
from padir.benchmark.facts import run_facts
from padir.benchmark.latency import Asked
from padir.benchmark.measure import take_turns
from padir.benchmark.systems import Opened
from padir.benchmark.workloads import fitting_requests
from padir.cli import config
from padir.data.records import PreparedSet
from padir.decoding.ranking import RankByLogProbability
from padir.decoding.refinement import Refinement
from padir.evaluation.evaluate import decode_examples, score
from padir.files.atomic import write_text
from padir.inference.translator import load
from padir.metrics.quality import paired_bootstrap

STEPS, LENGTHS = 4, 5
WEIGHTS = (0.0, 0.05, 0.1, 0.2, 0.5)


def _systems(buckets: tuple[int, ...]) -> dict[str, Refinement]:
    """Ways of decoding by their names; each `likeliest_first` follows the one that it must agree with."""
    systems = {"1 length": Refinement(STEPS, target_buckets=buckets)}
    for weight in WEIGHTS:
        for first in (False, True) if weight else (False,):
            name = f"{LENGTHS} lengths, weight {weight}" + ", likeliest first" * first
            rank = RankByLogProbability(length_weight=weight)
            systems[name] = Refinement(
                STEPS, num_hypotheses=LENGTHS, rank=rank, likeliest_first=first, target_buckets=buckets
            )
    return systems


def main() -> None:
    """Decodes in every way, scores, times, prints and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--demo", type=Path, required=True, help="output folder of `padir demo`")
    parser.add_argument("--output", type=Path, required=True, help="the JSON file to write")
    options = parser.parse_args()
    config.parse(["runs/demo.gin"], [])
    settings = gin_config.query_parameter("demo.config").scoped_configurable_fn()
    data = PreparedSet.open(str(options.demo / "data"))
    test = data.split("test")
    examples = test.read(range(len(test)))
    references = [example.target_text for example in examples]
    student = load(str(options.demo / "student_on_distilled_data"))
    systems = _systems(settings.buckets)
    rows, texts = {}, {}
    for name, decode in systems.items():
        translations = decode_examples(student, examples, decode, batch_size=64, label=name)
        texts[name] = [translation.text for translation in translations]
        row = score(translations, examples, data.manifest.checker, predicts_length=True, with_ter=False)
        if name != "1 length":
            tests = paired_bootstrap(texts[name], texts["1 length"], references)
            row["p_value"] = tests["bleu"].to_dict()["p_value"]
        if decode.likeliest_first:
            every = texts[name.removesuffix(", likeliest first")]
            row["equal"] = sum(a == b for a, b in zip(texts[name], every, strict=True))
            # Alone, a sentence takes as many passes as its best hypothesis, unless others were decoded too.
            alone = [student.decode_ids([student.tokenize(example.source_text)], decode) for example in examples]
            more = sum(int(found.batch_steps) > int(found.steps_run[0, 0]) for found in alone)
            row["others_decoded"] = more / len(examples)
        rows[name] = row
    requests = fitting_requests(examples, data.vocabulary(), settings.max_length)[: settings.latency_sentences]
    timings = take_turns(
        {name: Asked(name, Opened(student, decode)) for name, decode in systems.items()},
        [(request,) for request in requests],
        repeats=settings.latency_repeats,
        seed=0,
    )
    for name, timing in timings.items():
        rows[name]["latency_ms"] = timing.to_dict()
    result = {"facts": run_facts(), "sentences": len(examples), "rows": rows}
    write_text(options.output, json.dumps(result, indent=1) + "\n")
    for name, row in rows.items():
        against = f", p = {row['p_value']:.3f} against 1 length" if "p_value" in row else ""
        others = f", others decoded for {row['others_decoded']:.0%}, {row['equal']} equal" if "equal" in row else ""
        print(f"{name}: BLEU {row['bleu']:.2f}, {row['latency_ms']['median']:.2f} ms{against}{others}")


if __name__ == "__main__":
    main()
