"""The `padir` command (layer 9)."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import inspect
import os
import signal
import sys
import textwrap
import typing
from collections.abc import Callable
from typing import Any

from padir import __version__
from padir.errors import PREEMPTED_STATUS, PadirError, Preempted

SUMMARIES = {
    "prepare": "run a Seqio task once and write it as an ArrayRecord set",
    "vocabulary": "train a SentencePiece vocabulary on both sides of a task's training text",
    "train": "train a model, or go on with the newest checkpoint",
    "evaluate": "translate a split of a prepared set and score it",
    "tables": "lay results of evaluate beside the paper's tables, and say what has not been run",
    "translate": "translate lines of files or standard input",
    "distill": "make a teacher's translations the targets of a new set",
    "benchmark latency": "measure how long requests take, systems side by side",
    "benchmark throughput": "measure sentences a second at growing batch sizes",
    "benchmark roofline": "take a request apart and hold it against the machine's limits",
    "benchmark compare": "hold two results of benchmark latency against each other",
    "analyze attention": "compare attention where the output stutters with attention where it does not",
    "demo": "teacher, distillation, student and comparison on the embedded language pair",
    "theory": "draw the figures of the paper's theory and check its claims, exactly",
    "import": "make a run directory of a T5X checkpoint or a Hugging Face T5 folder",
    "checkpoint": "say what a checkpoint holds: step, parameters, hashes (--path, or the folder alone)",
    "average": "make a run directory of the mean of a run's checkpoints, or of its moving average",
    "export": "write a trained model as safetensors, for Hugging Face if it is autoregressive",
}

# For the checkout's root; tests/test_readme.py checks that commands, flags and gin files exist.
EXAMPLES = {
    "prepare": "padir prepare --gin_file=runs/synthetic_ar.gin --gin.DATA_DIR=\"'runs/data'\"",
    "vocabulary": "padir vocabulary --gin_file=runs/synthetic_ar.gin --output=runs/vocabulary.model",
    "train": "padir train --gin_file=runs/synthetic_ar.gin --gin.DATA_DIR=\"'runs/data'\" --gin.RUN_DIR=\"'runs/ar'\"",
    "evaluate": "padir evaluate --run_dir=runs/ar --data_dir=runs/data --output_dir=runs/results --name=ar",
    "tables": "padir tables --results runs/results --output_dir=runs/tables",
    "translate": 'echo "Peter helps a big dog." | padir translate --run_dir=runs/ar',
    "distill": "padir distill --run_dir=runs/ar --data_dir=runs/data --output_dir=runs/distilled",
    "benchmark latency": (
        "padir benchmark latency --gin_file=bench/trained.gin --gin.AR_DIR=\"'runs/ar'\" "
        "--gin.PADIR_DIR=\"'runs/padir'\" --gin.DATA_DIR=\"'runs/data'\" --output=runs/latency.json"
    ),
    "benchmark throughput": (
        "padir benchmark throughput --gin_file=bench/paper.gin --gin_file=bench/fixed_32.gin "
        "--output=runs/throughput.json"
    ),
    "benchmark roofline": "padir benchmark roofline --gin_file=bench/paper.gin --output=runs/roofline.json",
    "benchmark compare": "padir benchmark compare --before=runs/latency.json --after=runs/later.json",
    "analyze attention": (
        "padir analyze attention --run_dir=runs/padir --data_dir=runs/data --output_dir=runs/attention"
    ),
    "demo": "padir demo --output_dir=demo",
    "theory": "padir theory --output_dir=runs/theory --quick",
    "import": "padir import --source=t5-small --output_dir=runs/t5_small",
    "checkpoint": "padir checkpoint --path=runs/ar",
    "average": "padir average --run_dir=runs/ar --output_dir=runs/ar_mean --last=3",
    "export": "padir export --run_dir=runs/ar --output_dir=runs/ar_safetensors",
}

_DEFAULT_GIN = {"demo": ["runs/demo.gin"]}

# What several processes may run together, by command: when `has_value` says so of these parameters.
_DISTRIBUTED: dict[str, Callable[[Callable[[str], bool]], bool]] = {
    "train": lambda has_value: True,
    "distill": lambda has_value: True,
    # Hosts that were numbered by hand do not know of one another.
    "translate": lambda has_value: has_value("translate.shards") and not has_value("translate.num_hosts"),
}

# What a user must know beside the options.
_NOTES = {
    "vocabulary": (
        "One model serves several sets: prepare each with --gin.PrepareSettings.vocabulary=\"'FILE'\". "
        "Their manifests keep its hash."
    ),
    "translate": (
        "The configuration used is kept beside an output file; with standard output it is not. With --shards=N the "
        "output is a folder of N files of the same share of the input's bytes, which several hosts divide among "
        "themselves; started again, they do what is missing."
    ),
    "demo": (
        "A --gin_file takes the place of runs/demo.gin, which holds all the sizes: begin yours with "
        "include 'runs/demo.gin' to change some of them. --gin.NAME=VALUE alone goes on top of it."
    ),
}

# Parameters of these types are flags of their own; everything else is set through gin.
_FLAG_TYPES = {
    "str": str,
    "str | None": str,
    "str | os.PathLike": str,
    "int": int,
    "int | None": int,
    "float": float,
    "bool": bool,
    "Sequence[str]": str,
}


# First words that take a second one: "benchmark" of "benchmark latency".
_GROUPS = {name.split()[0] for name in SUMMARIES if " " in name}
# The flag of what may stand right behind a command.
_POSITIONAL = {"checkpoint": "path"}


def main(arguments: list[str] | None = None) -> int:
    """Runs one subcommand; returns the exit status.

    2: the user can mend it, and one line says how. 74: storage failed, and may not the next time. 75: told to stop,
    saved, to be started again. 141: nobody reads what it prints any more.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    arguments = joined(arguments)
    chosen = arguments[0] if arguments else None
    parser, commands = _parser(chosen)
    options, rest = parser.parse_known_args(arguments)
    bindings = [argument.removeprefix("--gin.") for argument in rest if argument.startswith("--gin.")]
    for argument in rest:
        if not argument.startswith("--gin."):
            commands[options.command].error(f"unknown argument {argument!r}; see padir {options.command} --help")
    try:
        _run(options, bindings)
    except PadirError as error:
        _tell(f"padir {options.command}: {error}")
        return error.status
    except Preempted as error:
        _tell(f"padir {options.command}: {error}; the same command goes on from there")
        return PREEMPTED_STATUS
    except KeyboardInterrupt:
        _tell(f"padir {options.command}: interrupted")
        return 130
    except BrokenPipeError:
        # The reader of our output has gone, as `| head` does: said by the status that SIGPIPE would have given, for it
        # may also have been that of what a long job says.
        for stream in (sys.stdout, sys.stderr):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return 128 + signal.SIGPIPE
    return 0


