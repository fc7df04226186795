"""Makes the pretrained models of what `make quality` trained:

    python benchmarks/pretrained.py --work=runs/quality_gpu_de_en \\
      --result=benchmarks/results/quality_tatoeba_de_en_gpu.json --student=padir_raw

It exports the teacher and a student in int8, translates the validation split with what it wrote, and writes a model
card. The card's other figures come from the result. With `--lever`, work folder and result are those of levers.py, and
the student is the one that went on in this way; the teacher stays.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import levers
from levers import LEVERS
from quality_models import BY_ITSELF, MODELS, TEACHER, System, default_system, main_system, systems

from padir.data.records import PreparedSet
from padir.decoding.refinement import Refinement
from padir.evaluation.evaluate import decode_examples, score
from padir.files.atomic import write_text
from padir.inference.translator import load
from padir.runs.convert import export_checkpoint

ROOT = Path(__file__).resolve().parents[1]
_LANGUAGES = {"de": "German", "en": "English"}
_TYPES = {"F32": "float32", "BF16": "bfloat16"}


def main() -> int:
    """Makes the models that were asked for; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="work folder of quality.py, or of levers.py")
    parser.add_argument("--result", type=Path, required=True, help="the JSON that it wrote")
    students = [name for name in MODELS if not MODELS[name].autoregressive]
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--student", choices=students, help="the model that is exported beside the teacher")
    which.add_argument("--lever", choices=LEVERS, help="how the student went on that is exported")
    parser.add_argument("--output", type=Path, default=ROOT / "pretrained", help="the folder that the models go to")
    options = parser.parse_args()
    result = json.loads(options.result.read_text(encoding="utf-8"))
    if options.lever is None:
        data = PreparedSet.open(options.work / "data")
        for model in (TEACHER, options.student):
            ship(options.output, model, options.work / _checkpoint(model) / model, result, data, usual(model))
        return 0
    if options.lever not in result["made"]:
        parser.error(f"--lever: {options.result} has no {options.lever!r}; choose from {'; '.join(result['made'])}")
    data = PreparedSet.open(options.work / levers.TEXT)
    run = options.work / levers.folder_of(result["budget_seconds"]) / levers.file_name(options.lever)
    start = levers.pretrained(result.get("direction", "de_en"), levers.KINDS[LEVERS[options.lever].start])
    found, history = of_lever(options.lever, result, (start / "README.md").read_text(encoding="utf-8"))
    joint = levers.is_joint(options.lever, result.get("direction", "de_en"))
    ship(options.output, "joint" if joint else "padir", run, found, data, history)
    return 0


def ship(folder: Path, model: str, run: Path, result: dict[str, Any], data: PreparedSet, history: History) -> None:
    """Exports a run to the folder of its name, evaluates it, and writes its card; see `card`."""
    name = f"{data.manifest.task.name}_{'ar' if model == TEACHER else 'padir'}"
    # An export goes to a new folder. The models that were there are in git.
    shutil.rmtree(folder / name, ignore_errors=True)
    export_checkpoint(run_dir=str(run), output_dir=str(folder / name), dtype="int8")
    scores = {each: evaluated(folder / name, system, data) for each, system in shown(model).items()}
    languages = data.manifest.source_language, data.manifest.target_language
    write_text(folder / name / "README.md", card(name, model, result, scores, *languages, history))


@dataclass(frozen=True)
class History:
    """What a card says of how a model came about.

    Attributes:
      targets: what it learned to write.
      start: a sentence about the parameters that it started with, or ''.
      checkpoint: its key in `kept_as` of the result.
      chosen: a sentence about the checkpoint.
      earlier: how the model was trained that it started with, from its card; '' if the card need not say.
    """

    targets: str
    start: str
    checkpoint: str
    chosen: str
    earlier: str = ""


_TRAINING, _EARLIER, _LIMITS = "## Training", "### The model that it started with", "## Limits"
_TRANSLATIONS = "the translations of the AR model beside this one"


def usual(model: str) -> History:
    """That of a model of quality.py."""
    recipe, checkpoint = MODELS[model], _checkpoint(model)
    chosen = {
        "best": "The best of its checkpoints was chosen by its loss on\nthe same sentences.",
        "mean": "It is the mean of the\nlast five checkpoints.",
    }[checkpoint]
    start = "" if recipe.start is None else f"It started with the parameters of {MODELS[recipe.start].title}."
    return History(_TRANSLATIONS if recipe.distilled else "the text itself", start, checkpoint, chosen)


def of_lever(name: str, result: dict[str, Any], card_of_start: str) -> tuple[dict[str, Any], History]:
    """(a result as of quality.py, history) of a student that went on, from the result of levers.py.

    Args:
      name: of the lever.
      result: of `levers.py`.
      card_of_start: the card of the model that it started with.
    """
    lever, made, rows = LEVERS[name], result["made"][name], result["students"][name]
    joint = levers.is_joint(name, result.get("direction", "de_en"))
    model = "joint" if joint else "padir"
    ways = "one length", "five lengths", *(["ranked by itself"] if joint else [])
    systems_of = {system: rows[way] for system, way in zip(shown(model), ways, strict=True)}
    found = {
        "facts": result["facts"],
        "train_pairs": result["pairs"]["text"],
        "models": {model: made | {"kept_as": {"last": "F32"}}},
        "systems": systems_of,
    }
    of = {"student": "the model of this name", "teacher": "the AR model beside it"}[lever.start]
    start = f"It started with the parameters\n  of {of} at that commit."
    if "runs/ranker.gin" in lever.files:
        start += "\n  Only its ranker was trained here, which chooses among several translations of a sentence."
    elif "runs/causal_decoder.gin" in lever.files:
        start += (
            "\n  Only a causal decoder of one layer was trained here, which ranks several translations of a sentence."
        )
    earlier = (
        card_of_start.partition(_TRAINING)[2].partition(_LIMITS)[0].strip().replace(_EARLIER, "### And before that")
    )
    targets = {
        levers.TEXT: "the text itself",
        levers.TRANSLATIONS: f"the text itself, and {_TRANSLATIONS}",
        levers.MORE_SOURCES: f"the text itself, and {_TRANSLATIONS}.\n  Further sources are back-translations by the "
        "AR model of the other direction",
    }[lever.data]
    return found, History(targets, start, "last", "It is the last checkpoint.", earlier)


