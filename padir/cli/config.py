"""The only place that imports gin: names for everything a gin file may bind.

Everything below `cli/` is plain dataclasses and functions; here they get the names under which gin files, and
`--gin.NAME=VALUE` on the command line, configure them.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util  # noqa: F401  gin uses it without importing it
import inspect
import os
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import gin
from padir.cli import gin_files, suggestions, user_classes
from padir.cli.commands import COMMANDS, Command
from padir.cli.configurables import DATACLASSES
from padir.cli.gin_statements import macros_in, reached_by, statements_of
from padir.errors import PadirError, Preempted, kind_of
from padir.files.atomic import make_folder, write_text
from padir.files.paths import as_path, is_bucket, local_path
from padir.runtime.distributed import is_first

# By the names that gin files bind to.
# A command that compiles another's programs is configured as that one.
_CONFIGURED = [command for command in COMMANDS.values() if command.compiles is None]
_FUNCTIONS = {command.configurable: command.function() for command in _CONFIGURED}
_ANNOTATED: dict[str, Any] = {cls.__name__: cls for cls in DATACLASSES} | _FUNCTIONS

# What is called with a command's arguments in place of its function, if anything.
_in_place: ContextVar[Callable[[dict[str, Any]], Any] | None] = ContextVar("padir_in_place", default=None)


def _keeping_configuration(command: Command) -> Callable[..., Any]:
    """A command's function, which also writes its operative configuration: as it starts, and as it ends all it used."""
    name, function = command.configurable, command.function()

    @functools.wraps(function)
    def _call(**given: Any) -> Any:
        if _in_place.get() is not None:
            return _in_place.get()(given)
        for option in command.local:
            if option in given:
                local_path(given[option])
        parameters = inspect.signature(function).parameters.values()
        missing = [p.name for p in parameters if p.default is p.empty and p.name not in given]
        if missing:
            flags = ", ".join(f"--gin.{name}.{parameter}=…" for parameter in missing)
            raise PadirError(f"no value for {', '.join(missing)}; name a --gin_file that sets it, or give {flags}")
        path = command.configuration({p.name: p.default for p in parameters} | given)
        with _configuration_of_a_start(path):
            result = function(**given)
        save_operative(path)
        return result

    return _call


@contextlib.contextmanager
def _configuration_of_a_start(path: str | None) -> Iterator[None]:
    """Writes the configuration as a command starts. It is removed if the command is refused before it writes more.

    A killed run must have its configuration, too; a refused one must not replace another's.
    """
    if path is None or as_path(path).exists():
        yield
        return
    folder, name = as_path(path).parent, as_path(path).name
    is_new, before = not folder.exists(), _names(folder)
    save_operative(path)
    try:
        yield
    except PadirError:
        if is_first() and _names(folder) - before == {name}:
            (folder / name).unlink()
            if is_new:
                folder.rmdir()
        raise


def _names(folder: Path) -> set[str]:
    """Names of what is in a local folder, if there is one."""
    return set() if is_bucket(folder) or not folder.exists() else {path.name for path in folder.iterdir()}


def save_operative(path: str | None) -> None:
    """Writes the configuration used so far as a gin file, in the first process; None writes nothing."""
    if path is not None and is_first():
        make_folder(as_path(path).parent)
        write_text(path, user_classes.with_modules(gin.operative_config_str(), _user_modules))


_CONFIGURABLES = {
    **{cls.__name__: gin.external_configurable(cls, cls.__name__, module="padir") for cls in DATACLASSES},
    **{
        command.configurable: gin.external_configurable(
            _keeping_configuration(command), command.configurable, module="padir"
        )
        for command in _CONFIGURED
    },
}


# Where each class and function that is a user's own comes from, by name.
_user_modules: dict[str, str] = {}

# gin's own last resort reads a/b.gin from an importable package `a`, and fails where `a` is a folder without
# __init__.py: a user's runs/, say.
gin.config._FILE_READERS[:] = [(open, os.path.isfile), (gin_files.opened, gin_files.found)]


