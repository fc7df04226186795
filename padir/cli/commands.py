"""The subcommands of `padir`, one record each: what it runs, what `--help` says, where its configuration is kept.

Importing this module does not import JAX, so `padir --help` answers at once.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


def _nowhere(given: dict[str, Any]) -> None:
    """The configuration is not kept."""


def _never(has_value: Callable[[str], bool]) -> bool:
    """One process runs the command."""
    return False


def _beside(suffix: str) -> Callable[[dict[str, Any]], str]:
    """`_beside('{output_dir}/x.gin')` keeps the configuration there, with the command's arguments filled in."""
    return lambda given: suffix.format_map(given)


@dataclass(frozen=True)
class Command:
    """One subcommand.

    Attributes:
      name: as typed; of one word or of two ('benchmark latency').
      run: 'module:function'. The function's parameters become flags.
      summary: one line for `padir --help`.
      example: a command line for the root of a checkout.
      note: what a user must know besides the options.
      configuration: path of the file that keeps the operative configuration, beside the command's result, from the
        arguments given; None keeps it nowhere.
      distributed: whether several processes run the command together, given a function that says whether
        'command.parameter' has a value.
      trains: whether it asks for memory as training needs it before JAX starts, and saves when SIGTERM arrives.
      gin_files: read where the user names none.
      positional: the parameter that may follow the command without its flag.
    """

    name: str
    run: str
    summary: str
    example: str
    note: str = ""
    configuration: Callable[[dict[str, Any]], str | None] = _nowhere
    distributed: Callable[[Callable[[str], bool]], bool] = _never
    trains: bool = False
    gin_files: tuple[str, ...] = ()
    positional: str | None = None

    @property
    def configurable(self) -> str:
        """The name that gin files bind to: 'benchmark_latency'."""
        return self.name.replace(" ", "_")

    def function(self) -> Callable[..., Any]:
        """Imports and returns what it runs."""
        module, _, name = self.run.partition(":")
        return getattr(importlib.import_module(module), name)


def _translations(given: dict[str, Any]) -> str | None:
    """Where `translate` keeps its configuration: standard output has no place beside it.

    Shards lie in a folder; hosts numbered by hand would all write its file at the same time.
    """
    if given["output"] == "-" or given["host_index"]:
        return None
    return f"{given['output']}{'.gin' if given['shards'] is None else '/translate.gin'}"


