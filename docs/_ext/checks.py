"""What makes a build fail besides Sphinx's own warnings: undocumented objects, broken snippets, missing paths."""

from __future__ import annotations

import inspect
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import snippets
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util import logging

_logger = logging.getLogger(__name__)


def _repository_path(name, rawtext, text, lineno, inliner, options=None, content=None):
    """{repo}`path`: the path of a file or folder of the repository, which must exist."""
    if not list(snippets.ROOT.glob(text.rstrip("/"))):
        message = inliner.reporter.warning(f"the repository has no {text}", line=lineno)
        return [inliner.problematic(rawtext, rawtext, message)], [message]
    return [nodes.literal(rawtext, text)], []


def _demand_docstring(app: Sphinx, what: str, name: str, found: Any, options: Any, lines: list[str]) -> None:
    """Warns where a public object of padir has no docstring."""
    if what in ("module", "class", "exception", "function", "method", "property") and not any(lines):
        _logger.warning("%s %s has no docstring", what, name)


def _skip_others(app: Sphinx, what: str, name: str, found: Any, skip: bool, options: Any) -> bool | None:
    """Leaves out what a module imports, its constants, and fields, which "Attributes" of their class describes."""
    function = getattr(found, "fget", getattr(found, "__func__", found))
    if inspect.isroutine(function) or inspect.isclass(function):
        # What Python itself makes of an enumeration has no module.
        return None if (getattr(function, "__module__", None) or "").split(".")[0] == "padir" else True
    return True


def _check_snippets(app: Sphinx, env: Any) -> None:
    """Warns where a page's commands do not exist or its programs fail."""
    paths = {name: Path(env.doc2path(name)) for name in sorted(env.found_docs)}
    texts = {
        name: path.read_text(encoding="utf-8")
        for name, path in paths.items()
        if path.suffix == ".md" and "generated" not in path.parts
    }
    # Programs of several pages at once; those that compile the same share it.
    with tempfile.TemporaryDirectory() as compiled, ThreadPoolExecutor(os.cpu_count()) as threads:
        ran = threads.map(lambda text: snippets.run_blocks(text, compiled), texts.values())
        for (name, text), failed in zip(texts.items(), ran, strict=True):
            for wrong in snippets.check_commands(text) + failed:
                _logger.warning("%s", wrong, location=name)


def setup(app: Sphinx) -> dict[str, bool]:
    """Registers the role and the checks."""
    app.add_role("repo", _repository_path)
    app.connect("autodoc-process-docstring", _demand_docstring, priority=900)
    app.connect("autodoc-skip-member", _skip_others)
    app.connect("env-check-consistency", _check_snippets)
    return {"parallel_read_safe": False}