def parse(names: Sequence[str], bindings: Sequence[str], search_paths: Sequence[str] = ()) -> None:
    """Reads gin files, then bindings on top of them.

    A name with a module that padir does not have, `@my_policies.RemaskRare()`, is taken from that module of the user's;
    see `user_classes`.

    Args:
      names: gin files: gs:// addresses, or found in the working directory, `search_paths`, or the files that come with
        padir.
      bindings: 'NAME=VALUE', VALUE in gin's syntax (strings are quoted).
      search_paths: further local folders to look in.

    Raises:
      PadirError: a file, name or value that gin cannot take (names it, and where it stands), or a value of another
        type than its parameter has.
    """
    gin_files.search_folders[:] = [*search_paths, str(gin_files.gin_folder())]
    beside = [os.path.dirname(os.path.abspath(name)) for name in names if os.path.isfile(name)]
    for folder in search_paths:
        local_path(folder)
    while True:
        gin.clear_config(clear_constants=False)
        try:
            _parse_once(names, bindings)
            break
        except (ValueError, SyntaxError, OSError, TypeError, NameError) as error:
            # gin names one unknown class at a time; each is registered once, so this ends.
            if _register_users_own(str(error), [os.getcwd(), *search_paths, *beside]):
                continue
            if isinstance(error, PadirError):
                # gin adds lines that say where an include stands.
                raise kind_of(_original(error))(_one_line(error)) from error
            searched = f"Searched the working directory, {', '.join(gin_files.search_folders)}"
            reason = _one_line(error).replace("Searched config paths: ['']", searched)
            raise PadirError(f"gin: {reason.rstrip('.')}{_instead(reason)}") from error
    _check_types()


def _parse_once(names: Sequence[str], bindings: Sequence[str]) -> None:
    gin.parse_config_files_and_bindings(list(names), None, finalize_config=False)
    statements = _statements()
    macros = {name for name in statements if name.isidentifier()}.union(*map(macros_in, statements.values()))
    for binding in bindings:
        name = binding.partition("=")[0].strip()
        if name.isidentifier() and name not in macros:
            there = ", ".join(sorted(macros)) or "none"
            raise PadirError(f"--gin.{binding}: no gin file uses a macro {name}; macros there: {there}")
        _bind(binding)


def _register_users_own(message: str, folders: Sequence[str]) -> bool:
    """Registers the class or function that gin's error says is unknown; False if no module of a user's has it.

    Raises:
      PadirError: the module cannot be used, or its class has the name of something that is configured already.
    """
    unknown = user_classes.unknown_name(message)
    if unknown is None or unknown[0].split(".")[0] == "padir":
        return False
    module, name = unknown
    found = user_classes.find(module, name, folders)
    if found is None:
        return False
    if name in _ANNOTATED:
        raise PadirError(f"@{module}.{name}: there is a {name} already; choose another name")
    gin.external_configurable(found, name, module=module)
    _ANNOTATED[name] = found
    _user_modules[name] = module
    return True


def _bind(binding: str) -> None:
    """Reads one NAME=VALUE; an error names it, since gin would say no more than 'line 1'."""
    try:
        gin.parse_config(binding)
    except (ValueError, SyntaxError, TypeError, NameError) as error:
        reason = _one_line(error)
        if "Failed to parse token" in reason or isinstance(error, SyntaxError):
            reason = "the value is not in gin's syntax; text needs quotes that the shell leaves alone: NAME=\"'text'\""
        raise PadirError(f"--gin.{binding}: {reason}{_instead(reason)}") from error


def _instead(reason: str) -> str:
    """What may be named in place of the unknown name in gin's `reason`: policies for an @Name, or what is similar."""
    found = re.search(r"No configurable matching reference .*\b(\w+)\.(\w+) *=", reason)
    hints = typing.get_type_hints(_ANNOTATED.get(found.group(1), object)) if found else {}
    choices = _choices(hints.get(found.group(2))) if found else []
    return f"; choose {' or '.join(choices)}" if choices else suggestions.for_gin(reason, _ANNOTATED)


