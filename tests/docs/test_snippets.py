"""What the documentation's build refuses: commands that do not exist, programs that fail."""

import pytest
import snippets


def page(content, language="sh", mark=""):
    return f"# Title\n\n{mark}```{language}\n{content}\n```\n\nText.\n"


@pytest.mark.parametrize(
    "command",
    [
        "padir train --gin_file=runs/synthetic_ar.gin --gin.DATA_DIR=\"'x'\" --gin.RUN_DIR=\"'y'\"",
        'echo "a" | padir translate --run_dir=runs/ar --batch_size=8',
        "padir checkpoint runs/ar && ls",
        "XLA_FLAGS=x padir benchmark latency \\\n  --gin_file=bench/paper.gin --output=x.json",
        "make quality DATA=x PRESET=cpu",
        "launch/local.sh 2 runs/synthetic_ar.gin runs/ar",
        "# padir nothing",
        "padir theory --output_dir=x --no-quick",
        'padir translate --run_dir=r --gin.Refinement.remask="@my_policies.Mine()"',
    ],
)
def test_commands_that_exist(command):
    assert snippets.check_commands(page(command)) == []


@pytest.mark.parametrize(
    "command, reason",
    [
        ("padir trian --run_dir=x", "no command: padir trian"),
        ("ls; padir train --run-dir=x", "padir train has no flag --run-dir"),
        ("padir train --gin_file=runs/nothing.gin", "there is no runs/nothing.gin"),
        ("padir train --gin_file=runs/synthetic_ar.gin --gin.DATA_DIR='x'", "not in gin's syntax"),
        ("make everything", "the Makefile has no everything"),
        ("make quality DATE=x", "the Makefile has no DATE=x"),
        ("NODES=2 launch/slrm.sh x", "there is no launch/slrm.sh"),
        ("python benchmarks/nothing.py", "there is no benchmarks/nothing.py"),
    ],
)
def test_commands_that_do_not(command, reason):
    (wrong,) = snippets.check_commands(page(command))
    assert reason in wrong


def test_python_runs_block_after_block_in_a_folder_with_runs(tmp_path):
    text = page("x = 6", "python") + page("import os\nassert x == 6 and os.path.isdir('runs/padir')", "python")
    assert snippets.run_blocks(text, str(tmp_path)) == []
    (wrong,) = snippets.run_blocks(text + page("x / 0", "python"), str(tmp_path))
    assert "ZeroDivisionError" in wrong


def test_marked_shell_blocks_run_first_and_others_do_not(tmp_path):
    marked = page("padir --version > made", mark="<!-- run -->\n")
    text = marked + page("false") + page("open('made').read().index('padir 0')", "python")
    assert snippets.run_blocks(text, str(tmp_path)) == []
    (wrong,) = snippets.run_blocks(page("ls runs\nfalse | true", mark="<!-- run -->\n"), str(tmp_path))
    assert wrong.startswith("status 1")
