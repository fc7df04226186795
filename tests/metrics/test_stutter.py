"""Stutter by hand: repeats in the output that the reference does not match."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from padir.errors import PadirError
from padir.metrics.stutter import (
    StutterRates,
    excess_repeats,
    stutter_per_100_tokens,
    stutter_per_100_words,
    stuttering_positions,
    token_stutter,
    word_stutter,
    words,
)


@pytest.mark.parametrize(
    ("output", "reference", "expected"),
    [
        ("the cat sat", "the cat sat", 0),
        ("the the cat sat", "the cat sat", 1),
        ("so so so good", "good", 2),
        ("he had had had a a car", "he had had a car", 2),  # the docstring's example
        ("ha ha and ha ha", "ha ha", 1),  # repeats are matched by number, not by place
        ("no no", "yes yes", 1),  # another word's repeat matches nothing
        ("a b a b", "a b", 0),  # not adjacent
        ("So so, so", "x", 0),  # case and punctuation make other words
        ("", "a a", 0),
        ("a", "", 0),
    ],
)
def test_excess_of_one_sentence(output, reference, expected):
    assert excess_repeats(output.split(), reference.split()) == expected


def test_rate_is_a_ratio_of_sums():
    # 2 of 7 words, 0 of 3, and an empty output: 2 / 10, not the mean of 28.57, 0 and 0.
    hypotheses = ["he had had had a a car", "a b c", ""]
    references = ["he had had a car", "a b c", "d"]
    assert stutter_per_100_words(hypotheses, references) == 20.0
    assert stutter_per_100_words(hypotheses[:1], references[:1]) == pytest.approx(28.571428, abs=1e-6)


def test_rate_without_any_word_is_zero():
    assert stutter_per_100_words(["", "  "], ["a", "b"]) == 0.0


def test_tokens_stop_at_eos_and_skip_padding():
    # Row 1: 5 5 7 | EOS, then what a decoder left behind it. Row 2: padding repeats but is no token.
    hypotheses = np.array([[5, 5, 7, 1, 9, 9], [4, 8, 1, 0, 0, 0]], np.int32)
    references = [[5, 7, 1], [4, 8, 1]]
    assert stutter_per_100_tokens(hypotheses, references) == 100.0 * 1 / 5


def test_tokens_matched_by_reference():
    assert stutter_per_100_tokens([[5, 5, 5, 5, 1]], [[5, 5, 1]]) == 100.0 * 2 / 4


def test_unequal_counts_are_named():
    with pytest.raises(PadirError, match="2 hypotheses but 1 references"):
        stutter_per_100_words(["a", "b"], ["a"])


@given(st.lists(st.integers(2, 4)), st.lists(st.integers(2, 4)))
def test_excess_is_bounded_and_none_against_itself(output, reference):
    assert excess_repeats(output, output) == 0
    assert excess_repeats(output, reference) <= excess_repeats(output, []) <= max(0, len(output) - 1)


def test_rates_of_output_and_reference_by_hand():
    # Output: 3 repeats in 10 words, one of them matched; references: 1 repeat in 8 words.
    hypotheses, references = ["he had had had a a car", "a b c", ""], ["he had had a car", "a b", "d"]
    assert word_stutter(hypotheses, references) == StutterRates(output=30.0, reference=12.5, excess=20.0)


def test_words_of_text_without_spaces_are_characters():
    assert words("天天 好。", "zh") == ["天", "天", "好", "。"] and words("天天 好。", "13a") == ["天天", "好。"]
    # Of 10 characters four repeat their neighbour; the references match 天天, once in each.
    found = word_stutter(["天天好好", "今天天 天气了"], ["天天好", "今天天气"], "zh")
    assert (found.output, found.excess) == (40.0, 20.0)
    # 2 repeats in 5 tokens, one matched; 1 in 4.
    assert token_stutter([[5, 5, 5, 8, 7, 1]], [[5, 5, 8, 7, 1, 0]]) == StutterRates(40.0, 25.0, 20.0)


@pytest.mark.parametrize(
    ("output", "reference", "expected"),
    [
        ("the the cat", "the cat", [1]),
        ("he had had had a a car", "he had had a car", [3, 5]),  # the first repeat of "had" is matched
        ("a b a b", "a b", []),
        ("no no no", "yes yes", [1, 2]),
        ("", "a a", []),
    ],
)
def test_where_it_stutters(output, reference, expected):
    assert stuttering_positions(output.split(), reference.split()) == expected


@given(st.lists(st.integers(2, 4)), st.lists(st.integers(2, 4)))
def test_as_many_positions_as_the_excess(output, reference):
    positions = stuttering_positions(output, reference)
    assert len(positions) == excess_repeats(output, reference)
    assert all(output[position] == output[position - 1] for position in positions)
