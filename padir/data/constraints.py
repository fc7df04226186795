"""What a user demands of outputs: a pattern, required and forbidden phrases, a terminology.

A constraint is a JSON object with at least one of these keys:

    {
      "pattern": "[A-Z].*[.!?]",
      "required": ["Berlin", "climate change"],
      "forbidden": ["chairman"],
      "terms": {"Rechner": "computer", "Wagen": ["car", "carriage"]},
      "ignore_case": false
    }

The whole output must match `pattern` (see `patterns`). Every required phrase must stand in it and no forbidden one. Of
a term that stands in the source, the target, or one of several, must stand in the output. `ignore_case` concerns all of
them. A phrase stands in a text where neither its first nor its last letter has a letter beside it: "cartoon" contains
no "car". In scripts that write no spaces between words, such as Chinese, Japanese and Thai, letters may be beside it.
"""

from __future__ import annotations

import functools
import json
import os
import re
import sys
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from padir.data import patterns
from padir.data.patterns import ANY, Character, Choice, Node, Repeat, Sequence, optional
from padir.errors import PadirError, StorageError
from padir.files.paths import as_path

KEYS = ("pattern", "required", "forbidden", "terms", "ignore_case")

# Thai and Lao, Burmese, Khmer, kana, Chinese characters.
_WITHOUT_SPACES = (
    r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)


@functools.cache
def letter() -> str:
    """A regular expression for one letter or digit of a script with spaces, or an accent; for `re`."""
    accents = [chr(code) for code in range(0x300, sys.maxunicode + 1) if unicodedata.category(chr(code))[0] == "M"]
    without_spaces = re.compile(f"[{_WITHOUT_SPACES}]")
    # Python counts accents that are characters of their own, such as Indic vowels, as no part of a word.
    kept = "".join(accent for accent in accents if not without_spaces.match(accent))
    return f"(?:[^\\W{_WITHOUT_SPACES}]|[{kept}])"


def clean(text: str) -> str:
    """A phrase as vocabularies write it: composed characters, one space between words."""
    return " ".join(unicodedata.normalize("NFKC", text).split())


