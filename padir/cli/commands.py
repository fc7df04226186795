"""The subcommands of `padir`, one record each: function, help text, and the file that keeps its configuration.

Importing this module does not import JAX, so `padir --help` answers at once.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


def _nowhere(given: dict[str, Any]) -> None:
    """Returns None: the configuration is not saved."""


def _never(has_value: Callable[[str], bool]) -> bool:
    """Returns False: a single process runs the command."""
    return False


def _beside(suffix: str) -> Callable[[dict[str, Any]], str]:
    """Saves the configuration to a path such as '{output_dir}/x.gin', with the command's arguments filled in."""
    return lambda given: suffix.format_map(given)


@dataclass(frozen=True)
class Command:
    """One subcommand.

    Attributes:
      name: the name as typed, one word or two ('benchmark latency').
      run: 'module:function'. The function's parameters become flags.
      summary: one line for `padir --help`.
      example: a command line that works in the root of a checkout.
      note: what a user must know besides the options.
      configuration: maps the command's arguments to the path of the file that keeps its operative configuration,
        beside its result. None means that the configuration is not saved.
      distributed: whether several processes run the command together. Its argument is a function that says whether
        'command.parameter' has a value.
      trains: whether the command trains. If so, memory allocation is set up for training before JAX starts, and
        SIGTERM makes the command save a checkpoint and stop.
      gin_files: gin files to read if the user names none.
      local: parameters that must be local paths. A gs:// address is refused before anything is done.
      positional: the parameter that may follow the command without its flag.
      compiles: the command whose programs this one compiles for TPUs or GPUs, if any. It takes all flags and gin
        bindings of that command, which are passed to its function by name as the first argument. Its own flags are not
        gin's.
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
    local: tuple[str, ...] = ()
    positional: str | None = None
    compiles: str | None = None

    @property
    def configurable(self) -> str:
        """The command's name in gin files, e.g. 'benchmark_latency': that of the command it compiles, if any."""
        return (self.compiles or self.name).replace(" ", "_")

    def function(self) -> Callable[..., Any]:
        """Imports and returns the function that the command runs."""
        module, _, name = self.run.partition(":")
        return getattr(importlib.import_module(module), name)


def _translations(given: dict[str, Any]) -> str | None:
    """Where `translate` saves its configuration: beside the output file, or in the folder of its shards.

    Nothing is saved for standard output. Of hosts that are numbered by hand, only host 0 saves.
    """
    if given["output"] == "-" or given["host_index"]:
        return None
    return f"{given['output']}{'.gin' if given['shards'] is None else '/translate.gin'}"


_ESTIMATED = (
    "Nothing is run. For TPUs, all figures are estimated by XLA's compiler; for GPUs, no time is estimated. Needs the "
    "extra tpu or cuda (pip install '.[tpu]' in a clone of padir). The exit status is 1 if a program does not fit into "
    "memory."
)