def _said(error: BaseException) -> str:
    """The message, which says all that the user needs, without gin's words about where the call came from."""
    return str(error).split("\n  In call to configurable")[0]


def _original(error: BaseException) -> BaseException:
    """What gin raised again, as a kind of its own under the same name, which keeps no error number."""
    while error.__suppress_context__ and type(error).__bases__ == (type(error.__context__),):
        error = error.__context__
    return error


def run(command: str, instead: Callable[[dict[str, Any]], Any] | None = None) -> Any:
    """Runs a subcommand with what has been parsed.

    Args:
      command: its name in gin files.
      instead: called with the arguments that were given to the command, by name, in place of its function.

    Raises:
      PadirError: a required value was not given.
    """
    missing = required(command)
    if missing:
        options = " ".join(f"--gin.{name}=…" for name in missing)
        raise PadirError(f"give a value for {', '.join(missing)} ({options})")
    token = _in_place.set(instead)
    try:
        return _CONFIGURABLES[command]()
    except BrokenPipeError:
        raise
    except Preempted as stop:
        raise Preempted(_said(stop)) from stop
    except (PadirError, OSError) as error:
        raise kind_of(_original(error))(_said(error)) from error
    except TypeError as error:
        # gin's message for a dataclass with a field that nobody bound, made into ours.
        found = re.search(r"arguments: \[(.*?)\].*?configurable '(\w+)'", str(error), re.DOTALL)
        if not found:
            raise
        names = [f"{found.group(2)}.{name.strip(' ')}".replace("'", "") for name in found.group(1).split(",")]
        raise PadirError(f"no value for {', '.join(names)}; bind it in a gin file or with --gin.NAME=VALUE") from error
    finally:
        _in_place.reset(token)


def has_value(name: str) -> bool:
    """Whether 'command.parameter' is bound, and not to None."""
    return _statements().get(name, "None") != "None"


def required(command: str) -> list[str]:
    """Macros and parameters that `command` reads and that nobody bound, or bound to %gin.REQUIRED only."""
    statements = _statements()
    return sorted(
        name for name in reached_by(command, statements) if statements.get(name, "%gin.REQUIRED") == "%gin.REQUIRED"
    )


def check_reached(command: str, bindings: Sequence[str]) -> None:
    """Refuses a binding of the command line that would change nothing. (Gin files are shared: theirs may be unused.)

    Raises:
      PadirError: names the first that `command` does not come to read.
    """
    reached = reached_by(command, _statements())
    for binding in bindings:
        name = _without_module(binding.partition("=")[0].strip())
        if "." in name and name not in reached:
            made = name.rpartition(".")[0]
            raise PadirError(
                f"--gin.{binding}: changes nothing, since nothing that {command} reads here names @{made}(); "
                f"bind it to a parameter as well, or name a --gin_file that does"
            )


def _without_module(name: str) -> str:
    """'a/my_policies.RemaskRare.share' → 'a/RemaskRare.share', as gin prints it."""
    *scopes, dotted = name.split("/")
    parts = dotted.split(".")
    return "/".join([*scopes, ".".join(parts[-2:])])


def _statements() -> dict[str, str]:
    return statements_of(gin.config_str(max_line_length=10_000))


def _one_line(error: Exception) -> str:
    return " ".join(part.strip() for part in str(error).splitlines() if part.strip())


def _check_types() -> None:
    """Refuses bound values that the annotations of their parameters do not allow.

    Raises:
      PadirError: names the first of them, its value and the type it should have.
    """
    for name, text in _statements().items():
        configurable, _, parameter = name.rpartition(".")
        hints = typing.get_type_hints(_ANNOTATED.get(re.split("[/.]", configurable)[-1], object))
        bound = gin.query_parameter(name) if parameter in hints else gin.REQUIRED
        if _fits(bound, hints.get(parameter, Any)):
            continue
        value = _without_macros(bound)
        given = f"{text} ({value!r})" if text.startswith("%") else text
        raise PadirError(f"{name} = {given}: {_expected(value, hints[parameter])}")


