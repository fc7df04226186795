"""Quality on real text: a teacher, PaDIR and its rivals, trained equally long and compared.

`make quality DATA=folder PRESET=cpu` trains the models of quality_models.py one after another. They have one vocabulary
and, but for the shallow ones, one shape. Each may update its parameters for the same number of seconds: how many
updates that allows is measured at the beginning. Compilation, validation and checkpoints are not counted. Students
learn from the teacher's translations and start with its parameters. Then every system translates the validation split,
alone and in turns with the others of its model and the teacher's beam search for its latency.

Each part is kept in the work folder. The same command goes on where it was interrupted, so that the comparison can be
spread over several sittings; `--models` chooses which models this one takes further. At its end it writes
quality_<task>_<preset>.{json,png,html} of everything that is there so far.

Where all machines are alike, equal seconds are fair. Where several models are trained side by side, seconds say little:
`--updates` then gives every model as many updates. `--only=train` ends after training, and `--only=evaluate` goes on
on another machine. There the work folder must hold data/ and facts/, and of each model best/ or mean/; these may be
exports (`padir export`), too, which are smaller.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
from commands import run_padir
from quality_models import MODELS, REFERENCE, TEACHER, System, main_system, systems, training_arguments, warm_up
from quality_report import compared_pairs, draw, frontier, outputs_page, table
from quality_runs import has_model, seconds_of_updates, stored_type

from padir.benchmark.facts import run_facts
from padir.benchmark.latency import Asked
from padir.benchmark.measure import take_turns
from padir.benchmark.systems import Opened
from padir.benchmark.workloads import fitting_requests
from padir.data.manifest import MANIFEST_NAME
from padir.data.records import PreparedSet
from padir.files.atomic import write_text
from padir.inference.translator import Translator, load
from padir.metrics.quality import tokenizer_of
from padir.metrics.writers import read_metrics
from padir.runs.checkpoints import Checkpointer
from padir.runs.directory import METRICS_FOLDER, recorded_settings

ROOT = Path(__file__).resolve().parent
# (gin files on top of the run's, layers of encoder and decoder, seconds of updates, how the teacher translates)
# On a CPU, beam search over the whole corpus would take half an hour.
PRESETS = {
    "cpu": (("runs/preset_cpu.gin",), 6, 720.0, ("--gin_file=decode/ar_greedy.gin",)),
    "gpu": (("runs/preset_gpu.gin",), 8, 600.0, ("--gin_file=decode/ar_beam5.gin", "--batch_size=512")),
}
# Checkpoints are this many, so that the last five are a quarter of the training.
_CHECKPOINTS = 20
_LATENCY_SENTENCES, _LATENCY_REPEATS = 100, 3


class Comparison:
    """The work folder, and the phases that fill it."""

    def __init__(
        self, work: Path, data: str, preset: str, *, reverse: bool, seconds: float | None, updates: int | None = None
    ):
        self.work, self._data, self.preset = work, data, preset
        self._files, self._layers, default, self._distil_with = PRESETS[preset]
        self._reverse, self._updates = reverse, updates
        budget = {"budget_seconds": default if seconds is None else seconds}
        self.budget: dict[str, float] = budget if updates is None else {"budget_updates": updates}
        self._clock, self._compiled = work / "seconds", work / "compiled"
        self._clock.mkdir(parents=True, exist_ok=True)
        self._claim(work / "comparison.json", {"preset": preset, "reverse": reverse} | self.budget)

    @property
    def seconds(self) -> dict[str, float]:
        """Of each phase, in all sittings. (What ends in .tmp is being written by another one.)"""
        return {path.name: float(path.read_text()) for path in sorted(self._clock.iterdir()) if path.suffix != ".tmp"}

    @staticmethod
    def _claim(path: Path, settings: dict) -> None:
        """Ends the script if the work folder holds a comparison with other settings."""
        if not path.exists():
            write_text(path, json.dumps(settings) + "\n")
        if (there := json.loads(path.read_text())) != settings:
            sys.exit(f"{path.parent}: holds a comparison with {there}, not {settings}; choose another --work")

    def folder(self, kind: str, model: str = "") -> str:
        """A folder of the work folder: 'data', 'distilled', 'results'; of a model 'runs', 'best' or 'mean'."""
        return str(self.work / kind / model) if model else str(self.work / kind)

    def phase(self, name: str, *arguments: str) -> None:
        """Runs a padir command and adds up its seconds; ends the script if it fails."""
        began = time.perf_counter()
        print("padir", *arguments, file=sys.stderr)
        try:
            status = run_padir([*arguments, f"--compilation_cache={self._compiled}"])
        finally:
            # The time of an interrupted start counts, because the next start continues from its checkpoints.
            # Each phase has a file of its own, because several may be under way at once.
            spent = self.seconds.get(name, 0.0) + time.perf_counter() - began
            write_text(self._clock / name, f"{spent}\n")
        if status:
            sys.exit(status)

    def prepare(self) -> PreparedSet:
        """Prepares the corpus, if need be."""
        if not Path(self.folder("data"), MANIFEST_NAME).exists():
            self.phase("prepare", "prepare", *self._training(TEACHER))
        return PreparedSet.open(self.folder("data"))

    def _training(self, model: str) -> list[str]:
        data = self.folder("distilled" if MODELS[model].distilled else "data")
        bindings = [f"DATA_DIR={data!r}", f"RUN_DIR={self.folder('runs', model)!r}"]
        bindings += [] if MODELS[model].distilled else [f"DATA={self._data!r}"]
        return training_arguments(model, self._files, bindings, reverse=self._reverse, layers=self._layers)

    def updates(self, models: Sequence[str]) -> dict[str, int]:
        """How many updates each model makes in the budget of seconds, by those of one, which are measured once."""
        if self._updates is not None:
            return dict.fromkeys(models, self._even(self._updates))
        path = self.work / "update_seconds.json"
        known: dict[str, float] = json.loads(path.read_text()) if path.exists() else {}
        if missing := [model for model in models if model not in known]:
            known |= self._measure(missing)
            write_text(path, json.dumps(known, indent=1) + "\n")
        return {model: self._even(self.budget["budget_seconds"] / known[model]) for model in known}

    @staticmethod
    def _even(updates: float) -> int:
        """As many between any two checkpoints."""
        return _CHECKPOINTS * max(round(updates / _CHECKPOINTS), 1)

    def _measure(self, models: Sequence[str]) -> dict[str, float]:
        """Mean seconds of an update of each model."""
        arguments, output = self.work / "to_measure.json", self.work / "measured.json"
        write_text(arguments, json.dumps({model: self._training(model) for model in models}))
        run = [sys.executable, str(ROOT / "quality_speed.py"), f"--data_dir={self.folder('data')}"]
        subprocess.run([*run, f"--arguments={arguments}", f"--output={output}"], check=True)
        return json.loads(output.read_text())

    def train(self, model: str, num_steps: int) -> None:
        """Trains a model, or goes on; then keeps its best checkpoint, and the mean of its last five, as runs."""
        if self.is_trained(model):
            return
        every = num_steps // _CHECKPOINTS
        cadence = {"log": every, "evaluate": every, "checkpoint": every, "keep": 5, "keep_best": 1}
        start = MODELS[model].start
        self.phase(
            f"train {model}",
            "train",
            *self._training(model),
            *(f"--gin.Cadence.{name}={value}" for name, value in cadence.items()),
            *([] if start is None else [f"--initialize_from={self.folder('best', start)}"]),
            warm_up(num_steps),
            f"--num_steps={num_steps}",
        )
        for kind, chosen in (("best", "--best=1"), ("mean", "--last=5")):
            if not has_model(self.folder(kind, model)):
                folders = f"--run_dir={self.folder('runs', model)}", f"--output_dir={self.folder(kind, model)}"
                self.phase(f"train {model}", "average", *folders, chosen)
        self._record(model)

    def _facts(self, model: str) -> Path:
        """Where it is written how a model was made."""
        return self.work / "facts" / f"{model}.json"

    def _record(self, model: str) -> None:
        """Writes down a model's updates, the seconds that they took, when it was best, and where it was trained."""
        with Checkpointer(self.folder("best", model), read_only=True) as checkpointer:
            best = checkpointer.latest_step()
        run, facts = Path(self.folder("runs", model)), run_facts()
        updates = recorded_settings(run)["num_steps"]
        seconds = seconds_of_updates(read_metrics(run / METRICS_FOLDER / "metrics.jsonl"))
        made = {"updates": updates, "best_after": best, "seconds": seconds, "update_seconds": seconds / updates}
        made |= {name: facts[name] for name in ("commit", "command", "device", "cpu", "cpu_features", "date")}
        self._facts(model).parent.mkdir(exist_ok=True)
        write_text(self._facts(model), json.dumps(made) + "\n")

    def is_trained(self, model: str) -> bool:
        """Whether nothing is left to do for a model but to evaluate it."""
        return self._facts(model).exists()

    def made(self, model: str) -> dict[str, Any]:
        """What is recorded of how a model was made, and the type that each of its checkpoints is kept in."""
        found = json.loads(self._facts(model).read_text())
        if "updates" not in found:
            sys.exit(f"{self._facts(model)}: is of an earlier version of this script; choose another --work")
        kinds = [kind for kind in ("best", "mean") if has_model(self.folder(kind, model))]
        return found | {"kept_as": {kind: stored_type(self.folder(kind, model)) for kind in kinds}}

    def distill(self) -> None:
        """Lets the teacher translate the corpus, unless it has."""
        if Path(self.folder("distilled"), MANIFEST_NAME).exists():
            return
        self.phase(
            "distill",
            "distill",
            *self._distil_with,
            f"--run_dir={self.folder('best', TEACHER)}",
            f"--data_dir={self.folder('data')}",
            f"--output_dir={self.folder('distilled')}",
            "--compute_type=auto",
        )

    def systems(self, models: Sequence[str]) -> dict[str, System]:
        """All systems of these models, of the checkpoints that are in the work folder."""
        return {name: each for name, each in systems(models).items() if has_model(self._run_of(each))}

    def evaluate(self, name: str, system: System) -> dict:
        """Scores a system against the reference system, unless that was done."""
        path = Path(self.folder("results"), f"{_file_name(name)}.json")
        if not path.exists():
            compared = [] if name == REFERENCE else [f"--baseline={path.parent / _file_name(REFERENCE)}.txt"]
            helper = [f"--{system.helper}={self.folder('best', TEACHER)}"] if system.helper else []
            self.phase(
                f"evaluate {system.model}",
                "evaluate",
                f"--gin_file={system.decode_file}",
                *(f"--gin.{binding}" for binding in system.bindings),
                *helper,
                *compared,
                f"--run_dir={self._run_of(system)}",
                f"--data_dir={self.folder('data')}",
                f"--output_dir={self.folder('results')}",
                f"--name={path.stem}",
                "--split=validation",
                "--no-with_ter",
            )
        found = json.loads(path.read_text(encoding="utf-8"))
        outputs = path.with_suffix(".txt").read_text(encoding="utf-8").removesuffix("\n").split("\n")
        return found | {"outputs": outputs}

    def _run_of(self, system: System) -> str:
        return self.folder("mean" if system.averaged else "best", system.model)

    def latency(self, data: PreparedSet, chosen: dict[str, System]) -> dict[str, dict]:
        """Latency of single sentences, these systems in turns; by name."""
        jax.config.update("jax_compilation_cache_dir", str(self._compiled))
        jax.clear_caches()
        opened: dict[tuple[str, str], Translator] = {}
        asked = {}
        for name, system in chosen.items():
            key = self._run_of(system), system.helper
            if key not in opened:
                helper = {system.helper: self.folder("best", TEACHER)} if system.helper else {}
                opened[key] = load(key[0], **helper)
            asked[name] = Asked(name, Opened(opened[key], opened[key].checked(system.decode())))
        validation = data.split("validation")
        longest = min(translator.longest_source for translator in opened.values())
        texts = [each.source_text for each in validation.read(range(len(validation)))]
        requests = fitting_requests(texts, data.vocabulary(), longest)
        timings = take_turns(
            asked, [(request,) for request in requests[:_LATENCY_SENTENCES]], repeats=_LATENCY_REPEATS, seed=0
        )
        return {name: timing.to_dict() for name, timing in timings.items()}