def _checkpoint(model: str) -> str:
    """The folder of the checkpoint by which a model is judged, 'best' or 'mean'."""
    return "mean" if systems([model])[main_system(model)].averaged else "best"


def shown(model: str) -> dict[str, System]:
    """The systems that a card has: the default, the main one, and that in which the model ranks its own hypotheses."""
    main, default = main_system(model), default_system(model)
    return {name: system for name, system in systems([model]).items() if name in (default, main, f"{main}{BY_ITSELF}")}


def evaluated(folder: Path, system: System, data: PreparedSet) -> dict[str, Any]:
    """Scores of an exported model on the validation split, decoding as `system` does."""
    translator = load(folder)
    validation = data.split("validation")
    examples = validation.read(range(len(validation)))
    decode = system.decode()
    translations = decode_examples(translator, examples, decode, batch_size=64, label=folder.name)
    checker, parallel = data.manifest.checker, isinstance(decode, Refinement)
    scores = score(translations, examples, checker, predicts_length=parallel, with_ter=False)
    return scores | {"parameters": translator.model.parameter_count(), "sentences": len(examples)}


def card(
    name: str,
    model: str,
    result: dict[str, Any],
    scores: dict[str, dict[str, Any]],
    source: str,
    target: str,
    history: History,
) -> str:
    """The model card.

    Args:
      name: of the pretrained model.
      model: its name in the comparison.
      result: of `quality.py`.
      scores: of the exported model, by the name of the system.
      source, target: languages, as 'de'.
      history: how it came about.
    """
    recipe, main, made = MODELS[model], scores[main_system(model)], result["models"][model]
    start = f" {history.start}" if history.start else ""
    earlier = f"\n{_EARLIER}\n\n{history.earlier}\n" if history.earlier else ""
    kind = "an autoregressive model" if recipe.autoregressive else "a model that writes all words at once (PaDIR)"
    languages = f"{_LANGUAGES[source]} to {_LANGUAGES[target]}"
    decoding = (
        "is greedy by default. `--gin_file=decode/ar_beam5.gin` searches with a beam of five"
        if recipe.autoregressive
        else "tries one length by default. `--gin_file=decode/lengths_5.gin` tries five"
    )
    ranked = ", and\n`--gin_file=decode/lengths_5_ranked.gin` lets the model rank them by all that it has"
    return f"""# {name}

{languages}, for everyday sentences: {kind} with {main["parameters"]:,} parameters, stored as int8.

```sh
pip install ./pretrained   # or run this in a clone
echo "…" | padir translate --run_dir={name}
```

Decoding {decoding}{ranked if any(name.endswith(BY_ITSELF) for name in scores) else ""}.

## Quality

| on {main["sentences"]:,} sentences of Tatoeba that training did not see | BLEU | chrF |
|---|---:|---:|
{_score_rows(scores, result["systems"], _TYPES[made["kept_as"][history.checkpoint]])}

sacreBLEU, {main["bleu_signature"]}; {main["chrf_signature"]}. {history.chosen}
The sentences are those of the validation split, by which settings were chosen.

{_TRAINING}

* Data: {result["train_pairs"]:,} sentence pairs of [Tatoeba](https://tatoeba.org), through
  [manythings.org](https://www.manythings.org/anki) (2018-05-13), licence CC-BY 2.0 FR.
  The targets are {history.targets}.{start}
* {made["updates"]:,} updates in {made["seconds"] / 60:.0f} minutes on {_hardware(made["device"], result["facts"])}.
* Command: `python {made["command"]}`, at commit {made["commit"]}.
{earlier}
{_LIMITS}

It knows short sentences about everyday things. Names, numbers, long sentences and specialist words are often wrong.
It may leave out or invent content without any sign, and repeats the biases of its data. Do not rely on it where a wrong
translation does harm.
"""


def _hardware(device: str, facts: dict[str, Any]) -> str:
    return "{cpu_count} cores of {cpu}".format_map(facts) if device == "cpu" else f"one {device}, beside other models"


def _score_rows(scores: dict[str, dict[str, Any]], as_trained: dict[str, dict[str, Any]], before: str) -> str:
    """Lines of the card's table: each system as exported, and as it was trained, in the type `before`."""
    rows = []
    for system, found in scores.items():
        # The model itself need not be named.
        way = system.partition(", ")[2]
        for what, of in (
            (f"these files: {way}", found),
            (f"before rounding to int8, in {before}", as_trained[system]),
        ):
            rows.append(f"| {what} | {of['bleu']:.2f} | {of['chrf']:.2f} |")
    return "\n".join(rows)


if __name__ == "__main__":
    sys.exit(main())
