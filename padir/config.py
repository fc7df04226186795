"""The only place that imports gin: names for everything a gin file may bind (layer 9).

Layers 0 to 8 are plain dataclasses and functions; here they get the names under which gin files, and
`--gin.NAME=VALUE` on the command line, configure them.
"""

from __future__ import annotations

import functools
import importlib.util  # noqa: F401  gin uses it without importing it
import inspect
import logging
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gin
from padir import benchmark, demo, distill, evaluate, models, network, optimizers, train, translate
from padir.corruption import CorruptionConfig
from padir.data.manifest import PrepareSettings, TaskConfig
from padir.data.prepare_process import prepare_in_process
from padir.decoding import autoregressive, initial, ranking, refinement, remasking, stopping
from padir.errors import PadirError
from padir.run_directory import write_text

# What each subcommand runs.
COMMANDS: dict[str, Callable[..., Any]] = {
    "prepare": prepare_in_process,
    "train": train.train,
    "evaluate": evaluate.evaluate,
    "translate": translate.translate_files,
    "distill": distill.distill,
    "benchmark": benchmark.benchmark,
    "demo": demo.demo,
}

_DATACLASSES = (
    network.NetworkConfig,
    models.LossConfig,
    models.PadirModel,
    models.AutoregressiveModel,
    CorruptionConfig,
    optimizers.OptimizerConfig,
    train.Cadence,
    TaskConfig,
    PrepareSettings,
    refinement.Refinement,
    autoregressive.Autoregressive,
    initial.StartWithMask,
    initial.StartWithRandom,
    remasking.RemaskNothing,
    remasking.RemaskStutter,
    stopping.StopWhenUnchanged,
    stopping.StopWhenConfident,
    stopping.StopNever,
    ranking.RankByLogProbability,
    benchmark.System,
    demo.DemoConfig,
)

# Where each subcommand's operative configuration is kept: beside its result.
_OPERATIVE_FILES: dict[str, Callable[[dict[str, Any]], str | None]] = {
    "prepare": lambda given: f"{given['output_dir']}/prepare.gin",
    "train": lambda given: f"{given['run_dir']}/train.gin",
    "evaluate": lambda given: f"{given['output_dir']}/{given['name']}.gin",
    "translate": lambda given: None if given["output"] == "-" else f"{given['output']}.gin",
    "distill": lambda given: f"{given['output_dir']}/distill.gin",
    "benchmark": lambda given: f"{given['output']}.gin",
    "demo": lambda given: f"{given['report_dir']}/demo.gin",
}


