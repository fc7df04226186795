"""Words and phrases of the synthetic language pair with their German translations.

Every German entry is a pair `(everyday, formal)`. A sentence has one register, so all of its words, however far apart,
take the same element of their pairs. An entry without a formal translation has the same word twice. The two
translations may also differ in gender (`das Auto` / `der Wagen`), in the case of the object (`hilft` with dative /
`unterstützt` with accusative) or in a separable prefix (`macht ... auf` / `öffnet`).

To keep the language regular, it has no nouns of the weak declension (der Junge, den Jungen) and no verbs whose perfect
takes `sein`. The third person plural of every verb equals its infinitive.
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
    """One German noun. Its singular has a single form; its plural has a second form for the dative."""

    gender: Gender
    singular: str
    plural: str
    dative_plural: str

    def form(self, case: Case, plural: bool) -> str:
        """The form of the noun in this case and number."""
        if not plural:
            return self.singular
        return self.dative_plural if case == "dative" else self.plural


@dataclass(frozen=True)
class Noun:
    """An English noun with its (everyday, formal) German nouns; `plural` is "" if only the singular is used."""

    plural: str
    kind: Kind
    german: tuple[GermanNoun, GermanNoun]


@dataclass(frozen=True)
class GermanVerb:
    """A German verb. Singular and plural (third person) are without the separable prefix, the participle is with it.

    `object_case` is the case of its object; `preposition`, unless empty, comes before the object.
    """

    prefix: str
    singular: str
    plural: str
    participle: str
    object_case: Case
    preposition: str = ""

    @property
    def infinitive(self) -> str:
        """The infinitive with its prefix, as it follows a modal verb."""
        return self.prefix + self.plural


@dataclass(frozen=True)
class Verb:
    """An English verb, whose base form is its key in `VERBS`, with its frame and (everyday, formal) German verbs."""

    singular: str
    participle: str
    frame: Frame
    german: tuple[GermanVerb, GermanVerb]


def _noun(plural: str, kind: Kind, *german: str) -> Noun:
    """An entry of `NOUNS`; each German noun is given as 'gender singular plural dative-plural'."""
    nouns = [GermanNoun(*entry.split()) for entry in german]
    return Noun(plural, kind, (nouns[0], nouns[-1]))


def _verb(singular: str, participle: str, frame: Frame, *german: str) -> Verb:
    """An entry of `VERBS`; each German verb is given as '[prefix|]singular plural participle acc|dat|preposition'."""
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

# The kinds of noun that may be the object of a verb with this frame; names count as animate.
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
# German form, and whether the verb is plural; pronouns occur only as subjects.
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

# One column per gender, and "p" for the plural; rows in the order of CASES.
_DEFINITE = {"m": "der den dem", "f": "die die der", "n": "das das dem", "p": "die die den"}
_DEMONSTRATIVE = {"m": "er en em", "f": "e e er", "n": "es es em", "p": "e e en"}
_INDEFINITE = {"m": "- en em", "f": "e e er", "n": "- - em", "p": "e e en"}
_WEAK = {"m": "e en en", "f": "e e en", "n": "e e en", "p": "en en en"}
_MIXED = {"m": "er en en", "f": "e e en", "n": "es es en", "p": "en en en"}


def _declension() -> dict[tuple[str, Case, str], tuple[str, str]]:
    """Maps (English determiner, case, column) to (German determiner, ending of the adjectives after it)."""
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
    """All English word forms that the grammar can produce."""
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
# Inflected English forms: the base form of each verb form; the noun of each noun form, and whether it is plural.
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
    """A place adverbial: an English preposition and the noun phrase after it."""

    preposition: str
    noun_phrase: NounPhrase


def german_verb(predicate: Predicate, plural: bool, register: int) -> tuple[str, str, str]:
    """The verbs of a clause in German, in third person.

    Returns:
      (finite verb of a main clause, the prefix, participle or infinitive that ends this main clause, all verbs at the
      end of a subordinate clause).
    """
    verb = VERBS[predicate.verb].german[register]
    if not predicate.auxiliary:
        finite = verb.plural if plural else verb.singular
        return finite, verb.prefix, verb.prefix + finite
    finite = AUXILIARIES[predicate.auxiliary][plural]
    tail = verb.participle if predicate.auxiliary == "have" else verb.infinitive
    return finite, tail, f"{tail} {finite}"


def german_objects(predicate: Predicate, register: int) -> str:
    """The objects in German: the recipient (dative) before the object."""
    if predicate.object is None:
        return ""
    verb = VERBS[predicate.verb].german[register]
    text = german_noun_phrase(predicate.object, verb.object_case, register)
    if predicate.recipient:
        return f"{german_noun_phrase(predicate.recipient, 'dative', register)} {text}"
    return f"{verb.preposition} {text}" if verb.preposition else text


def german_place(place: Place, register: int) -> str:
    """The place adverbial in German, which always takes the dative; `in dem` is contracted to `im`."""
    phrase = f"{PREPOSITIONS[place.preposition]} {german_noun_phrase(place.noun_phrase, 'dative', register)}"
    return "im " + phrase.removeprefix("in dem ") if phrase.startswith("in dem ") else phrase


def german_noun_phrase(phrase: NounPhrase, case: Case, register: int) -> str:
    """The noun phrase in German. A relative clause, whose subject is its pronoun, has a comma before and after it."""
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
    """Verb, auxiliary and objects in English; `plural` says whether the subject is plural."""
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
