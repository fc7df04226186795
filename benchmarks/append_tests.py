"""Test cases for a function that appends, by a pretrained code model under a verifier (thesis, section 3.2.2).

For whoever has the model; it needs `pip install '.[transformers]'`, and for a model of 7 billion parameters a GPU:

    python benchmarks/append_tests.py examples --model=codellama/CodeLlama-7b-hf --layer=27 --output=layer_27.npz
    padir verifier --features=layer_27.npz --layer=27 --threshold=0.1 --output_dir=verifier_27
    python benchmarks/append_tests.py complete --model=codellama/CodeLlama-7b-hf --verifier=verifier_27 \\
      --output=completions.jsonl
    python benchmarks/append_tests.py score completions.jsonl

`complete` appends to its output, so that settings can be run one after another; completed runs are left out. `score`
prints the table beside the thesis's. Its file may come from any other program: one JSON object a line with 'setting',
'run', 'name', 'text' and 'queries'.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from padir.appending import protocol, thesis
from padir.appending.protocol import Setting, TextModel
from padir.data.append_tests import OOD_NAMES
from padir.decoding.stepwise import Judge, judged_by, save_examples
from padir.errors import PadirError
from padir.interop.causal_lm import CausalLM
from padir.runs.saved_verifier import load_verifier

SETTINGS = ("plain", "backtracking", "random", "block")


def lines_of(path: Path) -> list[dict[str, Any]]:
    """The completions of a file, none if it is not there.

    Raises:
      PadirError: a line is no JSON.
    """
    if not path.exists():
        return []
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except ValueError as error:
        raise PadirError(f"{path}: not one JSON object a line ({error})") from error


def setting_of(options: argparse.Namespace, model: TextModel, layer: int, threshold: float, depth: int) -> Setting:
    """The setting that the options ask for, with the verifier's layer, threshold and number of layers."""
    sampling = {"top_p": options.top_p, "temperature": options.temperature}
    erasing = {"quota": options.quota, "stride": options.stride, "argmax": not options.no_argmax}
    if options.setting == "plain":
        setting = protocol.plain(**sampling)
    elif options.setting == "block":
        setting = protocol.block_best_of(model.line_ends(), options.candidates, **sampling)
    elif options.setting == "random":
        setting = protocol.backtracking(None, **erasing, **sampling)
    else:
        setting = protocol.backtracking(layer, threshold, depth=depth, **erasing, **sampling)
    return dataclasses.replace(setting, name=thesis.variant(setting.name, ood_names=options.ood_names))


def missing_runs(
    options: argparse.Namespace, model: TextModel, setting: Setting, judge: Judge | None
) -> Iterator[dict[str, Any]]:
    """The completions of all runs that the output does not have as a whole."""
    there = [line for line in lines_of(options.output) if line["setting"] == setting.name]
    for run in range(options.runs):
        if sum(line["run"] == run for line in there) < options.names * options.repeats:
            if any(line["run"] == run for line in there):
                raise PadirError(f"{options.output}: run {run} of {setting.name} was cut off; remove its lines")
            names = OOD_NAMES[: options.names] if options.ood_names else protocol.names_of(run, options.names)
            asked = protocol.random_judge(run) if options.setting == "random" else judge
            yield from protocol.completions(model, setting, asked, names=names, repeats=options.repeats, run=run)


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    examples, complete = (commands.add_parser(name) for name in ("examples", "complete"))
    for command in (examples, complete):
        command.add_argument("--model", required=True, help="a folder of Transformers, or a model's name")
        command.add_argument("--device", default="cpu")
        command.add_argument("--dtype", default="auto")
        command.add_argument("--output", type=Path, required=True)
        command.add_argument("--repeats", type=int, help="completions for each name")
    examples.add_argument("--layer", type=int, required=True, help="whose hidden states are kept")
    examples.add_argument("--line_ends", action="store_true", help="examples of a block verifier")
    examples.set_defaults(repeats=60)
    complete.add_argument("--setting", choices=SETTINGS, default="backtracking")
    complete.add_argument("--verifier", help="the folder that padir verifier wrote; for backtracking and block")
    complete.add_argument("--runs", type=int, default=5)
    complete.add_argument("--names", type=int, default=10, help="functions of a run")
    complete.add_argument("--top_p", type=float, default=0.95)
    complete.add_argument("--temperature", type=float, default=1.0)
    complete.add_argument("--quota", type=int, default=4)
    complete.add_argument("--stride", type=int, default=4)
    complete.add_argument("--no_argmax", action="store_true", help="draw erased tokens again (Table 3.17)")
    complete.add_argument("--ood_names", action="store_true", help="functions called pop, add, sub .. (Table 3.15)")
    complete.add_argument("--candidates", type=int, default=2)
    complete.set_defaults(repeats=10)
    commands.add_parser("score").add_argument("completions", type=Path, nargs="+")
    return parser.parse_args()


def main() -> None:
    """Runs one step of the experiment."""
    options = parsed()
    if options.command == "score":
        print(protocol.report(protocol.rows([line for path in options.completions for line in lines_of(path)])))
        return
    if options.command == "examples":
        model = CausalLM.load(options.model, layer=options.layer, device=options.device, dtype=options.dtype)
        found = protocol.verifier_examples(model, repeats=options.repeats, line_ends_only=options.line_ends)
        save_examples(options.output, *found)
        print(f"{options.output}: {len(found[1])} examples, {int((found[1] == 0).sum())} of errors")
        return
    if options.no_argmax and options.setting in ("plain", "block"):
        raise PadirError(f"--no_argmax: --setting={options.setting} rewrites nothing; leave it out")
    if options.ood_names and options.names > len(OOD_NAMES):
        raise PadirError(f"--names={options.names}: there are {len(OOD_NAMES)} --ood_names; ask for at most as many")
    judge, layer, threshold, depth = None, -1, 0.5, 1
    if options.verifier is not None:
        probe, layer, threshold = load_verifier(options.verifier, None)
        judge, depth = judged_by(probe), len(probe.layers)
    model = CausalLM.load(options.model, layer=layer, device=options.device, dtype=options.dtype)
    setting = setting_of(options, model, layer, threshold, depth)
    with options.output.open("a", encoding="utf-8") as file:
        for line in missing_runs(options, model, setting, judge):
            file.write(json.dumps(line) + "\n")
            file.flush()


if __name__ == "__main__":
    main()
