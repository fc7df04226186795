"""What brings a student closer to its teacher: settings of training, each changed alone, for equally many seconds.

    python benchmarks/levers.py --work=runs/quality_cpu_de_en --data=../shared/data/tatoeba_de_en --output=FILE.json

The work folder is that of `make quality`, with the teacher trained and the corpus distilled. Each student is trained
anew; how many updates fit into the seconds is measured before, all levers in turns. One lever is more time. Then the
student translates the validation split with four steps: with one length, with five, and with five that the teacher
ranks. Its BLEU is compared with that of the plain student and of the teacher's beam search. What was done is kept in
the work folder, and the same command goes on where it was interrupted.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
from quality import PRESETS, ROOT, run_padir
from quality_models import REFERENCE, TEACHER, System, systems, training_arguments, warm_up
from quality_runs import has_model

from padir.benchmark.facts import run_facts
from padir.data.records import PreparedSet
from padir.files.atomic import write_text
from padir.metrics.bootstrap import paired_bootstrap
from padir.metrics.counts import count_sentences
from padir.metrics.randomization import approximate_randomization

PLAIN = "as it is"
_SYSTEMS = {
    "one length": "PaDIR, 4 steps",
    "five lengths": "PaDIR, 4 steps, 5 lengths",
    "rescored": "PaDIR, 4 steps, 5 lengths, rescored",
}


@dataclass(frozen=True)
class Lever:
    """A change of a student's training.

    Attributes:
      bindings: what is set differently, by gin's names.
      files: gin files on top of the student's.
      distilled: whether it learns from the teacher's translations.
      warm: whether it starts with the teacher's parameters.
      times: how many times as long as the others it is trained.
    """

    bindings: Mapping[str, Any] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    distilled: bool = True
    warm: bool = True
    times: float = 1.0


LEVERS = {
    PLAIN: Lever(),
    "batch 256": Lever({"train.batch_size": 256, "OptimizerConfig.peak_learning_rate": 0.05}),
    "batch 32": Lever({"train.batch_size": 32, "OptimizerConfig.peak_learning_rate": 0.02}),
    "one stage": Lever({"PadirModel.num_stages": 1}),
    "three stages": Lever({"PadirModel.num_stages": 3}),
    # Decoding starts with masks, so that some of the noise must be masks.
    "half random tokens": Lever({"CorruptionConfig.random_probability": 0.5}),
    "uniform noise": Lever({"CorruptionConfig.min_noise_density": 0.0, "CorruptionConfig.keep_probability": 0.0}),
    "label smoothing": Lever({"LossConfig.label_smoothing": 0.1}),
    "length loss 1.0": Lever({"LossConfig.length_loss_weight": 1.0}),
    "absolute lengths": Lever({"PadirModel.relative_length": False}),
    "no dropout": Lever({"NetworkConfig.dropout_rate": 0.0}),
    "self-conditioning": Lever({"PadirModel.self_conditioning": True}),
    "joint objective": Lever(files=("models/joint.gin",)),
    "raw text": Lever(distilled=False),
    "no warm start": Lever(warm=False),
    "eight times as long": Lever(times=8.0),
}


class Trials:
    """The work folder of a comparison, in which students are trained with other settings."""

    def __init__(self, work: Path, data: str, preset: str, seconds: float, *, reverse: bool):
        self._work, self._data, self._preset, self._reverse = work, data, preset, reverse
        self.seconds = seconds
        self._folder = work / f"levers_{seconds:.0f}"
        self._folder.mkdir(parents=True, exist_ok=True)

    def _training(self, name: str) -> list[str]:
        lever = LEVERS[name]
        data = self._work / ("distilled" if lever.distilled else "data")
        files, layers = PRESETS[self._preset][:2]
        bindings = [f"DATA_DIR={str(data)!r}", f"RUN_DIR={str(self._run(name))!r}"]
        bindings += [f"{key}={value!r}" for key, value in lever.bindings.items()]
        bindings += [] if lever.distilled else [f"DATA={self._data!r}"]
        recipe = "padir" if lever.distilled else "padir_raw"
        return training_arguments(recipe, (*files, *lever.files), bindings, reverse=self._reverse, layers=layers)

    def _run(self, name: str) -> Path:
        return self._folder / name.replace(" ", "_")

    def update_seconds(self, names: Sequence[str]) -> dict[str, float]:
        """Seconds of an update with each lever, measured once."""
        path = self._folder / "update_seconds.json"
        known: dict[str, float] = json.loads(path.read_text()) if path.exists() else {}
        if missing := [name for name in names if name not in known]:
            arguments, output = self._folder / "to_measure.json", self._folder / "measured.json"
            write_text(arguments, json.dumps({name: self._training(name) for name in missing}))
            run = [sys.executable, str(ROOT / "quality_speed.py"), f"--data_dir={self._work / 'data'}"]
            subprocess.run([*run, f"--arguments={arguments}", f"--output={output}"], check=True)
            known |= json.loads(output.read_text())
            write_text(path, json.dumps(known) + "\n")
        return known

    def updates(self, names: Sequence[str]) -> dict[str, int]:
        """How many updates each student makes in its seconds."""
        measured = self.update_seconds(names)
        return {name: max(round(LEVERS[name].times * self.seconds / measured[name]), 5) for name in names}

    def _padir(self, *arguments: str) -> None:
        print("padir", *arguments, file=sys.stderr)
        if status := run_padir([*arguments, f"--compilation_cache={self._work / 'compiled'}"]):
            sys.exit(status)

    def trained(self, name: str, updates: int) -> Path:
        """The run of a student with this lever, trained for so many updates."""
        run = self._run(name)
        best = run.with_name(f"{run.name}.best")
        if has_model(str(best)):
            return best
        warm = [f"--initialize_from={self._work / 'best' / TEACHER}"] if LEVERS[name].warm else []
        # The schedule ends with the run, so the last checkpoints are the ones to choose from.
        cadence = {"log": updates, "evaluate": max(updates // 5, 1), "checkpoint": max(updates // 5, 1), "keep_best": 1}
        options = [f"--gin.Cadence.{key}={value}" for key, value in cadence.items()]
        options += [warm_up(updates), f"--num_steps={updates}"]
        self._padir("train", *self._training(name), *options, *warm)
        self._padir("average", f"--run_dir={run}", f"--output_dir={best}", "--best=1")
        return best

    def scores(self, name: str, run: Path) -> dict[str, dict[str, Any]]:
        """What `padir evaluate` says of a student, with its outputs, by way of decoding."""
        # Each compiled program takes memory maps, of which a process may have only so many.
        jax.clear_caches()
        chosen = systems(["padir"])
        return {way: self._evaluated(f"{run.stem} {way}", run, chosen[system]) for way, system in _SYSTEMS.items()}

    def teacher(self) -> dict[str, Any]:
        """What `padir evaluate` says of the teacher's beam search, with its outputs."""
        return self._evaluated("teacher", self._work / "best" / TEACHER, systems([TEACHER])[REFERENCE])

    def _evaluated(self, name: str, run: Path, system: System) -> dict[str, Any]:
        path = self._folder / f"{name.replace(' ', '_')}.json"
        if not path.exists():
            self._padir(
                "evaluate",
                f"--gin_file={system.decode_file}",
                *(f"--gin.{binding}" for binding in system.bindings),
                *([f"--{system.helper}={self._work / 'best' / TEACHER}"] if system.helper else []),
                f"--run_dir={run}",
                f"--data_dir={self._work / 'data'}",
                f"--output_dir={self._folder}",
                f"--name={path.stem}",
                "--split=validation",
                "--no-with_ter",
            )
        outputs = path.with_suffix(".txt").read_text(encoding="utf-8").removesuffix("\n").split("\n")
        return json.loads(path.read_text(encoding="utf-8")) | {"outputs": outputs}


