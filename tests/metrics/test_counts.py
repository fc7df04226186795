"""Scores from counts are sacreBLEU's, for any set, bucket and sentence."""

import numpy as np
import pytest
import sacrebleu
from hypothesis import example, given, settings
from hypothesis import strategies as st

from padir.errors import PadirError
from padir.metrics.counts import bleu_of, chrf_of, count_sentences

WORDS = st.lists(st.sampled_from(["a", "b", "cat", "cats", "dog", "."]), max_size=7).map(" ".join)


def test_counts_by_hand():
    counts = count_sentences(["a b c d", "x"], ["a b d", "y z"], tokenize="none")
    # Lengths 4 and 3; matches: a, b, d; (a b); of 4, 3, 2 and 1 n-grams.
    assert counts.bleu.tolist() == [[4, 3, 3, 1, 0, 0, 4, 3, 2, 1], [1, 2, 0, 0, 0, 0, 1, 0, 0, 0]]
    # Characters without spaces: abcd and abd.
    assert counts.chrf[0, :6].tolist() == [4, 3, 3, 3, 2, 1]
    assert len(counts) == 2


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=4))
@example([("a", "a")])
@example([("", ""), ("", "a")])
@example([("a b c", "a b c d e f g")])
@example([("cat dog", "cat . dog")])
def test_same_as_sacrebleu(pairs):
    hypotheses, references = (list(side) for side in zip(*pairs, strict=True))
    counts = count_sentences(hypotheses, references)
    corpus = sacrebleu.corpus_bleu(hypotheses, [references], force=True).score
    assert bleu_of(counts.bleu.sum(axis=0)) == pytest.approx(corpus)
    assert chrf_of(counts.chrf.sum(axis=0)) == pytest.approx(sacrebleu.corpus_chrf(hypotheses, [references]).score)
    singles = bleu_of(counts.bleu, sentence=True), chrf_of(counts.chrf)
    for index, (hypothesis, reference) in enumerate(pairs):
        assert singles[0][index] == pytest.approx(sacrebleu.sentence_bleu(hypothesis, [reference]).score)
        assert singles[1][index] == pytest.approx(sacrebleu.sentence_chrf(hypothesis, [reference]).score)


def test_chinese_is_split_as_asked():
    counts = count_sentences(["你好世界"], ["你好世间"], tokenize="zh")
    assert counts.bleu[0, :3].tolist() == [4, 4, 3]
    expected = sacrebleu.corpus_bleu(["你好世界"], [["你好世间"]], tokenize="zh").score
    assert bleu_of(counts.bleu[0]) == pytest.approx(expected)


def test_many_sums_at_once():
    counts = count_sentences(["a b c d e", "a b"], ["a b c d x", "a c"])
    stacked = np.stack([counts.bleu.sum(axis=0), counts.bleu[0], counts.bleu[1]])
    assert bleu_of(stacked).tolist() == [float(bleu_of(row)) for row in stacked]


def test_counts_differ():
    with pytest.raises(PadirError, match="1 hypotheses but 2 references"):
        count_sentences(["a"], ["a", "b"])
