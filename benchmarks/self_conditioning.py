"""Self-conditioning on a demo's student: quality, passes and time, with it and without.

    python benchmarks/self_conditioning.py --demo=demo --output=benchmarks/results/self_conditioning_demo_cpu.json

Trains one more student on the demo's distilled set, with `PadirModel.self_conditioning` and everything else as the
demo's, into the folder self_conditioned_student of the demo. If it is there already, it is used as it is. Scores are
compared by paired bootstrap. Single sentences are timed, systems in turns.
"""

from __future__ import annotations

import argparse
import dataclasses
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
from padir.decoding.refinement import Refinement
from padir.demo.run import train_student
from padir.evaluation.evaluate import decode_examples, score
from padir.files.atomic import write_text
from padir.inference.translator import load
from padir.metrics.quality import paired_bootstrap

PLAIN, CONDITIONED, TURNED_OFF = "plain student", "self-conditioned student", "self-conditioned student, turned off"
STEPS = (1, 2, 4, 10)


def main() -> None:
    """Trains, decodes in every way, scores, prints and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--demo", type=Path, required=True, help="output folder of `padir demo`")
    parser.add_argument("--output", type=Path, required=True, help="the JSON file to write")
    options = parser.parse_args()
    folders = {name: str(options.demo / name) for name in ("data", "distilled", "teacher", "student_on_distilled_data")}
    conditioned = options.demo / "self_conditioned_student"
    config.parse(["runs/demo.gin"], [])
    settings = gin_config.query_parameter("demo.config").scoped_configurable_fn()
    train_student(settings, folders["distilled"], str(conditioned), folders["teacher"], self_conditioning=True)

    data = PreparedSet.open(folders["data"])
    test = data.split("test")
    examples = test.read(range(len(test)))
    references = [example.target_text for example in examples]
    plain, other = load(folders["student_on_distilled_data"]), load(conditioned)
    systems = {}
    for steps in STEPS:
        decode = Refinement(steps, target_buckets=settings.buckets)
        systems[PLAIN, steps] = plain, decode
        systems[CONDITIONED, steps] = other, decode
        systems[TURNED_OFF, steps] = other, dataclasses.replace(decode, self_conditioning=False)
    rows, texts = {key: {"system": key[0], "steps": key[1]} for key in systems}, {}
    for (name, steps), (translator, decode) in systems.items():
        label = f"{name}, {steps} steps"
        translations = decode_examples(translator, examples, decode, batch_size=64, label=label)
        texts[name, steps] = [translation.text for translation in translations]
        row = rows[name, steps]
        row |= score(translations, examples, data.manifest.checker, predicts_length=True, with_ter=False)
        if name != PLAIN:
            tests = paired_bootstrap(texts[name, steps], texts[PLAIN, steps], references)
            row["p_value"] = tests["bleu"].to_dict()["p_value"]
    requests = fitting_requests(examples, data.vocabulary(), settings.max_length)[: settings.latency_sentences]
    timings = take_turns(
        {key: Asked(str(key), Opened(*system)) for key, system in systems.items()},
        [(request,) for request in requests],
        repeats=settings.latency_repeats,
        seed=0,
    )
    for key, timing in timings.items():
        rows[key]["latency_ms"] = timing.to_dict()
    result = {"facts": run_facts(), "sentences": len(examples), "rows": list(rows.values())}
    write_text(options.output, json.dumps(result, indent=1) + "\n")
    for row in result["rows"]:
        against = f", p = {row['p_value']:.3f} against the plain student" if "p_value" in row else ""
        passes = f"{row['mean_steps_run']:.2f} passes"
        print(
            f"{row['system']}, {row['steps']} steps: BLEU {row['bleu']:.2f}, {passes}, "
            f"{row['latency_ms']['median']:.2f} ms{against}"
        )


if __name__ == "__main__":
    main()
