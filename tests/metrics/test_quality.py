"""Scores worked out by hand or by sacreBLEU's own command-line path."""

import dataclasses
import json
import os
import subprocess
import sys

import pytest
import sacrebleu

from padir.errors import PadirError
from padir.metrics.quality import (
    corpus_bleu,
    evaluate_hypotheses,
    load_checker,
    tokenizer_in,
    tokenizer_of,
)
from padir.metrics.stutter import unspaced

REFERENCES = [
    "the small dog sees the old cat in the garden today",
    "yesterday the woman gave a red book to the child",
    "we often eat fresh bread in the morning",
    "the teacher that I know has bought a house",
] * 10
# Every second sentence has lost its last word.
DAMAGED = [line if i % 2 else line.rsplit(" ", 1)[0] for i, line in enumerate(REFERENCES)]


def agree(source, hypothesis):
    return source.upper() == hypothesis.upper()


def test_perfect_output():
    scores = evaluate_hypotheses(REFERENCES, REFERENCES)
    assert scores.bleu == pytest.approx(100.0)
    assert scores.chrf == pytest.approx(100.0)
    assert scores.stutter_per_100_words == 0.0
    assert scores.validity is None
    assert scores.n == 40


def test_bleu_by_hand():
    # 4-gram precisions of "a b c d e f" in "a b c d x f": 5/6, 3/5, 2/4, 1/3; no brevity penalty.
    scores = evaluate_hypotheses(["a b c d e f"], ["a b c d x f"], tokenize="none")
    assert scores.bleu == pytest.approx(100 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25)


def test_same_as_sacrebleu_and_signature_says_how():
    scores = evaluate_hypotheses(DAMAGED, REFERENCES)
    assert scores.bleu == sacrebleu.corpus_bleu(DAMAGED, [REFERENCES]).score
    assert scores.chrf == sacrebleu.corpus_chrf(DAMAGED, [REFERENCES]).score
    version = sacrebleu.__version__
    assert scores.bleu_signature == f"nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:{version}"
    assert scores.chrf_signature == f"nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:{version}"
    assert "tok:zh" in evaluate_hypotheses(["你好"], ["你好"], tokenize="zh").bleu_signature


def test_ter_by_hand():
    # One word to insert, one to replace, a block to move: 1 + 1 + 1 edits for 4 + 2 + 4 words.
    hypotheses, references = ["the cat sat", "x b", "c d a b"], ["the cat sat down", "a b", "a b c d"]
    scores = evaluate_hypotheses(hypotheses, references)
    assert scores.ter == pytest.approx(30.0)
    assert scores.ter_signature.startswith("nrefs:1|case:lc|tok:tercom|norm:no|punct:yes|asian:no|")
    assert scores.ter == sacrebleu.corpus_ter(hypotheses, [references]).score


def test_ter_of_chinese_counts_characters():
    # One of four characters is wrong; without splitting it would be the only "word".
    assert evaluate_hypotheses(["你好世间"], ["你好世界"], tokenize="zh").ter == pytest.approx(25.0)
    assert evaluate_hypotheses(["你好世间"], ["你好世界"]).ter == pytest.approx(100.0)


def test_ter_is_left_out_where_it_is_not_asked_for():
    whole = evaluate_hypotheses(["a b c d"], ["a b c e"])
    without = evaluate_hypotheses(["a b c d"], ["a b c e"], with_ter=False)
    assert without == dataclasses.replace(whole, ter=None, ter_signature=None)
    assert "TER" in str(whole) and "TER" not in str(without)


def test_the_tokenizer_follows_the_target_language():
    languages = ("", "de", "en", "zh", "zh-TW", "ZH_cn", "ja", "ko")
    assert [tokenizer_of(language) for language in languages] == [*["13a"] * 3, *["zh"] * 3, "ja-mecab", "ko-mecab"]


def test_whether_a_signature_is_of_a_language_without_spaces():
    names = ["13a", "zh", "ja-mecab-0.996-IPA", "ko-mecab-0.996/ko-0.9.2-KO", "char"]
    found = [tokenizer_in(f"nrefs:1|case:mixed|eff:no|tok:{name}|smooth:exp|version:2.6.0") for name in names]
    assert found == names and [unspaced(name) for name in found] == [False, True, True, False, True]


def test_another_tokenizers_bleu():
    hypotheses, references = ["a “b” c d"], ["a “b” c e"]
    for tokenize in ("13a", "intl"):
        score, signature = corpus_bleu(hypotheses, references, tokenize)
        assert score == sacrebleu.corpus_bleu(hypotheses, [references], tokenize=tokenize).score
        assert f"tok:{tokenize}|" in signature
    assert corpus_bleu(hypotheses, references, "13a")[0] != corpus_bleu(hypotheses, references, "intl")[0]


def test_validity_counts_what_the_checker_accepts():
    sources = ["a b", "x", "y", "d"]
    scores = evaluate_hypotheses(["A b", "c", "", "D"], ["x"] * 4, sources=sources, checker=agree)
    assert scores.validity == 50.0
    assert "validity 50.00%" in str(scores)


def test_empty_hypotheses_score_zero():
    scores = evaluate_hypotheses(["", ""], ["a b", "c"])
    assert (scores.bleu, scores.chrf, scores.stutter_per_100_words) == (0.0, 0.0, 0.0)


def test_dictionary_survives_json():
    scores = evaluate_hypotheses(["the the cat sat"], ["the cat sat"])
    assert json.loads(json.dumps(scores.to_dict())) == scores.to_dict()
    assert scores.to_dict()["stutter_per_100_words"] == 25.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"hypotheses": ["a"], "references": ["a", "b"]}, "1 hypotheses but 2 references"),
        ({"hypotheses": [], "references": []}, "nothing to score"),
        ({"hypotheses": ["a"], "references": ["a"], "checker": agree}, "pass sources="),
        ({"hypotheses": ["a"], "references": ["a"], "checker": agree, "sources": ["a"] * 3}, "1 hypotheses but 3 sour"),
        ({"hypotheses": ["a"], "references": ["a"], "tokenize": "13b"}, "'13b': sacreBLEU knows 13a, char"),
    ],
)
def test_bad_input_is_named(arguments, message):
    with pytest.raises(PadirError, match=message):
        evaluate_hypotheses(**arguments)


def test_load_checker_finds_a_function():
    assert load_checker("posixpath:samefile") is os.path.samefile


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("posixpath.samefile", "write it as module:function"),
        ("no_such_package.mod:f", "no module 'no_such_package'"),
        ("padir.no_such_module:f", "no module 'padir.no_such_module'"),
        ("posixpath:no_such_function", "no function 'no_such_function'"),
        ("posixpath:sep", "no function 'sep'"),
    ],
)
def test_load_checker_names_what_is_wrong(name, message):
    with pytest.raises(PadirError, match=message):
        load_checker(name)


def test_load_checker_keeps_the_error_of_a_broken_module(tmp_path, monkeypatch):
    (tmp_path / "needs_more.py").write_text("import absent_dependency\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModuleNotFoundError, match="absent_dependency"):
        load_checker("needs_more:f")


def test_metrics_do_not_import_tensorflow():
    code = (
        "import sys, padir.metrics.quality, padir.metrics.stutter, padir.metrics.writers\n"
        "print(sorted({'tensorflow', 'seqio'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
