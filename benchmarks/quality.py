"""Quality on real text: teacher, distillation, student, evaluation. Run it as `make quality DATA=folder PRESET=cpu`.

Every phase is a `padir` command with the gin files of gin/runs. This script only calls the commands in order and writes
their results side by side to benchmarks/results/quality_<task>_<preset>.{json,png}. If it is interrupted, the same
command resumes it: training continues from its checkpoint and distillation from its last chunk. Evaluation and latency
take minutes and are repeated. The reported seconds are summed over all starts. A start that was killed is not
counted.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from matplotlib.figure import Figure

from padir.benchmark.facts import run_facts
from padir.cli import main as cli
from padir.data.manifest import MANIFEST_NAME
from padir.data.records import PreparedSet
from padir.files.atomic import write_text

ROOT = Path(__file__).resolve().parent
STEPS = (1, 2, 4, 10)
# (gin file, updates of the teacher, updates of the student); the gin files hold everything else.
PRESETS = {"cpu": ("runs/preset_cpu.gin", 4000, 5000), "gpu": (None, 10_000, 20_000)}


def main() -> int:
    """Runs all phases and returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="folder with {train,valid}.{de,en}.gz")
    parser.add_argument("--preset", choices=PRESETS, default="cpu")
    parser.add_argument("--work", help="folder of data sets and runs (default: runs/quality_<preset>)")
    parser.add_argument("--results", default=str(ROOT / "results"), help="folder of the JSON and the picture")
    parser.add_argument("--teacher_steps", type=int, help="updates, instead of the preset's")
    parser.add_argument("--student_steps", type=int, help="updates, instead of the preset's")
    options = parser.parse_args()
    work = Path(options.work or f"runs/quality_{options.preset}")
    folders = {name: work / name for name in ("data", "distilled", "teacher", "student", "results")}
    preset_file, teacher_steps, student_steps = PRESETS[options.preset]
    updates = options.teacher_steps or teacher_steps, options.student_steps or student_steps
    seconds = _train_all(options.data, preset_file, updates, folders, work)

    results = {"AR greedy": _evaluate(folders, "teacher", "ar_greedy", [])}
    for steps in STEPS:
        results[f"PaDIR, {steps} step{'s' if steps > 1 else ''}"] = _evaluate(
            folders,
            "student",
            f"padir_{steps}",
            [
                f"--gin_file=decode/padir_{steps}.gin",
                "--gin.Refinement.num_hypotheses=3",
                f"--baseline={folders['results'] / 'ar_greedy.txt'}",
            ],
        )
    _add_latency(results, _latency(folders)["systems"])
    data = PreparedSet.open(folders["data"]).manifest
    name = f"quality_{data.task.name}_{options.preset}"
    output = {
        "facts": run_facts() | {"phase_seconds": seconds},
        "preset": options.preset,
        "updates": dict(zip(("teacher", "student"), updates, strict=True)),
        "train_pairs": data.splits["train"].num_examples,
        "evaluated_on": "validation",
        "systems": results,
    }
    Path(options.results).mkdir(parents=True, exist_ok=True)
    write_text(Path(options.results) / f"{name}.json", json.dumps(output, indent=2, ensure_ascii=False) + "\n")
    _draw(Path(options.results) / f"{name}.png", results, f"{data.task.name}, {options.preset} preset")
    print(_table(results))
    return 0


