"""Lines in and out: pauses, broken files, what a failed job keeps."""

import gzip
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from padir.errors import PadirError
from padir.files import lines as line_files
from padir.files.lines import Line, Rejects, chunked, count_lines, lines_of_all, resolved_inputs, writing


def read_chunks(inputs, size):
    return chunked(lines_of_all(inputs), size)


def numbered(name, *lines, first=1):
    return [Line(name, number, raw) for number, raw in enumerate(lines, first)]


@pytest.fixture
def files(tmp_path):
    """Three lines with a byte order mark, Windows line ends and no last line end; two lines, compressed; nothing."""
    (tmp_path / "a").write_bytes(b"\xef\xbb\xbfone\r\n\r\nthree")
    (tmp_path / "b.gz").write_bytes(gzip.compress(b"\xef\xbb\xbffour\n\xff\n"))
    (tmp_path / "empty").write_bytes(b"")
    return [str(tmp_path / name) for name in ("a", "empty", "b.gz")]


def test_lines_of_all_files_by_chunk(files):
    first, second = numbered(files[0], b"one", b"", b"three"), numbered(files[2], b"four", b"\xff")
    assert list(read_chunks(files, 2)) == [first[:2], [first[2], second[0]], second[1:]]
    assert list(read_chunks(files, 5)) == list(read_chunks(files, 9)) == [first + second]
    assert list(read_chunks([], 5)) == list(read_chunks(files[1:2], 5)) == []


@pytest.fixture
def pipe(monkeypatch):
    """Returns the writing end of what is read as standard input."""
    reading, end = os.pipe()
    arriving = line_files._arriving
    monkeypatch.setattr(line_files, "_arriving", lambda descriptor: arriving(reading))
    yield end
    os.close(reading)


def test_standard_input_is_answered_when_it_pauses(pipe):
    """Nothing is closed while answers are awaited: a reader that wanted more would wait for ever."""
    chunks = read_chunks(["-"], 3)
    os.write(pipe, b"one\ntw")
    assert next(chunks) == numbered("-", b"one")
    os.write(pipe, b"o\r\n")
    assert next(chunks) == numbered("-", b"two", first=2)
    # Faster than it pauses: full chunks, then the rest.
    os.write(pipe, b"3\n4\n5\n6\n7\n")
    assert [next(chunks) for _ in range(2)] == [
        numbered("-", b"3", b"4", b"5", first=3),
        numbered("-", b"6", b"7", first=6),
    ]
    os.write(pipe, b"8\n9")
    os.close(pipe)
    assert [line.raw for chunk in chunks for line in chunk] == [b"8", b"9"]


def test_of_a_long_line_on_standard_input_no_more_is_held_than_is_needed(pipe, monkeypatch):
    monkeypatch.setattr(line_files, "MAX_LINE_BYTES", 10)
    monkeypatch.setattr(line_files, "_READ_BYTES", 4)
    os.write(pipe, b"x" * 100 + b"\nshort\n" + b"y" * 50)
    os.close(pipe)
    *raw, last = [line for line in line_files._arriving(0) if line is not None]
    assert raw[1] == b"short" and last == b"y" * 11
    # What was held, and one block.
    assert set(raw[0]) == set(b"x") and 11 <= len(raw[0]) <= 15


def test_the_number_of_lines(files, tmp_path):
    assert count_lines(files) == 5
    assert count_lines(files[:1]) == 3
    assert count_lines([]) == 0
    assert count_lines([files[0], "-"]) is None
    (tmp_path / "b.gz").write_bytes((tmp_path / "b.gz").read_bytes()[:-6])
    assert count_lines(files) is None


def test_a_damaged_file_is_named_with_its_last_good_line(files, tmp_path):
    (tmp_path / "b.gz").write_bytes(b"not gzip")
    with pytest.raises(PadirError, match=r"b\.gz: cannot be read after line 0: "):
        list(read_chunks(files, 2))


def test_inputs_must_exist(files, tmp_path):
    assert resolved_inputs([*files, "-"]) == [*files, "-"]
    for missing in (str(tmp_path / "none"), str(tmp_path)):
        with pytest.raises(PadirError, match=rf"^{missing}: no such input file$"):
            resolved_inputs([*files, missing])


