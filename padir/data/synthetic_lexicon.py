"""Words and phrases of the embedded language pair: what each may become in German.

Every German entry is a pair `(everyday, formal)`. A whole sentence is in one register, so two words of one sentence
never take different columns, however far apart they are; an entry without a formal counterpart repeats itself. The
pairs differ in what makes that choice visible elsewhere: in gender (`das Auto` / `der Wagen`), in case (`hilft` with
dative / `unterstützt` with accusative), in a separated prefix (`macht ... auf` / `öffnet`) or in nothing but the word.

To stay regular, nouns of the weak declension (der Junge, den Jungen) and verbs whose perfect takes `sein` are left
out; the third person plural of every verb here equals its infinitive.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

Case = Literal["nominative", "accusative", "dative"]
Gender = Literal["m", "f", "n"]
Kind = Literal["animate", "thing", "openable", "place"]
Frame = Literal["none", "any", "animate", "thing", "openable", "give", "clause"]

CASES: tuple[Case, ...] = ("nominative", "accusative", "dative")


@dataclass(frozen=True)
class GermanNoun:
    """One German noun; the singular has one form, the plural a second one for the dative."""

    gender: Gender
    singular: str
    plural: str
    dative_plural: str

    def form(self, case: Case, plural: bool) -> str:
        """The noun as written in that case and number."""
        if not plural:
            return self.singular
        return self.dative_plural if case == "dative" else self.plural


@dataclass(frozen=True)
class Noun:
    """An English noun with its (everyday, formal) German; `plural` is "" where only the singular is used."""

    plural: str
    kind: Kind
    german: tuple[GermanNoun, GermanNoun]


@dataclass(frozen=True)
class GermanVerb:
    """A German verb: third person singular and plural without the separable prefix, participle with it.

    `object_case` is the case of its object; `preposition` stands before that object where there is one.
    """

    prefix: str
    singular: str
    plural: str
    participle: str
    object_case: Case
    preposition: str = ""

    @property
    def infinitive(self) -> str:
        """The infinitive with its prefix, as a modal verb asks for it."""
        return self.prefix + self.plural


@dataclass(frozen=True)
class Verb:
    """An English verb (its base form is the key) with its frame and its (everyday, formal) German."""

    singular: str
    participle: str
    frame: Frame
    german: tuple[GermanVerb, GermanVerb]


def _noun(plural: str, kind: Kind, *german: str) -> Noun:
    """A table row; each German noun is 'gender singular plural dative-plural'."""
    nouns = [GermanNoun(*entry.split()) for entry in german]
    return Noun(plural, kind, (nouns[0], nouns[-1]))


def _verb(singular: str, participle: str, frame: Frame, *german: str) -> Verb:
    """A table row; each German verb is '[prefix|]singular plural participle acc|dat|preposition'."""
    verbs = []
    for entry in german:
        prefix, _, rest = entry.rpartition("|")
        third, plural, past, government = rest.split()
        case: Case = "accusative" if government == "acc" else "dative"
        verbs.append(GermanVerb(prefix, third, plural, past, case, "" if government in ("acc", "dat") else government))
    return Verb(singular, participle, frame, (verbs[0], verbs[-1]))


NOUNS: dict[str, Noun] = {
    "man": _noun("men", "animate", "m Mann Männer Männern"),
    "woman": _noun("women", "animate", "f Frau Frauen Frauen"),
    "child": _noun("children", "animate", "n Kind Kinder Kindern"),
    "girl": _noun("girls", "animate", "n Mädchen Mädchen Mädchen"),
    "friend": _noun("friends", "animate", "m Freund Freunde Freunden"),
    "sister": _noun("sisters", "animate", "f Schwester Schwestern Schwestern"),
    "doctor": _noun("doctors", "animate", "m Doktor Doktoren Doktoren", "m Arzt Ärzte Ärzten"),
    "dog": _noun("dogs", "animate", "m Hund Hunde Hunden"),
    "cat": _noun("cats", "animate", "f Katze Katzen Katzen"),
    "letter": _noun("letters", "thing", "m Brief Briefe Briefen", "n Schreiben Schreiben Schreiben"),
    "ticket": _noun("tickets", "thing", "n Ticket Tickets Tickets", "f Fahrkarte Fahrkarten Fahrkarten"),
    "key": _noun("keys", "thing", "m Schlüssel Schlüssel Schlüsseln"),
    "lamp": _noun("lamps", "thing", "f Lampe Lampen Lampen"),
    "book": _noun("books", "openable", "n Buch Bücher Büchern"),
    "car": _noun("cars", "openable", "n Auto Autos Autos", "m Wagen Wagen Wagen"),
    "door": _noun("doors", "openable", "f Tür Türen Türen"),
    "window": _noun("windows", "openable", "n Fenster Fenster Fenstern"),
    "garden": _noun("", "place", "m Garten Gärten Gärten"),
    "house": _noun("", "place", "n Haus Häuser Häusern"),
    "school": _noun("", "place", "f Schule Schulen Schulen"),
    "park": _noun("", "place", "m Park Parks Parks"),
    "church": _noun("", "place", "f Kirche Kirchen Kirchen"),
    "store": _noun("", "place", "m Laden Läden Läden", "n Geschäft Geschäfte Geschäften"),
}

VERBS: dict[str, Verb] = {
    "work": _verb("works", "worked", "none", "arbeitet arbeiten gearbeitet acc"),
    "shop": _verb("shops", "shopped", "none", "ein|kauft kaufen eingekauft acc"),
    "see": _verb("sees", "seen", "any", "sieht sehen gesehen acc"),
    "find": _verb("finds", "found", "any", "findet finden gefunden acc"),
    "need": _verb("needs", "needed", "any", "braucht brauchen gebraucht acc", "benötigt benötigen benötigt acc"),
    "fetch": _verb("fetches", "fetched", "any", "ab|holt holen abgeholt acc"),
    "buy": _verb("buys", "bought", "thing", "kauft kaufen gekauft acc", "erwirbt erwerben erworben acc"),
    "open": _verb("opens", "opened", "openable", "auf|macht machen aufgemacht acc", "öffnet öffnen geöffnet acc"),
    "close": _verb(
        "closes", "closed", "openable", "zu|macht machen zugemacht acc", "schließt schließen geschlossen acc"
    ),
    "call": _verb(
        "calls", "called", "animate", "an|ruft rufen angerufen acc", "telefoniert telefonieren telefoniert mit"
    ),
    "help": _verb(
        "helps", "helped", "animate", "hilft helfen geholfen dat", "unterstützt unterstützen unterstützt acc"
    ),
    "thank": _verb("thanks", "thanked", "animate", "dankt danken gedankt dat"),
    "invite": _verb("invites", "invited", "animate", "ein|lädt laden eingeladen acc"),
    "visit": _verb("visits", "visited", "animate", "besucht besuchen besucht acc", "auf|sucht suchen aufgesucht acc"),
    "give": _verb("gives", "given", "give", "gibt geben gegeben acc", "überreicht überreichen überreicht acc"),
    "show": _verb("shows", "shown", "give", "zeigt zeigen gezeigt acc"),
    "send": _verb("sends", "sent", "give", "schickt schicken geschickt acc", "sendet senden gesendet acc"),
    "return": _verb("returns", "returned", "give", "zurück|gibt geben zurückgegeben acc"),
    "know": _verb("knows", "known", "clause", "weiß wissen gewusst acc"),
    "say": _verb("says", "said", "clause", "sagt sagen gesagt acc"),
    "think": _verb("thinks", "thought", "clause", "denkt denken gedacht acc", "meint meinen gemeint acc"),
}

# Which kinds of noun may be the object of a verb with that frame; names count as animate.
OBJECT_KINDS: dict[Frame, tuple[Kind, ...]] = {
    "none": (),
    "any": ("animate", "thing", "openable"),
    "animate": ("animate",),
    "thing": ("thing", "openable"),
    "openable": ("openable",),
    "give": ("thing", "openable"),
    "clause": (),
}

NAMES = ("Anna", "Maria", "Peter")
# German form and whether the verb is plural; a pronoun is only ever a subject.
PRONOUNS: dict[str, tuple[str, bool]] = {
    "he": ("er", False),
    "she": ("sie", False),
    "we": ("wir", True),
    "they": ("sie", True),
}
# A noun has at most one adjective of each group, in this order.
QUALITIES: dict[str, tuple[str, str]] = {
    "good": ("gut", "gut"),
    "pretty": ("hübsch", "hübsch"),
    "strange": ("komisch", "seltsam"),
    "famous": ("bekannt", "berühmt"),
}
SIZES: dict[str, tuple[str, str]] = {
    "old": ("alt", "alt"),
    "new": ("neu", "neu"),
    "small": ("klein", "klein"),
    "big": ("groß", "groß"),
}
ADJECTIVES = QUALITIES | SIZES
TIMES: dict[str, tuple[str, str]] = {
    "today": ("heute", "heute"),
    "now": ("jetzt", "nun"),
    "often": ("oft", "häufig"),
    "sometimes": ("manchmal", "bisweilen"),
    "every day": ("jeden Tag", "täglich"),
    "in the evening": ("am Abend", "abends"),
}
MANNERS: dict[str, tuple[str, str]] = {
    "gladly": ("gern", "gern"),
    "secretly": ("heimlich", "heimlich"),
    "quickly": ("schnell", "rasch"),
    "carefully": ("vorsichtig", "behutsam"),
}
PREPOSITIONS = {"in": "in", "behind": "hinter", "beside": "neben"}
# Singular and plural of the German finite verb; the English participle or base form follows the key.
AUXILIARIES: dict[str, tuple[str, str]] = {
    "have": ("hat", "haben"),
    "can": ("kann", "können"),
    "must": ("muss", "müssen"),
    "will": ("wird", "werden"),
}
SUBORDINATORS: dict[str, tuple[str, str]] = {
    "because": ("weil", "da"),
    "if": ("wenn", "falls"),
    "although": ("obwohl", "obgleich"),
}
COORDINATORS = {"and": " und ", "but": ", aber "}
RELATIVE_PRONOUNS = {"m": "der", "f": "die", "n": "das", "p": "die"}

# One column a gender, and "p" for the plural; rows in the order of CASES.
_DEFINITE = {"m": "der den dem", "f": "die die der", "n": "das das dem", "p": "die die den"}
_DEMONSTRATIVE = {"m": "er en em", "f": "e e er", "n": "es es em", "p": "e e en"}
_INDEFINITE = {"m": "- en em", "f": "e e er", "n": "- - em", "p": "e e en"}
_WEAK = {"m": "e en en", "f": "e e en", "n": "e e en", "p": "en en en"}
_MIXED = {"m": "er en en", "f": "e e en", "n": "es es en", "p": "en en en"}


def _declension() -> dict[tuple[str, Case, str], tuple[str, str]]:
    """(English determiner, case, column) -> (German determiner, ending of the adjectives after it)."""
    stems = (
        ("the", "", _DEFINITE, _WEAK),
        ("this", "dies", _DEMONSTRATIVE, _WEAK),
        ("a", "ein", _INDEFINITE, _MIXED),
        ("my", "mein", _INDEFINITE, _MIXED),
    )
    table = {}
    for determiner, stem, endings, adjectives in stems:
        for column in "mfnp":
            if determiner == "a" and column == "p":
                continue
            for case, ending, adjective in zip(CASES, endings[column].split(), adjectives[column].split(), strict=True):
                table[determiner, case, column] = (stem + ending.replace("-", ""), adjective)
    return table


DECLENSION = _declension()
# English form -> its key in DECLENSION.
DETERMINERS = {"the": "the", "a": "a", "an": "a", "this": "this", "these": "this", "my": "my"}
SINGULAR_DETERMINERS = ("the", "a", "this", "my")
PLURAL_DETERMINERS = ("the", "this", "my")


def _source_words() -> frozenset[str]:
    """Every English word form the grammar can write."""
    words = {*DETERMINERS, "has", "to", "who", "that"}
    for table in (NAMES, PRONOUNS, ADJECTIVES, MANNERS, PREPOSITIONS, AUXILIARIES, SUBORDINATORS, COORDINATORS):
        words.update(table)
    for phrase in TIMES:
        words.update(phrase.split())
    for base, noun in NOUNS.items():
        words.update(form for form in (base, noun.plural) if form)
    for base, verb in VERBS.items():
        words.update((base, verb.singular, verb.participle))
    return frozenset(words)


SOURCE_WORDS = _source_words()
# What an inflected English form stands for: the verb; the noun and whether it is plural.
VERB_FORMS = {form: base for base, entry in VERBS.items() for form in (base, entry.singular, entry.participle)}
NOUN_FORMS = {base: (base, False) for base in NOUNS} | {
    entry.plural: (base, True) for base, entry in NOUNS.items() if entry.plural
}


class NounPhrase(NamedTuple):
    """A noun with its determiner (English singular form), or a bare name or pronoun (determiner "")."""

    determiner: str
    adjectives: tuple[str, ...]
    noun: str
    plural: bool
    relative: "Predicate | None" = None


class Predicate(NamedTuple):
    """A verb (English base form) with its objects; `auxiliary` is "" in the present tense."""

    auxiliary: str
    verb: str
    object: NounPhrase | None
    recipient: NounPhrase | None


class Place(NamedTuple):
    """A place adverbial: English preposition and what follows it."""

    preposition: str
    noun_phrase: NounPhrase


def german_verb(predicate: Predicate, plural: bool, register: int) -> tuple[str, str, str]:
    """The finite verb of a main clause, what ends that clause, and the verbs ending a subordinate clause."""
    verb = VERBS[predicate.verb].german[register]
    if not predicate.auxiliary:
        finite = verb.plural if plural else verb.singular
        return finite, verb.prefix, verb.prefix + finite
    finite = AUXILIARIES[predicate.auxiliary][plural]
    tail = verb.participle if predicate.auxiliary == "have" else verb.infinitive
    return finite, tail, f"{tail} {finite}"


def german_objects(predicate: Predicate, register: int) -> str:
    """Recipient and object, dative before accusative."""
    if predicate.object is None:
        return ""
    verb = VERBS[predicate.verb].german[register]
    text = german_noun_phrase(predicate.object, verb.object_case, register)
    if predicate.recipient:
        return f"{german_noun_phrase(predicate.recipient, 'dative', register)} {text}"
    return f"{verb.preposition} {text}" if verb.preposition else text


def german_place(place: Place, register: int) -> str:
    """The place adverbial in German, always dative; `in dem` contracts."""
    phrase = f"{PREPOSITIONS[place.preposition]} {german_noun_phrase(place.noun_phrase, 'dative', register)}"
    return "im " + phrase.removeprefix("in dem ") if phrase.startswith("in dem ") else phrase


def german_noun_phrase(phrase: NounPhrase, case: Case, register: int) -> str:
    """The noun phrase in German; a relative clause (its pronoun the subject) brings a comma on either side."""
    if not phrase.determiner:
        return PRONOUNS[phrase.noun][0] if phrase.noun in PRONOUNS else phrase.noun
    noun = NOUNS[phrase.noun].german[register]
    column = "p" if phrase.plural else noun.gender
    determiner, ending = DECLENSION[phrase.determiner, case, column]
    adjectives = [ADJECTIVES[adjective][register] + ending for adjective in phrase.adjectives]
    text = " ".join((determiner, *adjectives, noun.form(case, phrase.plural)))
    if phrase.relative is None:
        return text
    words = (
        RELATIVE_PRONOUNS[column],
        german_objects(phrase.relative, register),
        german_verb(phrase.relative, phrase.plural, register)[2],
    )
    return f"{text}, {' '.join(word for word in words if word)},"


def english_predicate(predicate: Predicate, plural: bool) -> str:
    """Verb, auxiliary and objects in English; `plural` is the subject's number."""
    entry = VERBS[predicate.verb]
    if predicate.auxiliary == "have":
        text = f"{'have' if plural else 'has'} {entry.participle}"
    elif predicate.auxiliary:
        text = f"{predicate.auxiliary} {predicate.verb}"
    else:
        text = predicate.verb if plural else entry.singular
    if predicate.object:
        text += f" {english_noun_phrase(predicate.object)}"
    if predicate.recipient:
        text += f" to {english_noun_phrase(predicate.recipient)}"
    return text


def english_place(place: Place) -> str:
    """The place adverbial in English."""
    return f"{place.preposition} {english_noun_phrase(place.noun_phrase)}"


def english_noun_phrase(phrase: NounPhrase) -> str:
    """The noun phrase in English, with its relative clause."""
    if not phrase.determiner:
        return phrase.noun
    text = " ".join((*phrase.adjectives, NOUNS[phrase.noun].plural if phrase.plural else phrase.noun))
    determiner = phrase.determiner
    if determiner == "this" and phrase.plural:
        determiner = "these"
    elif determiner == "a" and text[0] in "aeiou":
        determiner = "an"
    text = f"{determiner} {text}"
    return f"{text} who {english_predicate(phrase.relative, phrase.plural)}" if phrase.relative else text
