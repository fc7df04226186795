"""Commands that documents and `--help` show exist, with the flags and files that they name."""

import re
import shlex
from pathlib import Path

import pytest

from padir.cli import config
from padir.cli import main as cli
from padir.cli.commands import COMMANDS

ROOT = Path(__file__).resolve().parents[1]


def fenced_commands(text):
    """Lines of fenced blocks, continued lines joined, comments left out."""
    commands = []
    for block in re.findall(r"^```[^\n]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        lines = block.replace("\\\n", " ").splitlines()
        commands += [line.strip().removeprefix("$ ") for line in lines if line.strip() and not line.startswith("#")]
    return commands


def simple_commands(line):
    """Word lists of a shell line's commands, split at pipes, && and ;."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    words = [[]]
    for word in lexer:
        if set(word) <= set("|&;<>"):
            words.append([])
        else:
            words[-1].append(word)
    return [command for command in words if command]


README = fenced_commands((ROOT / "README.md").read_text(encoding="utf-8"))
GIN_COMMENTS = []
for path in sorted((ROOT / "gin").rglob("*.gin")):
    comment = "\n".join(
        line[1:].strip() for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#")
    )
    found = re.findall(r"^padir (?:.*\\\n)*.*", comment, re.MULTILINE)
    GIN_COMMENTS += [command.replace("\\\n", " ") for command in found]
LINES = [*README, *(command.example for command in COMMANDS.values()), *GIN_COMMENTS]
COMMANDS = [words for line in LINES for words in simple_commands(line)]
PADIR = [words for words in COMMANDS if words[0].split("/")[-1] == "padir"]
MAKE = [words for words in COMMANDS if words[0] == "make"]


def test_there_is_something_to_check():
    assert len(PADIR) >= len(COMMANDS) + len(GIN_COMMENTS) and GIN_COMMENTS


@pytest.mark.parametrize("words", PADIR, ids=" ".join)
def test_a_padir_command_exists(words):
    if len(words) > 1 and words[1].startswith("-"):
        assert words[1] in ("--help", "--version")
        return
    command, *arguments = cli.joined(words[1:])
    flags = cli.flags_of(COMMANDS[command])
    gin_files, bindings = [], []
    for argument in arguments:
        name, _, value = argument.partition("=")
        if name == "--gin_file":
            gin_files.append(value)
        elif name.startswith("--gin."):
            bindings.append(argument.removeprefix("--gin."))
        elif name.startswith("--"):
            assert name[2:] in {*flags, "help", "gin_search_path"}, argument
    shipped = [name for name in gin_files if name.split("/")[0] in {p.name for p in config.gin_folder().iterdir()}]
    for name in shipped:
        assert (config.gin_folder() / name).is_file(), name
    # Quoting that a shell would have eaten shows here: gin takes the bindings as they stand.
    if shipped == gin_files:
        config.parse(gin_files, bindings)


@pytest.mark.parametrize("command", COMMANDS.values(), ids=lambda command: command.name)
def test_an_example_gives_every_required_value(command):
    line = next(words for words in simple_commands(command.example) if words[0] == "padir")
    assert cli.joined(line[1:])[0] == command.name
    gin_files = [word.split("=", 1)[1] for word in line if word.startswith("--gin_file=")]
    bindings = [word.removeprefix("--gin.") for word in line if word.startswith("--gin.")]
    given = {word[2:].split("=")[0] for word in line if word.startswith("--") and "gin" not in word}
    config.parse(gin_files or command.gin_files, bindings)
    name = command.configurable
    assert config.required(name) == []
    bound = {bound.split(".")[1] for bound in config._statements() if bound.startswith(f"{name}.")}
    needed = {name for name, flag in cli.flags_of(command).items() if flag.default is flag.empty}
    assert needed <= bound | given


@pytest.mark.skipif(not MAKE, reason="README shows no make command yet")
@pytest.mark.parametrize("words", MAKE or [["make"]], ids=" ".join)
def test_a_make_command_exists(words):
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", text, re.MULTILINE))
    variables = set(re.findall(r"\$\(([A-Z_]+)\)", text))
    for word in words[1:]:
        if "=" in word:
            assert word.split("=")[0] in variables, word
        elif not word.startswith("-"):
            assert word in targets, word
