"""Checks that what pages show works: Python and marked shell blocks run, all other commands exist as written.

For writers of pages:
  ```python blocks of a page run in their order, as one program;
  ```sh blocks below a line `<!-- run -->` run, too, in bash, before the Python of the same page;
  other ```sh blocks are read: their `padir` and `make` commands must exist, with the flags and gin files they name.
Programs start in a folder that holds `runs/` with `data`, `ar`, `distilled` and `padir`: tiny, but of the usual form.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_RUN = "<!-- run -->"
_BLOCK = re.compile(r"^(<!-- run -->\n)?```(\w*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
# A page that takes longer is no page to try things out with.
_SECONDS = 300


def blocks(text: str) -> list[tuple[str, str, bool]]:
    """(language, content, whether it is marked to run) of the fenced blocks of a Markdown page."""
    return [(language, content, bool(run)) for run, language, content in _BLOCK.findall(text)]


def command_lines(text: str) -> list[str]:
    """Lines of a page's shell blocks, continued lines joined, comments left out."""
    lines = []
    for language, content, _ in blocks(text):
        if language in ("sh", "bash", "console", ""):
            joined = content.replace("\\\n", " ").splitlines()
            lines += [line.strip().removeprefix("$ ") for line in joined if line.strip() and not line.startswith("#")]
    return lines


def simple_commands(line: str) -> list[list[str]]:
    """Word lists of a shell line's commands, split at pipes, redirections, && and ;."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    words: list[list[str]] = [[]]
    for word in lexer:
        if set(word) <= set("|&;<>"):
            words.append([])
        else:
            words[-1].append(word)
    return [command for command in words if command]


def check_padir(words: list[str]) -> None:
    """Raises ValueError if a `padir` command, a flag, a gin file that comes with padir or a binding does not exist."""
    from padir.cli import config
    from padir.cli import main as cli
    from padir.cli.commands import COMMANDS
    from padir.cli.gin_files import gin_folder

    if len(words) > 1 and words[1] in ("--help", "--version"):
        return
    name, *arguments = cli.joined(words[1:])
    if name not in COMMANDS:
        raise ValueError(f"no command: padir {name}")
    known = {*cli.flags_of(COMMANDS[name]), "help", "gin_search_path", "compilation_cache", "gin_file"}
    gin_files, bindings = [], []
    for argument in arguments:
        flag, _, value = argument.partition("=")
        if flag == "--gin_file":
            gin_files.append(value)
        elif flag.startswith("--gin."):
            bindings.append(argument.removeprefix("--gin."))
        elif flag.startswith("--") and flag[2:].removeprefix("no-") not in known and flag[2:] not in known:
            raise ValueError(f"padir {name} has no flag {flag}")
    folder = gin_folder()
    # runs/x.gin comes with padir; runs/ar/train.gin is what a run of the user's has kept.
    folders = {path.name for path in folder.iterdir()}
    shipped = [file for file in gin_files if os.path.dirname(file) in folders]
    for file in shipped:
        if not (folder / file).is_file():
            raise ValueError(f"there is no {file}")
    # Quoting that a shell would have eaten shows here: gin takes the bindings as they stand.
    if shipped == gin_files and not any(re.search(r"@\w+\.", binding) for binding in bindings):
        config.parse(gin_files or COMMANDS[name].gin_files, bindings)


def check_make(words: list[str]) -> None:
    """Raises ValueError if the Makefile has no such target or variable."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", text, re.MULTILINE))
    variables = set(re.findall(r"\$\(([A-Z_]+)\)", text))
    for word in words[1:]:
        known = word.split("=")[0] in variables if "=" in word else word in targets or word.startswith("-")
        if not known:
            raise ValueError(f"the Makefile has no {word}")


def check_command(words: list[str]) -> None:
    """Raises ValueError if a command of ours, by its words, does not exist; other programs are not looked at."""
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words = words[1:]
    program = words[0] if words else ""
    if program.split("/")[-1] == "padir":
        check_padir(words)
    elif program == "make":
        check_make(words)
    elif program.startswith("launch/") and not (ROOT / program).is_file():
        raise ValueError(f"there is no {program}")
    elif program.startswith("python"):
        for script in (word for word in words[1:2] if word.startswith("benchmarks/") and not (ROOT / word).is_file()):
            raise ValueError(f"there is no {script}")


def check_commands(text: str) -> list[str]:
    """What is wrong with the commands of a page, a line each."""
    wrong = []
    for line in command_lines(text):
        for words in simple_commands(line):
            try:
                check_command(words)
            except ValueError as error:
                wrong.append(f"{' '.join(words)}: {error}")
    return wrong


def run_blocks(text: str, compiled: str) -> list[str]:
    """Runs a page's marked shell blocks and its Python; returns what failed. Programs are cached in `compiled`."""
    shell = [content for language, content, run in blocks(text) if run and language == "sh"]
    python = "\n".join(content for language, content, _ in blocks(text) if language == "python")
    programs = [["bash", "-euo", "pipefail", "-c", content] for content in shell]
    programs += [[sys.executable, "-c", python]] if python else []
    if not programs:
        return []
    with tempfile.TemporaryDirectory() as folder:
        _fill(Path(folder))
        for program in programs:
            done = subprocess.run(
                program, cwd=folder, capture_output=True, text=True, env=_environment(compiled), timeout=_SECONDS
            )
            if done.returncode:
                return [f"status {done.returncode} of:\n{program[-1]}\n{done.stdout[-1500:]}{done.stderr[-3000:]}"]
    return []


def _fill(folder: Path) -> None:
    (folder / "runs").mkdir()
    with tarfile.open(ROOT / "tests" / "golden" / "earlier_release.tar.xz") as archive:
        archive.extractall(folder / "runs", filter="data")


def _environment(compiled: str) -> dict[str, str]:
    """One CPU device, compiling quickly, and the padir of this checkout's environment on the path."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    compiling = {
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        "JAX_COMPILATION_CACHE_DIR": compiled,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2",
    }
    return {**os.environ, **compiling, "PATH": path, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "", "PYTHONPATH": str(ROOT)}
