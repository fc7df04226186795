"""Text files to which lines are appended, in buckets and on disk."""

import pytest

from padir.files import segments
from padir.files.paths import as_path, files_below
from padir.files.segments import AppendedText, appended_exists, read_appended, replace_appended


@pytest.mark.parametrize("where", ["bucket", "disk"])
def test_lines_are_appended_and_replaced(where, bucket, tmp_path):
    path = f"{bucket}/log" if where == "bucket" else str(tmp_path / "log")
    assert not appended_exists(path)
    with pytest.raises(FileNotFoundError):
        read_appended(path)
    for number in range(2):
        text = AppendedText(path)
        text.write(f"{number}a\n")
        text.write(f"{number}b\n{number}c\n")
        text.close()
    assert appended_exists(path) and read_appended(path) == b"0a\n0b\n0c\n1a\n1b\n1c\n"
    replace_appended(path, b"0a\n")
    assert read_appended(path) == b"0a\n"
    text = AppendedText(path)
    text.write("2a\n")
    text.close()
    assert read_appended(path) == b"0a\n2a\n"


def test_segments_are_merged_and_lines_in_both_places_count_once(bucket, monkeypatch):
    monkeypatch.setattr(segments, "MERGED_AT", 3)
    text = AppendedText(f"{bucket}/log")
    for number in range(2):
        text.write(f"{number}\n")
    assert files_below(as_path(bucket)) == ["log.segments/00000001", "log.segments/00000002"]
    # As after a kill between merging and removing.
    as_path(f"{bucket}/log").write_bytes(b"0\n1\n")
    assert read_appended(f"{bucket}/log") == b"0\n1\n"
    text.write("2\n")
    assert files_below(as_path(bucket)) == ["log"]
    text.write("3\n")
    assert files_below(as_path(bucket)) == ["log", "log.segments/00000004"]
    assert read_appended(f"{bucket}/log") == b"0\n1\n2\n3\n"


def test_a_lost_answer_writes_a_segment_once(bucket, emulator):
    text = AppendedText(f"{bucket}/log")
    with emulator.faults.happen(lambda request: "lose" if request.number == 0 else None):
        text.write("a\n")
    text.write("b\n")
    assert read_appended(f"{bucket}/log") == b"a\nb\n"
    assert files_below(as_path(bucket)) == ["log.segments/00000001", "log.segments/00000002"]
