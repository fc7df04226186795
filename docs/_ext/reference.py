"""Writes the reference pages from the code before a build: commands, what gin can make, gin files, Python API."""

from __future__ import annotations

import ast
import dataclasses
import re
from pathlib import Path
from typing import Any

import snippets
from sphinx.application import Sphinx

import padir

_GENERATED = Path(__file__).resolve().parents[1] / "reference" / "generated"
# From the top floor down.
FOLDERS = re.findall(r"\w+", " ".join(line for line in padir.__doc__.splitlines() if line.startswith("    ")))


def _commands() -> str:
    from padir.cli.commands import COMMANDS

    parts = ["# Commands", ""]
    parts += [
        "Every command takes `--gin_file=FILE` (repeated as needed), `--gin.NAME=VALUE`, `--gin_search_path=DIR` and "
        "`--compilation_cache=DIR`. `padir COMMAND --help` prints what this page says.",
        "",
    ]
    for command in COMMANDS.values():
        parts += [f"## padir {command.name}", "", f"{command.summary[0].upper()}{command.summary[1:]}.", ""]
        parts += [f"```\n{command.example}\n```", ""]
        if command.note:
            parts += [command.note, ""]
        parts += [*_flags(command), *_fields_taken(command)]
    return "\n".join(parts)


def _flags(command: Any) -> list[str]:
    from padir.cli.main import flags_of

    described = _arguments(command.function().__doc__ or "")
    rows = ["| flag | type | default | |", "|---|---|---|---|"]
    for name, parameter in flags_of(command).items():
        default = "required" if parameter.default is parameter.empty else f"`{parameter.default!r}`"
        kind = str(parameter.annotation).replace("|", "or")
        rows.append(f"| `--{name}` | {kind} | {default} | {_cell(described.get(name, ''))} |")
    return [*rows, ""]


def _fields_taken(command: Any) -> list[str]:
    from padir.cli.main import dataclasses_of

    names = [f"[{cls.__name__}](configurables.md#{cls.__name__.lower()})" for cls in dataclasses_of(command)]
    return [f"Gin makes for it: {', '.join(names)}.", ""] if names else []


def _arguments(docstring: str, section: str = "Args") -> dict[str, str]:
    """What a docstring's section says of each name."""
    found = re.search(rf"^\s*{section}:\n(.*?)(?=\n\s*\n\s*\w+:\n|\Z)", docstring, re.MULTILINE | re.DOTALL)
    described: dict[str, str] = {}
    names: list[str] = []
    for line in found.group(1).splitlines() if found else ():
        start = re.match(r"\s{4,6}([\w, ]+): (.*)", line)
        if start and not line.startswith(" " * 8):
            names = [name.strip() for name in start.group(1).split(",")]
            described |= dict.fromkeys(names, start.group(2))
        else:
            described |= {name: f"{described[name]} {line.strip()}" for name in names if line.strip()}
    return described


def _cell(text: str) -> str:
    return text.replace("|", r"\|").replace("<", r"\<").strip()


def _configurables() -> str:
    from padir.cli.configurables import DATACLASSES

    parts = ["# What gin can make", ""]
    parts += ["Bind a field with `NAME.FIELD = VALUE`, and make the object with `@NAME()`.", ""]
    for cls in DATACLASSES:
        docstring = cls.__doc__ or ""
        described = _arguments(docstring, "Attributes")
        parts += [f"## {cls.__name__}", "", docstring.split("\n\n")[0].strip(), ""]
        rows = ["| field | default | |", "|---|---|---|"]
        for field in dataclasses.fields(cls):
            default = "required" if field.default is dataclasses.MISSING else f"`{_cell(repr(field.default))}`"
            rows.append(f"| `{field.name}` | {default} | {_cell(described.get(field.name, ''))} |")
        parts += [*rows, ""] if len(rows) > 2 else ["No fields.", ""]
    return "\n".join(parts)


def _gin_files() -> str:
    folder = snippets.ROOT / "gin"
    parts = ["# Gin files", "", "Each file opens with what it claims.", ""]
    for kind in sorted(path for path in folder.iterdir() if path.is_dir()):
        parts += [f"## {kind.name}", ""]
        for path in sorted(kind.glob("*.gin")):
            head = re.match(r"(?:#.*\n)+", path.read_text(encoding="utf-8")).group()
            lines = [line.lstrip("#").removeprefix(" ") for line in head.splitlines()]
            parts += [f"### {kind.name}/{path.name}", "", "```text", *lines, "```", ""]
    return "\n".join(parts)


def first_paragraph(folder: str) -> str:
    """What a folder of padir/ promises: the first sentence of its `__init__.py`."""
    text = (snippets.ROOT / "padir" / folder / "__init__.py").read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(text)) or "").split("\n\n")[0].replace("\n", " ")


def _map() -> str:
    rows = ["| folder | what lives there |", "|---|---|"]
    rows += [f"| [`padir/{name}/`](api_{name}.md) | {first_paragraph(name)} |" for name in FOLDERS]
    return "\n".join(["# The folders of the library", "", "From the top floor down.", "", *rows, ""])


def _api(folder: str) -> str:
    parts = [f"# padir.{folder}", "", first_paragraph(folder), ""]
    for path in sorted((snippets.ROOT / "padir" / folder).glob("*.py")):
        # Modules that need TensorFlow run in processes of their own; `python -m` is all that a script is for.
        if path.stem.startswith("__") or path.stem == "comet_script":
            continue
        module = f"padir.{folder}.{path.stem}"
        parts += [f"## {module}", "", "```{eval-rst}", f".. automodule:: {module}", "```", ""]
    return "\n".join(parts)


def _write(app: Sphinx) -> None:
    _GENERATED.mkdir(parents=True, exist_ok=True)
    pages = {"commands": _commands(), "configurables": _configurables(), "gin_files": _gin_files(), "folders": _map()}
    pages |= {f"api_{folder}": _api(folder) for folder in FOLDERS}
    for name, text in pages.items():
        path = _GENERATED / f"{name}.md"
        # An unchanged page keeps its time, so that it is not built again.
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def _as_rst(app: Sphinx, what: str, name: str, found: Any, options: Any, lines: list[str]) -> None:
    """Docstrings are plain text with bullets and code in backticks; a block indented after a colon stands as it is."""
    literal = False
    for number, line in enumerate(lines):
        indented = line.startswith("    ")
        after_colon = number > 1 and lines[number - 2].endswith(":") and not lines[number - 1]
        if indented and after_colon and not lines[number - 2].startswith(" "):
            lines[number - 2] += ":"
            literal = True
        elif line and not indented:
            literal = False
        if not literal:
            lines[number] = _escaped(line)


def _escaped(line: str) -> str:
    bullet = re.match(r"\s*\* ", line)
    start = bullet.group() if bullet else ""
    parts = re.split(r"(`[^`]+`)", line[len(start) :])
    for number, part in enumerate(parts):
        if number % 2:
            # Markup must not touch the word after it: "`Array`s".
            touching = number + 1 < len(parts) and re.match(r"\w", parts[number + 1])
            parts[number] = f"`{part}`" + ("\\ " if touching else "")
        else:
            parts[number] = re.sub(r"[*|\\`]|(?<=\w)_(?=\W|$)", r"\\\g<0>", part)
    return start + "".join(parts)


def setup(app: Sphinx) -> dict[str, bool]:
    """Writes the pages when a build begins."""
    app.connect("builder-inited", _write)
    # Before napoleon, which reads the sections of docstrings.
    app.connect("autodoc-process-docstring", _as_rst, priority=100)
    return {"parallel_read_safe": False}
