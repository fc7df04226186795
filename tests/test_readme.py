"""Commands that README, gin files and `--help` show exist, with the flags and files that they name.

Those of the documentation are checked by `make docs`, with the same functions.
"""

import re
import shlex
from pathlib import Path

import pytest
import snippets

from padir.cli import config
from padir.cli import main as cli
from padir.cli.commands import COMMANDS

ROOT = Path(__file__).resolve().parents[1]

README = (ROOT / "README.md").read_text(encoding="utf-8")
GIN_COMMENTS = []
for path in sorted((ROOT / "gin").rglob("*.gin")):
    comment = "\n".join(
        line[1:].strip() for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#")
    )
    found = re.findall(r"^padir (?:.*\\\n)*.*", comment, re.MULTILINE)
    GIN_COMMENTS += [command.replace("\\\n", " ") for command in found]
LINES = [*snippets.command_lines(README), *(command.example for command in COMMANDS.values()), *GIN_COMMENTS]
WORDS = [words for line in LINES for words in snippets.simple_commands(line)]


def test_there_is_something_to_check():
    assert len(LINES) > len(COMMANDS) + len(GIN_COMMENTS) and GIN_COMMENTS


@pytest.mark.parametrize("words", WORDS, ids=" ".join)
def test_a_command_exists(words):
    assert snippets.check_commands(f"```sh\n{shlex.join(words)}\n```\n") == []


@pytest.mark.parametrize("command", COMMANDS.values(), ids=lambda command: command.name)
def test_an_example_gives_every_required_value(command):
    words = next(words for words in snippets.simple_commands(command.example) if words[0] == "padir")
    name, *line = cli.joined(words[1:])
    assert name == command.name
    gin_files = [word.split("=", 1)[1] for word in line if word.startswith("--gin_file=")]
    bindings = [word.removeprefix("--gin.") for word in line if word.startswith("--gin.")]
    given = {word[2:].split("=")[0] for word in line if word.startswith("--") and "gin" not in word}
    config.parse(gin_files or command.gin_files, bindings)
    name = command.configurable
    assert config.required(name) == []
    bound = {bound.split(".")[1] for bound in config._statements() if bound.startswith(f"{name}.")}
    needed = {name for name, flag in cli.flags_of(command).items() if flag.default is flag.empty}
    assert needed <= bound | given


def test_the_readme_is_one_page():
    assert len(README.splitlines()) <= 120
    assert len((ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()) <= 60