def _expected(value: Any, hint: Any) -> str:
    """Says what a parameter takes, given what it does not."""
    if isinstance(value, gin.config.ConfigurableReference):
        name = value.selector.rpartition(".")[2]
        if name in _user_modules and value.evaluate:
            kinds = [option.__name__ for option in typing.get_args(hint) or (hint,) if isinstance(option, type)]
            return f"{_user_modules[name]}.{name} is not derived from {' or '.join(kinds)}"
        turned = gin.config.ConfigurableReference(value.scoped_selector, not value.evaluate)
        if _fits(turned, hint):
            return f"write {turned!r}, {'with' if turned.evaluate else 'without'} the parentheses"
        found = ""
    else:
        found = f", found {type(value).__name__}"
    shown = hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint)
    return "expected " + (" or ".join(_choices(hint)) or re.sub(r"(?:\w+\.)+(\w+)", r"\1", shown)) + found


def _choices(hint: Any) -> list[str]:
    """What gin can make for a parameter annotated `hint`: ['@StopNever()', …]"""
    options = typing.get_args(hint) or (hint,)
    return [f"@{cls.__name__}()" for cls in DATACLASSES if any(option in cls.__mro__ for option in options)]


def _without_macros(value: Any) -> Any:
    """What a bound value comes to: of %NAME what is bound to NAME, or gin.REQUIRED if nothing is."""
    followed = set()
    while isinstance(value, gin.config.ConfigurableReference) and value.selector in ("gin.macro", "gin.constant"):
        if value.selector == "gin.constant":
            return value.scoped_configurable_fn()
        name = f"{value.scoped_selector}.value"
        if name in followed:
            raise PadirError(f"gin: macro {value!r} stands for itself")
        followed.add(name)
        try:
            value = gin.query_parameter(name)
        except ValueError:
            return gin.REQUIRED
    return value


# What else than its own instances a type stands for.
_ALSO = {float: (int, float), os.PathLike: str}


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value as gin holds it may be given where `hint` is annotated; in doubt, it may."""
    value = _without_macros(value)
    if value is gin.REQUIRED or hint is Any:
        return True
    kind, arguments = typing.get_origin(hint) or hint, typing.get_args(hint)
    if kind in (typing.Union, types.UnionType):
        return any(_fits(value, option) for option in arguments)
    if kind is typing.Literal:
        return value in arguments
    if not isinstance(kind, type):
        return True
    if isinstance(value, gin.config.ConfigurableReference):
        return _reference_fits(value, kind)
    if issubclass(kind, Sequence) and kind is not str:
        if not isinstance(value, tuple | list):
            return False
        if kind is tuple and arguments and Ellipsis not in arguments:
            return len(value) == len(arguments) and all(map(_fits, value, arguments))
        return all(_fits(item, next(iter(arguments), Any)) for item in value)
    if issubclass(kind, Mapping):
        return isinstance(value, Mapping)
    if isinstance(value, bool):
        return kind is bool
    # Nothing that gin spells without @ is a policy, and isinstance refuses some protocols.
    return not getattr(kind, "_is_protocol", False) and isinstance(value, _ALSO.get(kind, kind))


def _reference_fits(reference: Any, kind: type) -> bool:
    """Whether @Name (a class or function) or @Name() (what it makes) may be given for `kind`."""
    made = reference.configurable.wrapped
    if not reference.evaluate:
        return kind is Callable
    if not isinstance(made, type):
        return True  # What a function returns is not known before it is called.
    if kind is Callable:
        return any("__call__" in vars(base) for base in made.__mro__)
    return kind in made.__mro__  # Not issubclass, which refuses protocols that have attributes.
