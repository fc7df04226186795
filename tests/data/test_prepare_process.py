"""Preparation in a child process: same result, the child's messages, and no TensorFlow here.

What else may become of a child is in tests/runtime/test_child_process.py.
"""

import pytest

from padir.data.manifest import Manifest, PrepareSettings, TaskConfig
from padir.data.prepare_process import prepare_in_process, train_vocabulary_in_process
from padir.data.records import PreparedSet
from padir.errors import PadirError


@pytest.fixture
def task(tmp_path):
    """Five pairs of short lines, relative to a folder."""
    (tmp_path / "src").write_text("ab\nba\na b\nb\naab\n")
    (tmp_path / "tgt").write_text("cd\ndc\nc d\nd\nccd\n")
    return TaskConfig("tasks.text_files", "letters", {"folder": str(tmp_path), "train": ("src", "tgt")})


def test_the_manifest_and_the_set(task, tmp_path, monkeypatch, capfd):
    """From another working directory, with a relative output and options that JSON turns into lists."""
    monkeypatch.chdir(tmp_path)
    manifest = prepare_in_process(task, "out", PrepareSettings(num_pieces=8, splits=("train",)))
    assert manifest == Manifest.load(tmp_path / "out")
    assert capfd.readouterr().err == "train: 5 pairs, longest 5 source and 5 target tokens\n"
    assert manifest.task.options["train"] == ["src", "tgt"]
    assert manifest.settings["splits"] == ["train"]
    train = PreparedSet.open("out").split("train")
    assert [(example.source_text, example.target_text) for example in train.read(range(5))] == [
        ("ab", "cd"),
        ("ba", "dc"),
        ("a b", "c d"),
        ("b", "d"),
        ("aab", "ccd"),
    ]


def test_the_childs_message_is_ours(task, tmp_path):
    (tmp_path / "tgt").write_text("cd\ndc\n\nd\nccd\n")
    with pytest.raises(PadirError, match=r"tgt:3: empty target; remove the pair or set skip_empty=True$"):
        prepare_in_process(task, tmp_path / "out", PrepareSettings(num_pieces=8))


def test_this_process_stays_free_of_tensorflow(task, tmp_path, run_python):
    code = (
        "import sys\n"
        "from padir.data.prepare_process import prepare_in_process\n"
        "from padir.data.manifest import PrepareSettings, TaskConfig\n"
        "options = {'folder': sys.argv[1], 'train': ('src', 'tgt')}\n"
        "task = TaskConfig('tasks.text_files', 'letters', options)\n"
        "manifest = prepare_in_process(task, sys.argv[2], PrepareSettings(num_pieces=8))\n"
        "assert manifest.splits['train'].num_examples == 5\n"
        "assert not {'tensorflow', 'seqio', 'tasks', 'padir.data.prepare'} & set(sys.modules)"
    )
    done = run_python(code, tmp_path, tmp_path / "out", cwd="/")
    assert done.returncode == 0, done.stderr.decode()


def test_a_missing_extra_says_what_to_install(task, tmp_path, monkeypatch):
    """A Python without Seqio: a folder that shadows it with a module that is not there."""
    shadow = tmp_path / "shadow"
    shadow.mkdir()
    (shadow / "seqio.py").write_text("raise ModuleNotFoundError(\"No module named 'seqio'\", name='seqio')\n")
    monkeypatch.syspath_prepend(str(shadow))
    message = r"preparing data needs seqio, which is not installed: pip install '\.\[data\]' in a clone"
    with pytest.raises(PadirError, match=message):
        prepare_in_process(task, tmp_path / "out", PrepareSettings(num_pieces=8))


def test_a_vocabulary(task, tmp_path, capfd):
    trained = train_vocabulary_in_process(task, tmp_path / "out.model", PrepareSettings(num_pieces=8))
    assert (trained.path, trained.num_pieces) == (tmp_path / "out.model", 8)
    said = f"{tmp_path / 'out.model'}: 8 pieces learnt from 10 of 10 sentences, SHA-256 {trained.hash}\n"
    assert capfd.readouterr().err == said
