"""The synthetic language pair: English-like sources, German-like targets, and an exact validity checker.

A sentence is an abstract tree (`Sentence`). English has exactly one way of writing each tree and writes no two trees
alike, so a source text determines its tree. German has several ways, which differ in the following (see `_Plan`):

- Register: words with an everyday and a formal translation all take the same register within a sentence.
- Vorfeld: one constituent comes before the finite verb of a main clause, and all others follow the verb. It is the
  subject, the time adverbial, the place adverbial, or a whole `weil` / `wenn` / `obwohl` clause.
- In a subordinate clause the time adverbial follows the subject, or precedes it unless the subject is a pronoun.

The canonical way has the everyday register, and the Vorfeld is whatever comes first in English. The rest has a fixed
order: subject, time, dative, accusative, manner, place, then prefix, infinitive or participle. For example::

    source      "the man who calls Anna can open a new door today because she works."
    canonical   "der Mann, der Anna anruft, kann heute eine neue Tür aufmachen, weil sie arbeitet."
    also valid  "da sie arbeitet, kann der Mann, der mit Anna telefoniert, heute eine neue Tür öffnen."

No space precedes commas and the full stop. Only names and German nouns are capitalised. Generated sentences have 4 to
24 words in both languages, and never the same word twice in a row. So if an output stutters, it is always an error.
"""

import random
from collections.abc import Container, Iterator, Sequence
from itertools import product
from operator import eq
from typing import NamedTuple, NoReturn

from padir.data import synthetic_lexicon as lexicon
from padir.data.synthetic_lexicon import NounPhrase, Place, Predicate
from padir.errors import PadirError

MIN_WORDS, MAX_WORDS = 4, 24


class Clause(NamedTuple):
    """A clause; `front` is the adverbial ("time" or "place") that comes first in English, or ""."""

    subject: NounPhrase
    predicate: Predicate
    manner: str
    place: Place | None
    time: str
    front: str


class Sentence(NamedTuple):
    """One clause, or two that `link` joins; if `swapped`, the subordinate `second` comes before `first`."""

    first: Clause
    link: str
    second: Clause | None
    swapped: bool


class _Plan(NamedTuple):
    """One way of writing a sentence in German: register (0 everyday, 1 formal) and what comes first in each clause."""

    register: int
    first: str
    second: str


def generate(count: int, *, seed: int | str, ambiguity: float, start: int = 0) -> Iterator[tuple[str, str]]:
    """Yields `count` (source, target) pairs. The pair with index i depends only on `seed`, i and `ambiguity`.

    The source does not depend on `ambiguity`. The same arguments give the same text on every platform and version of
    Python, which guarantees the sequence of `random.Random(str).random()`. Use a different seed for each split.

    Args:
      count: number of pairs.
      seed: identifies the stream of pairs.
      ambiguity: probability, 0 to 1, of a target drawn uniformly from all valid ones instead of the canonical target.
      start: index of the first pair, so that a stream can be generated in parts.

    Raises:
      PadirError: an option is out of range.
    """
    if not 0.0 <= ambiguity <= 1.0:
        raise PadirError(f"ambiguity must be a probability from 0 to 1, got {ambiguity}")
    if count < 0 or start < 0:
        raise PadirError(f"count and start must not be negative, got count={count}, start={start}")
    return (_pair(f"{seed}:{index}", ambiguity) for index in range(start, start + count))


def parse(source: str) -> Sentence:
    """The tree of an English sentence (runs of white space count as one space).

    Raises:
      PadirError: `source` is not a sentence of the language.
    """
    text = " ".join(source.split())
    sentence = _Reader(text).sentence()
    # The reader ignores errors in number, a/an, commas and the full stop; writing the tree again finds them.
    if (expected := _english(sentence)) != text:
        raise PadirError(f"{text!r} is not a sentence of the synthetic language pair: it should read {expected!r}")
    return sentence


def translate(source: str) -> str:
    """The canonical translation, as `generate` gives it with `ambiguity=0`. Raises the errors of `parse`."""
    sentence = parse(source)
    return _german(sentence, _plans(sentence)[0])


def valid_translations(source: str) -> frozenset[str]:
    """Every valid translation of `source`. Raises the errors of `parse`."""
    sentence = parse(source)
    return frozenset(_german(sentence, plan) for plan in _plans(sentence))


def is_valid(source: str, hypothesis: str) -> bool:
    """Whether `hypothesis` is one of the valid translations; runs of white space count as one space.

    Raises:
      PadirError: `source` is not a sentence of the language; an invalid `hypothesis` raises nothing.
    """
    return " ".join(hypothesis.split()) in valid_translations(source)