def _tell(text: str) -> None:
    """Prints to standard error; where nobody reads that any more, the status still says what happened."""
    with contextlib.suppress(BrokenPipeError):
        print(text, file=sys.stderr)


def joined(arguments: list[str]) -> list[str]:
    """The arguments as the parser takes them.

    A command of two words is made one, ["benchmark", "latency", …] → ["benchmark latency", …], and what may follow a
    command without its flag gets it, ["checkpoint", "runs/ar"] → ["checkpoint", "--path=runs/ar"].
    """
    if len(arguments) > 1 and not arguments[1].startswith("-"):
        if arguments[0] in _GROUPS:
            return [" ".join(arguments[:2]), *arguments[2:]]
        if arguments[0] in _POSITIONAL:
            return [arguments[0], f"--{_POSITIONAL[arguments[0]]}={arguments[1]}", *arguments[2:]]
    return arguments


def _run(options: argparse.Namespace, bindings: list[str]) -> None:
    from padir import config, distributed, host_memory

    command = options.command
    if command == "train":
        host_memory.keep_freed_before_jax()
    name = configurable(command)
    if options.compilation_cache:
        _keep_compiled(options.compilation_cache)
    flags = {flag: getattr(options, flag) for flag in _flags(command)}
    given = [f"{name}.{flag} = {value!r}" for flag, value in flags.items() if value is not None]
    config.parse(options.gin_file or _DEFAULT_GIN.get(command, []), given + bindings, options.gin_search_path)
    config.check_reached(name, bindings)
    if command in _DISTRIBUTED and _DISTRIBUTED[command](config.has_value):
        distributed.initialize(preemption=command == "train")
    config.run(name)


