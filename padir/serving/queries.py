"""What a client asks for: the body of a request to `/translate`, checked."""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from padir import checks
from padir.errors import PadirError
from padir.serving.limits import Limits, RequestRefused

_JSON, _FORM = "application/json", "application/x-www-form-urlencoded"
_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off", "")


@dataclass(frozen=True)
class Query:
    """A request for translations.

    Attributes:
      texts: the texts, in order.
      is_list: whether the client sent a list, and so gets lists.
      source, target: codes of languages, as the client named them; None if it did not.
      alternatives: how many further hypotheses of each text to return.
      steps, num_hypotheses: of a refinement; None for those of the model's configuration.
      trace: whether to return every step.
      split: whether a text that is too long for the model is split at its sentence ends.
      model: the name of the model; None for the first.
    """

    texts: tuple[str, ...]
    is_list: bool = False
    source: str | None = None
    target: str | None = None
    alternatives: int = 0
    steps: int | None = None
    num_hypotheses: int | None = None
    trace: bool = False
    split: bool = False
    model: str | None = None


@dataclass(frozen=True)
class Edit:
    """A request to go on from an edited hypothesis; see `continue_from`.

    Attributes:
      text: the source.
      tokens: the hypothesis: token ids, texts, or None where nothing is known.
      clamped: which of them no step may change.
      length: the target's tokens, EOS counted; None keeps those of the hypothesis.
      steps: of the refinement; None for that of the model's configuration.
      model: the name of the model; None for the first.
    """

    text: str
    tokens: tuple[int | str | None, ...]
    clamped: tuple[bool, ...]
    length: int | None = None
    steps: int | None = None
    model: str | None = None


def fields_of(body: bytes, content_type: str) -> dict[str, Any]:
    """Returns the fields of a body: a JSON object, or a form whose repeated `q` makes a list.

    Raises:
      RequestRefused: 415 for another content type, 400 for a body that is none of these.
    """
    kind = content_type.partition(";")[0].strip().lower()
    if kind not in (_JSON, _FORM):
        raise RequestRefused(415, f"content type {kind or 'missing'}: send {_JSON} or {_FORM}")
    try:
        text = body.decode("utf-8")
        if kind == _JSON:
            fields = json.loads(text)
        else:
            pairs = urllib.parse.parse_qs(text, keep_blank_values=True, max_num_fields=10_000, errors="strict")
            fields = {name: values if len(values) > 1 else values[0] for name, values in pairs.items()}
    except (ValueError, RecursionError):
        raise RequestRefused(400, f"the body is no {'JSON' if kind == _JSON else 'form'} in UTF-8") from None
    if not isinstance(fields, dict):
        raise RequestRefused(400, "the body must be a JSON object with the field q")
    return fields


def query(fields: Mapping[str, Any], limits: Limits) -> Query:
    """Checks the fields of a request to `/translate`; those that it does not know are ignored, as LibreTranslate does.

    Raises:
      RequestRefused: 400 if a field is missing or has a wrong value, 413 if there are too many texts, or one is too
        long.
    """
    q = fields.get("q")
    if isinstance(q, str):
        texts = (q,)
    elif isinstance(q, list) and q and all(isinstance(text, str) for text in q):
        texts = tuple(q)
    else:
        raise RequestRefused(400, "q: give the text to translate, or a list of texts")
    if len(texts) > limits.max_items:
        raise RequestRefused(413, f"q: {len(texts)} texts are more than the {limits.max_items} that a request may have")
    for index, text in enumerate(texts, 1):
        _check_text(f"text {index}", text, limits)
    if fields.get("format") not in (None, "text"):
        raise RequestRefused(400, f"format: {str(fields['format'])[:40]!r} is not supported; only 'text'")
    return Query(
        texts,
        isinstance(q, list),
        source=_word(fields, "source"),
        target=_word(fields, "target"),
        alternatives=_whole(fields, "alternatives", 0, limits.max_alternatives) or 0,
        steps=_whole(fields, "steps", 1, limits.max_steps),
        num_hypotheses=_whole(fields, "num_hypotheses", 1, limits.max_alternatives + 1),
        trace=flag(fields, "trace"),
        split=flag(fields, "split"),
        model=_word(fields, "model"),
    )


def edit(fields: Mapping[str, Any], limits: Limits) -> Edit:
    """Checks the fields of a request to `/refine`.

    Raises:
      RequestRefused: 400 if a field is missing or has a wrong value, 413 if the text is too long.
    """
    text, tokens = fields.get("text"), fields.get("tokens")
    if not isinstance(text, str) or not text.strip():
        raise RequestRefused(400, "text: give the source")
    _check_text("text", text, limits)
    if not isinstance(tokens, list) or not all(t is None or type(t) in (int, str) for t in tokens):
        raise RequestRefused(400, "tokens: give a list of token ids, texts, or null where nothing is known")
    if len(tokens) > limits.max_text_chars:
        raise RequestRefused(413, f"tokens: {len(tokens)} are more than {limits.max_text_chars}")
    for place, token in enumerate(tokens, 1):
        if isinstance(token, str):
            _check_text(f"token {place}", token, limits)
    if (clamped := fields.get("clamped")) is None:
        clamped = [False] * len(tokens)
    if not isinstance(clamped, list) or not all(isinstance(each, bool) for each in clamped):
        raise RequestRefused(400, "clamped: give a list of true and false, one for each token")
    return Edit(
        text,
        tuple(tokens),
        tuple(clamped),
        _whole(fields, "length", 1, limits.max_text_chars),
        _whole(fields, "steps", 1, limits.max_steps),
        _word(fields, "model"),
    )


def _check_text(name: str, text: str, limits: Limits) -> None:
    if len(text) > limits.max_text_chars:
        raise RequestRefused(413, f"{name}: {len(text)} characters are more than {limits.max_text_chars}")
    try:
        checks.characters(text)
    except PadirError as error:
        raise RequestRefused(400, f"{name}: {error}") from None


def flag(fields: Mapping[str, Any], name: str) -> bool:
    """Returns a field that is true or false, in JSON or as a word of a form; False without it.

    Raises:
      RequestRefused: 400 if it is neither.
    """
    value = fields.get(name)
    if value is None or isinstance(value, bool):
        return bool(value)
    if isinstance(value, str) and value.lower() in (*_TRUE, *_FALSE):
        return value.lower() in _TRUE
    raise RequestRefused(400, f"{name}: give true or false")


def _whole(fields: Mapping[str, Any], name: str, least: int, most: int) -> int | None:
    value = fields.get(name)
    if value is None or value == "":
        return None
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise RequestRefused(400, f"{name}: give a whole number from {least} to {most}")
    return value


def _word(fields: Mapping[str, Any], name: str) -> str | None:
    value = fields.get(name)
    if value is None or value == "":
        return None
    if not isinstance(value, str) or len(value) > 100:
        raise RequestRefused(400, f"{name}: give a short text")
    return value
