"""One network in both modes, beside the teacher and the student of a demo: quality, and how it verifies itself.

    python benchmarks/joint.py --demo=demo --output=benchmarks/results/joint_demo_cpu.json

Trains one more student on the demo's distilled set, with the causal objective as a further stage
(`PadirModel.causal_stage`) and everything else as the demo's, into the folder joint_student of the demo. If it is there
already, it is used as it is. Scores are compared by paired bootstrap. Single sentences are timed, systems in turns.
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
from padir.decoding.autoregressive import Autoregressive
from padir.decoding.refinement import Refinement
from padir.decoding.verified import Verified
from padir.demo.run import train_student
from padir.evaluation.evaluate import decode_examples, score
from padir.files.atomic import write_text
from padir.inference.translator import load
from padir.metrics.quality import paired_bootstrap

# Each of the joint model's ways, and what it is compared with.
COMPARED = {
    "joint model, greedy": "teacher, greedy",
    "joint model, 4 steps": "student, 4 steps",
    "joint model, verified by itself": "joint model, greedy",
    "student, verified by the teacher": "teacher, greedy",
}


def main() -> None:
    """Trains, decodes in every way, scores, prints and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--demo", type=Path, required=True, help="output folder of `padir demo`")
    parser.add_argument("--output", type=Path, required=True, help="the JSON file to write")
    options = parser.parse_args()
    folders = {name: str(options.demo / name) for name in ("data", "distilled", "teacher", "student_on_distilled_data")}
    joint = options.demo / "joint_student"
    config.parse(["runs/demo.gin"], [])
    settings = gin_config.query_parameter("demo.config").scoped_configurable_fn()
    train_student(settings, folders["distilled"], str(joint), folders["teacher"], causal_stage=True)

    data = PreparedSet.open(folders["data"])
    test = data.split("test")
    examples = test.read(range(len(test)))
    references = [example.target_text for example in examples]
    verified, refined = Verified(target_buckets=settings.buckets), Refinement(4, target_buckets=settings.buckets)
    teacher, student = load(folders["teacher"]), load(folders["student_on_distilled_data"])
    verifying = load(folders["student_on_distilled_data"], verify_with=folders["teacher"])
    both = load(joint)
    systems = {
        "teacher, greedy": (teacher, Autoregressive()),
        "joint model, greedy": (both, Autoregressive()),
        "student, 4 steps": (student, refined),
        "joint model, 4 steps": (both, refined),
        "student, verified by the teacher": (verifying, verified),
        "joint model, verified by itself": (both, verified),
    }
    rows, texts = {}, {}
    for name, (translator, decode) in systems.items():
        translations = decode_examples(translator, examples, decode, batch_size=64, label=name)
        texts[name] = [translation.text for translation in translations]
        parallel = isinstance(decode, Refinement)
        rows[name] = score(translations, examples, data.manifest.checker, predicts_length=parallel, with_ter=False)
        rows[name]["parameters"] = translator.model.parameter_count()
        if name in COMPARED:
            other = COMPARED[name]
            tests = paired_bootstrap(texts[name], texts[other], references)
            rows[name]["against"] = other
            rows[name]["p_value"] = tests["bleu"].to_dict()["p_value"]
            rows[name]["equal"] = sum(a == b for a, b in zip(texts[name], texts[other], strict=True))
    requests = fitting_requests(examples, data.vocabulary(), settings.max_length)[: settings.latency_sentences]
    timings = take_turns(
        {name: Asked(name, Opened(*system)) for name, system in systems.items()},
        [(request,) for request in requests],
        repeats=settings.latency_repeats,
        seed=0,
    )
    for name, timing in timings.items():
        rows[name]["latency_ms"] = timing.to_dict()
    result = {"facts": run_facts(), "sentences": len(examples), "rows": rows}
    write_text(options.output, json.dumps(result, indent=1) + "\n")
    for name, row in rows.items():
        against = (
            f", p = {row['p_value']:.3f} against {row['against']}, {row['equal']} equal" if "against" in row else ""
        )
        rounds = f", {row['tokens_per_round']:.2f} tokens a round" if "tokens_per_round" in row else ""
        print(f"{name}: BLEU {row['bleu']:.2f}, {row['latency_ms']['median']:.2f} ms{rounds}{against}")


if __name__ == "__main__":
    main()