def test_a_file_takes_its_name_when_it_is_whole(tmp_path):
    path = tmp_path / "out"
    with writing(str(path)) as stream:
        stream.write("Tür\n")
        assert not path.exists()
    assert path.read_bytes() == "Tür\n".encode()
    assert [found.name for found in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("error", [PadirError, KeyboardInterrupt])
def test_what_is_done_is_kept_when_the_rest_fails(tmp_path, capsys, error):
    path = tmp_path / "out"
    path.write_text("of an earlier job")
    with pytest.raises(error), writing(str(path)) as stream:
        stream.write("Tür\n")
        raise error("stop")
    assert path.read_text() == "of an earlier job"
    assert (tmp_path / "out.partial").read_bytes() == "Tür\n".encode()
    assert capsys.readouterr().err == f"{path}: not finished; the lines written so far are kept in {path}.partial\n"


def test_nothing_done_leaves_nothing(tmp_path, capsys):
    with pytest.raises(PadirError), writing(str(tmp_path / "out")):
        raise PadirError("stop")
    assert not list(tmp_path.iterdir())
    assert capsys.readouterr().err == ""


HOLDER = """
import sys
from padir.files.lines import writing
with writing(sys.argv[1]) as stream:
    stream.write("first\\n" * 100_000)
    print("begun", flush=True)
    sys.stdin.readline()
"""


def test_a_file_is_written_by_one_process_at_a_time(tmp_path):
    """The second is refused while the first writes, and changes nothing of what that has written."""
    path = tmp_path / "out"
    first = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert first.stdout.readline() == "begun\n"
    written = (tmp_path / "out.partial").read_bytes()
    message = rf"^{path}\.partial: another process is writing this file; wait until"
    with pytest.raises(PadirError, match=message), writing(str(path)) as stream:
        stream.write("second\n")
    assert written and (tmp_path / "out.partial").read_bytes() == written
    first.communicate("\n")
    assert first.returncode == 0 and path.read_text() == "first\n" * 100_000
    with writing(str(path)) as stream:
        stream.write("second\n")
    assert path.read_text() == "second\n"


def test_it_is_kept_from_others_until_it_has_its_name(tmp_path):
    path = tmp_path / "out"

    def whole(partial):
        with pytest.raises(PadirError, match="another process is writing this file"), writing(str(path)):
            pass
        assert partial.read_text() == "first\n"

    with writing(str(path), whole=whole) as stream:
        stream.write("first\n")
    assert path.read_text() == "first\n"


def test_rejects_of_two_jobs_do_not_mix(tmp_path):
    path = str(tmp_path / "rejects")
    with Rejects(path) as first, Rejects(path) as second:
        first.write(Line("a", 1, b"x"), "no reason")
        with pytest.raises(PadirError, match=rf"^{path}: another process is writing this file"):
            second.write(Line("b", 1, b"y"), "no reason")
        first.write(Line("a", 2, b"x"), "no reason")
    assert [json.loads(line)["file"] for line in Path(path).read_text().splitlines()] == ["a", "a"]


def test_several_jobs_throw_their_rejects_away():
    with Rejects("/dev/null") as first, Rejects("/dev/null") as second:
        for rejects in (first, second):
            rejects.write(Line("a", 1, b"x"), "no reason")


def test_a_folder_is_no_output(tmp_path):
    message = rf"^{tmp_path}: this is a folder; give the name of a file"
    with pytest.raises(PadirError, match=message), writing(str(tmp_path)):
        pass


def test_a_name_that_is_not_utf8_is_shown_with_its_bytes(tmp_path):
    name = os.fsencode(tmp_path) + b"/t\xfcr"
    with open(name, "wb") as file:
        file.write(b"one\n")
    (line,) = lines_of_all([os.fsdecode(name)])
    assert line.file == f"{tmp_path}/t\\xfcr"


@pytest.mark.parametrize(("folder", "reason"), [("missing", "No such file or directory"), ("file", "Not a directory")])
def test_an_output_that_cannot_be_created_says_what_to_do(tmp_path, capsys, folder, reason):
    (tmp_path / "file").write_text("")
    path = tmp_path / folder / "out"
    message = rf"^{path}.partial: this file cannot be created \({reason}\); choose an output in an existing folder"
    with pytest.raises(PadirError, match=message), writing(str(path)):
        pass
    with pytest.raises(PadirError, match=rf"^{path}: this file cannot be created"), Rejects(str(path)) as rejects:
        rejects.write(Line("a", 1, b"x"), "no reason")
    assert capsys.readouterr().err == ""


def test_standard_output_is_utf8_whatever_the_locale(monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(raw, encoding="latin-1"))
    with writing("-") as stream:
        stream.write("Tür „zu“\n")
        stream.flush()
    assert raw.getvalue() == "Tür „zu“\n".encode()
