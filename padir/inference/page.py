"""The page that shows traced translations, as one file that needs no server, and as a frame for notebooks."""

from __future__ import annotations

import html
import importlib.resources
import json
from collections.abc import Sequence
from typing import Any

# What a page of its own may load: nothing but what is written in it.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
_STYLE = '<link rel="stylesheet" href="/static/style.css">'
_SCRIPTS = ("viewer.js", "controls.js")
# What asks the server, which a file has not.
_LIVE = '<script src="/static/live.js" defer></script>\n'
_SERVED_POLICY = "default-src 'self'; img-src 'self' data:"


def standalone(documents: Sequence[dict[str, Any]], *, title: str = "PaDIR trace") -> str:
    """The page with its style, its script and the documents in it; HTML that works from a disk.

    Args:
      documents: of `trace.trace_document`, of the same text, the first one large and the others beside it.
      title: of the page.

    Raises:
      ValueError: a document is no JSON.
    """
    folder = importlib.resources.files("padir") / "serving" / "page"

    def read(name: str) -> str:
        return (folder / name).read_text(encoding="utf-8")

    data = f'<script type="application/json" id="documents">{_as_data(documents)}</script>\n'
    replacements = {
        _SERVED_POLICY: _POLICY,
        "<title>PaDIR</title>": f"<title>{html.escape(title)}</title>",
        _STYLE: f"<style>\n{read('style.css')}</style>",
        **{
            f'<script src="/static/{name}" defer></script>': f"{data if name == _SCRIPTS[0] else ''}"
            f"<script>\n{read(name)}</script>"
            for name in _SCRIPTS
        },
        _LIVE: "",
    }
    page = read("index.html")
    for old, new in replacements.items():
        before, found, after = page.partition(old)
        if not found:
            raise AssertionError(f"index.html has no {old}")
        page = before + new + after
    return page


def frame(documents: Sequence[dict[str, Any]], *, height: int = 720) -> str:
    """The same as a frame of `height` pixels, apart from the page around it: neither can reach into the other."""
    return (
        f'<iframe sandbox="allow-scripts allow-downloads" style="width:100%;height:{height}px;border:0" '
        f'title="PaDIR trace" srcdoc="{html.escape(standalone(documents))}"></iframe>'
    )


def _as_data(documents: Sequence[dict[str, Any]]) -> str:
    """JSON that no text in it can end: a script element ends at the first '</script', wherever that stands."""
    return json.dumps(list(documents), ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")