# --- Sampling. Every draw is one rng.random(), the only method whose sequence Python guarantees.


def _pair(stream: str, ambiguity: float) -> tuple[str, str]:
    rng = random.Random(stream)
    while True:
        sentence = _sample_sentence(rng)
        source = _english(sentence)
        plans = _plans(sentence)
        canonical = _german(sentence, plans[0])
        # Only the register changes the number of words and repeats ("die Frau, die die Tür ..."; _sample_clause takes
        # care of names). So it is enough to check the first plan (everyday) and the last (formal).
        texts = [text.split() for text in (source, canonical, _german(sentence, plans[-1]))]
        if all(MIN_WORDS <= len(words) <= MAX_WORDS and not any(map(eq, words, words[1:])) for words in texts):
            break
    return source, _german(sentence, _pick(rng, plans)) if rng.random() < ambiguity else canonical


def _pick(rng: random.Random, options: Sequence):
    return options[int(rng.random() * len(options))]


_MATRIX_VERBS = tuple(verb for verb, entry in lexicon.VERBS.items() if entry.frame == "clause")
_PLAIN_VERBS = tuple(verb for verb, entry in lexicon.VERBS.items() if entry.frame != "clause")
_NOUNS = {
    kinds: tuple(noun for noun, entry in lexicon.NOUNS.items() if entry.kind in kinds)
    for kinds in {*lexicon.OBJECT_KINDS.values(), ("place",)}
}
_ANIMATE = ("animate",)


def _sample_sentence(rng: random.Random) -> Sentence:
    draw = rng.random()
    if draw < 0.64:
        return Sentence(_sample_clause(rng, _PLAIN_VERBS, fronting=True), "", None, False)
    if draw < 0.74:
        first = _sample_clause(rng, _MATRIX_VERBS, fronting=True)
        return Sentence(first, "that", _sample_clause(rng, _PLAIN_VERBS, fronting=False), False)
    if draw < 0.8:
        first, second = (_sample_clause(rng, _PLAIN_VERBS, fronting=True) for _ in range(2))
        return Sentence(first, _pick(rng, tuple(lexicon.COORDINATORS)), second, False)
    swapped = draw < 0.88
    first = _sample_clause(rng, _PLAIN_VERBS, fronting=not swapped)
    second = _sample_clause(rng, _PLAIN_VERBS, fronting=False)
    return Sentence(first, _pick(rng, tuple(lexicon.SUBORDINATORS)), second, swapped)


def _sample_clause(rng: random.Random, verbs: Sequence[str], *, fronting: bool) -> Clause:
    subject = _sample_subject(rng)
    predicate = _sample_predicate(rng, verbs)
    while not subject.determiner and subject in predicate:  # The same name twice: "weil Anna Anna sieht".
        predicate = _sample_predicate(rng, verbs)
    manner = _pick(rng, tuple(lexicon.MANNERS)) if rng.random() < 0.15 else ""
    place = None
    if rng.random() < 0.2:
        place = Place(_pick(rng, tuple(lexicon.PREPOSITIONS)), _sample_noun_phrase(rng, ("place",)))
    time = _pick(rng, tuple(lexicon.TIMES)) if rng.random() < 0.5 else ""
    fronts = [name for name, part in (("time", time), ("place", place)) if part]
    front = _pick(rng, fronts) if fronting and fronts and rng.random() < 0.35 else ""
    return Clause(subject, predicate, manner, place, time, front)


def _sample_predicate(rng: random.Random, verbs: Sequence[str]) -> Predicate:
    auxiliary = _pick(rng, tuple(lexicon.AUXILIARIES)) if rng.random() < 0.35 else ""
    verb = _pick(rng, verbs)
    frame = lexicon.VERBS[verb].frame
    kinds = lexicon.OBJECT_KINDS[frame]
    patient = _sample_noun_phrase(rng, kinds) if kinds else None
    recipient = _sample_noun_phrase(rng, _ANIMATE) if frame == "give" else None
    return Predicate(auxiliary, verb, patient, recipient)


def _sample_subject(rng: random.Random) -> NounPhrase:
    if rng.random() < 0.2:
        pronoun = _pick(rng, tuple(lexicon.PRONOUNS))
        return NounPhrase("", (), pronoun, lexicon.PRONOUNS[pronoun][1])
    phrase = _sample_noun_phrase(rng, _ANIMATE)
    if phrase.determiner and rng.random() < 0.08:
        return phrase._replace(relative=_sample_predicate(rng, _PLAIN_VERBS))
    return phrase