def _train_all(
    data: str, preset_file: str | None, updates: tuple[int, int], folders: dict[str, Path], work: Path
) -> dict[str, float]:
    """Trains the teacher and the student for `updates` (teacher, student) updates.

    Returns:
      Seconds by phase, summed over this and earlier starts. Those of the teacher include preparing the data.
    """
    teacher_steps, student_steps = updates
    extra = [f"--gin_file={preset_file}"] if preset_file else []
    clock = work / "seconds.json"
    work.mkdir(parents=True, exist_ok=True)
    seconds = json.loads(clock.read_text(encoding="utf-8")) if clock.exists() else {}

    def phase(name: str, *arguments: str) -> None:
        began = time.perf_counter()
        try:
            _padir(*arguments)
        finally:
            # The time of an interrupted start counts, because the next start continues from its checkpoints.
            seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - began
            write_text(clock, json.dumps(seconds) + "\n")

    phase(
        "teacher",
        "train",
        "--gin_file=runs/tatoeba_de_en_ar.gin",
        *extra,
        f"--gin.DATA={data!r}",
        f"--gin.DATA_DIR={str(folders['data'])!r}",
        f"--gin.RUN_DIR={str(folders['teacher'])!r}",
        f"--num_steps={teacher_steps}",
    )
    if (folders["distilled"] / MANIFEST_NAME).exists():
        distilled_at = PreparedSet.open(folders["distilled"]).manifest.task.options["teacher_step"]
        if distilled_at != teacher_steps:
            sys.exit(
                f"{folders['distilled']}: made at step {distilled_at} of the teacher, which is now at {teacher_steps}; "
                f"delete it and {folders['student']}, or choose another --work"
            )
    else:
        phase(
            "distill",
            "distill",
            "--gin_file=decode/ar_greedy.gin",
            f"--run_dir={folders['teacher']}",
            f"--data_dir={folders['data']}",
            f"--output_dir={folders['distilled']}",
        )
    phase(
        "student",
        "train",
        "--gin_file=runs/tatoeba_de_en_padir.gin",
        *extra,
        "--gin_file=runs/distilled.gin",
        f"--initialize_from={folders['teacher']}",
        f"--gin.DATA_DIR={str(folders['distilled'])!r}",
        f"--gin.RUN_DIR={str(folders['student'])!r}",
        f"--num_steps={student_steps}",
    )
    return seconds


def _evaluate(folders: dict[str, Path], run: str, name: str, arguments: list[str]) -> dict:
    _padir(
        "evaluate",
        *arguments,
        f"--run_dir={folders[run]}",
        f"--data_dir={folders['data']}",
        f"--output_dir={folders['results']}",
        f"--name={name}",
        "--split=validation",
    )
    return json.loads((folders["results"] / f"{name}.json").read_text(encoding="utf-8"))


def _latency(folders: dict[str, Path]) -> dict:
    output = folders["results"] / "latency.json"
    _padir(
        "benchmark",
        "latency",
        "--gin_file=bench/trained.gin",
        f"--gin.AR_DIR={str(folders['teacher'])!r}",
        f"--gin.PADIR_DIR={str(folders['student'])!r}",
        # Latency must be that of the decode whose quality is reported.
        "--gin.Refinement.num_hypotheses=3",
        f"--gin.DATA_DIR={str(folders['data'])!r}",
        "--gin.PreparedText.split='validation'",
        f"--output={output}",
    )
    return json.loads(output.read_text(encoding="utf-8"))


def _add_latency(results: dict[str, dict], measured: dict[str, dict]) -> None:
    """Adds the latency of each system to its quality; ends the script if the two are of different decodes."""
    for name, row in results.items():
        if name not in measured or measured[name]["decode"] != row["decode"]:
            found = f"that of {measured[name]['decode']}" if name in measured else f"missing in {sorted(measured)}"
            sys.exit(f"{name}: quality is that of {row['decode']}, latency is {found}; correct gin/bench/trained.gin")
        row |= {key: measured[name][key] for key in ("latency_ms", "speed_up")}


def _padir(*arguments: str) -> None:
    """Runs a padir command in this process; ends the script if it fails."""
    print("padir", *arguments, file=sys.stderr)
    status = cli.main(list(arguments))
    if status:
        sys.exit(status)


def _table(results: dict[str, dict]) -> str:
    lines = [
        "| system | BLEU | chrF | stutter/100 words | p against AR | median ms | p99 ms | speed-up |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name, row in results.items():
        test = row.get("against_baseline")
        p_value = f"{test['bleu']['p_value']:.3f}" if test else ""
        lines.append(
            f"| {name} | {row['bleu']:.2f} | {row['chrf']:.2f} | {row['stutter_per_100_words']:.2f} | {p_value} | "
            f"{row['latency_ms']['median']:.2f} | {row['latency_ms']['p99']:.2f} | {row['speed_up']:.2f}x |"
        )
    return "\n".join(lines)


def _draw(path: Path, results: dict[str, dict], title: str) -> None:
    """Draws BLEU against median latency, one point per system."""
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for name, row in results.items():
        axes.plot(row["latency_ms"]["median"], row["bleu"], "s" if name.startswith("AR") else "o", label=name)
    axes.set_xlabel("median milliseconds per sentence, batch 1")
    axes.set_ylabel("sacreBLEU")
    axes.set_title(title)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    sys.exit(main())
