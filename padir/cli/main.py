"""The `padir` command: parses the command line, runs one subcommand and returns the exit status."""

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
from padir.cli.suggestions import did_you_mean
from padir.compilation import deviceless
from padir.errors import PREEMPTED_STATUS, PadirError, Preempted

# Parameters of these types become flags; everything else is set through gin.
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


# First words of commands of several words, such as "benchmark" in "benchmark latency".
_GROUPS = {name.split()[0] for name in COMMANDS if " " in name}


def main(arguments: list[str] | None = None) -> int:
    """Runs one subcommand.

    Args:
      arguments: the command line without the program's name; that of this process if None.

    Returns:
      The exit status. 0: success. 2: a mistake that the user can correct; one line says how. 74: storage failed, and
      another try may succeed. 75: the job was told to stop and has saved its state; start it again to resume.
      130: interrupted from the keyboard. 141: the reader of the output has closed the pipe.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    arguments = joined(arguments)
    chosen = arguments[0] if arguments else None
    if chosen in COMMANDS and COMMANDS[chosen].compiles:
        deviceless.set_environment()
    parser, commands = _parser(chosen)
    # Not left to argparse, which takes one with a space in it for a further value of the flag before it.
    bindings = [argument.removeprefix("--gin.") for argument in arguments if argument.startswith("--gin.")]
    options, rest = parser.parse_known_args([argument for argument in arguments if not argument.startswith("--gin.")])
    for argument in rest:
        flags = ["--gin_file", *(f"--{flag}" for flag in flags_of(COMMANDS[options.command]))]
        meant = did_you_mean(argument.partition("=")[0], flags)
        commands[options.command].error(f"unknown argument {argument!r}{meant}; see padir {options.command} --help")
    try:
        _run(options, bindings)
    except PadirError as error:
        _tell(f"padir {options.command}: {error}")
        return error.status
    except Preempted as error:
        _tell(f"padir {options.command}: {error}; run the same command again to resume")
        return PREEMPTED_STATUS
    except KeyboardInterrupt:
        _tell(f"padir {options.command}: interrupted")
        return 130
    except BrokenPipeError:
        # The reader has closed the pipe, as in `| head`. The status is the one that SIGPIPE would have given.
        # Redirecting both streams keeps Python from failing again when it flushes them at exit.
        for stream in (sys.stdout, sys.stderr):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return 128 + signal.SIGPIPE
    return 0


def _tell(text: str) -> None:
    """Prints to standard error. A closed pipe is ignored, so that the exit status still says what happened."""
    with contextlib.suppress(BrokenPipeError):
        print(text, file=sys.stderr)


def joined(arguments: list[str]) -> list[str]:
    """Rewrites the arguments into the form that the parser expects.

    The words of a command become one argument: ["benchmark", "latency", …] → ["benchmark latency", …].
    A positional argument gets its flag: ["checkpoint", "runs/ar"] → ["checkpoint", "--path=runs/ar"]. It comes first,
    or last after an argument that cannot take it as its value.
    """
    if len(arguments) > 1 and not arguments[1].startswith("-"):
        if arguments[0] in _GROUPS:
            words = next((n for n in (3, 2) if " ".join(arguments[:n]) in COMMANDS), 2)
            return [" ".join(arguments[:words]), *arguments[words:]]
        command = COMMANDS.get(arguments[0])
        if command is not None and command.positional is not None:
            return [arguments[0], f"--{command.positional}={arguments[1]}", *arguments[2:]]
    command = COMMANDS.get(arguments[0]) if len(arguments) > 2 else None
    if command is not None and command.positional is not None and not arguments[-1].startswith("-"):
        before = arguments[-2]
        if "=" in before or not before.startswith("-"):
            return [*arguments[:-1], f"--{command.positional}={arguments[-1]}"]
    return arguments


def _run(options: argparse.Namespace, bindings: list[str]) -> None:
    # Imported here, and in functions below, so that `padir --help` need not wait for JAX.
    from padir.cli import config
    from padir.runtime import distributed, host_memory

    command = COMMANDS[options.command]
    if command.trains:
        host_memory.keep_freed_before_jax()
    name = command.configurable
    if options.compilation_cache:
        _keep_compiled(options.compilation_cache)
    flags = {flag: getattr(options, flag) for flag in flags_of(command)}
    own = {}
    if command.compiles:
        deviceless.check()
        own = {flag: flags.pop(flag) for flag in own_flags_of(command)}
        own = {flag: value for flag, value in own.items() if value is not None}
        if "topology" not in own:
            raise PadirError("no value for topology; give --topology=NAME, such as v3-32 or v5litepod-16")
    given = [f"{name}.{flag} = {value!r}" for flag, value in flags.items() if value is not None]
    config.parse(options.gin_file or command.gin_files, given + bindings, options.gin_search_path)
    if command.compiles:
        config.run(name, lambda arguments: command.function()(arguments, **own))
        return
    config.check_reached(name, bindings)
    if command.distributed(config.has_value):
        distributed.initialize(preemption=command.trains)
    config.run(name)


def _keep_compiled(folder: str) -> None:
    import jax

    from padir.files.paths import as_path, is_bucket

    # JAX's cache reads and writes buckets by itself, through what `as_path` has set up.
    place = as_path(folder)
    if is_bucket(place):
        # JAX would only warn of a bucket that it may not use.
        place.exists()
        # XLA's own caches beside it, which GPUs have, need a local folder.
        jax.config.update("jax_persistent_cache_enable_xla_caches", "none")
    jax.config.update("jax_compilation_cache_dir", str(place))
    # By default JAX keeps only slow compilations, but a small model's request needs many quick ones.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def flags_of(command: Command) -> dict[str, inspect.Parameter]:
    """A command's flags by name: its parameters that are strings, lists of strings, numbers or booleans.

    Those of a command that compiles another are the other's, and its own.
    """
    others = flags_of(COMMANDS[command.compiles]) if command.compiles else {}
    return others | own_flags_of(command)


def own_flags_of(command: Command) -> dict[str, inspect.Parameter]:
    """The flags of a command that are parameters of its own function, by name."""
    parameters = inspect.signature(command.function()).parameters
    return {name: parameter for name, parameter in parameters.items() if str(parameter.annotation) in _FLAG_TYPES}


def _parser(chosen: str | None) -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """The parser, and the parser of each subcommand. Only the chosen subcommand gets its own flags."""
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
            "--gin_search_path",
            action="append",
            default=[],
            metavar="DIR",
            help="another folder to search for gin files; may be repeated",
        )
        command.add_argument(
            "--compilation_cache",
            metavar="DIR",
            help="keep compiled programs in this folder or gs:// address; the next process need not compile them",
        )
        # Only for the help text: `main` takes every --gin.… from the arguments before argparse sees them.
        command.add_argument(
            "--gin.NAME=VALUE", dest="_", nargs=0, action=_Never, help="set NAME to a value in gin's syntax"
        )
        if name == chosen:
            _add_flags(command, record)
            command.epilog = _epilog(record)
        commands[name] = command
    return parser, commands


class _Never(argparse.Action):
    """The action of an option that appears in the help text and never matches an argument."""

    def __call__(self, *arguments) -> None:
        raise AssertionError("matched a placeholder")


def _add_flags(parser: argparse.ArgumentParser, command: Command) -> None:
    group = parser.add_argument_group(
        "flags of this command",
        f"--FLAG=VALUE is short for --gin.{command.configurable}.FLAG=VALUE; all other parameters are set through gin",
    )
    for name, parameter in flags_of(command).items():
        needed = parameter.default is parameter.empty
        group.add_argument(
            f"--{name}",
            **_argument(str(parameter.annotation)),
            help="required, here or in a gin file" if needed else f"default {parameter.default!r}",
        )


def _argument(annotation: str) -> dict[str, Any]:
    """Options of argparse for a parameter of this type; a bool becomes --name and --no-name."""
    if annotation == "bool":
        return {"action": argparse.BooleanOptionalAction}
    several = annotation == "Sequence[str]"
    return {
        "type": _FLAG_TYPES[annotation],
        "nargs": "+" if several else None,
        "metavar": "STR" if several else annotation.split()[0].upper(),
    }


def _epilog(command: Command) -> str:
    """The end of the help text: fields that gin sets, the note, and the example.

    The example is not wrapped, so that it can be copied as one line.
    """
    paragraphs = [_filled(f"{name}: {fields}") for name, fields in _gin_fields(command).items()]
    if paragraphs:
        paragraphs = [
            "dataclasses that this command takes, with their fields; set one with --gin.NAME.FIELD=VALUE",
            "(this has an effect only where a gin file or another binding uses @NAME()):",
            *paragraphs,
            "",
        ]
    if command.note:
        paragraphs += [textwrap.fill(command.note, 100), ""]
    return "\n".join([*paragraphs, "example:", f"  {command.example}"])


def _gin_fields(command: Command) -> dict[str, str]:
    """Fields and defaults of each dataclass that a command takes: {'Cadence': 'log=100, …', …}."""
    return {
        option.__name__: ", ".join(
            field.name if field.default is dataclasses.MISSING else f"{field.name}={field.default!r}"
            for field in dataclasses.fields(option)
        )
        for option in dataclasses_of(command)
    }


def dataclasses_of(command: Command) -> list[type]:
    """The dataclasses among the types of a command's parameters that gin can construct, without duplicates."""
    from padir.cli.configurables import DATACLASSES

    hints = typing.get_type_hints(COMMANDS[command.compiles or command.name].function()).values()
    options = [option for hint in hints for option in typing.get_args(hint) or (hint,)]
    return list(dict.fromkeys(option for option in options if option in DATACLASSES))


def _filled(text: str) -> str:
    return textwrap.fill(text, 100, initial_indent="  ", subsequent_indent="    ")