def main() -> int:
    """Runs what is missing and returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="folder with {train,valid}.{de,en}.gz")
    parser.add_argument("--preset", choices=PRESETS, default="cpu")
    parser.add_argument("--reverse", action="store_true", help="English to German")
    parser.add_argument("--work", help="folder of data sets and runs (default: runs/quality_<preset>_<direction>)")
    parser.add_argument("--results", default=str(ROOT / "results"), help="folder of the JSON, the picture and the page")
    budgets = parser.add_mutually_exclusive_group()
    budgets.add_argument("--seconds", type=float, help="of updates of each model, instead of the preset's")
    budgets.add_argument("--updates", type=int, help="of each model, instead of equal seconds")
    parser.add_argument("--models", default=",".join(MODELS), help="those to take further in this sitting")
    parser.add_argument("--systems", default="", help="evaluate only those whose names match this regular expression")
    parser.add_argument("--only", choices=("train", "evaluate"), help="what to do in this sitting (default: both)")
    options = parser.parse_args()
    asked = options.models.split(",")
    if unknown := [name for name in asked if name not in MODELS]:
        parser.error(f"--models: unknown {unknown[0]!r}; choose from {', '.join(MODELS)}")
    names = [name for name in MODELS if name in asked]  # Whatever others start from comes first.
    for name in ("seconds", "updates"):
        if (given := getattr(options, name)) is not None and given <= 0:
            parser.error(f"--{name}: {given} is not above 0")
    try:
        re.compile(options.systems)
    except re.error as error:
        parser.error(f"--systems: {options.systems!r} is no regular expression: {error}")
    direction = "en_de" if options.reverse else "de_en"
    work = Path(options.work or f"runs/quality_{options.preset}_{direction}")
    budget = {"seconds": options.seconds, "updates": options.updates}
    comparison = Comparison(work, options.data, options.preset, reverse=options.reverse, **budget)
    data = comparison.prepare()
    if options.only != "evaluate":
        updates = comparison.updates(list(MODELS))
        for name in names:
            if MODELS[name].distilled:
                comparison.distill()
            comparison.train(name, updates[name])
    if options.only != "train":
        compare(comparison, data, Path(options.results), options.systems)
    return 0


def compare(comparison: Comparison, data: PreparedSet, results: Path, pattern: str) -> None:
    """Evaluates and times the systems of all trained models that `pattern` matches, and writes the comparison."""
    trained = [name for name in MODELS if comparison.is_trained(name)]
    chosen = {
        name: system
        for name, system in comparison.systems(trained).items()
        if name == REFERENCE or re.search(pattern, name)
    }
    if REFERENCE not in chosen:
        sys.exit(
            f"{comparison.work}: has no trained teacher, with which all are compared; run --models={TEACHER} first"
        )
    # First what the others are compared with.
    rows = {
        name: comparison.evaluate(name, chosen[name]) for name in sorted(chosen, key=lambda name: name != REFERENCE)
    }
    rows = {name: rows[name] for name in chosen}
    made = {name: comparison.made(name) for name in trained}
    # What there is if the latencies do not come to their end.
    _write(comparison.work / "without_latency", comparison, data, rows, made, chosen)
    # Each model beside the reference: the programs of all at once would need more memory maps than a process has, and
    # those that were dropped would be compiled while others are timed.
    for model in trained:
        # Of a model's two checkpoints, one is timed.
        of_model = {
            name: system
            for name, system in chosen.items()
            if system.model == model
            and (not name.endswith(("averaged", "lowest loss")) or main_system(model) not in chosen)
        }
        timed = comparison.latency(data, {REFERENCE: chosen[REFERENCE]} | of_model) if of_model else {}
        for name in of_model:
            rows[name] |= {"latency_ms": timed[name], "speed_up": timed[REFERENCE]["median"] / timed[name]["median"]}
            rows[name]["timed_decode"] = repr(chosen[name].decode())
    _write(results, comparison, data, rows, made, chosen)
    print(table(rows))


def _write(
    folder: Path,
    comparison: Comparison,
    data: PreparedSet,
    rows: dict[str, dict],
    made: dict[str, dict],
    chosen: dict[str, System],
) -> None:
    """Writes the JSON, the page, and the picture if latencies have been measured."""
    manifest = data.manifest
    name = f"quality_{manifest.task.name}_{comparison.preset}"
    examples = data.split("validation").read(range(manifest.splits["validation"].num_examples))
    judged = {main_system(model): rows[main_system(model)] for model in made if main_system(model) in rows}
    outputs = {each: row["outputs"] for each, row in judged.items()}
    references = [example.target_text for example in examples]
    paths = ("name", "run_dir", "data_dir", "baseline", "rescore_with", "verify_with")
    left_out = (*paths, "outputs", "by_source_length", "baseline_by_source_length")
    result = {
        "facts": run_facts(),
        "preset": comparison.preset,
        **comparison.budget,
        "models": made,
        "phase_seconds": comparison.seconds,
        "train_pairs": manifest.splits["train"].num_examples,
        "evaluated_on": "validation",
        "compared_with": REFERENCE,
        "pairs": compared_pairs(judged, references, tokenizer_of(manifest.target_language)),
        "frontier": frontier(rows),
        "systems": {each: {key: row[key] for key in row if key not in left_out} for each, row in rows.items()},
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / f"{name}.json", json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    title = f"{manifest.task.name}, {comparison.preset} preset"
    if any("latency_ms" in row for row in rows.values()):
        draw(folder / f"{name}.png", rows, {each: system.model for each, system in chosen.items()}, title)
    write_text(folder / f"{name}.html", outputs_page(title, examples, outputs))


def _file_name(system: str) -> str:
    return system.lower().replace(",", "").replace(" ", "_")


if __name__ == "__main__":
    sys.exit(main())
