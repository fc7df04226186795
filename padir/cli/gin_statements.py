"""Reads gin's configuration as text: the value bound to each name, and which names a value refers to."""

from __future__ import annotations

import re


def statements_of(text: str) -> dict[str, str]:
    """Bindings in the text of `gin.config_str`: {'train.run_dir': '%RUN_DIR', 'RUN_DIR': "'runs/ar'", …}."""
    statements: dict[str, str] = {}
    name = ""
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        start = re.match(r"([\w./]+) = ?(.*)", line)
        if start:
            name = start.group(1)
            statements[name] = start.group(2).strip()
        elif line.strip() and not line.startswith("#") and name:
            statements[name] += " " + line.strip()
    return statements


def reached_by(command: str, statements: dict[str, str]) -> set[str]:
    """Names of all macros and parameters that a subcommand reads, directly or through others.

    Args:
      command: the subcommand's name in gin files, e.g. 'benchmark_latency'.
      statements: the bindings, as `statements_of` returns them.
    """
    reached, queue = set(), [name for name in statements if name.split(".")[0] == command]
    while queue:
        name = queue.pop()
        if name in reached:
            continue
        reached.add(name)
        value = statements.get(name, "%gin.REQUIRED")
        queue += macros_in(value)
        for reference in re.findall(r"@([\w./]+)", value):
            # @a/b/X reads what is bound to X, to a/X and to a/b/X.
            *scopes, name = reference.split("/")
            names = {"/".join([*scopes[:depth], name]) for depth in range(len(scopes) + 1)}
            queue += [other for other in statements if other.rsplit(".", 1)[0] in names]
    return reached


def macros_in(value: str) -> set[str]:
    """Names of the macros that a value refers to: {'A', 'B'} for "(%A, {'%C': %B}, %gin.REQUIRED)"."""
    unquoted = re.sub(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*\"""", "", value)
    return set(re.findall(r"%(\w+)(?![\w./])", unquoted))