@dataclass(frozen=True)
class Constraint:
    """A checked constraint; `Constraint.read` makes one.

    Attributes:
      name: what messages call it: the path of its file.
      pattern: what the whole output must match; None demands nothing.
      required: phrases that must stand in the output.
      forbidden: phrases that must not.
      terms: (phrase of the source, its targets, one of which must stand in the output).
      ignore_case: whether upper and lower case are the same.
    """

    name: str = "constraint"
    pattern: str | None = None
    required: tuple[str, ...] = ()
    forbidden: tuple[str, ...] = ()
    terms: tuple[tuple[str, tuple[str, ...]], ...] = ()
    ignore_case: bool = False

    @classmethod
    def read(cls, constraint: str | os.PathLike | Mapping[str, Any]) -> Constraint:
        """Reads a JSON file, or a dictionary of the same form.

        Raises:
          PadirError: it cannot be read, has an unknown key, an empty list or phrase, a pattern that is not supported,
            or a phrase that is both required and forbidden. The message names the file and the key.
        """
        name, found = "constraint", constraint
        if not isinstance(constraint, Mapping):
            name = os.fspath(constraint)
            try:
                found = json.loads(as_path(constraint).read_text(encoding="utf-8"))
            except StorageError:
                raise
            except (OSError, UnicodeDecodeError, ValueError) as error:
                raise PadirError(f"{name}: cannot read the constraint: {error}") from error
        if not isinstance(found, Mapping):
            raise PadirError(f"{name}: not a JSON object with keys among {', '.join(KEYS)}")
        for key in found:
            if key not in KEYS:
                raise PadirError(f"{name}: unknown key {key!r}; choose among {', '.join(KEYS)}")
        if not set(found) - {"ignore_case"}:
            raise PadirError(f"{name}: demands nothing; give one of {', '.join(KEYS[:-1])}")
        ignore_case = found.get("ignore_case", False)
        if not isinstance(ignore_case, bool):
            raise PadirError(f"{name}: ignore_case: {ignore_case!r} is not true or false")
        lists = {
            key: _phrases(f"{name}: {key}", found[key]) if key in found else () for key in ("required", "forbidden")
        }
        terms = _terms(f"{name}: terms", found["terms"]) if "terms" in found else ()
        made = cls(name, _pattern(name, found), **lists, terms=terms, ignore_case=ignore_case)
        made._check_contradictions()
        return made

    def _check_contradictions(self) -> None:
        for phrase in self.required:
            if inside := [other for other in self.forbidden if self.stands_in(other, phrase)]:
                raise PadirError(f"{self.name}: required: {phrase!r} contains {inside[0]!r}, which is forbidden")
        for source, targets in self.terms:
            if all(any(self.stands_in(other, target) for other in self.forbidden) for target in targets):
                raise PadirError(f"{self.name}: terms: what {source!r} must become is forbidden: {', '.join(targets)}")

    def stands_in(self, phrase: str, text: str) -> bool:
        """Whether a phrase stands in a text."""
        return _finder(phrase, self.ignore_case)(text) is not None

    def demanded(self, source: str) -> tuple[tuple[str, ...], ...]:
        """What the terms of a source demand: for each that stands in it the targets, one of which must be written."""
        text = clean(source)
        return tuple(dict.fromkeys(targets for term, targets in self.terms if self.stands_in(term, text)))

    def concerns(self, source: str) -> bool:
        """Whether anything is demanded of the output of a source; terms alone demand nothing where none stands."""
        return bool(self.pattern or self.required or self.forbidden or self.demanded(source))

    def met(self, source: str, text: str) -> bool:
        """Whether the output `text` of a source obeys; asked of Python's `re`, not of any automaton."""
        flags = re.IGNORECASE if self.ignore_case else 0
        return (
            (self.pattern is None or re.fullmatch(self.pattern, text, flags) is not None)
            and all(self.stands_in(phrase, text) for phrase in self.required)
            and not any(self.stands_in(phrase, text) for phrase in self.forbidden)
            and all(any(self.stands_in(each, text) for each in targets) for targets in self.demanded(source))
        )

    def containing(self, alternatives: tuple[str, ...]) -> Node:
        """The texts in which one of the phrases stands."""
        every, other = Repeat(ANY), Character(f"(?!{letter()}).")
        at_edges: dict[tuple[bool, bool], list[Node]] = {}
        for phrase in alternatives:
            edges = _is_letter(phrase[0]), _is_letter(phrase[-1])
            at_edges.setdefault(edges, []).append(patterns.literal(phrase, ignore_case=self.ignore_case))
        # What may stand around a phrase is the same for all with such edges; apart, the automaton would grow.
        return Choice(
            tuple(
                Sequence(
                    (
                        optional(Sequence((every, other)) if before else every),
                        Choice(tuple(phrases)),
                        optional(Sequence((other, every)) if after else every),
                    )
                )
                for (before, after), phrases in at_edges.items()
            )
        )


def _is_letter(character: str) -> bool:
    return re.match(letter(), character) is not None


@functools.lru_cache(maxsize=50_000)
def _finder(phrase: str, ignore_case: bool):
    before = f"(?<!{letter()})" if _is_letter(phrase[0]) else ""
    after = f"(?!{letter()})" if _is_letter(phrase[-1]) else ""
    return re.compile(before + re.escape(phrase) + after, re.IGNORECASE if ignore_case else 0).search


def _pattern(name: str, found: Mapping[str, Any]) -> str | None:
    if "pattern" not in found:
        return None
    pattern = found["pattern"]
    if not isinstance(pattern, str):
        raise PadirError(f"{name}: pattern: {pattern!r} is not a text")
    try:
        patterns.parse(pattern)
    except PadirError as error:
        raise PadirError(f"{name}: pattern: {error}") from None
    return pattern


def _phrases(where: str, found: Any) -> tuple[str, ...]:
    if not isinstance(found, list | tuple):
        raise PadirError(f"{where}: {found!r} is not a list of phrases")
    if not found:
        raise PadirError(f"{where}: the list is empty; leave the key out, or name a phrase")
    return tuple(dict.fromkeys(_phrase(where, each) for each in found))


def _phrase(where: str, found: Any) -> str:
    if not isinstance(found, str):
        raise PadirError(f"{where}: {found!r} is not a phrase")
    if not clean(found):
        raise PadirError(f"{where}: the phrase {found!r} is empty; leave it out")
    return clean(found)


def _terms(where: str, found: Any) -> tuple[tuple[str, tuple[str, ...]], ...]:
    if not isinstance(found, Mapping):
        raise PadirError(f"{where}: {found!r} is not an object of source and target terms")
    if not found:
        raise PadirError(f"{where}: there is no term; leave the key out, or give one")
    return tuple(
        (
            _phrase(where, source),
            _phrases(f"{where}: {source}", targets if isinstance(targets, list | tuple) else [targets]),
        )
        for source, targets in found.items()
    )
