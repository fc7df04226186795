"""The paired bootstrap: its law, and the scores that it compares."""

import numpy as np
import pytest
import sacrebleu

from padir.errors import PadirError
from padir.metrics import bootstrap
from padir.metrics.bootstrap import centred_p_value, paired_bootstrap, resampled_scores
from padir.metrics.counts import SentenceCounts, bleu_of, count_sentences

WORDS = ["the", "a", "big", "small", "dog", "cat", "house", "tree", "sees", "likes", "finds", "old", "new", "red"]


def sentences(count, seed):
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, rng.integers(5, 12))) for _ in range(count)]


def damaged(texts, rate, seed):
    """The texts with this share of their words replaced."""
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS) if rng.random() < rate else word for word in text.split()) for text in texts]


REFERENCES = sentences(40, 0)
DAMAGED = damaged(REFERENCES, 0.3, 1)


def test_a_clear_difference():
    result = paired_bootstrap(REFERENCES, DAMAGED, REFERENCES, samples=200)
    for name, score in (("bleu", sacrebleu.corpus_bleu), ("chrf", sacrebleu.corpus_chrf)):
        comparison = result[name]
        assert comparison.score == pytest.approx(100.0)
        assert comparison.baseline_score == pytest.approx(score(DAMAGED, [REFERENCES]).score)
        assert comparison.difference == comparison.score - comparison.baseline_score > 1
        assert comparison.p_value == pytest.approx(1 / 201)  # no resample reached it: the smallest p there is
        assert comparison.ci == pytest.approx(0.0, abs=1e-9)  # a perfect system is perfect in every resample
        assert comparison.signature.endswith("|centred-bootstrap:200|seed:12345")


def test_means_and_intervals_are_those_of_sacrebleu():
    """It draws other resamples, so that they agree up to the noise of 2,000 of them."""
    texts = sentences(300, 3)
    outputs = damaged(texts, 0.3, 4)
    ours = paired_bootstrap(outputs, texts, texts, samples=2000)
    for name, metric in (("bleu", sacrebleu.BLEU()), ("chrf", sacrebleu.CHRF())):
        theirs = metric.corpus_score(outputs, [texts], n_bootstrap=2000)
        assert ours[name].score == pytest.approx(theirs.score)
        assert ours[name].mean == pytest.approx(theirs._mean, abs=float(theirs._ci) / 10)
        assert ours[name].ci == pytest.approx(theirs._ci, rel=0.15)


def test_known_counts_are_not_counted_again(monkeypatch):
    counts = count_sentences(DAMAGED, REFERENCES), count_sentences(REFERENCES, REFERENCES)
    expected = paired_bootstrap(DAMAGED, REFERENCES, REFERENCES, samples=50)
    monkeypatch.setattr(bootstrap, "count_sentences", lambda *given: pytest.fail("counts again"))
    assert paired_bootstrap(DAMAGED, REFERENCES, REFERENCES, samples=50, counts=counts) == expected


def test_the_sign_follows_the_system():
    forward = paired_bootstrap(REFERENCES, DAMAGED, REFERENCES, samples=50)
    backward = paired_bootstrap(DAMAGED, REFERENCES, REFERENCES, samples=50)
    assert backward["bleu"].difference == -forward["bleu"].difference
    assert backward["bleu"].p_value == forward["bleu"].p_value


def test_a_system_against_itself_is_no_difference():
    comparison = paired_bootstrap(DAMAGED, DAMAGED, REFERENCES, samples=50)["bleu"]
    assert (comparison.difference, comparison.p_value) == (0.0, 1.0)


def test_one_sentence_tells_nothing():
    comparison = paired_bootstrap(["a big dog"], ["a big cat"], ["a big dog"], samples=50)["chrf"]
    assert comparison.difference > 0 and comparison.p_value == 1.0


def test_the_p_value_by_hand():
    # Their mean is 2; they lie 3, 1, 1 and 3 from it. With the observed one, that is 3 of 5 at least 2 away.
    assert centred_p_value(2.0, np.array([-1.0, 1.0, 3.0, 5.0])) == 3 / 5
    assert centred_p_value(-2.0, np.array([1.0, -1.0, -3.0, -5.0])) == 3 / 5


def test_equally_good_systems_seldom_differ():
    """At a level of 0.05 one in twenty does. sacreBLEU's way of counting calls one in seven different."""
    texts, draws = sentences(150, 5), 300
    one, other = (count_sentences(damaged(texts, 0.3, seed), texts).bleu for seed in (6, 7))
    rng, p_values, of_sacrebleu = np.random.default_rng(8), [], []
    for draw in range(draws):
        # Whose output is whose is left to chance.
        swap = rng.integers(2, size=(len(texts), 1))
        bleu = np.where(swap, one, other), np.where(swap, other, one)
        ours, theirs = (SentenceCounts(counts, np.zeros((len(texts), 18), np.int64)) for counts in bleu)
        found = [scores["bleu"] for scores in resampled_scores([ours, theirs], 200, draw)]
        observed = [float(bleu_of(counts.bleu.sum(axis=0))) for counts in (ours, theirs)]
        p_values.append(centred_p_value(observed[0] - observed[1], found[0] - found[1]))
        folded = np.abs(found[0] - found[1])
        more = folded - folded.mean() > abs(observed[0] - observed[1])
        of_sacrebleu.append((more.sum() + 1) / (more.size + 1))
    # Standard deviations of these shares are 0.013 and 0.029.
    assert 0.01 < np.mean(np.array(p_values) < 0.05) < 0.1
    assert 0.4 < np.mean(np.array(p_values) < 0.5) < 0.6
    assert np.mean(np.array(of_sacrebleu) < 0.05) > 0.09 and max(of_sacrebleu) < 0.5


def test_the_seed_decides_the_resamples():
    first, again, other = (paired_bootstrap(DAMAGED, REFERENCES, REFERENCES, samples=50, seed=s) for s in (0, 0, 4))
    assert first == again
    assert first["bleu"].mean != other["bleu"].mean
    assert "seed:4" in other["bleu"].signature


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"samples": 0}, "samples must be 1 or more"),
        ({"seed": -1}, "seed must be 0 or more"),
        ({"baseline_hypotheses": ["a"]}, "1 baseline_hypotheses but 40 references"),
        ({"tokenize": "13b"}, "'13b': sacreBLEU knows 13a, char"),
    ],
)
def test_bad_input_is_named(arguments, message):
    good = {"hypotheses": DAMAGED, "baseline_hypotheses": DAMAGED, "references": REFERENCES}
    with pytest.raises(PadirError, match=message):
        paired_bootstrap(**{**good, **arguments})
