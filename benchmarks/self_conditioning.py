"""Self-conditioning on a demo's student: quality, passes and time, with it and without, over several seeds.

    python benchmarks/self_conditioning.py --demo=demo --output=benchmarks/results/self_conditioning_demo_cpu.json

Trains students on the demo's distilled set, plain ones and some with `PadirModel.self_conditioning`, everything else as
the demo's, into the folders <kind>_student_seed_<n> of the demo. Those that are there already are used as they are.
Single sentences are timed with the models of the first seed, systems in turns.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
from pathlib import Path

import jax

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
from padir.inference.translator import Translator, load
from padir.metrics.quality import paired_bootstrap

PLAIN, CONDITIONED, TURNED_OFF = "plain student", "self-conditioned student", "self-conditioned student, turned off"
_NAMES = (PLAIN, CONDITIONED, TURNED_OFF)
STEPS = (1, 2, 4, 10)


def main() -> None:
    """Trains, decodes in every way, scores, prints and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--demo", type=Path, required=True, help="output folder of `padir demo`")
    parser.add_argument("--seeds", type=int, default=3, help="students of each kind")
    parser.add_argument("--output", type=Path, required=True, help="the JSON file to write")
    options = parser.parse_args()
    config.parse(["runs/demo.gin"], [])
    settings = gin_config.query_parameter("demo.config").scoped_configurable_fn()
    data = PreparedSet.open(str(options.demo / "data"))
    test = data.split("test")
    examples = test.read(range(len(test)))
    references = [example.target_text for example in examples]

    rows = {(name, steps): {"system": name, "steps": steps, "seeds": []} for steps in STEPS for name in _NAMES}
    timed = {}
    for seed in range(options.seeds):
        systems = _systems(options.demo, dataclasses.replace(settings, seed=seed))
        timed = timed or systems
        texts = {}
        for key, (translator, decode) in systems.items():
            label = f"seed {seed}, {key[0]}, {key[1]} steps"
            translations = decode_examples(translator, examples, decode, batch_size=64, label=label)
            texts[key] = [translation.text for translation in translations]
            row = score(translations, examples, data.manifest.checker, predicts_length=True, with_ter=False)
            if key[0] != PLAIN:
                tests = paired_bootstrap(texts[key], texts[PLAIN, key[1]], references)
                row["p_value"] = tests["bleu"].to_dict()["p_value"]
            rows[key]["seeds"].append(row)
        # Too many compiled programs in one process would run out of memory maps.
        jax.clear_caches()
    requests = fitting_requests(examples, data.vocabulary(), settings.max_length)[: settings.latency_sentences]
    timings = take_turns(
        {key: Asked(str(key), Opened(*system)) for key, system in timed.items()},
        [(request,) for request in requests],
        repeats=settings.latency_repeats,
        seed=0,
    )
    for key, row in rows.items():
        row["latency_ms"] = timings[key].to_dict()
        for name in ("bleu", "mean_steps_run"):
            found = [of_seed[name] for of_seed in row["seeds"]]
            row[name] = {"mean": statistics.mean(found), "smallest": min(found), "largest": max(found)}
    result = {"facts": run_facts(), "sentences": len(examples), "rows": list(rows.values())}
    write_text(options.output, json.dumps(result, indent=1) + "\n")
    for row in result["rows"]:
        bleu, passes, milliseconds = row["bleu"], row["mean_steps_run"]["mean"], row["latency_ms"]["median"]
        print(
            f"{row['system']}, {row['steps']} steps: BLEU {bleu['mean']:.2f} ({bleu['smallest']:.2f} to "
            f"{bleu['largest']:.2f}), {passes:.2f} passes, {milliseconds:.2f} ms"
        )


def _systems(demo: Path, settings) -> dict[tuple[str, int], tuple[Translator, Refinement]]:
    """Trains the two students of a seed, unless they are there, and opens them: the ways of decoding by their keys."""
    opened = {}
    for name, conditioned in (("plain", False), ("self_conditioned", True)):
        folder = demo / f"{name}_student_seed_{settings.seed}"
        data, teacher = str(demo / "distilled"), str(demo / "teacher")
        train_student(settings, data, str(folder), teacher, self_conditioning=conditioned)
        opened[name] = load(folder)
    systems = {}
    for steps in STEPS:
        decode = Refinement(steps, target_buckets=settings.buckets)
        systems[PLAIN, steps] = opened["plain"], decode
        systems[CONDITIONED, steps] = opened["self_conditioned"], decode
        systems[TURNED_OFF, steps] = opened["self_conditioned"], dataclasses.replace(decode, self_conditioning=False)
    return systems


if __name__ == "__main__":
    main()