def _keeping_configuration(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, writing the operative configuration as it starts and, with what it came to use, as it ends."""

    @functools.wraps(function)
    def call(**given: Any) -> Any:
        parameters = inspect.signature(function).parameters.values()
        missing = [p.name for p in parameters if p.default is p.empty and p.name not in given]
        if missing:
            flags = ", ".join(f"--gin.{name}.{parameter}=…" for parameter in missing)
            raise PadirError(f"no value for {', '.join(missing)}; name a --gin_file that sets it, or give {flags}")
        path = _OPERATIVE_FILES[name]({p.name: p.default for p in parameters} | given)
        if path is not None and not Path(path).exists():
            # A killed run must have its configuration, too; a refused one must not replace another's.
            save_operative(path)
        result = function(**given)
        save_operative(path)
        return result

    return call


def save_operative(path: str | None) -> None:
    """Writes the configuration used so far as a gin file; None writes nothing."""
    if path is not None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        write_text(path, gin.operative_config_str())


_CONFIGURABLES = {
    **{cls.__name__: gin.external_configurable(cls, cls.__name__, module="padir") for cls in _DATACLASSES},
    **{
        name: gin.external_configurable(_keeping_configuration(name, function), name, module="padir")
        for name, function in COMMANDS.items()
    },
}


def gin_folder() -> Path:
    """The gin files that come with padir: the checkout's `gin/`, or the installed wheel's copy."""
    package = Path(__file__).resolve().parent
    checkout = package.parent / "gin"
    return checkout if (checkout / "models").is_dir() else package / "gin_files"


def parse(gin_files: Sequence[str], bindings: Sequence[str], search_paths: Sequence[str] = ()) -> None:
    """Reads gin files, then bindings on top of them.

    Args:
      gin_files: found in the working directory, `search_paths`, or the files that come with padir.
      bindings: 'NAME=VALUE', VALUE in gin's syntax (strings are quoted).
      search_paths: further folders to look in.

    Raises:
      PadirError: a file, name or value that gin cannot take; names it, and where it stands.
    """
    gin.clear_config(clear_constants=False)
    # gin reports a missing file through the root logger as well; ours is the one message.
    logging.getLogger().addFilter(_is_not_gins)
    for path in (*search_paths, str(gin_folder())):
        gin.add_config_file_search_path(path)
    try:
        gin.parse_config_files_and_bindings(list(gin_files), None, finalize_config=False)
        known = _statements()
        for binding in bindings:
            name = binding.partition("=")[0].strip()
            if name.isidentifier() and name not in known:
                macros = ", ".join(sorted(key for key in known if key.isidentifier())) or "none"
                raise PadirError(f"--gin.{binding}: no gin file uses a macro {name}; macros there: {macros}")
            _bind(binding)
    except (ValueError, SyntaxError, OSError, TypeError, NameError) as error:
        if isinstance(error, PadirError):
            raise
        raise PadirError(f"gin: {_one_line(error)}") from error


def _is_not_gins(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith("Path not found")


def _bind(binding: str) -> None:
    """Reads one NAME=VALUE; an error names it, since gin would say no more than 'line 1'."""
    try:
        gin.parse_config(binding)
    except (ValueError, SyntaxError, TypeError, NameError) as error:
        reason = _one_line(error)
        if "Failed to parse token" in reason or isinstance(error, SyntaxError):
            reason = "the value is not in gin's syntax; text needs quotes that the shell leaves alone: NAME=\"'text'\""
        raise PadirError(f"--gin.{binding}: {reason}") from error


def run(command: str) -> Any:
    """Runs a subcommand with what has been parsed.

    Raises:
      PadirError: a required value was not given.
    """
    missing = required(command)
    if missing:
        options = " ".join(f"--gin.{name}=…" for name in missing)
        raise PadirError(f"give a value for {', '.join(missing)} ({options})")
    try:
        return _CONFIGURABLES[command]()
    except BrokenPipeError:
        raise
    except (PadirError, OSError) as error:
        # gin appends where the call came from; the message says all that the user needs.
        raise PadirError(str(error).split("\n  In call to configurable")[0]) from error
    except TypeError as error:
        # gin's message for a dataclass with a field that nobody bound, made into ours.
        found = re.search(r"arguments: \[(.*?)\].*?configurable '(\w+)'", str(error), re.DOTALL)
        if not found:
            raise
        names = [f"{found.group(2)}.{name.strip(' ')}".replace("'", "") for name in found.group(1).split(",")]
        raise PadirError(f"no value for {', '.join(names)}; bind it in a gin file or with --gin.NAME=VALUE") from error


def required(command: str) -> list[str]:
    """Macros and parameters that `command` reads and that still stand at %gin.REQUIRED."""
    statements = _statements()
    reached, queue = set(), [name for name in statements if name.split(".")[0] == command]
    while queue:
        name = queue.pop()
        if name in reached:
            continue
        reached.add(name)
        value = statements[name]
        queue += [macro for macro in re.findall(r"%(\w+)", value) if macro in statements]
        for reference in re.findall(r"@([\w./]+)", value):
            # @a/b/X reads what is bound to X, to a/X and to a/b/X.
            *scopes, name = reference.split("/")
            names = {"/".join([*scopes[:depth], name]) for depth in range(len(scopes) + 1)}
            queue += [other for other in statements if other.rsplit(".", 1)[0] in names]
    return sorted(name for name in reached if statements[name] == "%gin.REQUIRED")


def _statements() -> dict[str, str]:
    """What is bound so far, as text: {'train.run_dir': '%RUN_DIR', 'RUN_DIR': "'runs/ar'", …}."""
    text = re.sub(r"\\\n\s*", "", gin.config_str(max_line_length=10_000))
    statements: dict[str, str] = {}
    name = ""
    for line in text.splitlines():
        start = re.match(r"([\w./]+) = ?(.*)", line)
        if start:
            name = start.group(1)
            statements[name] = start.group(2).strip()
        elif line.strip() and not line.startswith("#") and name:
            statements[name] += " " + line.strip()
    return statements


def _one_line(error: Exception) -> str:
    return " ".join(part.strip() for part in str(error).splitlines() if part.strip())
