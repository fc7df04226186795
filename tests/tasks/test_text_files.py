"""The generic text task: exact features from every format, and each kind of bad input by file and line."""

import gzip
import json

import pytest

from padir.errors import PadirError
from tasks import text_files

SOURCES, TARGETS = ["ab", "ba ab", "b"], ["cd", "dc", "c c"]
FEATURES = [
    {
        "inputs": ["▁", "a", "b", "</s>"],
        "targets": ["▁", "c", "d", "</s>"],
        "inputs_pretokenized": "ab",
        "targets_pretokenized": "cd",
    },
    {
        "inputs": ["▁", "b", "a", "▁", "a", "b", "</s>"],
        "targets": ["▁", "d", "c", "</s>"],
        "inputs_pretokenized": "ba ab",
        "targets_pretokenized": "dc",
    },
    {
        "inputs": ["▁", "b", "</s>"],
        "targets": ["▁", "c", "▁", "c", "</s>"],
        "inputs_pretokenized": "b",
        "targets_pretokenized": "c c",
    },
]


@pytest.fixture
def write(tmp_path):
    def write(name, lines):
        data = lines if isinstance(lines, bytes) else "".join(f"{line}\n" for line in lines).encode()
        (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return str(tmp_path / name)

    return write


def read(tmp_path, split="train", **options):
    """Returns the raw pairs of a split."""
    return list(text_files.register("text", "unused.model", folder=str(tmp_path), **options).pairs[split])


PAIRS = list(zip(SOURCES, TARGETS, strict=True))


def test_aligned_lines(run_task, write):
    files = write("t.src", SOURCES), write("t.tgt.gz", TARGETS)
    assert run_task(text_files, "train", num_pieces=8, train=files) == FEATURES


def test_tsv(run_task, write):
    file = write("t.tsv", [f"{i}\t{target}\t{source}" for i, (source, target) in enumerate(PAIRS)])
    assert run_task(text_files, "train", num_pieces=8, train=file, format="tsv", fields=(2, 1)) == FEATURES


def test_jsonl(run_task, write):
    file = write("t.jsonl", [json.dumps({"source": source, "target": target, "id": 1}) for source, target in PAIRS])
    assert run_task(text_files, "train", num_pieces=8, train=file, format="jsonl") == FEATURES


def test_tsv_with_a_header_row(tmp_path, write):
    write("t.tsv", ["de\tid\ten", "ab\t1\tcd"])
    assert read(tmp_path, train="t.tsv", format="tsv", fields=("en", "de")) == [("cd", "ab")]
    with pytest.raises(PadirError, match=r"t\.tsv:1: no column 'fr' in the header row; it has de, id, en"):
        read(tmp_path, train="t.tsv", format="tsv", fields=("en", "fr"))


def test_json_keys(tmp_path, write):
    write("t.jsonl", ['{"de": "ab", "en": "cd"}'])
    assert read(tmp_path, train=["t.jsonl"], format="jsonl", fields=["de", "en"]) == [("ab", "cd")]


def test_white_space_marks_and_windows_line_ends_go(tmp_path, write):
    write("a", "\ufeff ab \r\nü\u2028ö\r\n".encode())
    write("b", b"cd\n d\te")  # No line end at the end of the file.
    assert read(tmp_path, train=("a", "b")) == [("ab", "cd"), ("ü\u2028ö", "d\te")]


def test_splits_and_limits(tmp_path, write):
    write("a", SOURCES)
    write("b", TARGETS)
    options = {"train": ("a", "b"), "validation": ("b", "a"), "limit_train": 2}
    assert read(tmp_path, **options) == PAIRS[:2]
    assert read(tmp_path, "validation", **options) == list(zip(TARGETS, SOURCES, strict=True))
    registered = text_files.register("text", "v", folder=str(tmp_path), **options, source_language="de")
    assert list(registered.pairs) == ["train", "validation"]
    assert registered.source_language == "de" and registered.checker is None
    assert registered.files == tuple(str(tmp_path / name) for name in "abba")


def test_unequal_line_counts_name_both_files(tmp_path, write):
    write("a", ["x"] * 5)
    write("b", ["y"] * 3)
    with pytest.raises(PadirError, match=r"/a has 5 lines but .*/b has 3; "):
        read(tmp_path, train=("a", "b"))
    with pytest.raises(PadirError, match=r"/b has 3 lines but .*/a has 5; "):
        read(tmp_path, train=("b", "a"))


def test_empty_lines(tmp_path, write):
    write("a", ["ab", "ab", "ab"])
    write("b", ["cd", " \t", "dd"])
    with pytest.raises(PadirError, match=r"/b:2: empty target; remove the pair or set skip_empty=True"):
        read(tmp_path, train=("a", "b"))
    with pytest.raises(PadirError, match=r"/b:2: empty source"):
        read(tmp_path, train=("b", "a"))
    pairs = text_files.register("text", "v", folder=str(tmp_path), train=("a", "b"), skip_empty=True).pairs["train"]
    assert pairs.total is None  # Nothing is read to count it.
    for _ in range(2):  # Each reading counts anew.
        assert list(pairs) == [("ab", "cd"), ("ab", "dd")]
        assert (pairs.skipped, pairs.total) == (1, 2)


@pytest.mark.parametrize("name", ["a", "a.gz"])
def test_invalid_utf8(tmp_path, write, name):
    write(name, b"ab\nab\xff\n")
    write("b", ["c", "d"])
    with pytest.raises(PadirError, match=rf"/{name}:2: invalid UTF-8 at byte 3 of the line"):
        read(tmp_path, train=(name, "b"))


def test_missing_and_broken_files(tmp_path, write):
    write("a", SOURCES)
    with pytest.raises(PadirError, match=r"/nope: no such file"):
        read(tmp_path, train=("a", "nope"))
    (tmp_path / "b.gz").write_bytes(b"not gzip")
    with pytest.raises(PadirError, match=r"/b\.gz: cannot be read after line 0: Not a gzipped file"):
        read(tmp_path, train=("a", "b.gz"))
    (tmp_path / "c.gz").write_bytes(gzip.compress(b"x\n" * 10)[:-9])
    with pytest.raises(PadirError, match=r"/c\.gz: cannot be read after line \d+: Compressed file ended"):
        read(tmp_path, train=("c.gz", "a"))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", r"t\.jsonl:2: not JSON: "),
        ('{"source": "ab"}', r"t\.jsonl:2: no text field 'target' in this JSON row"),
        ('{"source": 3, "target": "cd"}', r"t\.jsonl:2: no text field 'source'"),
        ("[1]", r"t\.jsonl:2: no text field 'source'"),
        ('{"source": "ab", "target": ""}', r"t\.jsonl:2: empty target"),
        ("", r"t\.jsonl:2: not JSON: "),
    ],
)
def test_bad_json_rows(tmp_path, write, line, message):
    write("t.jsonl", ['{"source": "ab", "target": "cd"}', line])
    with pytest.raises(PadirError, match=message):
        read(tmp_path, train="t.jsonl", format="jsonl")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["a\tb", "a"], r"t\.tsv:2: expected 2 tab-separated columns, found 1"),
        (["a\tb", "a\tb\tc"], r"t\.tsv:2: expected 2 tab-separated columns, found 3"),
        (["a"], r"t\.tsv:1: expected 2 tab-separated columns, found 1"),
        (["a\tb", "\tb"], r"t\.tsv:2: empty source"),
    ],
)
def test_bad_tsv_rows(tmp_path, write, rows, message):
    write("t.tsv", rows)
    with pytest.raises(PadirError, match=message):
        read(tmp_path, train="t.tsv", format="tsv")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train": "a", "format": "csv"}, "option format='csv' must be one of lines, tsv, jsonl"),
        ({"train": "a"}, r"option train='a' must name a pair of files \(source, target\) for format='lines'"),
        ({"train": ("a", "a"), "format": "tsv"}, r"must name one file for format='tsv'"),
        ({"train": "a", "format": "tsv", "fields": (0, -1)}, r"option fields=\(0, -1\) must be two column numbers"),
        ({"train": "a", "format": "tsv", "fields": ("de", 1)}, "option fields=.* must be two column numbers"),
        ({"train": "a", "format": "jsonl", "fields": (0, 1)}, "option fields=.* must be two keys"),
        ({"train": ("a", "a"), "limit_train": 0}, "option limit_train=0 must be at least 1"),
    ],
)
def test_bad_options(tmp_path, write, options, message):
    write("a", SOURCES)
    with pytest.raises(PadirError, match=f"task text: {message}|{message}"):
        read(tmp_path, **options)


def test_names_seqio_refuses():
    from tasks import translation_task

    with pytest.raises(PadirError, match="task name 'a b'"):
        translation_task("a b", "v", {})