def _sample_noun_phrase(rng: random.Random, kinds: tuple[str, ...]) -> NounPhrase:
    if "animate" in kinds and rng.random() < 0.2:
        return NounPhrase("", (), _pick(rng, lexicon.NAMES), False)
    noun = _pick(rng, _NOUNS[kinds])
    plural = bool(lexicon.NOUNS[noun].plural) and rng.random() < 0.35
    determiner = _pick(rng, lexicon.PLURAL_DETERMINERS if plural else lexicon.SINGULAR_DETERMINERS)
    draw = rng.random()
    quality = (_pick(rng, tuple(lexicon.QUALITIES)),) if draw < 0.25 else ()
    size = (_pick(rng, tuple(lexicon.SIZES)),) if 0.15 < draw < 0.42 else ()
    return NounPhrase(determiner, quality + size, noun, plural)


# --- English: one way to write a tree.


def _english(sentence: Sentence) -> str:
    first, link, second, swapped = sentence
    if second is None:
        return f"{_english_clause(first)}."
    if swapped:
        return f"{link} {_english_clause(second)}, {_english_clause(first)}."
    return f"{_english_clause(first)} {link} {_english_clause(second)}."


def _english_clause(clause: Clause) -> str:
    subject, predicate, manner = clause.subject, clause.predicate, clause.manner
    parts = [lexicon.english_noun_phrase(subject), lexicon.english_predicate(predicate, subject.plural), manner]
    place = lexicon.english_place(clause.place) if clause.place else ""
    if clause.front == "time":
        parts = [clause.time, *parts, place]
    elif clause.front == "place":
        parts = [place, *parts, clause.time]
    else:
        parts += [place, clause.time]
    return " ".join(part for part in parts if part)


# --- German: a tree and a plan.


def _plans(sentence: Sentence) -> list[_Plan]:
    """Every way of writing the sentence: the canonical one first, and everyday register before formal."""
    firsts = _main_leads(sentence.first)
    seconds = [""]
    if sentence.link in lexicon.SUBORDINATORS:
        firsts = ["clause", *firsts] if sentence.swapped else [*firsts, "clause"]
    if sentence.link in lexicon.COORDINATORS:
        seconds = _main_leads(sentence.second)
    elif sentence.second:
        second = sentence.second
        seconds = ["subject", "time"] if second.time and second.subject.noun not in lexicon.PRONOUNS else ["subject"]
    everyday = [_Plan(0, first, second) for first, second in product(firsts, seconds)]
    formal = [plan._replace(register=1) for plan in everyday]
    differ = _german(sentence, everyday[0]) != _german(sentence, formal[0])
    return everyday + formal if differ else everyday


def _main_leads(clause: Clause) -> list[str]:
    """The constituents that may come before the finite verb of a main clause, the canonical choice first."""
    leads = ["subject"] + ["time"] * bool(clause.time) + ["place"] * bool(clause.place)
    return sorted(leads, key=lambda lead: lead != (clause.front or "subject"))


def _german(sentence: Sentence, plan: _Plan) -> str:
    link, register = sentence.link, plan.register
    text = _german_clause(sentence.first, plan.first, register)
    if link in lexicon.COORDINATORS:
        text += lexicon.COORDINATORS[link] + _german_clause(sentence.second, plan.second, register)
    elif link:
        word = "dass" if link == "that" else lexicon.SUBORDINATORS[link][register]
        second = f"{word} {_german_clause(sentence.second, plan.second, register, verb_final=True)}"
        text = f"{second}, {text}" if plan.first == "clause" else f"{text}, {second}"
    # A relative clause ends in a comma, after which the sentence may have another comma or the full stop.
    return f"{text}.".replace(",,", ",").replace(",.", ".")


def _german_clause(clause: Clause, lead: str, register: int, *, verb_final: bool = False) -> str:
    finite, tail, cluster = lexicon.german_verb(clause.predicate, clause.subject.plural, register)
    parts = {
        "subject": lexicon.german_noun_phrase(clause.subject, "nominative", register),
        "time": lexicon.TIMES[clause.time][register] if clause.time else "",
        "objects": lexicon.german_objects(clause.predicate, register),
        "manner": lexicon.MANNERS[clause.manner][register] if clause.manner else "",
        "place": lexicon.german_place(clause.place, register) if clause.place else "",
    }
    first = parts.pop(lead, "")
    words = [first, *parts.values(), cluster] if verb_final else [first, finite, *parts.values(), tail]
    return " ".join(word for word in words if word)


# --- Parsing: recursive descent over the English side.


