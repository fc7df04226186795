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
MEASURED = re.compile(
    r"\d\s*(?:ms|s|seconds|minutes|hours|MB|GB|GFLOP|TFLOP|BLEU|points|%|x)(?![\w-])|\d[.,]\d+ times"
)


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
    text = re.sub(r"\{%.*?%\}|\{\{.*?\}\}|```.*?```|`[^`]*`", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
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


@pytest.mark.parametrize("number, text", [(0.456, "0.46"), (9.994, "9.99"), (10.4, "10"), (1234.5, "1,234")])
def test_number(number, text):
    assert figures.number(number) == text


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
