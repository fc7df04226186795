"""Adaptive acceptance beside fixed schedules: mean decoder passes against quality, with a trained PaDIR model.

    python benchmarks/acceptance.py --run_dir=demo/student_on_distilled_data --data_dir=demo/data \\
        --output=benchmarks/results/acceptance_demo_cpu.json

Each way to decode is compared by paired bootstrap with mask-predict of 10 steps. A sentence's passes are those before
it was finished, which is what it takes alone; a batch waits for its slowest sentence.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path

from padir.benchmark.facts import run_facts
from padir.data.records import PreparedSet
from padir.decoding.annealing import AnnealedSampling
from padir.decoding.credit import Credit
from padir.decoding.entropy_bound import RemaskBeyondEntropyBound
from padir.decoding.initial import StartWithRandom
from padir.decoding.refinement import Refinement
from padir.decoding.remasking import RemaskAny, RemaskLinear, RemaskStutter
from padir.decoding.replacement import ReplaceWithRandom
from padir.decoding.stopping import StopWhenAll, StopWhenCertain, StopWhenStable
from padir.decoding.threshold import RemaskBelowThreshold
from padir.evaluation.evaluate import decode_examples, score
from padir.files.atomic import write_text
from padir.inference.translator import load
from padir.metrics.bootstrap import paired_bootstrap
from padir.runs.directory import check_vocabulary

BASELINE = "mask-predict, 10 steps"
THRESHOLDS = (0.5, 0.7, 0.8, 0.9, 0.95)
BOUNDS = (0.3, 1.0, 2.0, 4.0)


def ways() -> dict[str, Refinement]:
    """Every way to decode, by name."""
    once = {"num_steps": 10, "rewrite_only_remasked": True, "drop_repeats": False}
    anew = {"num_steps": 10, "drop_repeats": False}
    noise = {**anew, "start": StartWithRandom(), "replace": ReplaceWithRandom()}
    found = {
        f"mask-predict, {steps} steps": Refinement(**{**once, "num_steps": steps}, remask=RemaskLinear())
        for steps in (2, 3, 4, 5, 7, 10)
    }
    found |= {f"PaDIR, {steps} step{'s' if steps > 1 else ''}": Refinement(steps) for steps in (1, 2, 4, 10)}
    for each in THRESHOLDS:
        remask = RemaskBelowThreshold(each)
        found[f"threshold {each}"] = Refinement(**once, remask=remask)
        found[f"threshold {each} with credit"] = Refinement(**once, remask=remask, credit=Credit())
        found[f"threshold {each}, every position anew"] = Refinement(**anew, remask=remask)
    for each in BOUNDS:
        found[f"entropy bound {each}"] = Refinement(**once, remask=RemaskBeyondEntropyBound(each))
    stop = StopWhenAll((StopWhenStable(), StopWhenCertain(0.1)))
    found["threshold 0.5 or stutter, every position anew"] = Refinement(
        **anew, remask=RemaskAny((RemaskBelowThreshold(0.5), RemaskStutter()))
    )
    found["entropy bound 4.0, every position anew, until stable and certain"] = Refinement(
        **anew, remask=RemaskBeyondEntropyBound(4.0), stop=stop
    )
    found["PaDIR, 10 steps, random start"] = Refinement(10, start=StartWithRandom())
    for each in (0.5, 0.8):
        found[f"threshold {each}, random start and noise"] = Refinement(**noise, remask=RemaskBelowThreshold(each))
        found[f"threshold {each}, random start, once"] = Refinement(
            **once, start=StartWithRandom(), replace=ReplaceWithRandom(), remask=RemaskBelowThreshold(each)
        )
    for each in (1.0, 4.0):
        found[f"entropy bound {each}, random start and noise, annealed, until stable and certain"] = Refinement(
            **noise,
            remask=RemaskBeyondEntropyBound(each),
            stop=stop,
            sampling=AnnealedSampling(0.5, 0.0),
        )
    return found


def main() -> None:
    """Decodes in every way, scores, prints a table and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run_dir", required=True, help="run directory of a PaDIR model")
    parser.add_argument("--data_dir", required=True, help="prepared set")
    parser.add_argument("--output", type=Path, required=True, help="the JSON file to write")
    parser.add_argument("--split", default="test")
    parser.add_argument("--sentences", type=int, default=1000, help="number of sentences, from the start of the split")
    parser.add_argument("--bucket", type=int, default=32, help="padded target length")
    options = parser.parse_args()
    # Before anything else, because the commit is that of the code which has been imported.
    facts = run_facts()
    translator = load(options.run_dir)
    data = PreparedSet.open(options.data_dir)
    check_vocabulary(data.vocabulary(), translator.vocabulary.hash, options.run_dir)
    prepared = data.split(options.split)
    examples = prepared.read(range(min(options.sentences, len(prepared))))
    references = [example.target_text for example in examples]
    rows, texts = {}, {}
    for name, way in ways().items():
        # One bucket is one program to compile.
        decode = dataclasses.replace(way, target_buckets=(options.bucket,))
        translations = decode_examples(translator, examples, decode, batch_size=64, label=name)
        texts[name] = [translation.text for translation in translations]
        scores = score(translations, examples, data.manifest.checker, with_ter=False)
        rows[name] = {key: scores[key] for key in ("bleu", "chrf", "validity", "mean_steps_run") if key in scores}
    for name, row in rows.items():
        if name != BASELINE:
            compared = paired_bootstrap(texts[name], texts[BASELINE], references)
            row["against_baseline"] = {metric: test.to_dict() for metric, test in compared.items()}
    result = {"facts": facts, "baseline": BASELINE, "sentences": len(examples), "rows": rows}
    write_text(options.output, json.dumps(result, indent=1) + "\n")
    for name, row in rows.items():
        p_value = f"{row['against_baseline']['bleu']['p_value']:.3f}" if name != BASELINE else "–"
        print(f"{name}: {row['mean_steps_run']:.2f} passes, BLEU {row['bleu']:.2f}, p = {p_value}")


if __name__ == "__main__":
    main()
