"""What brings a trained student closer to its teacher: it goes on with one setting changed, for equally many seconds.

    python benchmarks/levers.py --data=../shared/data/tatoeba_de_en --work=runs/levers_de_en --output=FILE.json

The models are the pretrained ones, German to English or with `--direction=en_de` English to German. The corpus is
prepared, and the teacher translates it greedily. For levers with more sources, the pretrained model of the other
direction translates the targets by sampling, and the teacher translates what it wrote, too.
Each lever starts with the parameters of the student, or of the teacher, and trains. A ranker and a causal decoder that
the student has stay only with the levers of these two names. How many updates fit into the seconds is measured before,
all levers in turns. Then it translates the validation split with four steps: with one length, with five, with five that
the teacher ranks, and with five that it ranks itself if it has a causal mode. Its BLEU is compared with that of the
student as it was, and of the teacher's beam search. What was done is kept in the work folder, and the same command goes
on where it was interrupted.
"""

from __future__ import annotations

import argparse
import gzip
import json
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from commands import run_padir
from quality import ROOT
from quality_models import BY_ITSELF, REFERENCE, TEACHER, System, default_system, main_system, systems, warm_up
from quality_runs import seconds_of_updates

from padir.benchmark.facts import run_facts
from padir.data.manifest import MANIFEST_NAME, VOCABULARY_NAME
from padir.data.records import PreparedSet
from padir.data.sources import read_lines
from padir.files.atomic import write_text
from padir.metrics.bootstrap import paired_bootstrap
from padir.metrics.counts import count_sentences
from padir.metrics.randomization import approximate_randomization
from padir.metrics.writers import read_metrics
from padir.runs.directory import METRICS_FOLDER

BEFORE = "as it was"
# How the teacher translates: beam search over the whole corpus would take most of an hour.
_DISTIL = ("--gin_file=decode/ar_greedy.gin", "--compute_type=auto", "--with_originals")
# Prepared sets, by the names of their folders in the work folder.
TEXT, TRANSLATIONS, MORE_SOURCES = "text", "text_and_translations", "text_translations_and_more_sources"
# Drawn, because the likeliest sources would mostly be those that the text has.
_BACK = (
    "--gin_file=decode/ar_greedy.gin",
    "--gin.Autoregressive.sampling=@Sampling()",
    "--gin.Sampling.temperature=0.7",
    "--compute_type=auto",
    "--batch_size=64",
)
_FROZEN = ("encoder", "decoder", "length_predictor")  # With the levers that add a part.
# What the students are, by the direction of translation. The one to German is a joint model.
_RUN, _JOINT = "runs/tatoeba_de_en_padir.gin", "models/joint.gin"
_FILES = {"de_en": (_RUN,), "en_de": (_RUN, "runs/preset_cpu.gin", "runs/tatoeba_en_de.gin", _JOINT)}
_RANKER, _CAUSAL_DECODER = "runs/ranker.gin", "runs/causal_decoder.gin"


@dataclass(frozen=True)
class Lever:
    """How a student goes on.

    Attributes:
      data: what it learns from: `TEXT`; `TRANSLATIONS`, that is, those of the teacher, too; `MORE_SOURCES`, that is,
        also back-translated sources with their text and the teacher's translations.
      bindings: what is set differently, by gin's names.
      joint: whether it gets a causal mode, if it has none.
      files: gin files that are added.
      start: 'student' or 'teacher', with whose parameters it starts.
    """

    data: str = TEXT
    bindings: Mapping[str, Any] = field(default_factory=dict)
    joint: bool = False
    files: tuple[str, ...] = ()
    start: str = "student"


LEVERS = {
    "more of the same": Lever(),
    "higher learning rate": Lever(bindings={"OptimizerConfig.peak_learning_rate": 0.02}),
    "lower learning rate": Lever(bindings={"OptimizerConfig.peak_learning_rate": 0.001}),
    "text and translations": Lever(data=TRANSLATIONS),
    # For a student that has seen its data only a few times.
    "text and translations, higher learning rate, less dropout": Lever(
        data=TRANSLATIONS, bindings={"OptimizerConfig.peak_learning_rate": 0.02, "NetworkConfig.dropout_rate": 0.1}
    ),
    "label smoothing": Lever(bindings={"LossConfig.label_smoothing": 0.1}),
    # Decoding starts with masks, so that some of the noise must be masks.
    "half random tokens": Lever(bindings={"CorruptionConfig.random_probability": 0.5}),
    "ranker": Lever(files=(_RANKER,)),
    "causal decoder": Lever(files=(_CAUSAL_DECODER,)),
    "three stages": Lever(bindings={"PadirModel.num_stages": 3}),
    "joint": Lever(joint=True),
    "joint, text and translations": Lever(data=TRANSLATIONS, joint=True),
    "joint, text and translations, lower learning rate": Lever(
        data=TRANSLATIONS, joint=True, bindings={"OptimizerConfig.peak_learning_rate": 0.001}
    ),
    "joint, more sources, lower learning rate": Lever(
        data=MORE_SOURCES, joint=True, bindings={"OptimizerConfig.peak_learning_rate": 0.001}
    ),
    "joint, text and translations, from the teacher": Lever(data=TRANSLATIONS, joint=True, start="teacher"),
}