_KEPT = ("bleu", "chrf", "length_accuracy", "mean_steps_run")


def compared(
    found: Mapping[str, Mapping[str, dict[str, Any]]], teacher: Mapping[str, Any], references: Sequence[str]
) -> dict[str, Any]:
    """Scores of each lever, what it changes, and how far the student is from its teacher.

    Args:
      found: by lever and way of decoding, a result with `outputs`; `PLAIN` is among them.
      teacher: the result of the teacher's beam search, with `outputs`.
      references: one per sentence.

    Returns:
      By lever and way: `bleu`, `chrf`, `length_accuracy`, `mean_steps_run`; `from_teacher`, and of all but `PLAIN` also
      `from_plain`, each the `difference` of BLEU from it, with p-values by paired `bootstrap` and by approximate
      `randomization`.
    """
    result: dict[str, Any] = {}
    for name, ways in found.items():
        result[name] = {}
        for way, row in ways.items():
            cells: dict[str, Any] = {key: row[key] for key in _KEPT}
            cells["from_teacher"] = _difference(row["outputs"], teacher["outputs"], references)
            if name != PLAIN:
                cells["from_plain"] = _difference(row["outputs"], found[PLAIN][way]["outputs"], references)
            result[name][way] = cells
    return result


def _difference(outputs: Sequence[str], others: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    counts = count_sentences(outputs, references), count_sentences(others, references)
    bootstrap = paired_bootstrap(outputs, others, references, counts=counts)["bleu"].to_dict()
    randomization = approximate_randomization(*counts)
    return {
        "difference": bootstrap["difference"],
        "bootstrap": bootstrap["p_value"],
        "randomization": randomization["bleu"].to_dict()["p_value"],
    }


def main() -> int:
    """Trains and scores what is missing, prints a table and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="the work folder of make quality")
    parser.add_argument("--data", required=True, help="folder with {train,valid}.{de,en}.gz")
    parser.add_argument("--preset", choices=PRESETS, default="cpu")
    parser.add_argument("--reverse", action="store_true", help="English to German")
    parser.add_argument("--seconds", type=float, default=240.0, help="of updates of each student")
    parser.add_argument("--levers", default=",".join(LEVERS), help="those to measure, beside the plain student")
    parser.add_argument("--output", type=Path, required=True, help="JSON file to write")
    options = parser.parse_args()
    names = list(dict.fromkeys([PLAIN, *options.levers.split(",")]))
    if unknown := [name for name in names if name not in LEVERS]:
        parser.error(f"--levers: unknown {unknown[0]!r}; choose from {', '.join(LEVERS)}")
    if not (options.work / "distilled").is_dir():
        parser.error(f"--work: {options.work} has no distilled corpus; run make quality first (--models=ar,padir)")
    trials = Trials(options.work, options.data, options.preset, options.seconds, reverse=options.reverse)
    seconds, updates = trials.update_seconds(names), trials.updates(names)
    found = {name: trials.scores(name, trials.trained(name, updates[name])) for name in names}
    teacher = trials.teacher()
    data = PreparedSet.open(str(options.work / "data"))
    examples = data.split("validation").read(range(data.manifest.splits["validation"].num_examples))
    result = {
        "facts": run_facts(),
        "preset": options.preset,
        "budget_seconds": options.seconds,
        "sentences": len(examples),
        "updates": updates,
        "update_seconds": {name: seconds[name] for name in names},
        "teacher": {key: teacher[key] for key in _KEPT if key in teacher},
        "levers": compared(found, teacher, [example.target_text for example in examples]),
    }
    write_text(options.output, json.dumps(result, indent=1) + "\n")
    for name, ways in result["levers"].items():
        print(name, updates[name], *(f"{way}: {row['bleu']:.2f}" for way, row in ways.items()), sep="\t")
    return 0


if __name__ == "__main__":
    sys.exit(main())