_ALL = (
    Command(
        "prepare",
        "padir.data.prepare_process:prepare_in_process",
        "run a Seqio task once and write it as an ArrayRecord set",
        "padir prepare --gin_file=runs/synthetic_ar.gin --gin.DATA_DIR=\"'runs/data'\"",
        configuration=_beside("{output_dir}/prepare.gin"),
    ),
    Command(
        "vocabulary",
        "padir.data.prepare_process:train_vocabulary_in_process",
        "train a SentencePiece vocabulary on both sides of a task's training text",
        "padir vocabulary --gin_file=runs/synthetic_ar.gin --output=runs/vocabulary.model",
        note=(
            "One model serves several sets: prepare each with --gin.PrepareSettings.vocabulary=\"'FILE'\". "
            "Their manifests keep its hash."
        ),
        configuration=_beside("{output}.gin"),
    ),
    Command(
        "train",
        "padir.training.train:train",
        "train a model, or go on with the newest checkpoint",
        "padir train --gin_file=runs/synthetic_ar.gin --gin.DATA_DIR=\"'runs/data'\" --gin.RUN_DIR=\"'runs/ar'\"",
        configuration=lambda given: None if given["describe"] else f"{given['run_dir']}/train.gin",
        distributed=lambda has_value: True,
        trains=True,
    ),
    Command(
        "evaluate",
        "padir.evaluation.evaluate:evaluate",
        "translate a split of a prepared set and score it",
        "padir evaluate --run_dir=runs/ar --data_dir=runs/data --output_dir=runs/results --name=ar",
        configuration=_beside("{output_dir}/{name}.gin"),
    ),
    Command(
        "tables",
        "padir.evaluation.tables:tables",
        "lay results of evaluate beside the paper's tables, and say what has not been run",
        "padir tables --results runs/results --output_dir=runs/tables",
        configuration=_beside("{output_dir}/tables.gin"),
    ),
    Command(
        "translate",
        "padir.inference.translate:translate_files",
        "translate lines of files or standard input",
        'echo "Peter helps a big dog." | padir translate --run_dir=runs/ar',
        note=(
            "The configuration used is kept beside an output file; with standard output it is not. With --shards=N "
            "the output is a folder of N files of the same share of the input's bytes, which several hosts divide "
            "among themselves; started again, they do what is missing."
        ),
        configuration=_translations,
        # Hosts that were numbered by hand do not know of one another.
        distributed=lambda has_value: has_value("translate.shards") and not has_value("translate.num_hosts"),
    ),
    Command(
        "distill",
        "padir.inference.distill:distill",
        "make a teacher's translations the targets of a new set",
        "padir distill --run_dir=runs/ar --data_dir=runs/data --output_dir=runs/distilled",
        configuration=_beside("{output_dir}/distill.gin"),
        distributed=lambda has_value: True,
    ),
    Command(
        "benchmark latency",
        "padir.benchmark.latency:latency",
        "measure how long requests take, systems side by side",
        "padir benchmark latency --gin_file=bench/trained.gin --gin.AR_DIR=\"'runs/ar'\" "
        "--gin.PADIR_DIR=\"'runs/padir'\" --gin.DATA_DIR=\"'runs/data'\" --output=runs/latency.json",
        configuration=_beside("{output}.gin"),
    ),
    Command(
        "benchmark throughput",
        "padir.benchmark.throughput:throughput",
        "measure sentences a second at growing batch sizes",
        "padir benchmark throughput --gin_file=bench/paper.gin --gin_file=bench/fixed_32.gin "
        "--output=runs/throughput.json",
        configuration=_beside("{output}.gin"),
    ),
    Command(
        "benchmark roofline",
        "padir.benchmark.roofline:roofline",
        "take a request apart and hold it against the machine's limits",
        "padir benchmark roofline --gin_file=bench/paper.gin --output=runs/roofline.json",
        configuration=_beside("{output}.gin"),
    ),
    Command(
        "benchmark compare",
        "padir.benchmark.compare:compare",
        "hold two results of benchmark latency against each other",
        "padir benchmark compare --before=runs/latency.json --after=runs/later.json",
    ),
    Command(
        "analyze attention",
        "padir.analysis.attention:attention",
        "compare attention where the output stutters with attention where it does not",
        "padir analyze attention --run_dir=runs/padir --data_dir=runs/data --output_dir=runs/attention",
        configuration=_beside("{output_dir}/attention.gin"),
    ),
    Command(
        "demo",
        "padir.demo.run:demo",
        "teacher, distillation, student and comparison on the embedded language pair",
        "padir demo --output_dir=demo",
        note=(
            "A --gin_file takes the place of runs/demo.gin, which holds all the sizes: begin yours with "
            "include 'runs/demo.gin' to change some of them. --gin.NAME=VALUE alone goes on top of it."
        ),
        configuration=_beside("{report_dir}/demo.gin"),
        gin_files=("runs/demo.gin",),
    ),
    Command(
        "theory",
        "padir.theory.run:theory",
        "draw the figures of the paper's theory and check its claims, exactly",
        "padir theory --output_dir=runs/theory --quick",
        configuration=_beside("{output_dir}/theory.gin"),
    ),
    Command(
        "import",
        "padir.runs.convert:import_checkpoint",
        "make a run directory of a T5X checkpoint or a Hugging Face T5 folder",
        "padir import --source=t5-small --output_dir=runs/t5_small",
        configuration=_beside("{output_dir}/import.gin"),
    ),
    Command(
        "checkpoint",
        "padir.runs.describe:describe_checkpoint",
        "say what a checkpoint holds: step, parameters, hashes (--path, or the folder alone)",
        "padir checkpoint --path=runs/ar",
        positional="path",
    ),
    Command(
        "average",
        "padir.runs.average:average",
        "make a run directory of the mean of a run's checkpoints, or of its moving average",
        "padir average --run_dir=runs/ar --output_dir=runs/ar_mean --last=3",
        configuration=_beside("{output_dir}/average.gin"),
    ),
    Command(
        "export",
        "padir.runs.convert:export_checkpoint",
        "write a trained model as safetensors, for Hugging Face if it is autoregressive",
        "padir export --run_dir=runs/ar --output_dir=runs/ar_safetensors",
        configuration=_beside("{output_dir}/export.gin"),
    ),
)
COMMANDS: dict[str, Command] = {command.name: command for command in _ALL}
