"""The grammar of brackets: its probabilities, its words, what is wrong with a text, and the automaton."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from padir.data import dyck
from padir.data.dyck import Dyck, DyckOutcome, DyckValue, DyckVerifier, FirstError, first_errors, text_of, word_of
from padir.errors import PadirError


def all_words(length, **options):
    return np.array(Dyck(length, **options).completions(()))


def as_printed(word, p, q):
    """Probability by (3.4) as printed: every closing bracket costs 1 - q."""
    total, depth = 1.0, 0
    for token in word:
        if token in (dyck.OPEN_SQUARE, dyck.OPEN_ROUND):
            total *= (p if token == dyck.OPEN_SQUARE else 1 - p) * (q if depth else 1.0)
            depth += 1
        else:
            total *= 1 - q
            depth -= 1
    return total


@pytest.mark.parametrize(
    ("length", "words", "printed", "distance"),
    [(4, 8, 0.375, 0.167), (6, 40, 0.3125, 0.225), (8, 224, 0.2734375, 0.259)],
)
def test_probabilities_sum_to_one_and_as_printed_they_do_not(length, words, printed, distance):
    grammar, all_of_them = Dyck(length), all_words(length)
    assert len(all_of_them) == len({tuple(word) for word in all_of_them.tolist()}) == words
    law = np.exp(grammar.log_probability(all_of_them))
    assert law.sum() == pytest.approx(1.0, abs=1e-12)
    theirs = np.array([as_printed(word, 0.2, 0.5) for word in all_of_them.tolist()])
    assert theirs.sum() == pytest.approx(printed, abs=1e-12)
    assert abs(law - theirs / theirs.sum()).sum() / 2 == pytest.approx(distance, abs=5e-4)


@pytest.mark.parametrize("grammar", [Dyck(6), Dyck(6, p=0.8, q=0.3), Dyck(8, p=0.7, q=0.6, max_depth=2)])
def test_samples_have_the_grammars_law(grammar):
    words = np.array(grammar.completions(()))
    law = np.exp(grammar.log_probability(words))
    assert law.sum() == pytest.approx(1.0, abs=1e-12)
    drawn = np.asarray(jax.jit(grammar.sample, static_argnums=1)(jax.random.key(1), 20_000))
    number = {tuple(word): index for index, word in enumerate(words.tolist())}
    counts = np.bincount([number[tuple(word)] for word in drawn.tolist()], minlength=len(words))
    common = law * len(drawn) >= 5
    observed, expected = ([*of[common], of[~common].sum()] for of in (counts, law * len(drawn)))
    if not expected[-1]:
        observed, expected = observed[:-1], expected[:-1]
    assert stats.chisquare(observed, expected).pvalue > 1e-3


@pytest.mark.parametrize(("p", "q"), [(1.0, 0.5), (0.5, 0.0), (0.5, 1.0)])
def test_extreme_probabilities(p, q):
    words = all_words(6)
    law = np.exp(Dyck(6, p, q).log_probability(words))
    assert law.sum() == pytest.approx(1.0, abs=1e-12)
    # q = 0 closes at once, and q = 1 opens as long as it can.
    support = {(1.0, 0.5): 5, (0.5, 0.0): 8, (0.5, 1.0): 8}
    assert (law > 0).sum() == support[p, q]


def test_counts_of_words():
    counts = [Dyck(length).number_of_words() for length in (4, 6, 8, 12, 32)]
    assert counts == [8, 40, 224, 8448, 2_317_200_261_120]
    assert counts[-1] == math.comb(32, 16) // 17 * 2**16
    assert Dyck(8, max_depth=1).number_of_words() == 16
    assert Dyck(8, max_depth=2).number_of_words() == len(all_words(8, max_depth=2)) == 8 * 16
    # The most completions that a prompt of 25 letters has, and of longer ones.
    prefix = word_of("[]" * 12 + "(")
    assert Dyck().number_of_words(prefix) == len(Dyck().completions(prefix)) == 112
    assert Dyck().number_of_words(word_of("]")) == 0 and Dyck().completions(word_of("[)")) == []
    words = all_words(6)
    starts = [(words[:, :3] == word_of("[(" + third)).all(axis=1).sum() for third in ")[("]
    assert [Dyck(6).number_of_words(word_of("[(" + third)) for third in ")[("] == starts == [4, 1, 1]


def ids(text):
    """Tokens of brackets, '$' for EOS, '_' for the start token, '?' for an unknown one."""
    return [dict(zip("_$?[]()", range(7), strict=True))[character] for character in text]


@pytest.mark.parametrize(
    ("text", "position", "kind"),
    [
        ("[()]()$", 0, FirstError.NONE),
        ("[()]", 0, FirstError.NONE),
        ("", 0, FirstError.NONE),
        ("[_)]()$", 2, FirstError.START),
        ("[()]$)$", 5, FirstError.END),
        ("[$", 2, FirstError.END),
        ("[([)]]$", 4, FirstError.TYPE),
        ("[()])($", 5, FirstError.EMPTY),
        ("[](([]$", 5, FirstError.TOO_LATE),
        ("[()]()[]", 7, FirstError.ADD),
        ("[()]()_", 7, FirstError.START),
        ("[?", 2, FirstError.UNKNOWN),
    ],
)
def test_each_kind_of_first_error(text, position, kind):
    tokens = np.array([ids(text) + [9] * 4])
    found = first_errors(tokens, np.array([len(text)]), Dyck(6))
    assert (found.positions.tolist(), found.kinds.tolist()) == ([position], [kind])
    assert dyck.is_complete(tokens, np.array([len(text)]), Dyck(6)).tolist() == [text == "[()]()$"]


def test_too_deep():
    found = first_errors(np.array([ids("[(())]$")]), np.array([7]), Dyck(6, max_depth=2))
    assert (found.positions.tolist(), found.kinds.tolist()) == ([3], [FirstError.DEPTH])


def every_text(length):
    """All texts of brackets and EOS up to a length, padded with unread brackets."""
    texts = [text for size in range(length + 1) for text in itertools.product((1, 3, 4, 5, 6), repeat=size)]
    padded = np.array([[*text, *[4] * (length - len(text))] for text in texts], np.int32)
    return padded, np.array([len(text) for text in texts], np.int32)


@pytest.mark.parametrize("grammar", [Dyck(4), Dyck(4, max_depth=1)])
def test_the_automaton_knows_what_can_become_a_word(grammar):
    """Of all texts of up to 5 letters, against a list of the prefixes of all words; and it agrees with the parser."""
    tokens, lengths = every_text(5)
    outputs = [(*word, 1) for word in grammar.completions(())]
    prefixes = {output[:size] for output in outputs for size in range(6)}
    texts = [tuple(row[:size].tolist()) for row, size in zip(tokens, lengths, strict=True)]
    expected = np.array([text in prefixes for text in texts])
    np.testing.assert_array_equal(jax.jit(DyckVerifier(grammar))(tokens, lengths, None), expected)
    np.testing.assert_array_equal(first_errors(tokens, lengths, grammar).positions == 0, expected)
    complete = np.array([text in outputs for text in texts])
    np.testing.assert_array_equal(jax.jit(DyckOutcome(DyckVerifier(grammar)))(tokens, lengths), complete)
    np.testing.assert_array_equal(dyck.is_complete(tokens, lengths, grammar), complete)
    of_prefix, of_children = jax.jit(DyckValue(DyckVerifier(grammar)))(tokens, lengths, None)
    np.testing.assert_array_equal(of_prefix, expected)
    assert of_children.shape == (len(texts), 8)
    continued = np.array([[(*text, token) in prefixes for token in range(8)] for text in texts])
    np.testing.assert_array_equal(of_children, continued)


def test_the_longest_words():
    """The stack of bits holds the deepest word, and words drawn are what the parser and the automaton take them for."""
    grammar = Dyck(62, q=0.9)
    deepest = np.array([word_of("(" * 31 + ")" * 31) + [1]], np.int32)
    drawn = np.asarray(grammar.sample(jax.random.key(0), 50))
    ended = np.concatenate([deepest, np.pad(drawn, ((0, 0), (0, 1)), constant_values=1)])
    lengths = np.full(len(ended), 63, np.int32)
    assert dyck.is_complete(ended, lengths, grammar).all()
    assert DyckVerifier(grammar)(jnp.asarray(ended), jnp.asarray(lengths), None).all()
    assert np.isfinite(grammar.log_probability(ended[:, :62])).all()


def test_texts_and_mistakes():
    assert text_of([3, 5, 6, 4, 1]) == "[()]</s>" and word_of("[()]") == [3, 5, 6, 4]
    for options, message in [
        ({"length": 5}, "Dyck.length: 5 is not an even number from 2 to 62"),
        ({"length": 64}, "Dyck.length: 64"),
        ({"p": 1.5}, "Dyck.p: 1.5 is not a probability"),
        ({"max_depth": 0}, "Dyck.max_depth: 0 is not at least 1"),
    ]:
        with pytest.raises(PadirError, match=message):
            Dyck(**options)
    with pytest.raises(PadirError, match="'x' is no bracket"):
        word_of("[x]")
