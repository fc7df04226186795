"""Buckets of source lengths by hand."""

import pytest

from padir.errors import PadirError
from padir.metrics.breakdown import by_length, check_buckets
from padir.metrics.counts import bleu_of, count_sentences
from padir.metrics.quality import evaluate_hypotheses

HYPOTHESES = ["a a b", "c d e f g", "x y", "h h h i"]
REFERENCES = ["a b", "c d e f g", "x z", "h i"]
LENGTHS = [3, 10, 10, 11]


def breakdown(longest):
    items = {
        "words": ([text.split() for text in HYPOTHESES], [text.split() for text in REFERENCES]),
        "tokens": ([[5, 5], [6, 7], [8], [9]], [[5], [6, 7], [8], [9]]),
    }
    return by_length(LENGTHS, longest, count_sentences(HYPOTHESES, REFERENCES), items)


def test_buckets_by_hand():
    first, second, last = breakdown((5, 10))
    assert [(b["from"], b["to"], b["n"]) for b in (first, second, last)] == [(1, 5, 1), (6, 10, 2), (11, None, 1)]
    assert [b["stutter_per_100_words"] for b in (first, second, last)] == [100 / 3, 0.0, 50.0]
    assert [b["stutter_per_100_tokens"] for b in (first, second, last)] == [50.0, 0.0, 0.0]
    alone = evaluate_hypotheses(HYPOTHESES[1:3], REFERENCES[1:3])
    assert (second["bleu"], second["chrf"]) == (pytest.approx(alone.bleu), pytest.approx(alone.chrf))


def test_empty_buckets_are_left_out_and_one_bucket_is_the_whole():
    assert [(b["from"], b["to"]) for b in breakdown((1, 2, 4, 50, 60))] == [(3, 4), (5, 50)]
    (whole,) = breakdown(())
    assert (whole["from"], whole["to"], whole["n"]) == (1, None, 4)
    scores = evaluate_hypotheses(HYPOTHESES, REFERENCES)
    assert whole["bleu"] == pytest.approx(scores.bleu)
    assert whole["stutter_per_100_words"] == scores.stutter_per_100_words


def test_the_counts_of_buckets_add_up():
    counts = count_sentences(HYPOTHESES, REFERENCES)
    assert sum(bucket["n"] for bucket in breakdown((5, 10))) == len(counts)
    parts = counts.bleu[:1].sum(axis=0) + counts.bleu[1:3].sum(axis=0) + counts.bleu[3:].sum(axis=0)
    assert bleu_of(parts) == pytest.approx(evaluate_hypotheses(HYPOTHESES, REFERENCES).bleu)


@pytest.mark.parametrize("longest", [(10, 5), (5, 5), (0, 5)])
def test_buckets_that_do_not_ascend(longest):
    with pytest.raises(PadirError, match="length_buckets: .* must be ascending lengths of at least 1"):
        check_buckets(longest)
