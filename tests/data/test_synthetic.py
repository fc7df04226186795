"""The synthetic language pair: correct German, an exact checker and reproducible sampling."""

import random
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from padir.data import synthetic
from padir.data import synthetic_lexicon as lexicon
from padir.errors import PadirError

# source -> every valid translation, the canonical one first.
EXAMPLES = {
    # Verb second: a fronted time adverbial sends the subject behind the verb.
    "the old man sees the dog today.": [
        "der alte Mann sieht heute den Hund.",
        "heute sieht der alte Mann den Hund.",
    ],
    "today the old man sees the dog.": [
        "heute sieht der alte Mann den Hund.",
        "der alte Mann sieht heute den Hund.",
    ],
    # Three candidates for the Vorfeld; "in dem" contracts.
    "in the garden Anna finds a big lamp today.": [
        "im Garten findet Anna heute eine große Lampe.",
        "Anna findet heute eine große Lampe im Garten.",
        "heute findet Anna eine große Lampe im Garten.",
    ],
    # Verb final, perfect tense; time before or after the subject.
    "Maria says that the children have seen the cat today.": [
        "Maria sagt, dass die Kinder heute die Katze gesehen haben.",
        "Maria sagt, dass heute die Kinder die Katze gesehen haben.",
    ],
    # ... but not before a pronoun.
    "Maria says that they see the cat today.": ["Maria sagt, dass sie heute die Katze sehen."],
    # Separable prefix: apart in a main clause, attached in a subordinate one and in the infinitive.
    "the woman opens a new door.": ["die Frau macht eine neue Tür auf.", "die Frau öffnet eine neue Tür."],
    "Peter knows that she calls the girls.": [
        "Peter weiß, dass sie die Mädchen anruft.",
        "Peter weiß, dass sie mit den Mädchen telefoniert.",
    ],
    "we must fetch the key.": ["wir müssen den Schlüssel abholen."],
    "she has invited my sister.": ["sie hat meine Schwester eingeladen."],
    # Dative before accusative, both moved; dative plural.
    "they return the good books to my old friends.": ["sie geben meinen alten Freunden die guten Bücher zurück."],
    # The register couples conjunction, noun and verb, whose object changes its case; a clause may take the Vorfeld.
    "if he helps the doctor, my sister works.": [
        "wenn er dem Doktor hilft, arbeitet meine Schwester.",
        "meine Schwester arbeitet, wenn er dem Doktor hilft.",
        "falls er den Arzt unterstützt, arbeitet meine Schwester.",
        "meine Schwester arbeitet, falls er den Arzt unterstützt.",
    ],
    "Anna works because Peter shops now.": [
        "Anna arbeitet, weil Peter jetzt einkauft.",
        "Anna arbeitet, weil jetzt Peter einkauft.",
        "weil Peter jetzt einkauft, arbeitet Anna.",
        "weil jetzt Peter einkauft, arbeitet Anna.",
        "Anna arbeitet, da Peter nun einkauft.",
        "Anna arbeitet, da nun Peter einkauft.",
        "da Peter nun einkauft, arbeitet Anna.",
        "da nun Peter einkauft, arbeitet Anna.",
    ],
    # The gender of the chosen synonym decides article and adjective; the second clause follows the first's register.
    "a famous woman buys a new car and she shows this old car to Peter.": [
        "eine bekannte Frau kauft ein neues Auto und sie zeigt Peter dieses alte Auto.",
        "eine berühmte Frau erwirbt einen neuen Wagen und sie zeigt Peter diesen alten Wagen.",
    ],
    # A relative clause agrees with its noun, ends in its verb, and brings commas that merge with the sentence's.
    "today the child who sees my friend works.": [
        "heute arbeitet das Kind, das meinen Freund sieht.",
        "das Kind, das meinen Freund sieht, arbeitet heute.",
    ],
}

