"""Makes the pretrained models of what `make quality` trained:

    python benchmarks/pretrained.py --work=runs/quality_gpu_de_en \\
      --result=benchmarks/results/quality_tatoeba_de_en_gpu.json --student=padir_raw

It exports the teacher and a student in int8, translates the validation split with what it wrote, and writes a model
card. The card's other figures come from the result.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path
from typing import Any

from quality_models import BY_ITSELF, MODELS, TEACHER, System, main_system, systems

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
    """Makes both models; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="work folder of quality.py")
    parser.add_argument("--result", type=Path, required=True, help="the JSON that it wrote")
    students = [name for name in MODELS if not MODELS[name].autoregressive]
    parser.add_argument(
        "--student", choices=students, required=True, help="the model that is exported beside the teacher"
    )
    parser.add_argument("--output", type=Path, default=ROOT / "pretrained", help="the folder that the models go to")
    options = parser.parse_args()
    result = json.loads(options.result.read_text(encoding="utf-8"))
    data = PreparedSet.open(options.work / "data")
    for model, kind in ((TEACHER, "ar"), (options.student, "padir")):
        name = f"{data.manifest.task.name}_{kind}"
        # An export goes to a new folder. The models that were there are in git.
        shutil.rmtree(options.output / name, ignore_errors=True)
        run = options.work / _checkpoint(model) / model
        export_checkpoint(run_dir=str(run), output_dir=str(options.output / name), dtype="int8")
        scores = {each: evaluated(options.output / name, system, data) for each, system in shown(model).items()}
        text = card(name, model, result, scores, data.manifest.source_language, data.manifest.target_language)
        write_text(options.output / name / "README.md", text)
    return 0


def _checkpoint(model: str) -> str:
    """The folder of the checkpoint by which a model is judged, 'best' or 'mean'."""
    return "mean" if systems([model])[main_system(model)].averaged else "best"


def shown(model: str) -> dict[str, System]:
    """The systems that a card has: the main one, and the one in which the model ranks its own hypotheses."""
    names = main_system(model), f"{main_system(model)}{BY_ITSELF}"
    return {name: system for name, system in systems([model]).items() if name in names}


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
    name: str, model: str, result: dict[str, Any], scores: dict[str, dict[str, Any]], source: str, target: str
) -> str:
    """The model card.

    Args:
      name: of the pretrained model.
      model: its name in the comparison.
      result: of `quality.py`.
      scores: of the exported model, by the name of the system.
      source, target: languages, as 'de'.
    """
    recipe, main = MODELS[model], scores[main_system(model)]
    made = result["models"][model]
    origin = "the text itself" if not recipe.distilled else "the translations of the AR model beside this one"
    start = "" if recipe.start is None else f" It started with the parameters of {MODELS[recipe.start].title}."
    kind = "an autoregressive model" if recipe.autoregressive else "a model that writes all words at once (PaDIR)"
    languages = f"{_LANGUAGES[source]} to {_LANGUAGES[target]}"
    facts = result["facts"]
    on_cpu = f"{facts['cpu_count']} cores of {facts['cpu']}"
    hardware = on_cpu if made["device"] == "cpu" else f"one {made['device']}, beside other models"
    checkpoint = _checkpoint(model)
    default, better = ("tries one length", "lengths_5") if not recipe.autoregressive else ("is greedy", "ar_beam5")
    ranked = "\nIt can rank its translations of several lengths itself: add `--gin_file=decode/lengths_5_ranked.gin`.\n"
    chosen = {
        "best": "The best of its checkpoints was chosen by its loss on\nthe same sentences.",
        "mean": "It is the mean of the\nlast five checkpoints.",
    }[checkpoint]
    return f"""# {name}

{languages}, for everyday sentences: {kind} with {main["parameters"]:,} parameters, stored as int8.

```sh
pip install ./pretrained   # or run this in a clone
echo "…" | padir translate --run_dir={name}
```

Decoding {default} by default. The figures below are those of `--gin_file=decode/{better}.gin`.
{ranked if len(scores) > 1 else ""}
## Quality

| on {main["sentences"]:,} sentences of Tatoeba that training did not see | BLEU | chrF |
|---|---:|---:|
{_score_rows(scores, result["systems"], _TYPES[made["kept_as"][checkpoint]])}

sacreBLEU, {main["bleu_signature"]}; {main["chrf_signature"]}. {chosen}

## Training

* Data: {result["train_pairs"]:,} sentence pairs of [Tatoeba](https://tatoeba.org), through
  [manythings.org](https://www.manythings.org/anki) (2018-05-13), licence CC-BY 2.0 FR. The targets are {origin}.{start}
* {made["updates"]:,} updates in {made["seconds"] / 60:.0f} minutes on {hardware}.
* Command: `python {made["command"]}`, at commit {made["commit"]}.

## Limits

It knows short sentences about everyday things. Names, numbers, long sentences and specialist words are often wrong.
It may leave out or invent content without any sign, and repeats the biases of its data. Do not rely on it where a wrong
translation does harm.
"""


def _score_rows(scores: dict[str, dict[str, Any]], as_trained: dict[str, dict[str, Any]], before: str) -> str:
    """Lines of the card's table: each system as exported, and as it was trained, in the type `before`."""
    rows = []
    for system, found in scores.items():
        for what, of in (
            (f"these files: {system}", found),
            (f"before rounding to int8, in {before}", as_trained[system]),
        ):
            rows.append(f"| {what} | {of['bleu']:.2f} | {of['chrf']:.2f} |")
    return "\n".join(rows)


if __name__ == "__main__":
    sys.exit(main())