KINDS = {"student": "padir", "teacher": "ar"}


def pretrained(direction: str, kind: str) -> Path:
    """The folder of the pretrained model of a direction, 'de_en' or 'en_de', and a kind, 'padir' or 'ar'."""
    return ROOT.parent / "pretrained" / f"tatoeba_{direction}_{kind}"


def described(direction: str) -> dict[str, Any]:
    """What the pretrained student of a direction is, by the names of `PadirModel`; what it says nothing of is off."""
    config = json.loads((pretrained(direction, KINDS["student"]) / "config.json").read_text(encoding="utf-8"))
    return {"ranker": False, "causal_stage": False, "causal_layers": 0} | config["padir"]


class Trials:
    """The work folder, in which students go on."""

    def __init__(self, work: Path, corpus: str, seconds: float, direction: str = "de_en"):
        self._work, self._corpus, self.seconds, self._direction = work, corpus, seconds, direction
        self._models = {role: pretrained(direction, kind) for role, kind in KINDS.items()}
        self._folder = work / folder_of(seconds)
        self._folder.mkdir(parents=True, exist_ok=True)

    def data(self, name: str = TEXT) -> Path:
        """The folder of a prepared set, made if need be."""
        folder = self._work / name
        if (folder / MANIFEST_NAME).exists():
            return folder
        if name == TEXT:
            self._padir("prepare", *self.arguments(Lever(), folder, folder))
        else:
            texts = self.data() if name == TRANSLATIONS else self._more_texts()
            of = f"--data_dir={texts}", f"--run_dir={self._models['teacher']}"
            self._padir("distill", *_DISTIL, *of, f"--output_dir={folder}")
        return folder

    def _more_texts(self) -> Path:
        """The folder of the prepared set of the text and of its targets with back-translated sources."""
        corpus, folder = self._work / "more_sources", self._work / "more_texts"
        languages = self._direction.split("_")
        sources, targets = (lines_of(Path(self._corpus) / f"train.{language}.gz") for language in languages)
        corpus.mkdir(exist_ok=True)
        distinct, written = list(dict.fromkeys(targets)), corpus / "written.txt"
        write_text(corpus / "distinct.txt", "\n".join(distinct) + "\n")
        if not written.exists():
            back = f"--run_dir={pretrained('_'.join(reversed(languages)), KINDS['teacher'])}"
            self._padir("translate", *_BACK, back, f"--inputs={corpus / 'distinct.txt'}", f"--output={written}")
        known = set(zip(sources, targets, strict=True))
        for source, target in zip(lines_of(written), distinct, strict=True):
            if source and (source, target) not in known:
                sources.append(source)
                targets.append(target)
        for language, lines in zip(languages, (sources, targets), strict=True):
            (corpus / f"train.{language}.gz").write_bytes(gzip.compress(("\n".join(lines) + "\n").encode(), mtime=0))
            shutil.copy(Path(self._corpus) / f"valid.{language}.gz", corpus)
        # The same pieces as those of the pretrained models.
        vocabulary = f"--gin.PrepareSettings.vocabulary={str(self.data() / VOCABULARY_NAME)!r}"
        task = self.arguments(Lever(), folder, folder, corpus=str(corpus))
        self._padir("prepare", *task, vocabulary)
        return folder

    def arguments(self, lever: Lever, data: Path, run: Path, corpus: str | None = None) -> list[str]:
        """Arguments of `padir train`, but for the number of updates and the start."""
        distilled = lever.data != TEXT
        files = [*_FILES[self._direction], "runs/preset_further.gin", *[_JOINT] * lever.joint]
        files += [*["runs/distilled.gin"] * distilled, *lever.files]
        bindings = [f"DATA_DIR={str(data)!r}", f"RUN_DIR={str(run)!r}"]
        bindings += [] if distilled else [f"DATA={corpus or self._corpus!r}"]
        bindings += [f"{key}={value!r}" for key, value in lever.bindings.items()]
        student = described(self._direction)
        if _CAUSAL_DECODER in lever.files and student["ranker"]:
            bindings += ["PadirModel.ranker=True", f"PadirModel.freeze={(*_FROZEN, 'ranker')!r}"]
        if _RANKER in lever.files and (layers := student["causal_layers"]):
            bindings += ["PadirModel.causal_stage=True", f"PadirModel.causal_layers={layers}"]
            bindings += [f"PadirModel.freeze={(*_FROZEN, 'causal_decoder')!r}"]
        return [*(f"--gin_file={file}" for file in files), *(f"--gin.{binding}" for binding in bindings)]

    def training(self, name: str) -> list[str]:
        """Arguments of `padir train` for a lever."""
        return self.arguments(LEVERS[name], self.data(LEVERS[name].data), self.run(name))

    def run(self, name: str) -> Path:
        """The run directory of a lever."""
        return self._folder / file_name(name)

    def update_seconds(self, names: Iterable[str]) -> dict[str, float]:
        """Seconds of an update with each lever, measured once."""
        path = self._work / "update_seconds.json"
        known: dict[str, float] = json.loads(path.read_text()) if path.exists() else {}
        if missing := [name for name in names if name not in known]:
            arguments, output = self._work / "to_measure.json", self._work / "measured.json"
            write_text(arguments, json.dumps({name: self.training(name) for name in missing}))
            run = [sys.executable, str(ROOT / "quality_speed.py"), f"--data_dir={self.data()}"]
            subprocess.run([*run, f"--arguments={arguments}", f"--output={output}"], check=True)
            known |= json.loads(output.read_text())
            write_text(path, json.dumps(known) + "\n")
        return {name: known[name] for name in names}

    def updates(self, names: Iterable[str]) -> dict[str, int]:
        """How many updates each student makes in its seconds."""
        return {name: max(round(self.seconds / each), 5) for name, each in self.update_seconds(names).items()}

    def _padir(self, *arguments: str) -> None:
        print("padir", *arguments, file=sys.stderr)
        if status := run_padir([*arguments, f"--compilation_cache={self._work / 'compiled'}"]):
            sys.exit(status)

    def trained(self, name: str, updates: int) -> Path:
        """The run of a lever, trained for so many updates."""
        run = self.run(name)
        if not self._made(name).exists():
            # The schedule ends with the run, and with it the learning rate: the last checkpoint is the one to take.
            every = max(updates // 20, 1)
            cadence = {"log": every, "evaluate": updates, "checkpoint": every, "keep": 1}
            options = [f"--gin.Cadence.{key}={value}" for key, value in cadence.items()]
            options += [warm_up(updates), f"--num_steps={updates}"]
            options += [f"--initialize_from={self._models[LEVERS[name].start]}"]
            self._padir("train", *self.training(name), *options)
            seconds = seconds_of_updates(read_metrics(run / METRICS_FOLDER / "metrics.jsonl"))
            write_text(self._made(name), json.dumps({"updates": updates, "seconds": seconds} | run_facts()) + "\n")
        return run

    def _made(self, name: str) -> Path:
        return self._folder / f"{file_name(name)}.made.json"

    def made(self, name: str) -> dict[str, Any]:
        """How a lever's run was made: `updates`, `seconds`, and the facts of `run_facts`."""
        return json.loads(self._made(name).read_text(encoding="utf-8"))

    def scores(self, name: str) -> dict[str, dict[str, Any]]:
        """What `padir evaluate` says of a student, with its outputs, by way of decoding; of `BEFORE` and all levers."""
        before = name == BEFORE
        run = self._models["student"] if before else self.run(name)
        folder = self._work if before else self._folder
        chosen = ways(is_joint(name, self._direction))
        return {way: self._evaluated(folder, f"{name}, {way}", run, system) for way, system in chosen.items()}

    def teacher(self) -> dict[str, Any]:
        """What `padir evaluate` says of the teacher's beam search, with its outputs."""
        return self._evaluated(self._work, "teacher", self._models["teacher"], systems([TEACHER])[REFERENCE])

    def _evaluated(self, folder: Path, name: str, run: Path, system: System) -> dict[str, Any]:
        path = folder / f"{file_name(name)}.json"
        if not path.exists():
            self._padir(
                "evaluate",
                f"--gin_file={system.decode_file}",
                *(f"--gin.{binding}" for binding in system.bindings),
                *([f"--{system.helper}={self._models['teacher']}"] if system.helper else []),
                f"--run_dir={run}",
                f"--data_dir={self.data()}",
                f"--output_dir={folder}",
                f"--name={path.stem}",
                "--split=validation",
                "--no-with_ter",
            )
        outputs = path.with_suffix(".txt").read_text(encoding="utf-8").removesuffix("\n").split("\n")
        return json.loads(path.read_text(encoding="utf-8")) | {"outputs": outputs}


def is_joint(name: str, direction: str) -> bool:
    """Whether a student has a causal mode: `BEFORE`, or after a lever."""
    if name == BEFORE:
        return bool(described(direction)["causal_stage"])
    # With the lever "ranker", a causal decoder that is there stays.
    causal = {_JOINT, _CAUSAL_DECODER} | ({_RANKER} if described(direction)["causal_layers"] else set())
    return LEVERS[name].joint or not causal.isdisjoint((*_FILES[direction], *LEVERS[name].files))


def ways(joint: bool) -> dict[str, System]:
    """How a student decodes, by what tables call it."""
    model = "joint" if joint else "padir"
    found, main = systems([model]), main_system(model)
    chosen = {
        "one length": found[default_system(model)],
        "five lengths": found[main],
        "rescored": found[f"{main}, rescored"],
    }
    return chosen | ({"ranked by itself": found[f"{main}{BY_ITSELF}"]} if joint else {})


def lines_of(path: Path) -> list[str]:
    """The lines of a text file, which may be compressed."""
    return [text for _, text in read_lines(path)]


def folder_of(seconds: float) -> str:
    """The folder in the work folder that holds what trained for so long."""
    return f"for_{seconds:.0f}_seconds"


def file_name(name: str) -> str:
    """What a lever's run, and its results, are called there."""
    return name.replace(",", "").replace(" ", "_")


_KEPT = ("bleu", "chrf", "length_accuracy", "mean_steps_run", "stutter_per_100_words")


def compared(
    rows: Mapping[str, dict[str, Any]],
    before: Mapping[str, dict[str, Any]],
    teacher: Mapping[str, Any],
    references: Sequence[str],
) -> dict[str, Any]:
    """Scores of a student, what it gained, and how far it is from its teacher.

    Args:
      rows: by way of decoding, a result with `outputs`.
      before: the same of the student as it was. A way that it does not have is compared with its 'five lengths'.
      teacher: the result of the teacher's beam search, with `outputs`.
      references: one per sentence.

    Returns:
      By way: scores; `from_teacher` and `from_before`, each the `difference` of BLEU from it, with p-values by paired
      `bootstrap` and by approximate `randomization`.
    """
    result: dict[str, Any] = {}
    for way, row in rows.items():
        result[way] = {key: row[key] for key in _KEPT}
        result[way]["from_teacher"] = difference(row["outputs"], teacher["outputs"], references)
        earlier = before.get(way, before["five lengths"])
        result[way]["from_before"] = difference(row["outputs"], earlier["outputs"], references)
    return result


def difference(outputs: Sequence[str], others: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """What BLEU outputs are ahead of others: `difference`, and p-values by `bootstrap` and `randomization`."""
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
    parser.add_argument("--work", type=Path, required=True, help="folder of data sets and runs")
    parser.add_argument("--data", required=True, help="folder with {train,valid}.{de,en}.gz")
    parser.add_argument("--direction", choices=sorted(_FILES), default="de_en", help="of translation")
    parser.add_argument("--seconds", type=float, default=150.0, help="of updates of each student")
    parser.add_argument("--levers", default=";".join(LEVERS), help="those to measure, separated by ';'")
    parser.add_argument("--output", type=Path, required=True, help="JSON file to write")
    options = parser.parse_args()
    names = list(dict.fromkeys(options.levers.split(";")))
    if unknown := [name for name in names if name not in LEVERS]:
        parser.error(f"--levers: unknown {unknown[0]!r}; choose from {'; '.join(LEVERS)}")
    if options.seconds <= 0:
        parser.error(f"--seconds: {options.seconds} is not above 0")
    trials = Trials(options.work, options.data, options.seconds, options.direction)
    text = PreparedSet.open(trials.data())
    updates = trials.updates(names)
    teacher, before = trials.teacher(), trials.scores(BEFORE)
    found = {}
    for name in names:
        trials.trained(name, updates[name])
        found[name] = trials.scores(name)
    examples = text.split("validation").read(range(text.manifest.splits["validation"].num_examples))
    references = [example.target_text for example in examples]
    result = {
        "facts": run_facts(),
        "direction": options.direction,
        "budget_seconds": options.seconds,
        "sentences": len(examples),
        "pairs": {
            data.name: PreparedSet.open(data).manifest.splits["train"].num_examples
            for data in {trials.data(), *(trials.data(LEVERS[name].data) for name in names)}
        },
        "teacher": {key: teacher[key] for key in _KEPT},
        "made": {name: trials.made(name) for name in names},
        "students": {
            name: compared(rows, before, teacher, references) for name, rows in ({BEFORE: before} | found).items()
        },
    }
    write_text(options.output, json.dumps(result, indent=1) + "\n")
    for name, rows in result["students"].items():
        print(name, *(f"{way}: {row['bleu']:.2f}" for way, row in rows.items()), sep="\t")
    return 0


if __name__ == "__main__":
    sys.exit(main())