# Determiner -> noun phrase with "old": man, woman, child, men, each nominative, accusative, dative.
DECLENSION = {
    "the": "der alte Mann|den alten Mann|dem alten Mann|die alte Frau|die alte Frau|der alten Frau|"
    "das alte Kind|das alte Kind|dem alten Kind|die alten Männer|die alten Männer|den alten Männern",
    "this": "dieser alte Mann|diesen alten Mann|diesem alten Mann|diese alte Frau|diese alte Frau|dieser alten Frau|"
    "dieses alte Kind|dieses alte Kind|diesem alten Kind|"
    "diese alten Männer|diese alten Männer|diesen alten Männern",
    "an": "ein alter Mann|einen alten Mann|einem alten Mann|eine alte Frau|eine alte Frau|einer alten Frau|"
    "ein altes Kind|ein altes Kind|einem alten Kind",
    "my": "mein alter Mann|meinen alten Mann|meinem alten Mann|meine alte Frau|meine alte Frau|meiner alten Frau|"
    "mein altes Kind|mein altes Kind|meinem alten Kind|"
    "meine alten Männer|meine alten Männer|meinen alten Männern",
}


@pytest.mark.parametrize("source", EXAMPLES)
def test_examples_have_exactly_these_translations(source):
    targets = EXAMPLES[source]
    assert synthetic.valid_translations(source) == set(targets)
    assert synthetic.translate(source) == targets[0]
    assert all(synthetic.is_valid(source, target) for target in targets)


