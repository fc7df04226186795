"""Pages say what results say: figures come from the generator, not from anybody's hand."""

import json
import re
import subprocess
import sys
from pathlib import Path

import figures
import pytest

ROOT = Path(__file__).resolve().parents[2]

TEMPLATES = sorted(figures.TEMPLATES.rglob("*.j2"))
# A number with the unit of something measured. Design constants ("4 steps", "32 tokens", "batch size 1") have others.
MEASURED = re.compile(r"\d\s*(?:ms|s|seconds|minutes|hours|MB|GB|GFLOP|TFLOP|BLEU|points|%|x)(?![\w-])|\d[.,]\d+ times")


@pytest.mark.parametrize("path", figures.pages(), ids=lambda path: path.name)
def test_a_page_is_what_its_template_and_the_results_say(path):
    assert path.read_text(encoding="utf-8") == figures.pages()[path], "run `make figures`"


def test_check_names_a_page_that_differs(tmp_path):
    done = subprocess.run([sys.executable, "docs/figures.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_changed_result_changes_its_page(monkeypatch, tmp_path):
    before = figures.pages()
    result = figures.result

    def slower(name):
        found = result(name)
        if name == "latency_cpu.json":
            found["systems"]["AR greedy"]["latency_ms"]["median"] *= 2
        return found

    monkeypatch.setattr(figures, "HELPERS", (slower, *figures.HELPERS[1:]))
    monkeypatch.setattr(slower, "__name__", "result", raising=False)
    changed = {path.name for path, text in figures.pages().items() if text != before[path]}
    assert changed == {"latency.md", "README.md"}


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_no_measured_figure_is_typed_by_hand(path):
    text = re.sub(r"\{%.*?%\}|\{\{.*?\}\}|```.*?```|`[^`]*`", "_", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert MEASURED.findall(text) == []


PROSE = [
    path
    for path in [ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if not {"_build", "generated", "results"} & set(path.parts)
]


@pytest.mark.parametrize("path", PROSE, ids=lambda path: path.name)
def test_other_pages_hold_no_measured_speed_or_score(path):
    text = re.sub(r"```.*?```|`[^`]*`|\$[^$]*\$", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert re.findall(r"(?<!\w)\d[\d.,]*\s*(?:ms|BLEU|MB|GFLOP|GB)(?!\w)|\d\.\d+\s*(?:x|times)\b", text) == []


def test_rendered_values_are_those_of_the_results():
    pages = {path.name: text for path, text in figures.pages().items()}
    systems = json.loads((figures.RESULTS / "latency_cpu.json").read_text(encoding="utf-8"))["systems"]
    steps, greedy = systems["PaDIR, 4 steps, 1 hypothesis"]["latency_ms"], systems["AR greedy"]["latency_ms"]
    line = next(line for line in pages["latency.md"].splitlines() if "| PaDIR, 4 steps, 1 hypothesis |" in line)
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[1] == f"{steps['median']:.0f}" and cells[5] == f"{greedy['median'] / steps['median']:.2f}x"
    demo = json.loads((figures.RESULTS / "demo_cpu.json").read_text(encoding="utf-8"))
    assert f"| AR greedy | {demo['systems']['AR greedy']['bleu']:.1f} |" in pages["README.md"]
    assert f"`{demo['facts']['commit'][:7]}`" in pages["README.md"]


@pytest.mark.parametrize(
    "number, text",
    [(0.456, "0.46"), (9.994, "9.99"), (9.996, "10.0"), (99.94, "99.9"), (99.96, "100"), (1234.5, "1,234")],
)
def test_number(number, text):
    assert figures.number(number) == text


def test_a_result_of_changed_code_says_so():
    assert figures.commit({"commit": "0123456789-dirty"}) == "`0123456` with uncommitted changes"
    assert figures.commit({"commit": "0123456789+changes"}) == "`0123456` with uncommitted changes"
    assert figures.commit({"commit": "0123456789"}) == "`0123456`"


def test_every_failing_claim_is_explained():
    passing = {"claim": "k is larger", "passed": True, "measured": 2.0}
    failing = [{"claim": f"the bound at n = {n}", "passed": False, "measured": n / 8} for n in (1, 2)]
    assert figures.explained([passing, *failing], {"bound": "It was {}."}) == "* It was 0.125 and 0.25."
    with pytest.raises(ValueError, match="0 explanations of the claim that failed: the bound at n = 1"):
        figures.explained(failing, {"rate": ""})
    with pytest.raises(ValueError, match="no failing claim is about: .'rate'"):
        figures.explained(failing, {"bound": "", "rate": ""})


def test_aims_that_are_reached_are_bold():
    aims = [("faster", "at least", 2, [2.0, 1.9, None]), ("time", "at most", 1.5, [1.5, 1.6, 1.4])]
    rows = figures.aims_table(["a", "b", "c"], aims).splitlines()[2:]
    assert rows == [
        "| faster: at least 2x | **2.00x** | 1.90x | – |",
        "| time: at most 1.5x | **1.50x** | 1.60x | **1.40x** |",
    ]


def test_batches_are_compared_size_by_size():
    def found(greedy, beam, p99):
        times = {"AR greedy": greedy, "AR beam 5": beam}
        return {"systems": {name: {"latency_ms": {"median": ms, "p99": p99}} for name, ms in times.items()}}

    made = figures.batches_table({1: found(2.0, 4.0, 5.0), 8: found(3.0, 9.0, 12.0)}, "AR greedy", "AR beam 5")
    assert made.splitlines()[2:] == [
        "| AR greedy | 2.00 (5.00) | 1.0x / 2.0x | 3.00 (12.0) | 1.0x / 3.0x |",
        "| AR beam 5 | 4.00 (5.00) | 0.5x / 1.0x | 9.00 (12.0) | 0.3x / 1.0x |",
    ]


def test_verdicts_that_depend_on_the_seed_are_shown():
    parts = {
        "a": [
            {"claim": "always", "relation": "<", "limit": 1.0, "measured": [0.1, 0.2], "passed": [True, True]},
            {"claim": "at times", "relation": "<", "limit": 1.0, "measured": [0.5, 2.0], "passed": [True, False]},
        ],
        "b": [{"claim": "never", "relation": "<", "limit": 1.0, "measured": [3.0, 4.0], "passed": [False, False]}],
    }
    found = {"seeds": [0, 7], "parts": parts}
    assert figures.steady_of_all(found) == "2 of 3"
    assert figures.verdicts_table(found).splitlines()[::2] == [
        "| claim | limit | seed 0 | seed 7 |",
        "| at times | < 1 | 0.5 | **2** |",
    ]


@pytest.mark.parametrize("path", figures.pages(), ids=lambda path: path.name)
def test_a_page_is_read_in_five_minutes(path):
    """120 lines; commands and long tables are folded, and do not count."""
    text = re.sub(r"<details>.*?</details>\n\n", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(text.splitlines()) <= 120


def test_the_changelog_is_short():
    assert len((ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()) <= 60


def test_results_with_too_small_p_values_are_still_there():
    """One that was measured again leaves the list."""
    for name, commit in figures.SMALL_P_VALUES.items():
        assert figures.result(name)["facts"]["commit"].startswith(commit), name


def test_no_committed_file_holds_a_path_of_a_machine():
    """Results, pages and their sources; system paths that any machine has are no such paths."""
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    paths = [ROOT / name for name in files.split("\0") if name.startswith(("benchmarks/", "docs/", "gin/", "README"))]
    guilty = {}
    for path in paths:
        if path.suffix in (".json", ".gin", ".md", ".j2", ".txt", ".py") and path.exists():
            found = re.findall(r"""(?<![\w.:/-])/(?:tmp|work|root|home)/[^\s"',]*""", path.read_text(encoding="utf-8"))
            guilty |= {path.name: found} if found else {}
    assert guilty == {}
