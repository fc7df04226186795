"""`benchmarks/epoch_schedule.py`: its table, and what it counts."""

import numpy as np
import pytest


@pytest.fixture(scope="module")
def script(load_script):
    return load_script("epoch_schedule")


def test_a_table_looks_like_a_corpus(script):
    lengths = script.synthetic_lengths(20_000, 128)
    assert lengths.shape == (20_000, 2) and lengths.dtype == np.int32
    assert lengths.min() >= 2 and lengths.max() <= 128
    assert np.median(lengths[:, 0]) == pytest.approx(23.5, abs=1)
    assert np.corrcoef(lengths.T)[0, 1] > 0.9


def test_padding_by_hand(script):
    """Two batches of two: lengths (3, 4) and (4, 2) padded to 4, (7, 8) and (8, 6) to 8; the fifth pair is dropped."""
    lengths = np.array([[3, 4], [7, 8], [4, 2], [8, 6], [8, 8]], np.int32)
    found = script.measure(lengths[:4], [4, 8], 2)
    assert (found["steps_per_epoch"], found["dropped"]) == (2, 0)
    assert found["padding"] == pytest.approx(1 - (3 + 4 + 4 + 2 + 7 + 8 + 8 + 6) / (2 * 2 * 4 + 2 * 2 * 8))
    assert script.measure(lengths, [4, 8], 2)["dropped"] == 1


def test_a_schedule_of_200_000_pairs_is_computed_in_no_time(script):
    """A tenth of what the benchmark has, in a tenth of the time it may take."""
    found = script.measure(script.synthetic_lengths(200_000, 128), [16, 32, 64, 128], 256)
    assert found["epoch_seconds"] < 1.0 and found["next_epoch_seconds"] < 1.0
