"""Splits a text that is too long for the model at its sentence ends."""

from __future__ import annotations

import re

# A sentence ends at ., !, ? or … with closing quotes and brackets before white space, at the full-width forms of these,
# which no space follows, and at a line break. White space is looked for afterwards: within the pattern it would be
# looked for from every dot of a long row.
_END = re.compile(r"""[.!?…]+['"”“’‘»«)\]]*|[。！？]+[」』”）]*|(?=\n)""")
_SPACE = re.compile(r"\s*")
# Words that end in a full stop inside a sentence, without it.
_SHORT = frozenset(("dr", "mr", "mrs", "ms", "prof", "st", "nr", "bzw", "ca", "evtl", "ggf", "vgl", "vs", "hr", "fr"))


def split(text: str) -> list[tuple[str, str]]:
    """Returns the sentences of a text as (sentence, white space after it); joined in order they are the text again.

    White space before the first sentence belongs to a sentence that is empty. A full stop after a single letter, a
    number of one or two digits, or a common abbreviation ends no sentence.
    """
    lead = len(text) - len(text.lstrip())
    found, start = ([("", text[:lead])] if lead else []), lead
    for match in _END.finditer(text):
        end = match.end()
        if end <= start or _is_inside(text, match):
            continue
        after = _SPACE.match(text, end).end()
        if after == end and match.group()[:1] in tuple(".!?…"):
            continue
        found.append((text[start:end], text[end:after]))
        start = after
    if start < len(text):
        rest = text[start:]
        found.append((rest.rstrip(), rest[len(rest.rstrip()) :]))
    return found


def _is_inside(text: str, match: re.Match) -> bool:
    """Whether a full stop belongs to the word before it: 'Dr.', 'z. B.', '3. Mai'."""
    if match.group() != ".":
        return False
    before = re.search(r"(\w+)$", text[max(0, match.start() - 20) : match.start()])
    if before is None:
        return False
    word = before.group(1)
    return (len(word) == 1 and word.isalpha()) or (word.isdigit() and len(word) < 3) or word.lower() in _SHORT
