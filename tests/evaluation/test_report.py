"""The Markdown page says what the result holds, figure for figure."""

from padir.evaluation.report import markdown, table

SIGNATURES = {f"{name}_signature": f"sig of {name}|tok:13a|" for name in ("bleu", "bleu_intl", "chrf", "ter")}
BUCKET = {"n": 3, "bleu": 20.5, "chrf": 41.25, "stutter_per_100_words": 0.5, "stutter_per_100_tokens": 0.25}
RATES = {
    f"{rate}_per_100_{unit}": value + offset
    for unit, offset in (("words", 0.0), ("tokens", 0.5))
    for rate, value in (("repeats", 3.0), ("reference_repeats", 1.0), ("stutter", 2.0))
}
RESULT = {
    "name": "padir|4",
    "split": "test",
    "data_dir": "d",
    "decode": "Refinement()",
    "n": 7,
    "bleu": 27.125,
    "bleu_intl": 28.0,
    "chrf": 50.0,
    "ter": 60.5,
    "validity": None,
    **SIGNATURES,
    **RATES,
    "length_accuracy": 25.0,
    "length_error": 1.5,
    "length_bias": -0.25,
    "mean_steps_run": 3.5,
    "by_source_length": [{"from": 1, "to": 10, **BUCKET}, {"from": 11, "to": None, **BUCKET, "n": 4}],
}
TEST = {
    "score": 27.125,
    "baseline_score": 26.0,
    "difference": 1.125,
    "p_value": 0.0312,
    "signature": "bs:1000",
}
AGAINST = {
    "baseline": "ar.txt",
    "against_baseline": {"bleu": TEST, "chrf": TEST},
    "approximate_randomization": dict.fromkeys(("bleu", "chrf"), {"p_value": 0.0421, "trials": 10_000, "seed": 1}),
    "baseline_stutter": {name: value / 2 for name, value in RATES.items()},
    "baseline_by_source_length": [BUCKET | {"bleu": 19.0}, BUCKET | {"bleu": 18.0}],
}


def test_a_result_alone():
    lines = markdown(RESULT).splitlines()
    assert lines[0] == "# padir\\|4 on test of d"
    assert lines[2] == "| system | n | BLEU | BLEU (intl) | chrF | TER ↓ |"
    assert lines[4] == "| padir\\|4 | 7 | 27.12 | 28.00 | 50.00 | 60.50 |"
    assert "- BLEU: `sig of bleu|tok:13a|`" in lines and "- TER ↓: `sig of ter|tok:13a|`" in lines
    assert "length accuracy 25.00%, error 1.50 tokens (bias -0.25), 3.5 steps per sentence. `Refinement()`" in lines
    assert "| padir\\|4, per 100 words | 3.00 | 1.00 | 2.00 |" in lines
    assert "| padir\\|4, per 100 tokens | 3.50 | 1.50 | 2.50 |" in lines
    assert "| 1–10 | 3 | 20.50 | 41.25 | 0.50 | 0.25 |" in lines
    assert "| 11– | 4 | 20.50 | 41.25 | 0.50 | 0.25 |" in lines
    assert "## Against the baseline" not in lines and "Each character" not in "".join(lines)


def test_words_of_chinese_are_characters():
    lines = markdown(RESULT | {"bleu_signature": "nrefs:1|case:mixed|tok:zh|smooth:exp"}).splitlines()
    assert "Each character counts as a word, because the text has no spaces." in lines


def test_with_a_baseline():
    lines = markdown(RESULT | AGAINST).splitlines()
    assert "| BLEU | 26.00 | 27.12 | +1.12 | 0.0312 | 0.0421 |" in lines
    assert "| ar.txt, per 100 words | 1.50 | 0.50 | 1.00 |" in lines
    assert "| 11– | 4 | 20.50 | 41.25 | 0.50 | 0.25 | 18.00 | 41.25 |" in lines
    assert "- Approximate randomisation: 10000 trials, seed 1." in lines


def test_no_lengths_where_none_were_predicted():
    text = markdown(RESULT | dict.fromkeys(("length_accuracy", "length_error", "length_bias")))
    assert "length accuracy" not in text and "\n3.5 steps per sentence" in text


def test_a_table():
    assert table(["a", "b"], [["1", "2"]]) == "| a | b |\n|---|---:|\n| 1 | 2 |"