class _Reader:
    """Reads one sentence word by word; a comma counts as a word."""

    def __init__(self, text: str):
        self._text = text
        self._words = text.removesuffix(".").replace(",", " ,").split()
        self._next = 0

    def sentence(self) -> Sentence:
        """The whole text as a tree."""
        if self._peek() in lexicon.SUBORDINATORS:
            link = self._take(lexicon.SUBORDINATORS, "a conjunction")
            second = self._clause()
            self._take((",",), "a comma")
            sentence = Sentence(self._clause(), link, second, True)
        else:
            first = self._clause(fronting=True, matrix=True)
            link, second = "", None
            if lexicon.VERBS[first.predicate.verb].frame == "clause":
                link = self._take(("that",), "'that'")
            elif self._peek():
                link = self._take((*lexicon.COORDINATORS, *lexicon.SUBORDINATORS), "a conjunction or the end")
            if link:
                second = self._clause(fronting=link in lexicon.COORDINATORS)
            sentence = Sentence(first, link, second, False)
        if self._peek():
            self._fail("the end")
        return sentence

    def _peek(self) -> str:
        return self._words[self._next] if self._next < len(self._words) else ""

    def _advance(self) -> str:
        self._next += 1
        return self._words[self._next - 1]

    def _fail(self, wanted: str) -> NoReturn:
        found = self._peek() or "the end"
        raise PadirError(
            f"{self._text!r} is not a sentence of the synthetic language pair: "
            f"expected {wanted} as word {self._next + 1}, found {found!r}"
        )

    def _take(self, options: Container[str], wanted: str) -> str:
        if not self._peek() or self._peek() not in options:
            self._fail(wanted)
        return self._advance()

    def _clause(self, *, fronting: bool = False, matrix: bool = False) -> Clause:
        time = self._time() if fronting else ""
        place = self._place() if fronting and not time else None
        front = "time" if time else "place" if place else ""
        subject = self._noun_phrase(_ANIMATE, subject=True)
        predicate = self._predicate(matrix=matrix)
        manner = self._advance() if self._peek() in lexicon.MANNERS else ""
        place = place or self._place()
        return Clause(subject, predicate, manner, place, time or self._time(), front)

    def _time_ahead(self) -> str:
        ahead = " ".join(self._words[self._next : self._next + 3]) + " "
        return next((phrase for phrase in lexicon.TIMES if ahead.startswith(phrase + " ")), "")

    def _time(self) -> str:
        phrase = self._time_ahead()
        self._next += len(phrase.split())
        return phrase

    def _place(self) -> Place | None:
        if self._peek() not in lexicon.PREPOSITIONS or self._time_ahead():
            return None
        return Place(self._advance(), self._noun_phrase(("place",)))

    def _predicate(self, *, matrix: bool = False) -> Predicate:
        auxiliary = ""
        if self._peek() in ("has", *lexicon.AUXILIARIES):
            auxiliary = self._advance().replace("has", "have")
        verb = lexicon.VERB_FORMS.get(self._peek())
        if verb is None or (lexicon.VERBS[verb].frame == "clause" and not matrix):
            self._fail("a verb" if matrix else "a verb that needs no 'that'")
        self._next += 1
        frame = lexicon.VERBS[verb].frame
        kinds = lexicon.OBJECT_KINDS[frame]
        patient = self._noun_phrase(kinds) if kinds else None
        recipient = None
        if frame == "give":
            self._take(("to",), "'to'")
            recipient = self._noun_phrase(_ANIMATE)
        return Predicate(auxiliary, verb, patient, recipient)

    def _noun_phrase(self, kinds: tuple[str, ...], *, subject: bool = False) -> NounPhrase:
        if subject and self._peek() in lexicon.PRONOUNS:
            pronoun = self._advance()
            return NounPhrase("", (), pronoun, lexicon.PRONOUNS[pronoun][1])
        if "animate" in kinds and self._peek() in lexicon.NAMES:
            return NounPhrase("", (), self._advance(), False)
        determiner = lexicon.DETERMINERS[self._take(lexicon.DETERMINERS, "a noun phrase")]
        adjectives = tuple(self._advance() for group in (lexicon.QUALITIES, lexicon.SIZES) if self._peek() in group)
        noun, plural = lexicon.NOUN_FORMS.get(self._peek(), ("", False))
        if not noun or lexicon.NOUNS[noun].kind not in kinds or (plural and determiner == "a"):
            self._fail(f"a noun ({' or '.join(kinds)}) that fits its determiner")
        self._next += 1
        relative = None
        if subject and self._peek() == "who":
            self._advance()
            relative = self._predicate()
        return NounPhrase(determiner, adjectives, noun, plural, relative)