def _keep_compiled(folder: str) -> None:
    import jax

    jax.config.update("jax_compilation_cache_dir", folder)
    # However quickly they were compiled: a request of a small model is many small programs.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def configurable(command: str) -> str:
    """What gin calls a command: 'benchmark_latency'."""
    return command.replace(" ", "_")


def _flags(command: str) -> dict[str, inspect.Parameter]:
    """Parameters of a command that are plain text, numbers or yes and no."""
    # Imported late, here and above: `padir --help` need not wait for JAX.
    from padir import commands

    parameters = inspect.signature(commands.COMMANDS[configurable(command)]).parameters
    return {name: parameter for name, parameter in parameters.items() if str(parameter.annotation) in _FLAG_TYPES}


def _parser(chosen: str | None) -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """The parser and its subcommands'; only the chosen subcommand gets its own flags."""
    parser = argparse.ArgumentParser(
        prog="padir", description="Parallel decoding by iterative refinement.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"padir {__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands = {}
    for name, summary in SUMMARIES.items():
        command = subparsers.add_parser(
            name,
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}.",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        command.add_argument(
            "--gin_file", action="append", default=[], metavar="FILE", help="gin file; may be repeated"
        )
        command.add_argument(
            "--gin_search_path", action="append", default=[], metavar="DIR", help="where to look for gin files, too"
        )
        command.add_argument(
            "--compilation_cache",
            metavar="DIR",
            help="keep compiled programs here, so that the next process need not compile them",
        )
        # Only for the help text: any --gin.… is taken from what argparse leaves over.
        command.add_argument("--gin.NAME=VALUE", dest="_", nargs=0, action=_Never, help="bind NAME in gin's syntax")
        if name == chosen:
            _add_flags(command, name)
            command.epilog = _epilog(name)
        commands[name] = command
    return parser, commands


class _Never(argparse.Action):
    """An option that stands in the help text and is never matched."""

    def __call__(self, *arguments) -> None:
        raise AssertionError("matched a placeholder")


def _add_flags(parser: argparse.ArgumentParser, command: str) -> None:
    group = parser.add_argument_group(
        "short for --gin.", f"each sets a parameter of {configurable(command)}; gin sets the others"
    )
    for name, parameter in _flags(command).items():
        needed = parameter.default is parameter.empty
        group.add_argument(
            f"--{name}",
            **_argument(str(parameter.annotation)),
            help="needed, here or in a gin file" if needed else f"default {parameter.default!r}",
        )


def _argument(annotation: str) -> dict[str, Any]:
    """How argparse reads a parameter of this type; bool makes --name and --no-name of it."""
    if annotation == "bool":
        return {"action": argparse.BooleanOptionalAction}
    several = annotation == "Sequence[str]"
    return {
        "type": _FLAG_TYPES[annotation],
        "nargs": "+" if several else None,
        "metavar": "STR" if several else annotation.split()[0].upper(),
    }


def _epilog(command: str) -> str:
    """What gin sets, notes, and the example, which is copied whole and so never wrapped."""
    paragraphs = [_filled(f"{name}: {fields}") for name, fields in _gin_fields(command).items()]
    if paragraphs:
        paragraphs = [
            "fields of @NAME() where a gin file names it; set with --gin.NAME.FIELD=VALUE:",
            *paragraphs,
            "",
        ]
    if command in _NOTES:
        paragraphs += [textwrap.fill(_NOTES[command], 100), ""]
    return "\n".join([*paragraphs, "example:", f"  {EXAMPLES[command]}"])


def _gin_fields(command: str) -> dict[str, str]:
    """Fields, with their defaults, of the dataclasses that a command takes: {'Cadence': 'log=100, …'}."""
    from padir import commands

    found = {}
    for hint in typing.get_type_hints(commands.COMMANDS[configurable(command)]).values():
        for option in typing.get_args(hint) or (hint,):
            if option in commands.DATACLASSES:
                found[option.__name__] = ", ".join(
                    field.name if field.default is dataclasses.MISSING else f"{field.name}={field.default!r}"
                    for field in dataclasses.fields(option)
                )
    return found


def _filled(text: str) -> str:
    return textwrap.fill(text, 100, initial_indent="  ", subsequent_indent="    ")


if __name__ == "__main__":
    sys.exit(main())
