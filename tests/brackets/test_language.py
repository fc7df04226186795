"""The language and its samplers against enumeration (specification, test 11)."""

import jax
import numpy as np
import pytest

from padir.brackets import sequences
from padir.brackets.language import DyckLanguage, text_of, tokens_of
from padir.data import dyck
from padir.errors import PadirError

LANGUAGE = DyckLanguage()
# Every branch: three types, few depths, an uneven coin.
OTHER = DyckLanguage(types=3, depth=2, open_probability=0.3)


def test_numbers_of_prefixes_and_sums():
    assert [len(LANGUAGE.prefixes(length)) for length in (1, 4, 7)] == [2, 48, 640]
    for language in (LANGUAGE, OTHER):
        for length in range(1, 7):
            assert language.probabilities(language.prefixes(length)).sum() == pytest.approx(1.0, abs=1e-12)


def test_probability_of_a_prefix_by_hand():
    # '[' at depth 0: 1/2; '(' at depth 1: q/2; ')' at depth 2: 1 - q; ']': 1 - q.
    words = np.array([tokens_of("[()]"), tokens_of("[](]"), tokens_of("[(])")])
    np.testing.assert_allclose(LANGUAGE.probabilities(words), [0.5 * 0.25 * 0.5 * 0.5, 0.0, 0.0])
    # At depth D = 2 the bracket must close: 1/3, 0.3/3, 1, 0.7.
    assert OTHER.probabilities(np.array([tokens_of("{[]}")]))[0] == pytest.approx(1 / 3 * 0.1 * 0.7)
    assert OTHER.probabilities(np.array([tokens_of("{[(")]))[0] == 0.0


def test_parsing_by_hand():
    parsed = LANGUAGE.parse(np.array([tokens_of("[()](")]))
    assert parsed.depths[0].tolist() == [0, 1, 2, 1, 0, 1]
    assert parsed.tops[0].tolist() == [0, 1, 2, 1, 0, 5]
    assert parsed.top_types[0].tolist() == [-1, 0, 1, 0, -1, 1]
    assert parsed.valid.all()
    # Tokens 1, 3, 4, 2, 3 at depths 1, 2, 1, 0, 1: (t - 1) D + d - 1 for opening ones, (t - 1) D + d for closing ones.
    assert parsed.ranks[0].tolist() == [16, 0, 9, 13, 4, 8]
    wrong = LANGUAGE.parse(np.array([tokens_of("[(]("), tokens_of("]()("), tokens_of("[][]")]))
    assert wrong.valid.tolist() == [[True, True, True, False, False], [True] + [False] * 4, [True] * 5]
    assert not DyckLanguage(depth=2).parse(np.array([tokens_of("[[[")])).valid[0, 3]


def test_ranks_are_a_bijection():
    pairs = [(t, d) for t in range(1, 5) for d in range(t % 2, 4 + t % 2)]
    assert [int(LANGUAGE.rank(t, d)) for t, d in pairs] == list(range(16)) and LANGUAGE.ranks == 17
    for kind in range(2):
        for depth in range(1, 5):
            assert LANGUAGE.opening(kind, depth) == LANGUAGE.rank(2 * kind + 1, depth)
            assert LANGUAGE.closing(kind, depth - 1) == LANGUAGE.rank(2 * kind + 2, depth - 1)


def test_words_are_as_many_as_chapter_3_counts():
    """Words of bounded depth and two types are the same set; their probabilities are not."""
    every = LANGUAGE.prefixes(10)
    complete = every[LANGUAGE.parse(every).depths[:, -1] == 0]
    assert len(complete) == dyck.Dyck(length=10, max_depth=4).number_of_words()


def test_the_conditioned_sampler_is_the_enumeration_restricted_to_words():
    """Its chances, exactly: products along each complete word of length 8 are P(w) / Σ P."""
    every = LANGUAGE.prefixes(8)
    parsed = LANGUAGE.parse(every)
    words = every[parsed.depths[:, -1] == 0]
    parsed = LANGUAGE.parse(words)
    table = LANGUAGE.up_table(8)
    up = table[8 - np.arange(8), parsed.depths[:, :-1]]
    chances = np.where(words % 2 == 1, up / 2, 1 - up).prod(axis=1)
    exact = LANGUAGE.probabilities(words)
    np.testing.assert_allclose(chances, exact / exact.sum(), rtol=1e-12)


@pytest.mark.parametrize("language", [LANGUAGE, OTHER])
def test_samples_stay_in_the_language_and_have_their_frequencies(language):
    drawn = sequences.complete(language, jax.random.key(0), 4000, 6)
    lengths = np.asarray(drawn.lengths)
    assert sorted(set(lengths.tolist())) == [2, 4, 6]
    for length in (2, 4, 6):
        words = np.asarray(drawn.tokens)[lengths == length][:, 1 : length + 1]
        parsed = language.parse(words)
        assert parsed.valid.all() and (parsed.depths[:, -1] == 0).all() and parsed.depths.max() <= language.depth
        for name in ("ranks", "depths", "top_types"):
            ours = np.asarray(getattr(drawn, name))[lengths == length][:, : length + 1]
            np.testing.assert_array_equal(ours, getattr(parsed, name), err_msg=name)
    # Of two tokens, each type is as likely.
    two = np.asarray(drawn.tokens)[lengths == 2][:, 1]
    shares = np.bincount((two - 1) // 2, minlength=language.types) / len(two)
    np.testing.assert_allclose(shares, 1 / language.types, atol=0.06)


def test_prefixes_of_both_samplers():
    drawn = sequences.prefixes(LANGUAGE, jax.random.key(1), 3000, 5)
    for tokens in (np.asarray(drawn.tokens)[:, 1:], LANGUAGE.sample(np.random.default_rng(0), 3000, 5)):
        assert LANGUAGE.parse(tokens).valid.all()
        # '[[' or '((' or mixed: q of four continuations; else the pair is closed.
        assert (tokens[:, 1] % 2 == 1).mean() == pytest.approx(0.5, abs=0.05)
        assert (tokens[:, 0] == 1).mean() == pytest.approx(0.5, abs=0.05)
    assert np.asarray(drawn.predicts).all()
    asks = np.asarray(drawn.tokens)[:, 1:] % 2 == 0
    np.testing.assert_array_equal(np.asarray(drawn.asks_closing), asks)


def test_given_prefixes():
    made = sequences.given(LANGUAGE, np.array([tokens_of("[(")]))
    assert made.tokens.tolist() == [[0, 1, 3]] and made.ranks.tolist() == [[16, 0, 9]] and made.lengths.tolist() == [2]


def test_texts():
    assert text_of(tokens_of("[({<>})]")) == "[({<>})]"
    with pytest.raises(PadirError, match="'x' is no bracket"):
        tokens_of("[x]")


@pytest.mark.parametrize(
    "options, message",
    [
        ({"types": 0}, "DyckLanguage.types: 0 is not a whole number"),
        ({"depth": True}, "DyckLanguage.depth: True is not"),
        ({"open_probability": 1.0}, "DyckLanguage.open_probability: 1.0 is not between"),
    ],
)
def test_refusals(options, message):
    with pytest.raises(PadirError, match=message):
        DyckLanguage(**options)
