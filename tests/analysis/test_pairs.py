"""Every statistic of a pair, on attention arrays whose answers are worked out by hand."""

import numpy as np
import pytest

from padir.analysis.pairs import (
    CROSS,
    SELF,
    Pairs,
    cross_statistics,
    pairs_of,
    real_positions,
    self_statistics,
    top_mask,
)

# One sentence of three positions, two heads; row t is where t attends to.
SELF_WEIGHTS = np.array(
    [
        [[0.5, 0.3, 0.2], [0.6, 0.1, 0.3], [0.2, 0.1, 0.7]],
        [[0.1, 0.8, 0.1], [0.2, 0.2, 0.6], [0.5, 0.4, 0.1]],
    ]
)[None]
KEYS = np.ones((1, 3), bool)


def flat(found, name):
    return found[name][0].tolist()


def test_self_attention_by_hand():
    """Pair (0, 1) has 0.3 and 0.8 forward, 0.6 and 0.2 backward; pair (1, 2) 0.3, 0.6 and 0.1, 0.4."""
    found = self_statistics(SELF_WEIGHTS, KEYS)
    assert set(found) == set(SELF)
    assert flat(found, "self_min") == [[0.3, 0.2], [0.3, 0.1]]
    assert np.allclose(found["self_avg"], [[[0.55, 0.4], [0.45, 0.25]]])
    assert flat(found, "self_max") == [[0.8, 0.6], [0.6, 0.4]]
    # Head 0: row 0 attends most to itself, row 1 to 0, row 2 to itself. Head 1: 0 to 1, 1 to 2, 2 to 0.
    assert flat(found, "self_top1") == [[0.5, 0.5], [0.5, 0.0]]
    # Two of three: row 0 has (0, 1), (1, 0 before 2); row 1 (0, 2), (2, 0 before 1); row 2 (2, 0), (0, 1).
    assert flat(found, "self_top2") == [[1.0, 1.0], [1.0, 0.5]]
    # Mean of the heads: (0.3, 0.55, 0.15), (0.4, 0.15, 0.45), (0.35, 0.25, 0.4).
    assert flat(found, "self_mean_top1") == [[1.0, 0.0], [1.0, 0.0]]
    assert flat(found, "self_mean_top2") == [[1.0, 1.0], [1.0, 0.0]]


def test_cross_attention_by_hand():
    weights = np.zeros((1, 2, 2, 4))
    weights[0, 0] = [[0.5, 0.5, 0.0, 0.0], [0.0, 0.5, 0.5, 0.0]]
    weights[0, 1] = [[0.6, 0.0, 0.4, 0.0], [0.6, 0.4, 0.0, 0.0]]
    found = cross_statistics(weights, np.ones((1, 4), bool))
    assert set(found) == set(CROSS)
    # Head 0: (0.5 + 0 + 0.5) / 2 and 1 - 0.25 / 0.5; head 1: (0.4 + 0.4) / 2 and 1 - 0.36 / 0.52.
    head_1 = 1 - 0.36 / 0.52
    expected = {
        "tv_min": 0.4,
        "tv_avg": 0.45,
        "tv_max": 0.5,
        "cosine_min": head_1,
        "cosine_avg": (0.5 + head_1) / 2,
        "cosine_max": 0.5,
        # Most attended: head 0 source 0 (of two equal the left one) and 1; head 1 source 0 and 0.
        "cross_top1": 0.5,
        "cross_top2": 1.0,
        # Means (0.55, 0.25, 0.2, 0) and (0.3, 0.45, 0.25, 0): 0 and 1; {0, 1} and {1, 0}.
        "cross_mean_top1": 0.0,
        "cross_mean_top2": 1.0,
    }
    assert {name: value.item() for name, value in found.items()} == pytest.approx(expected)


@pytest.mark.parametrize(("other", "distance"), [([0.0, 0.0, 0.25, 0.75], 1.0), ([0.25, 0.75, 0.0, 0.0], 0.0)])
def test_distances_end_at_0_and_1(other, distance):
    weights = np.array([[0.25, 0.75, 0.0, 0.0], other], np.float32)[None, None]
    found = cross_statistics(weights, np.ones((1, 4), bool))
    for name in ("tv_min", "tv_max", "cosine_avg"):
        assert found[name].item() == pytest.approx(distance, abs=1e-6)
    assert found["cross_top1"].item() == found["cross_top2"].item() == 1.0 - distance


def test_top_keys_are_never_padding():
    weights = np.array([[0.0, 0.4, 0.6], [0.0, 0.0, 1.0]])[None, None]
    keys = np.array([[True, True, False]])
    assert top_mask(weights, keys, 1)[0, 0].tolist() == [[False, True, False], [True, False, False]]
    assert top_mask(weights, keys, 2)[0, 0].tolist() == [[True, True, False]] * 2
    assert top_mask(weights, np.array([[False, True, False]]), 2)[0, 0].tolist() == [[False, True, False]] * 2
    # What lies on padding counts in no statistic: one source position is left, so both attend to the same.
    found = cross_statistics(weights, np.array([[True, False, False]]))
    assert found["tv_max"].item() == 0.0 and found["cross_top1"].item() == 1.0


def test_real_positions_come_before_eos_and_inside():
    tokens = np.array([[5, 5, 1, 5, 0], [7, 7, 7, 7, 1], [1, 4, 4, 1, 0]])
    inside = np.arange(5) < np.array([[4], [3], [4]])
    assert real_positions(tokens, inside).astype(int).tolist() == [[1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [0] * 5]


def test_pairs_of_a_batch_in_their_order():
    tokens = np.array([[5, 5, 6, 1], [8, 9, 9, 9]], np.int32)
    inside = np.array([[True] * 4, [True] * 4])
    generator = np.random.default_rng(0)
    self_weights = generator.dirichlet(np.ones(4), (2, 3, 4)).astype(np.float32)
    cross_weights = generator.dirichlet(np.ones(5), (2, 3, 4)).astype(np.float32)
    sources = np.arange(5) < np.array([[5], [5]])
    pairs = pairs_of(tokens, self_weights, cross_weights, inside, sources, first_sentence=7)
    assert pairs.sentences.tolist() == [7, 7, 8, 8, 8]
    assert pairs.stutters.tolist() == [True, False, False, True, True]
    by_hand = [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]
    forward = [self_weights[row, :, t, t + 1].max() for row, t in by_hand]
    backward = [self_weights[row, :, t + 1, t].max() for row, t in by_hand]
    assert pairs.values["self_max"].tolist() == np.stack([forward, backward], 1).tolist()
    distances = [
        max(0.5 * abs(cross_weights[row, head, t] - cross_weights[row, head, t + 1]).sum() for head in range(3))
        for row, t in by_hand
    ]
    assert np.allclose(pairs.values["tv_max"][:, 0], distances, atol=1e-6)
    both = Pairs.together([pairs, pairs])
    assert both.stutters.tolist() == pairs.stutters.tolist() * 2
    assert both.values["self_max"].shape == (10, 2)
