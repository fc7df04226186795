"""Approximate randomisation against all the swaps there are, and against sacreBLEU's."""

import itertools

import numpy as np
import pytest
import sacrebleu
from sacrebleu.significance import PairedTest

from padir.errors import PadirError
from padir.metrics.counts import count_sentences
from padir.metrics.quality import make_metrics
from padir.metrics.randomization import approximate_randomization, randomized_mean, swapped_differences

REFERENCES = [
    "the small dog sees the old cat",
    "yesterday the woman gave a red book",
    "we often eat fresh bread",
    "the teacher that I know has bought a house",
    "a bird sings",
    "it is late now",
]
SYSTEM = [
    "the small dog sees the cat",
    "yesterday the woman gave a red book",
    "we often eat bread fresh",
    "the teacher I know has bought a house",
    "a bird sings",
    "it is now late",
]
BASELINE = [
    "the dog sees the old old cat",
    "yesterday woman gave a red book",
    "we often eat fresh bread",
    "the teacher that I know has bought house",
    "the bird sings",
    "it is late now",
]


def differences_of_swapped_texts(swaps):
    """BLEU and chrF differences as sacreBLEU gives them for really swapped outputs: [T], [T]."""
    found = []
    for row in swaps:
        pairs = [(b, s) if swap else (s, b) for swap, s, b in zip(row, SYSTEM, BASELINE, strict=True)]
        ours, theirs = zip(*pairs, strict=True)
        found.append(
            [
                score(list(ours), [REFERENCES]).score - score(list(theirs), [REFERENCES]).score
                for score in (sacrebleu.corpus_bleu, sacrebleu.corpus_chrf)
            ]
        )
    return np.array(found).T


def counts(texts, references=REFERENCES):
    return count_sentences(texts, references)


def test_against_every_swap():
    """All 64 swaps give the exact p-value; 20,000 random ones come within 4 standard errors of it."""
    every = np.array(list(itertools.product((0, 1), repeat=6)))
    exact = differences_of_swapped_texts(every)
    np.testing.assert_allclose(swapped_differences(counts(SYSTEM), counts(BASELINE), every), exact, atol=1e-9)
    tests = approximate_randomization(counts(SYSTEM), counts(BASELINE), trials=20_000)
    for test, differences in zip(tests.values(), exact, strict=True):
        assert test.difference == pytest.approx(differences[0])
        p_value = (np.abs(differences) >= abs(differences[0]) - 1e-9).mean()
        assert 1 / 64 <= p_value < 1
        assert abs(test.p_value - p_value) < 4 * np.sqrt(p_value * (1 - p_value) / 20_000) + 1 / 20_000
        assert (test.trials, test.seed) == (20_000, 12345)


def test_near_sacrebleus_where_ties_are_rare():
    """40 sentences that differ: the same p-value but for chance."""
    references, system, baseline = REFERENCES * 7, SYSTEM * 7, BASELINE * 7
    ours = approximate_randomization(counts(system, references), counts(baseline, references), trials=4000)
    named = [("baseline", baseline), ("system", system)]
    _, theirs = PairedTest(named, make_metrics("13a"), [references], test_type="ar", n_samples=4000)()
    for test, name in zip(ours.values(), ("BLEU", "chrF2"), strict=True):
        # Repeated sentences tie a little: 0.03 is for those and for chance.
        assert test.p_value == pytest.approx(theirs[name][1].p_value, abs=0.03)


def test_one_sentence_proves_nothing():
    """Every trial ties with the real difference; sacreBLEU, which does not count ties, calls it significant."""
    baseline = [*SYSTEM[:-1], "it was early then"]
    for test in approximate_randomization(counts(SYSTEM), counts(baseline), trials=500).values():
        assert test.difference > 0 and test.p_value == 1.0


def test_a_clear_difference_reaches_the_smallest_p_value():
    references = REFERENCES * 5
    worse = [text.split()[0] for text in references]
    for test in approximate_randomization(
        counts(references, references), counts(worse, references), trials=999
    ).values():
        assert test.difference > 50 and test.p_value == pytest.approx(1 / 1000)


def test_a_system_against_itself():
    for test in approximate_randomization(counts(SYSTEM), counts(SYSTEM), trials=100).values():
        assert (test.difference, test.p_value) == (0.0, 1.0)


def test_the_seed_decides_and_trials_come_in_any_number():
    first, again, other = (
        approximate_randomization(counts(SYSTEM), counts(BASELINE), trials=1234, seed=seed) for seed in (1, 1, 2)
    )
    assert first == again != other
    assert first["bleu"].p_value * 1235 == pytest.approx(round(first["bleu"].p_value * 1235))


def test_bad_input_is_named():
    with pytest.raises(PadirError, match="6 sentences of the system, 1 of the baseline"):
        approximate_randomization(counts(SYSTEM), counts(BASELINE[:1], REFERENCES[:1]))
    with pytest.raises(PadirError, match="trials must be 1 or more, not 0"):
        approximate_randomization(counts(SYSTEM), counts(BASELINE), trials=0)


def test_means_of_a_number_of_each_sentence():
    """Against all 2^4 swaps."""
    system, baseline = np.array([4.0, 1.0, 2.0, 0.0]), np.array([1.0, 0.0, 1.0, 1.0])
    differences = system - baseline
    signs = np.array(list(itertools.product((1, -1), repeat=4)))
    exact = (np.abs(signs @ differences) >= abs(differences.sum())).mean()
    found = randomized_mean(system, baseline, trials=20_000)
    assert found.difference == 1.0 and found.p_value == pytest.approx(exact, abs=0.015)
    # Equal systems differ by nothing, which every swap reaches.
    assert randomized_mean(system, system).p_value == 1.0
    # 30 sentences that are all better: no swap of all or none comes up among so few trials.
    assert randomized_mean(np.ones(30), np.zeros(30), trials=999).p_value == pytest.approx(0.001)


def test_means_need_the_same_sentences():
    for sizes, trials in (((3, 2), 1), ((0, 0), 1), ((2, 2), 0)):
        with pytest.raises(PadirError, match=r"give \[n\]|trials must be 1"):
            randomized_mean(*map(np.ones, sizes), trials=trials)
