"""Curves are those of the numbers they are given."""

import numpy as np
import pytest

from padir.benchmark import pictures
from padir.benchmark.measure import Timing


@pytest.fixture
def lines(figures, tmp_path):
    """Returns draw(function, *arguments) → {label: (x, y)} of the figure that is saved."""

    def draw(function, *arguments):
        function(tmp_path / "x.png", *arguments)
        assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
        (figure,) = figures
        found = figure.axes[0].lines
        return {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in found}

    return draw


def test_distributions(lines):
    assert lines(pictures.distributions, {"AR": np.array([3.0, 1.0, 2.0, 4.0])}) == {
        "AR (n=4)": ([1, 2, 3, 4], [0.25, 0.5, 0.75, 1.0])
    }


def test_median_by_length(lines):
    """Request 0 has 30 tokens and took 9 and 11 ms, request 1 has 20 and took 5."""
    timing = Timing(np.array([9.0, 5.0, 11.0]), np.array([0, 1, 0]))
    assert lines(pictures.by_length, np.array([30, 20]), {"AR": timing}) == {"AR": ([20, 30], [5, 10])}


def test_quality_where_it_is_known(lines):
    systems = {"AR": {"bleu": 30.0, "latency_ms": {"median": 8.0}}, "other": {"latency_ms": {"median": 2.0}}}
    assert lines(pictures.quality_against_latency, systems) == {"AR": ([8], [30])}


def test_throughputs(lines):
    rates = {f"system {i}": {1: 1.0 + i, 4: 2.0 + i} for i in range(9)}
    found = lines(pictures.throughputs, rates)
    assert found["system 8"] == ([1, 4], [9, 10]) and len(found) == 9
