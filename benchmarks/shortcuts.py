"""Quality lost to shortcuts: `python benchmarks/shortcuts.py --run_dir DIR --data_dir DIR --output FILE`.

Translates a split with a trained model, first plainly and then with each shortcut. Each shortcut is compared by paired
bootstrap with the plain decode of the same number of hypotheses. Prints a table and writes JSON.

A PaDIR model decodes with 1 and with 5 length hypotheses. Its shortcuts are candidates, active positions, pruning of
hypotheses, and int8 or bfloat16 products. An autoregressive model decodes greedily and with a beam of 5. Its shortcuts
are int8 and bfloat16 products. `padir benchmark latency --gin_file=bench/paper.gin` measures the time that they save.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from padir.benchmark.facts import run_facts
from padir.data.records import PreparedSet
from padir.decoding.autoregressive import Autoregressive
from padir.decoding.beam import BeamSearch
from padir.decoding.ranking import RankByLogProbability
from padir.decoding.refinement import Refinement
from padir.evaluation.evaluate import decode_examples, score
from padir.files.atomic import write_text
from padir.inference.translator import Translator, load
from padir.metrics.bootstrap import paired_bootstrap
from padir.models.autoregressive import AutoregressiveModel
from padir.models.kinds import DecodeConfig
from padir.nn import weights
from padir.runs.directory import check_vocabulary

# By name, the changed fields of the decode and, under COMPUTE_TYPE, the type of products with weights.
COMPUTE_TYPE = "compute_type"
TYPES = {f"{kind} products": {COMPUTE_TYPE: kind} for kind in weights.COMPUTE_TYPES}
VARIANTS = {
    "plain": {},
    **TYPES,
    "candidates 8": {"candidates": 8},
    "candidates 16": {"candidates": 16},
    "4 active": {"active_positions": 4},
    "8 active": {"active_positions": 8},
    "candidates 8, 8 active": {"candidates": 8, "active_positions": 8},
    "1 kept": {"keep_hypotheses": 1},
    "1 kept, candidates 8": {"keep_hypotheses": 1, "candidates": 8},
    "1 kept, candidates 8, 8 active": {"keep_hypotheses": 1, "candidates": 8, "active_positions": 8},
    "1 kept, candidates 8 shared": {"keep_hypotheses": 1, "candidates": 8, "shared_candidates": True},
    "1 kept, candidates 8 shared, 8 active": {
        "keep_hypotheses": 1,
        "candidates": 8,
        "shared_candidates": True,
        "active_positions": 8,
    },
    "int8 products, candidates 8, 8 active": {COMPUTE_TYPE: "int8", "candidates": 8, "active_positions": 8},
    "int8 products, 1 kept, candidates 8 shared, 8 active": {
        COMPUTE_TYPE: "int8",
        "keep_hypotheses": 1,
        "candidates": 8,
        "shared_candidates": True,
        "active_positions": 8,
    },
}


def main() -> None:
    """Translates, scores, prints a table and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run_dir", required=True)
    parser.add_argument("--data_dir", required=True)
    parser.add_argument("--output", required=True, help="JSON file to write")
    parser.add_argument("--split", default="test")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--sentences", type=int, default=1000, help="number of sentences, from the start of the split")
    parser.add_argument("--length_weight", type=float, default=0.0, help="rank weight of the length's log-probability")
    parser.add_argument("--buckets", type=int, nargs="*", default=[32])
    parser.add_argument("--only", default="", help="regular expression: run only the shortcuts whose name matches")
    options = parser.parse_args()
    translators = {kind: load(options.run_dir, compute_type=kind) for kind in (None, *weights.COMPUTE_TYPES)}
    data = PreparedSet.open(options.data_dir)
    check_vocabulary(data.vocabulary(), translators[None].vocabulary.hash, options.run_dir)
    prepared = data.split(options.split)
    examples = prepared.read(range(min(options.sentences, len(prepared))))
    references = [example.target_text for example in examples]
    rows, texts = {}, {}
    for system, plain, variants in _decodes(translators[None], options):
        for name, changes in variants.items():
            key = f"{system}, {name}"
            if changes and not re.search(options.only, key):
                continue
            kind = changes.get(COMPUTE_TYPE)
            decode = dataclasses.replace(plain, **{option: changes[option] for option in {*changes} - {COMPUTE_TYPE}})
            translations = decode_examples(translators[kind], examples, decode, batch_size=64, label=key)
            texts[key] = [translation.text for translation in translations]
            rows[key] = score(translations, examples, data.manifest.checker)
            if changes:
                compared = paired_bootstrap(texts[key], texts[f"{system}, plain"], references)
                rows[key]["against_plain"] = {metric: test.to_dict() for metric, test in compared.items()}
                same = sum(a == b for a, b in zip(texts[key], texts[f"{system}, plain"], strict=True))
                rows[key]["unchanged"] = 100.0 * same / len(examples)
    described = {"facts": run_facts(), "options": vars(options), "sentences": len(examples), "rows": rows}
    write_text(Path(options.output), json.dumps(described, indent=2) + "\n")
    print(_table(rows))


def _decodes(
    translator: Translator, options: argparse.Namespace
) -> Iterator[tuple[str, DecodeConfig, dict[str, dict]]]:
    """Yields the name, the plain decode and the shortcuts of each system."""
    if isinstance(translator.model, AutoregressiveModel):
        yield "greedy", Autoregressive(), {"plain": {}, **TYPES}
        yield "beam 5", BeamSearch(beam_size=5), {"plain": {}, **TYPES}
        return
    for hypotheses in (1, 5):
        plain = Refinement(
            options.steps,
            hypotheses,
            target_buckets=tuple(options.buckets),
            rank=RankByLogProbability(length_weight=options.length_weight),
        )
        variants = {
            name: changes for name, changes in VARIANTS.items() if hypotheses > changes.get("keep_hypotheses", 0)
        }
        yield f"{hypotheses} hypothes{'es' if hypotheses > 1 else 'is'}", plain, variants


def _table(rows: dict[str, dict]) -> str:
    lines = [
        "| decode | BLEU | chrF | valid % | unchanged % | p (BLEU) |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, row in rows.items():
        valid = "–" if row.get("validity") is None else f"{row['validity']:.1f}"
        against = row.get("against_plain", {}).get("bleu")
        tested = f"{row['unchanged']:.1f} | {against['p_value']:.3f}" if against else "– | –"
        lines.append(f"| {name} | {row['bleu']:.2f} | {row['chrf']:.2f} | {valid} | {tested} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
