"""The table and the page say what the results hold; the pictures show it."""

import numpy as np
import pytest

from padir.decoding.state import Trace
from padir.evaluation import pictures as report

SYSTEMS = {
    name: {
        "bleu": bleu,
        "chrf": 60.04,
        "validity": validity,
        "stutter_per_100_words": 0.125,
        "mean_steps_run": 3.25,
        "latency_ms": {"median": 8.125, "p99": 20.0, "n": 300},
        "speed_up": 2.5,
        "bleu_signature": "nrefs:1|bleu",
        "chrf_signature": "nrefs:1|chrf",
        "n": 1000,
    }
    for name, bleu, validity in (("AR greedy", 50.06, 97.0), ("PaDIR", 49.94, 96.0))
}


def test_table():
    assert report.comparison_table(SYSTEMS).splitlines() == [
        "| system | BLEU | chrF | valid % | stutter/100 words | steps run | median ms | p99 ms | speed-up |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
        "| AR greedy | 50.1 | 60.0 | 97.0 | 0.12 | 3.2 | 8.12 | 20.00 | 2.50x |",
        "| PaDIR | 49.9 | 60.0 | 96.0 | 0.12 | 3.2 | 8.12 | 20.00 | 2.50x |",
    ]


def test_page():
    test = {"difference": -0.12, "p_value": 0.2}
    result = {
        "systems": SYSTEMS,
        "paired_bootstrap": {"PaDIR against AR greedy": {"bleu": test, "chrf": {"difference": 0.5, "p_value": 0.011}}},
        "facts": {
            "phase_seconds": {"prepare": 3.4, "train teacher": 61.0},
            "seconds": 64.4,
            "device": "cpu",
            "cpu_count": 2,
            "python": "3.11.9",
            "versions": {"jax": "0.10.2"},
            "commit": "abc123",
            "peak_memory_mb": 1234.5,
        },
    }
    page = report.demo_page(result, "THE TABLE", [("quality.png", "Quality")])
    for part in (
        "\nTHE TABLE\n",
        "- BLEU: `nrefs:1|bleu`; chrF: `nrefs:1|chrf`; n = 1000 test sentences.",
        "n = 300 requests per system",
        "- PaDIR against AR greedy: BLEU difference -0.12, p = 0.200; chrF difference +0.50, p = 0.011",
        "![Quality](quality.png)",
        "| prepare | 3 |\n| train teacher | 61 |\n| total | 64 |",
        "cpu, 2 cores, Python 3.11.9, jax 0.10.2; commit `abc123`;",
    ):
        assert part in page


def test_quality_by_steps(tmp_path, figures):
    curves = {"raw": {1: {"bleu": 20, "validity": 40}, 4: {"bleu": 30, "validity": 60}}}
    report.quality_by_steps(tmp_path / "q.png", curves, {"bleu": 35, "validity": 90}, "teacher")
    assert (tmp_path / "q.png").read_bytes().startswith(b"\x89PNG")
    (figure,) = figures
    for axes, level, values in zip(figure.axes, (35, 90), ([20, 30], [40, 60]), strict=True):
        teacher, student = axes.lines
        assert set(teacher.get_ydata()) == {level}
        assert (list(student.get_xdata()), list(student.get_ydata())) == ([1, 4], values)


@pytest.mark.parametrize("drop_repeats", [False, True])
def test_one_sentence_changing(tmp_path, figures, drop_repeats):
    """Three tokens, two of three steps run: the row it started from, what each step wrote, and the output."""
    tokens = np.array([[[9, 9, 9, 0], [4, 9, 1, 0], [0, 0, 0, 0]], [[4, 5, 1, 0], [4, 4, 1, 0], [0, 0, 0, 0]]])
    trace = Trace(tokens[0], tokens[1], np.log(np.full((3, 4), 0.5)))

    def pieces(ids):
        return [f"▁{number}" for number in ids]

    report.refinement_steps(tmp_path / "r.png", "a dog", trace, 2, pieces, drop_repeats=drop_repeats)
    axes = figures[0].axes[0]
    output = ["_4", "", "_1"] if drop_repeats else ["_4", "_4", "_1"]
    assert [text.get_text() for text in axes.texts] == ["_9"] * 3 + ["_4", "_5", "_1"] + ["_4", "_4", "_1"] + output
    assert [label.get_text() for label in axes.get_yticklabels()] == ["start", "step 1", "step 2", "output"]
    shown = axes.images[0].get_array()
    assert shown.shape == (4, 3)
    np.testing.assert_allclose(shown[1:-1], 0.5)
    assert axes.get_title() == "source: a dog"
