"""How good the best translation of several is, by what ranks them and by how many there are.

    python benchmarks/rankings.py --data=../shared/data/tatoeba_de_en --work=runs/rankings \\
      --output=benchmarks/results/rankings_tatoeba_de_en_cpu.json

A pretrained student translates the validation split with four steps: with one length, with five, and with four draws of
each of the five. Its ranker ranks them if it has one, or it ranks them itself with all that it has, or its teacher and
the ranker do. Its causal mode also translates from left to right. BLEU is compared with that of the teacher's beam
search, on all sentences and on the second half alone: some settings were chosen on the first. Products are rounded to
bfloat16, as on a TPU. `--direction=en_de` takes the models of the other direction. Evaluations are kept in the work
folder, and the same command goes on where it was interrupted.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commands import run_padir
from levers import described, difference, lines_of, pretrained

from padir.benchmark.facts import run_facts
from padir.files.atomic import write_text
from padir.metrics.quality import corpus_bleu

_DRAWS = "decode/lengths_5_draws_4.gin"
_FIVE = "decode/lengths_5.gin"
# In batches it would not pay.
_ALL_LENGTHS = "Refinement.likeliest_first=False"
_WITHOUT_RANKER = "Refinement.ranker_share=0"
_CAUSAL_MODE = "Refinement.self_rescoring=True"
RANKER, ITSELF, TEACHER, BOTH = "its ranker", "itself", "the teacher", "both"
BEAM = "beam search of the teacher"
# From left to right by the student's own causal mode.
CAUSAL = {"its causal mode, greedy": "decode/ar_greedy.gin", "its causal mode, beam of 5": "decode/ar_beam5.gin"}


@dataclass(frozen=True)
class Way:
    """How translations are made and ranked.

    Attributes:
      decode_file: gin file of the decode.
      bindings: what is set differently.
      ranked_by: `RANKER`; `ITSELF`, that is, its causal mode and its ranker; `TEACHER`; `BOTH`, the teacher and the
        ranker. '' without any of them.
    """

    decode_file: str
    bindings: tuple[str, ...] = ()
    ranked_by: str = ""


WAYS = {
    BEAM: Way("decode/ar_beam5.gin"),
    **{name: Way(decode_file) for name, decode_file in CAUSAL.items()},
    "1 length": Way("decode/padir_4.gin"),
    "5 lengths": Way(_FIVE, (_ALL_LENGTHS, _WITHOUT_RANKER)),
    "5 lengths, ranked by its ranker": Way(_FIVE, (_ALL_LENGTHS,), RANKER),
    "5 lengths, ranked by itself": Way(_FIVE, (_ALL_LENGTHS, _CAUSAL_MODE), ITSELF),
    "5 lengths, ranked by the teacher": Way(_FIVE, (_ALL_LENGTHS, _WITHOUT_RANKER), TEACHER),
    "5 lengths, ranked by both": Way(_FIVE, (_ALL_LENGTHS,), BOTH),
    "5 lengths, 4 draws of each, ranked by its ranker": Way(_DRAWS, (), RANKER),
    "5 lengths, 4 draws of each, ranked by itself": Way(_DRAWS, (_CAUSAL_MODE,), ITSELF),
    "5 lengths, 4 draws of each, ranked by both": Way(_DRAWS, (), BOTH),
}
_KEPT = ("bleu", "chrf", "length_accuracy", "mean_steps_run", "stutter_per_100_words")


def evaluated(way: str, direction: str, data: Path, work: Path) -> dict[str, Any]:
    """What `padir evaluate` says of one of `WAYS`, with its outputs.

    Args:
      way: its name.
      direction: 'de_en' or 'en_de'.
      data: folder with valid.{de,en}.gz.
      work: folder for what is found.
    """
    how, path = WAYS[way], work / f"{way.replace(',', '').replace(' ', '_')}.json"
    if not path.exists():
        source, target = direction.split("_")
        model = "ar" if way == BEAM else "padir"
        helped = how.ranked_by in (TEACHER, BOTH)
        status = run_padir(
            [
                "evaluate",
                f"--gin_file={how.decode_file}",
                *(f"--gin.{binding}" for binding in how.bindings),
                *([f"--rescore_with={pretrained(direction, 'ar')}"] if helped else []),
                f"--run_dir={pretrained(direction, model)}",
                f"--sources={data / f'valid.{source}.gz'}",
                f"--references={data / f'valid.{target}.gz'}",
                f"--output_dir={work}",
                f"--name={path.stem}",
                "--no-with_ter",
                "--compute_type=bfloat16",
                f"--compilation_cache={work / 'compiled'}",
            ]
        )
        if status:
            sys.exit(status)
    outputs = path.with_suffix(".txt").read_text(encoding="utf-8").removesuffix("\n").split("\n")
    return json.loads(path.read_text(encoding="utf-8")) | {"outputs": outputs}


def ways_of(student: dict[str, Any]) -> list[str]:
    """The ways that a student has, by what it is (`levers.described`)."""
    has = {RANKER: student["ranker"], BOTH: student["ranker"], ITSELF: student["causal_stage"]}
    found = [way for way, how in WAYS.items() if has.get(how.ranked_by, True)]
    return [way for way in found if way not in CAUSAL or student["causal_stage"]]


def main() -> int:
    """Evaluates what is missing, prints a table and writes the result; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="folder of evaluations")
    parser.add_argument("--data", type=Path, required=True, help="folder with valid.{de,en}.gz")
    parser.add_argument("--direction", choices=("de_en", "en_de"), default="de_en", help="of translation")
    parser.add_argument("--output", type=Path, required=True, help="JSON file to write")
    options = parser.parse_args()
    work = options.work / options.direction
    work.mkdir(parents=True, exist_ok=True)
    ways = ways_of(described(options.direction))
    found = {way: evaluated(way, options.direction, options.data, work) for way in ways}
    references = lines_of(options.data / f"valid.{options.direction.split('_')[1]}.gz")
    of_teacher, half = found[BEAM]["outputs"], len(references) // 2
    rows: dict[str, dict[str, Any]] = {}
    for way, row in found.items():
        rows[way] = {key: row[key] for key in _KEPT}
        rows[way]["second_half"] = {"bleu": corpus_bleu(row["outputs"][half:], references[half:], "13a")[0]}
        if way != BEAM:
            rows[way]["from_teacher"] = difference(row["outputs"], of_teacher, references)
            later = difference(row["outputs"][half:], of_teacher[half:], references[half:])
            rows[way]["second_half"]["from_teacher"] = later
        print(f"{way}: {row['bleu']:.2f}", flush=True)
    result = {"facts": run_facts(), "direction": options.direction, "sentences": len(references), "ways": rows}
    write_text(options.output, json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
