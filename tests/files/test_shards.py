"""Shards by byte ranges: every line once, in order, with its number, wherever the ranges end."""

import gzip
import os
import tempfile
from itertools import chain
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from padir.errors import PadirError
from padir.files import lines as line_files
from padir.files import shards as line_shards
from padir.files.lines import Line, lines_of_all
from padir.files.shards import Part, lines_of_parts, number_lines, split_inputs

LONGEST = 12
# Line ends of both kinds and lone halves of them, characters of several bytes, bytes that are no UTF-8, long lines.
PIECES = [
    b"\n",
    b"\n",
    b"\r\n",
    b"\r",
    b"a",
    "ü".encode(),
    "漢字".encode(),
    b"\xff",
    b"\xef\xbb\xbf",
    b"x" * 11,
    b"y" * 40,
]
CONTENTS = st.lists(st.sampled_from(PIECES), max_size=25).map(b"".join)


def expected_lines(name, content):
    """The plain way: all at once."""
    lines = content.split(b"\n")
    if not lines[-1]:
        lines.pop()
    found = []
    for number, line in enumerate(lines, 1):
        if len(line) > LONGEST:
            raw = line[: LONGEST + 1]
        else:
            raw = line.rstrip(b"\r")
            raw = raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw
        found.append(Line(name, number, raw))
    return found


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(CONTENTS, st.booleans()), min_size=1, max_size=4), st.integers(1, 12))
def test_every_line_is_in_one_shard(contents, count):
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(line_files, "MAX_LINE_BYTES", LONGEST),
        mock.patch.object(line_files, "_READ_BYTES", 5),
        mock.patch.object(line_shards, "_READ_BYTES", 3),
    ):
        names, expected = [], []
        for number, (content, compressed) in enumerate(contents):
            path = Path(folder) / f"{number}{'.gz' if compressed else ''}"
            path.write_bytes(gzip.compress(content) if compressed else content)
            names.append(str(path))
            expected += expected_lines(names[-1], content)
        shards = number_lines(split_inputs(names, count))
        assert len(shards) == count
        found = [list(lines_of_parts(parts)) for parts in shards]
        assert list(chain(*found)) == expected
        assert list(lines_of_all(names)) == expected
        # Numbers are known before a line is read; of compressed files they are not.
        for parts, lines in zip(shards, found, strict=True):
            if not any(part.file.endswith(".gz") for part in parts):
                assert sum(part.lines for part in parts) == len(lines)
        parts = list(chain(*shards))
        assert sum(part.end - part.begin for part in parts) == sum(os.path.getsize(name) for name in names)
        if not any(compressed for _, compressed in contents):
            sizes = [sum(part.end - part.begin for part in parts) for parts in shards]
            assert max(sizes) - min(sizes) <= 1


def test_ranges_by_hand(tmp_path, monkeypatch):
    """9, 0 and 3 bytes between 3 shards: 4 bytes each, and what begins there."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").write_bytes(b"aa\nbbb\n\nc")
    (tmp_path / "none").write_bytes(b"")
    (tmp_path / "b").write_bytes(b"d\ne")
    shards = number_lines(split_inputs(["a", "none", "b"], 3))
    assert shards == [
        [Part("a", 0, 4, first=1, lines=2)],
        [Part("a", 4, 8, first=3, lines=1)],
        [Part("a", 8, 9, first=4, lines=1), Part("b", 0, 3, first=1, lines=2)],
    ]
    assert [list(lines_of_parts(parts)) for parts in shards] == [
        [Line("a", 1, b"aa"), Line("a", 2, b"bbb")],
        [Line("a", 3, b"")],
        [Line("a", 4, b"c"), Line("b", 1, b"d"), Line("b", 2, b"e")],
    ]
    # More shards than bytes: most are empty.
    many = split_inputs(["b"], 7)
    assert [[(part.begin, part.end) for part in parts] for parts in many] == [
        [],
        [],
        [(0, 1)],
        [],
        [(1, 2)],
        [],
        [(2, 3)],
    ]


def test_a_compressed_file_is_in_the_shard_where_it_begins(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").write_bytes(b"one\ntwo\n")
    (tmp_path / "b.gz").write_bytes(gzip.compress(b"three\nfour"))
    (tmp_path / "c").write_bytes(b"five\n" * 20)
    size = (tmp_path / "b.gz").stat().st_size
    shards = number_lines(split_inputs(["a", "b.gz", "c"], 1000))
    parts = list(chain(*shards))
    (compressed,) = [part for part in parts if part.file == "b.gz"]
    assert compressed == Part("b.gz", 0, size, first=1, lines=None)
    assert [line.raw for line in lines_of_parts([compressed])] == [b"three", b"four"]
    assert [line.number for parts in shards for line in lines_of_parts(parts)] == [1, 2, 1, 2, *range(1, 21)]


def test_the_same_file_twice(tmp_path):
    (tmp_path / "a").write_bytes(b"1\n2\n3\n")
    shards = number_lines(split_inputs([str(tmp_path / "a")] * 2, 4))
    assert [line.number for parts in shards for line in lines_of_parts(parts)] == [1, 2, 3, 1, 2, 3]


def test_a_file_that_changes_is_named(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"1\n2\n3\n4\n")
    planned = split_inputs([str(path)], 2)
    shards = number_lines(planned)
    path.write_bytes(b"1\n2\n3 4\n")
    with pytest.raises(PadirError, match="a: has changed: 1 lines begin at bytes 4 to 8, but 2 were counted"):
        list(lines_of_parts(shards[1]))
    path.write_bytes(b"1\n2\n")
    with pytest.raises(PadirError, match="a: became shorter than 8 bytes while it was read"):
        number_lines(planned)


def test_what_has_no_size_cannot_be_divided(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(PadirError, match="pipe: is not a regular file; only regular files can be divided into shards"):
        split_inputs([str(tmp_path / "pipe")], 2)