@pytest.mark.parametrize("determiner", DECLENSION)
def test_declension_of_every_gender_number_and_case(determiner):
    expected = DECLENSION[determiner].split("|")
    nouns = ("man", "woman", "child", "men")[: len(expected) // 3]
    for noun, nominative, accusative, dative in zip(nouns, expected[::3], expected[1::3], expected[2::3], strict=True):
        plural = noun == "men"
        word = "these" if plural and determiner == "this" else determiner
        phrase = f"{word} old {noun}"
        works = "work" if plural else "works"
        arbeitet = "arbeiten" if plural else "arbeitet"
        assert synthetic.translate(f"{phrase} {works} today.") == f"{nominative} {arbeitet} heute."
        assert synthetic.translate(f"he sees {phrase}.") == f"er sieht {accusative}."
        assert synthetic.translate(f"he thanks {phrase}.") == f"er dankt {dative}."


def test_place_is_dative():
    assert synthetic.translate("Anna works behind a small house.") == "Anna arbeitet hinter einem kleinen Haus."
    assert synthetic.translate("Anna works in the old church.") == "Anna arbeitet in der alten Kirche."


def test_mixing_two_valid_ways_is_invalid():
    source = "the doctor opens the car often because she calls the doctor."
    for valid in (
        "der Doktor macht oft das Auto auf, weil sie den Doktor anruft.",
        "der Arzt öffnet häufig den Wagen, da sie mit dem Arzt telefoniert.",
        "häufig öffnet der Arzt den Wagen, da sie mit dem Arzt telefoniert.",
    ):
        assert synthetic.is_valid(source, valid)
    for mixed in (
        "der Doktor macht oft das Auto auf, weil sie den Arzt anruft.",  # one noun, two synonyms
        "der Arzt macht häufig den Wagen auf, da sie mit dem Arzt telefoniert.",  # verb of the other register
        "der Doktor macht oft das Auto, weil sie den Doktor anruft.",  # stem without its prefix
        "der Arzt öffnet häufig den Wagen auf, da sie mit dem Arzt telefoniert.",  # prefix without its stem
        "der Arzt öffnet häufig das Wagen, da sie mit dem Arzt telefoniert.",  # gender of the other synonym
        "oft macht der Doktor oft das Auto auf, weil sie den Doktor anruft.",  # two places for one adverb
        "oft der Doktor macht das Auto auf, weil sie den Doktor anruft.",
    ):  # verb third
        assert not synthetic.is_valid(source, mixed)


def test_one_changed_word_is_invalid():
    source = "the old man sees the dog today."
    assert not synthetic.is_valid(source, "der alte Mann sieht heute der Hund.")
    assert not synthetic.is_valid(source, "der alten Mann sieht heute den Hund.")
    assert not synthetic.is_valid(source, "der alte Mann sehen heute den Hund.")
    assert not synthetic.is_valid(source, "der alte Mann sieht heute den Hund")
    assert not synthetic.is_valid(source, "")


def test_white_space_is_normalised():
    assert synthetic.is_valid(" the old  man sees the dog today.\n", "heute sieht  der alte Mann den Hund. ")


@pytest.mark.parametrize(
    "source, message",
    [
        ("", "expected a noun phrase as word 1, found 'the end'"),
        ("the blue man works.", "as word 2, found 'blue'"),
        ("Anna works today", "should read 'Anna works today.'"),
        ("the men sees the dog.", "should read 'the men see the dog.'"),
        ("a old man works today.", "should read 'an old man works today.'"),
        ("these man works today.", "should read 'this man works today.'"),
        ("a men work today.", "found 'men'"),
        ("the small old old man works.", "found 'old'"),
        ("because she works Anna shops.", "expected a comma as word 4"),
        ("Anna opens the man.", "found 'man'"),
        ("Anna knows Peter.", "expected 'that' as word 3, found 'Peter'"),
        ("Anna works that Peter shops.", "found 'that'"),
        ("Anna works because today Peter shops.", "found 'today'"),
        ("today Anna works today.", "found 'today'"),
        ("Anna gives the book.", "expected 'to'"),
    ],
)
def test_parse_names_what_is_not_in_the_language(source, message):
    with pytest.raises(PadirError, match="is not a sentence of the synthetic language pair") as error:
        synthetic.parse(source)
    assert message in str(error.value)


def test_parse_returns_the_tree():
    subject = synthetic.NounPhrase("a", ("strange", "old"), "man", False)
    church = synthetic.Place("in", synthetic.NounPhrase("my", (), "church", False))
    window = synthetic.NounPhrase("this", (), "window", True)
    predicate = synthetic.Predicate("must", "open", window, None)
    assert synthetic.parse("in my church a strange old man must open these windows quickly.") == synthetic.Sentence(
        synthetic.Clause(subject, predicate, "quickly", church, "", "place"), "", None, False
    )


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**63))
def test_parse_inverts_english_and_readings_are_unique(seed):
    tree = synthetic._sample_sentence(random.Random(str(seed)))
    assert synthetic.parse(synthetic._english(tree)) == tree


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(sorted(lexicon.SOURCE_WORDS | {","})), max_size=12), st.integers(0, 10**6), st.data())
def test_parse_accepts_only_what_it_can_write(noise, seed, data):
    """Edited sentences either are sentences, with themselves as their English, or raise PadirError."""
    [(source, _)] = synthetic.generate(1, seed=seed, ambiguity=0)
    words = source.rstrip(".").replace(",", " ,").split()
    cut = data.draw(st.integers(0, len(words)))
    text = (" ".join([*words[:cut], *noise[:1], *words[cut + data.draw(st.integers(0, 1)) :]]) + ".").replace(" ,", ",")
    for candidate in (text, " ".join(noise) + "."):
        try:
            tree = synthetic.parse(candidate)
        except PadirError:
            continue
        assert synthetic._english(tree) == candidate


@pytest.mark.parametrize("ambiguity", [0.0, 0.5, 1.0])
def test_generated_pairs_are_valid_and_of_the_promised_length(ambiguity):
    for source, target in synthetic.generate(500, seed=3, ambiguity=ambiguity):
        assert synthetic.is_valid(source, target)
        for text in (source, *synthetic.valid_translations(source)):
            words = text.split()
            assert synthetic.MIN_WORDS <= len(words) <= synthetic.MAX_WORDS
            assert all(left != right for left, right in zip(words, words[1:], strict=False))


