"""Requests are what their workload says, the same every time."""

import gzip
from collections import Counter

import numpy as np
import pytest

from padir.benchmark.workloads import FixedLengths, ParallelText, PreparedText, SourceText
from padir.data.records import PreparedSet
from padir.errors import PadirError
from padir.types import EOS_ID


def test_fixed_lengths():
    requests = FixedLengths(5, 7, num_requests=3, num_pieces=20).requests(8)
    assert [(len(request.source), request.target_length, request.text) for request in requests] == [(5, 7, None)] * 3
    for request in requests:
        assert request.source[-1] == EOS_ID and all(2 < token < 20 for token in request.source[:-1])
    assert len({request.source for request in requests}) == 3
    assert requests == FixedLengths(5, 7, num_requests=3, num_pieces=20).requests(8)
    with pytest.raises(
        PadirError, match="FixedLengths: source 5 or target 9 exceeds the longest length of the models, 8"
    ):
        FixedLengths(5, 9).requests(8)
    with pytest.raises(PadirError, match="FixedLengths.target: 0 is not at least 1"):
        FixedLengths(5, 0)


class TestParallelText:
    SOURCES = ["a b c d e", "a a a", "b", "e d c b a e d c b a"] * 5
    REFERENCES = ["x y", "x x x", "y", "x y x y x y x y"] * 5

    @pytest.fixture
    def files(self, tmp_path):
        (tmp_path / "source.txt").write_text("\n".join(self.SOURCES) + "\n")
        with gzip.open(tmp_path / "reference.gz", "wt") as file:
            file.write("\n".join(self.REFERENCES) + "\n")
        return {"sources": str(tmp_path / "source.txt"), "references": str(tmp_path / "reference.gz")}

    def test_lengths_of_pairs(self, files):
        """Five of each of the four pairs; the longer its text, the longer each side, and sides stay together."""
        requests = ParallelText(**files, num_requests=100, num_pieces=11).requests(64)
        pairs = Counter((len(request.source), request.target_length) for request in requests)
        assert list(pairs.values()) == [5] * 4
        # By source "b" < "a a a" < "a b c d e" < the longest; by reference "y" < "x y" < "x x x" < the longest.
        targets = [target for _, target in sorted(pairs)]
        assert np.argsort(targets).tolist() == [0, 2, 1, 3]
        assert all(request.source[-1] == EOS_ID for request in requests)

    def test_pairs_that_are_too_long_are_skipped_and_counted(self, files, capsys):
        every = ParallelText(**files, num_requests=100, num_pieces=11).requests(64)
        longest = max(max(len(request.source), request.target_length) for request in every)
        fewer = ParallelText(**files, num_requests=100, num_pieces=11).requests(longest - 1)
        assert (
            len(fewer) == 15 and f"skipped 5 of 20 pairs with more than {longest - 1} tokens" in capsys.readouterr().err
        )
        with pytest.raises(PadirError, match="every sentence pair has more than 1 tokens"):
            ParallelText(**files, num_pieces=11).requests(1)

    def test_a_draw_follows_its_seed(self, files):
        draws = [ParallelText(**files, num_requests=8, num_pieces=11, seed=seed).requests(64) for seed in (1, 1, 2)]
        assert draws[0] == draws[1] != draws[2] and len(draws[0]) == 8

    def test_files_that_are_not_parallel_or_not_there(self, files, tmp_path):
        (tmp_path / "short.txt").write_text("a\n")
        with pytest.raises(PadirError, match="short.txt has 1 lines but .* has 20; line n of one must translate"):
            ParallelText(str(tmp_path / "short.txt"), files["references"]).requests(64)
        with pytest.raises(PadirError, match="nowhere.txt: cannot be read as UTF-8 text"):
            ParallelText(str(tmp_path / "nowhere.txt"), files["references"]).requests(64)


def test_prepared_text(tiny, capsys):
    requests = PreparedText(str(tiny.data), num_requests=4).requests(32)
    test = PreparedSet.open(tiny.data).split("test")
    every = {example.source_text: tuple(example.source_ids) for example in test.read(range(len(test)))}
    assert len(requests) == 4 and all(every[request.text] == request.source for request in requests)
    assert all(request.target_length is None for request in requests)
    shortest = min(map(len, every.values()))
    assert PreparedText(str(tiny.data)).requests(shortest - 1) == []
    assert f"skipped {len(test)} sources" in capsys.readouterr().err


def test_text_of_a_file(tiny, tmp_path, capsys):
    """Tokens are counted by the model's vocabulary, which all systems must have; empty lines are no requests."""
    test = PreparedSet.open(tiny.data).split("test")
    texts = [example.source_text for example in test.read(range(4))]
    path = tmp_path / "text.de.gz"
    path.write_bytes(gzip.compress("\n".join([texts[0], "", *texts[1:]]).encode()))
    workload = SourceText(str(path), str(tiny.ar), num_requests=3)
    expected = PreparedText(str(tiny.data), num_requests=3).requests(32)
    assert workload.requests(32) == expected
    assert workload.vocabulary().hash == PreparedSet.open(tiny.data).vocabulary().hash
    assert workload.requests(1) == [] and "skipped 4 sources with more than 1 tokens" in capsys.readouterr().err
    with pytest.raises(PadirError, match="nowhere.txt: cannot be read as UTF-8 text"):
        SourceText("nowhere.txt", str(tiny.ar)).requests(32)
