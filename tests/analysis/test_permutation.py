"""The test against every rotation there is, and against differences that are there or not."""

import itertools

import numpy as np
import pytest

from padir.analysis.permutation import compare, rotated_sums

# Three sentences of 4, 3 and 5 pairs, and two that say nothing: without stutter, and all stutter.
LENGTHS = (4, 3, 5, 3, 2)
STUTTERS = np.array([1, 0, 0, 0, 0, 1, 0, 1, 1, 0, 0, 0, 0, 0, 0, 1, 1], bool)
SENTENCES = np.repeat(np.arange(5), LENGTHS)
STARTS = np.cumsum((0, *LENGTHS[:-1]))


@pytest.fixture(scope="module")
def values():
    generator = np.random.default_rng(3)
    return generator.normal(size=(17, 3)) + np.array([0.0, 0.5, 1.5]) * STUTTERS[:, None]


def enumerated(values):
    """(observed difference, those of all 4 x 3 x 5 rotations of the first three sentences)."""

    def difference(labels):
        return values[labels].mean(0) - values[~labels].mean(0)

    every = []
    for offsets in itertools.product(range(4), range(3), range(5)):
        labels = STUTTERS.copy()
        for start, length, offset in zip(STARTS, LENGTHS, offsets, strict=False):
            labels[start : start + length] = np.roll(STUTTERS[start : start + length], offset)
        every.append(difference(labels))
    return difference(STUTTERS), np.array(every)


def test_against_all_rotations(values):
    observed, every = enumerated(values)
    found = compare(values, STUTTERS, SENTENCES, permutations=40_000, seed=0)
    assert found.difference == pytest.approx(observed)
    assert found.within == pytest.approx(observed - every.mean(0))
    exact = (abs(every - every.mean(0)) >= abs(found.within) - 1e-9).mean(0)
    # Four standard errors of a share of 40,000 are at most 0.01.
    assert found.p_value == pytest.approx(exact, abs=0.01)
    assert len({round(p, 3) for p in exact}) == 3 and exact.min() < 0.1


def test_sums_of_a_sentence_by_hand():
    """Labels 1, 1, 0 over 1, 2, 4: themselves 3, a position to the right 6, then 5."""
    found = rotated_sums(np.array([[1.0], [2.0], [4.0]]), np.array([True, True, False]), np.array([0]))
    assert [table.ravel().tolist() for table in found] == [[3.0, 6.0, 5.0]]


def test_no_rotation_drawn_lies_as_far():
    """One sentence of 2,000 pairs, one of which stutters and is far larger: p is 1 / (1 + permutations)."""
    stutters = np.arange(2000) == 1234
    values = np.where(stutters, 1.0, 0.0)[:, None]
    found = compare(values, stutters, np.zeros(2000, int), permutations=99, seed=0)
    assert found.p_value.tolist() == [0.01] and found.difference.tolist() == [1.0]
    assert np.isfinite([found.low, found.high]).all()


def test_what_lies_between_sentences_is_no_evidence():
    """Sentences that stutter have larger values throughout: the means differ, no pair does from its neighbours."""
    generator = np.random.default_rng(0)
    stutters = np.concatenate([np.tile([True, False, False, False, False], 40), np.zeros(200, bool)])
    sentences = np.repeat(np.arange(80), 5)
    values = (np.where(sentences < 40, 5.0, 0.0) + generator.normal(size=400))[:, None]
    found = compare(values, stutters, sentences, permutations=2000, seed=0)
    assert found.difference.item() > 2
    assert abs(found.within.item()) < 0.5 and found.p_value.item() > 0.05
    same = compare(values, stutters, sentences, permutations=2000, seed=0)
    assert same.p_value == found.p_value and same.low == found.low


def test_rotations_that_change_nothing_are_all_as_far():
    """Where all pairs of a sentence stutter, or none does, p is 1."""
    stutters = np.array([True, True, False, False])
    found = compare(np.array([[1.0], [2.0], [5.0], [7.0]]), stutters, np.array([0, 0, 1, 1]), permutations=50, seed=0)
    assert found.difference.tolist() == [-4.5] and found.within.tolist() == [0.0] and found.p_value.tolist() == [1.0]
    assert (found.low.item(), found.high.item()) == (-4.5, -4.5)


def test_under_the_null_p_is_uniform():
    """Labels put anywhere at random, in runs; values correlated along each sentence: p below 0.1 in about 10%."""
    generator = np.random.default_rng(1)
    sentences = np.repeat(np.arange(30), 12)
    labels = np.concatenate([np.roll([1, 1, 1] + [0] * 9, generator.integers(12)) for _ in range(30)]).astype(bool)
    noise = generator.normal(size=(30, 12, 400))
    values = (noise + np.roll(noise, 1, axis=1) + np.roll(noise, 2, axis=1)).reshape(360, 400)
    found = compare(values, labels, sentences, permutations=400, seed=2)
    # 400 independent tests: 40 expected, standard deviation 6.
    assert 20 <= (found.p_value <= 0.1).sum() <= 60


def test_the_interval_is_of_sentences_drawn_anew():
    """Two sentences with differences 1 and 3: samples have 1, 2 or 3."""
    stutters = np.tile([True, False], 2)
    values = np.array([[1.0], [0.0], [3.0], [0.0]])
    found = compare(values, stutters, np.array([0, 0, 1, 1]), permutations=1000, seed=0)
    assert (found.difference.item(), found.low.item(), found.high.item()) == (2.0, 1.0, 3.0)