_ALL = (
    Command(
        "prepare",
        "padir.data.prepare_process:prepare_in_process",
        "run a Seqio task once and write the result as ArrayRecord files",
        "padir prepare --gin_file=runs/synthetic_ar.gin --gin.DATA_DIR=\"'runs/data'\"",
        configuration=_beside("{output_dir}/prepare.gin"),
    ),
    Command(
        "vocabulary",
        "padir.data.prepare_process:train_vocabulary_in_process",
        "train a SentencePiece vocabulary on both sides of a task's training text",
        "padir vocabulary --gin_file=runs/synthetic_ar.gin --output=runs/vocabulary.model",
        note=(
            "Several data sets can share one vocabulary: prepare each with "
            "--gin.PrepareSettings.vocabulary=\"'FILE'\". Their manifests record the vocabulary's hash."
        ),
        configuration=_beside("{output}.gin"),
    ),
    Command(
        "train",
        "padir.training.train:train",
        "train a model, or resume from the newest checkpoint",
        "padir train --gin_file=runs/synthetic_ar.gin --gin.DATA_DIR=\"'runs/data'\" --gin.RUN_DIR=\"'runs/ar'\"",
        configuration=lambda given: None if given["describe"] else f"{given['run_dir']}/train.gin",
        distributed=lambda has_value: True,
        trains=True,
    ),
    Command(
        "evaluate",
        "padir.evaluation.evaluate:evaluate",
        "translate a split of a prepared data set and score the translations",
        "padir evaluate --run_dir=runs/ar --data_dir=runs/data --output_dir=runs/results --name=ar",
        configuration=_beside("{output_dir}/{name}.gin"),
    ),
    Command(
        "tables",
        "padir.evaluation.tables:tables",
        "show results of evaluate beside the paper's tables, and mark what has not been run",
        "padir tables --results runs/results --output_dir=runs/tables",
        configuration=_beside("{output_dir}/tables.gin"),
    ),
    Command(
        "translate",
        "padir.inference.translate:translate_files",
        "translate the lines of files or of standard input",
        'echo "Peter helps a big dog." | padir translate --run_dir=runs/ar',
        note=(
            "The configuration is saved beside the output file. It is not saved if the output is standard output. "
            "With --shards=N the output is a folder of N files, each for an equal share of the input's bytes. "
            "Several hosts divide these shards among themselves. If they are interrupted, run the same command "
            "again: it writes only the missing shards."
        ),
        configuration=_translations,
        # Hosts that are numbered by hand work independently: they need no coordinator.
        distributed=lambda has_value: has_value("translate.shards") and not has_value("translate.num_hosts"),
    ),
    Command(
        "trace",
        "padir.inference.watching:trace",
        "translate one text and show every step: what was written, how sure it was, and what was written again",
        'padir trace "Der Hund schläft." --html=trace.html --run_dir=tatoeba_de_en_padir --beside=tatoeba_de_en_ar',
        note=(
            "The text comes first or last, or as --text. The page needs no server. Without --html and --output the "
            "steps are printed."
        ),
        positional="text",
    ),
    Command(
        "serve",
        "padir.serving.serve:serve",
        "answer requests for translations over HTTP, and show in a browser how a text is refined",
        "padir serve --run_dir=tatoeba_de_en_padir",
        note=(
            "Needs the extra serve: pip install '.[serve]' in a clone of padir. It listens on http://127.0.0.1:8000 "
            "unless told otherwise. SIGTERM or Ctrl-C ends it when what is in flight is answered. The configuration is "
            "not saved."
        ),
    ),
    Command(
        "distill",
        "padir.inference.distill:distill",
        "write a new data set whose targets are a teacher's translations",
        "padir distill --run_dir=runs/ar --data_dir=runs/data --output_dir=runs/distilled",
        configuration=_beside("{output_dir}/distill.gin"),
        distributed=lambda has_value: True,
    ),
    Command(
        "verifier",
        "padir.verifier.run:train_verifier",
        "train a verifier of an autoregressive model's prefixes on the first errors of its own translations",
        "padir verifier --run_dir=runs/ar --data_dir=runs/data --output_dir=runs/ar_verifier",
        note=(
            "padir translate and padir evaluate generate under it with --verifier=FOLDER. First errors are known for "
            "the embedded language pair; for other tasks see --valid_outputs and --features."
        ),
        configuration=_beside("{output_dir}/verifier.gin"),
    ),
    Command(
        "benchmark latency",
        "padir.benchmark.latency:latency",
        "measure the latency of requests for several systems",
        "padir benchmark latency --gin_file=bench/trained.gin --gin.AR_DIR=\"'runs/ar'\" "
        "--gin.PADIR_DIR=\"'runs/padir'\" --gin.DATA_DIR=\"'runs/data'\" --output=runs/latency.json",
        configuration=_beside("{output}.gin"),
        local=("output",),
    ),
    Command(
        "benchmark throughput",
        "padir.benchmark.throughput:throughput",
        "measure sentences per second at increasing batch sizes",
        "padir benchmark throughput --gin_file=bench/paper.gin --gin_file=bench/fixed_32.gin "
        "--output=runs/throughput.json",
        configuration=_beside("{output}.gin"),
        local=("output",),
    ),
    Command(
        "benchmark roofline",
        "padir.benchmark.roofline:roofline",
        "time the parts of a request and compare each with the limits of the machine",
        "padir benchmark roofline --gin_file=bench/paper.gin --output=runs/roofline.json",
        configuration=_beside("{output}.gin"),
    ),
    Command(
        "benchmark serve",
        "padir.benchmark.serve:serve_load",
        "send requests to running servers at rising rates and measure throughput and latency",
        "padir benchmark serve --inputs input.txt --output=runs/serve.json",
        note="A server is another process, such as padir serve. --gin.benchmark_serve.rates='(1, 2)' sets the rates.",
        configuration=_beside("{output}.gin"),
        local=("output",),
    ),
    Command(
        "benchmark compare",
        "padir.benchmark.compare:compare",
        "compare two results of benchmark latency, or of compile",
        "padir benchmark compare --before=runs/latency.json --after=runs/later.json",
    ),
    Command(
        "analyze attention",
        "padir.analysis.attention:attention",
        "compare attention at positions that stutter with attention at positions that do not",
        "padir analyze attention --run_dir=runs/padir --data_dir=runs/data --output_dir=runs/attention",
        configuration=_beside("{output_dir}/attention.gin"),
        local=("output_dir",),
    ),
    Command(
        "analyze topics",
        "padir.topics.analysis:analyze_topics",
        "compare embeddings and attention of words by topic, in a run or in the arrays of any model",
        "padir analyze topics --run_dir=runs/padir --inputs input.txt --topics=topics.json --output=runs/topics.json",
        note="In the place of a run, --embedding=embedding.npy and --attention=attention.npz take arrays of any model.",
        configuration=_beside("{output}.gin"),
        local=("output",),
    ),
    Command(
        "demo",
        "padir.demo.run:demo",
        "train a teacher, distil it into a student and compare both, on a built-in synthetic language pair",
        "padir demo --output_dir=demo",
        note=(
            "A --gin_file replaces runs/demo.gin, which sets all sizes. To change only some of them, start your own "
            "file with include 'runs/demo.gin', or use --gin.NAME=VALUE without a --gin_file."
        ),
        configuration=_beside("{report_dir}/demo.gin"),
        gin_files=("runs/demo.gin",),
        local=("output_dir", "report_dir"),
    ),
    Command(
        "dyck",
        "padir.dyck.run:dyck",
        "train a language model of brackets and a verifier of it, and compare samplers under the verifier",
        "padir dyck --output_dir=runs/dyck --quick",
        note=(
            "A --gin_file replaces runs/dyck.gin, which sets all sizes; runs/dyck_paper.gin has the thesis's. To "
            "change only some of them, start your own file with include 'runs/dyck.gin', or use --gin.NAME=VALUE "
            "without a --gin_file."
        ),
        configuration=_beside("{output_dir}/dyck.gin"),
        gin_files=("runs/dyck.gin",),
        local=("output_dir",),
    ),
    Command(
        "learn topics",
        "padir.topics.run:learn_topics",
        "train one-layer Transformers on documents of topics and hold them against closed-form optima",
        "padir learn topics --output_dir=runs/topics --quick",
        note=(
            "A --gin_file replaces runs/learn_topics.gin, which sets all sizes; runs/learn_topics_paper.gin has the "
            "thesis's learning rates. To change only some of them, start your own file with include "
            "'runs/learn_topics.gin', or use --gin.NAME=VALUE without a --gin_file."
        ),
        configuration=_beside("{output_dir}/topics.gin"),
        gin_files=("runs/learn_topics.gin",),
        local=("output_dir",),
    ),
    Command(
        "learn dyck",
        "padir.brackets.run:learn_dyck",
        "construct and train Transformers that know bounded Dyck languages, and check what their attention says",
        "padir learn dyck --output_dir=runs/learn_dyck --quick",
        note=(
            "A --gin_file replaces runs/learn_dyck.gin, which sets all sizes; runs/learn_dyck_paper.gin has the "
            "thesis's, and more parts. To change only some of them, start your own file with include "
            "'runs/learn_dyck.gin', or use --gin.NAME=VALUE without a --gin_file."
        ),
        configuration=_beside("{output_dir}/learn_dyck.gin"),
        gin_files=("runs/learn_dyck.gin",),
        local=("output_dir",),
    ),
    Command(
        "theory",
        "padir.theory.run:theory",
        "draw the figures of the paper's theory chapters and check their claims with exact calculations",
        "padir theory --output_dir=runs/theory --quick",
        configuration=_beside("{output_dir}/theory.gin"),
        local=("output_dir",),
    ),
    Command(
        "compile train",
        "padir.compilation.commands:compile_train",
        "compile the update of a training run for TPUs or GPUs that you do not have: does it fit, what would it cost",
        "padir compile train --topology=v3-32 --gin_file=runs/wmt14_de_en_padir.gin --gin.DATA_DIR=\"'runs/data'\" "
        "--gin.RUN_DIR=\"'runs/padir'\"",
        note=_ESTIMATED,
        compiles="train",
    ),
    Command(
        "compile translate",
        "padir.compilation.commands:compile_translate",
        "compile the decode of a batch for a host with TPUs or GPUs that you do not have",
        "padir compile translate --topology=v5litepod-4 --run_dir=runs/padir --batch_size=64",
        note=_ESTIMATED,
        compiles="translate",
    ),
    Command(
        "compile benchmark latency",
        "padir.compilation.commands:compile_latency",
        "compile the requests of a latency benchmark for a host with TPUs or GPUs that you do not have",
        "padir compile benchmark latency --topology=v5litepod-1 --gin_file=bench/paper.gin "
        "--gin_file=bench/fixed_32.gin --output=runs/latency_v5e.json",
        note=_ESTIMATED,
        compiles="benchmark latency",
    ),
    Command(
        "import",
        "padir.runs.convert:import_checkpoint",
        "make a run directory from a T5X checkpoint or a Hugging Face T5 folder",
        "padir import --source=t5-small --output_dir=runs/t5_small",
        configuration=_beside("{output_dir}/import.gin"),
    ),
    Command(
        "checkpoint",
        "padir.runs.describe:describe_checkpoint",
        "show what a checkpoint contains: step, parameters, hashes (--path=FOLDER, or just FOLDER)",
        "padir checkpoint --path=runs/ar",
        positional="path",
    ),
    Command(
        "average",
        "padir.runs.average:average",
        "make a run directory from the mean of a run's checkpoints, or from its moving average",
        "padir average --run_dir=runs/ar --output_dir=runs/ar_mean --last=3",
        configuration=_beside("{output_dir}/average.gin"),
    ),
    Command(
        "export",
        "padir.inference.export:export",
        "write a trained model as safetensors, which Hugging Face opens if it is autoregressive, or as a program",
        "padir export --run_dir=runs/ar --output_dir=runs/ar_safetensors",
        note=(
            "With --format=stablehlo, the decode is written as programs for cpu, cuda and tpu, with a loader that "
            "needs jax, numpy and sentencepiece, but not padir."
        ),
        configuration=_beside("{output_dir}/export.gin"),
    ),
)
COMMANDS: dict[str, Command] = {command.name: command for command in _ALL}