def test_ambiguity_is_the_probability_of_a_free_choice():
    canonical = list(synthetic.generate(2000, seed=4, ambiguity=0))
    assert all(target == synthetic.translate(source) for source, target in canonical)
    # A free choice among n ways is the canonical one with probability 1/n.
    expected = statistics.mean(1 - 1 / len(synthetic.valid_translations(source)) for source, _ in canonical)
    for ambiguity in (0.5, 1.0):
        pairs = list(synthetic.generate(2000, seed=4, ambiguity=ambiguity))
        assert [source for source, _ in pairs] == [source for source, _ in canonical]
        differ = statistics.mean(pair != other for pair, other in zip(pairs, canonical, strict=True))
        assert differ == pytest.approx(ambiguity * expected, abs=0.03)


def test_every_valid_way_is_drawn():
    source = "he must visit Anna but every day these cats open a car."
    assert source == list(synthetic.generate(4, seed=7, ambiguity=0))[3][0]
    plans = synthetic._plans(synthetic.parse(source))
    rng = random.Random("ways")
    drawn = [synthetic._german(synthetic.parse(source), synthetic._pick(rng, plans)) for _ in range(400)]
    assert set(drawn) == synthetic.valid_translations(source)
    assert min(drawn.count(way) for way in set(drawn)) > 70  # 100 expected of each of four


def test_spread_of_lengths_and_of_valid_translations():
    pairs = list(synthetic.generate(3000, seed=5, ambiguity=1.0))
    for side in (0, 1):
        lengths = [len(pair[side].split()) for pair in pairs]
        assert 10.3 <= statistics.mean(lengths) <= 11.3
        assert (min(lengths), max(lengths)) == (4, 24)
        assert statistics.stdev(lengths) > 4.5
    ways = [len(synthetic.valid_translations(source)) for source, _ in pairs]
    assert 4.0 <= statistics.mean(ways) <= 4.8
    assert statistics.mean(2 <= n <= 12 for n in ways) > 0.91


def test_lexicon_size_and_that_all_of_it_is_used():
    pairs = list(synthetic.generate(6000, seed=6, ambiguity=1.0))
    words = [{word.strip(".,") for pair in pairs for word in pair[side].split()} for side in (0, 1)]
    assert words[0] == lexicon.SOURCE_WORDS
    assert 120 <= len(words[0]) <= 180
    assert 230 <= len(words[1]) <= 260


def test_test_set_hardly_overlaps_training_set():
    train = {source for source, _ in synthetic.generate(50_000, seed=0, ambiguity=0)}
    test = [source for source, _ in synthetic.generate(2000, seed=1, ambiguity=0)]
    assert sum(source in train for source in test) / len(test) < 0.02


def test_literal_sentences_are_reproduced():
    assert list(synthetic.generate(2, seed=7, ambiguity=1.0, start=2)) == [
        ("Anna can see Maria behind a house now.", "Anna kann jetzt Maria hinter einem Haus sehen."),
        (
            "he must visit Anna but every day these cats open a car.",
            "er muss Anna besuchen, aber jeden Tag machen diese Katzen ein Auto auf.",
        ),
    ]


def test_a_stream_can_be_made_in_parts_and_splits_differ():
    whole = list(synthetic.generate(20, seed=8, ambiguity=0.5))
    assert whole[12:] == list(synthetic.generate(8, seed=8, ambiguity=0.5, start=12))
    assert whole != list(synthetic.generate(20, seed=9, ambiguity=0.5))


@pytest.mark.parametrize("ambiguity", [-0.1, 1.5, float("nan")])
def test_bad_ambiguity_is_named_before_anything_is_generated(ambiguity):
    with pytest.raises(PadirError, match="ambiguity must be a probability from 0 to 1"):
        synthetic.generate(1, seed=0, ambiguity=ambiguity)


def test_negative_count_or_start_is_named():
    with pytest.raises(PadirError, match="count=-1"):
        synthetic.generate(-1, seed=0, ambiguity=0)
    with pytest.raises(PadirError, match="start=-2"):
        synthetic.generate(1, seed=0, ambiguity=0, start=-2)
