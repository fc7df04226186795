"""The `padir` command."""

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
from typing import Any

from padir import __version__
from padir.cli.commands import COMMANDS, Command
from padir.errors import PREEMPTED_STATUS, PadirError, Preempted

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
_GROUPS = {name.split()[0] for name in COMMANDS if " " in name}


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
        command = COMMANDS.get(arguments[0])
        if command is not None and command.positional is not None:
            return [arguments[0], f"--{command.positional}={arguments[1]}", *arguments[2:]]
    return arguments


def _run(options: argparse.Namespace, bindings: list[str]) -> None:
    # Imported late, here and below: `padir --help` need not wait for JAX.
    from padir.cli import config
    from padir.runtime import distributed, host_memory

    command = COMMANDS[options.command]
    if command.trains:
        host_memory.keep_freed_before_jax()
    name = command.configurable
    if options.compilation_cache:
        _keep_compiled(options.compilation_cache)
    flags = {flag: getattr(options, flag) for flag in flags_of(command)}
    given = [f"{name}.{flag} = {value!r}" for flag, value in flags.items() if value is not None]
    config.parse(options.gin_file or command.gin_files, given + bindings, options.gin_search_path)
    config.check_reached(name, bindings)
    if command.distributed(config.has_value):
        distributed.initialize(preemption=command.trains)
    config.run(name)


def _keep_compiled(folder: str) -> None:
    import jax

    jax.config.update("jax_compilation_cache_dir", folder)
    # However quickly they were compiled: a request of a small model is many small programs.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def flags_of(command: Command) -> dict[str, inspect.Parameter]:
    """Parameters of a command that are plain text, numbers or yes and no: these are flags, by name."""
    parameters = inspect.signature(command.function()).parameters
    return {name: parameter for name, parameter in parameters.items() if str(parameter.annotation) in _FLAG_TYPES}


def _parser(chosen: str | None) -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """The parser and its subcommands'; only the chosen subcommand gets its own flags."""
    parser = argparse.ArgumentParser(
        prog="padir", description="Parallel decoding by iterative refinement.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"padir {__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands = {}
    for name, record in COMMANDS.items():
        command = subparsers.add_parser(
            name,
            help=record.summary,
            description=f"{record.summary[0].upper()}{record.summary[1:]}.",
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
            _add_flags(command, record)
            command.epilog = _epilog(record)
        commands[name] = command
    return parser, commands


class _Never(argparse.Action):
    """An option that stands in the help text and is never matched."""

    def __call__(self, *arguments) -> None:
        raise AssertionError("matched a placeholder")


def _add_flags(parser: argparse.ArgumentParser, command: Command) -> None:
    group = parser.add_argument_group(
        "short for --gin.", f"each sets a parameter of {command.configurable}; gin sets the others"
    )
    for name, parameter in flags_of(command).items():
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


def _epilog(command: Command) -> str:
    """What gin sets, the note, and the example, which is copied whole and so never wrapped."""
    paragraphs = [_filled(f"{name}: {fields}") for name, fields in _gin_fields(command).items()]
    if paragraphs:
        paragraphs = [
            "fields of @NAME() where a gin file names it; set with --gin.NAME.FIELD=VALUE:",
            *paragraphs,
            "",
        ]
    if command.note:
        paragraphs += [textwrap.fill(command.note, 100), ""]
    return "\n".join([*paragraphs, "example:", f"  {command.example}"])


def _gin_fields(command: Command) -> dict[str, str]:
    """Fields, with their defaults, of the dataclasses that a command takes: {'Cadence': 'log=100, …'}."""
    return {
        option.__name__: ", ".join(
            field.name if field.default is dataclasses.MISSING else f"{field.name}={field.default!r}"
            for field in dataclasses.fields(option)
        )
        for option in dataclasses_of(command)
    }


def dataclasses_of(command: Command) -> list[type]:
    """The dataclasses that a command takes and gin can make, each once."""
    from padir.cli.configurables import DATACLASSES

    hints = typing.get_type_hints(command.function()).values()
    options = [option for hint in hints for option in typing.get_args(hint) or (hint,)]
    return list(dict.fromkeys(option for option in options if option in DATACLASSES))


def _filled(text: str) -> str:
    return textwrap.fill(text, 100, initial_indent="  ", subsequent_indent="    ")

