"""Lemmas, subset sums and attention variation (specification, tests 16, 18 and 19)."""

import numpy as np
import pytest

from padir.brackets import lemmas, pruning
from padir.brackets.attention_variation import dirichlet_baseline, random_patterns, stack_shares, variation

GENERATOR = np.random.default_rng(0)


def test_interpolation_goes_through_its_points():
    points, values = GENERATOR.standard_normal((6, 3)), GENERATOR.standard_normal((6, 2))
    network = lemmas.interpolation(points, values, GENERATOR.standard_normal(3))
    assert network[0]["kernel"].shape == (3, 12)
    np.testing.assert_allclose(lemmas.evaluate(network, points), values, atol=1e-10)
    # By hand: 1 at 0 and 3 at 2, γ = 1: z = 1, 3 - 2; at 1 the first is at its end, 2, and the second begins.
    by_hand = lemmas.interpolation(np.array([[2.0], [0.0]]), np.array([[3.0], [1.0]]), np.ones(1))
    assert lemmas.evaluate(by_hand, np.array([[-1.0], [0.0], [1.0], [2.0], [9.0]]))[:, 0].tolist() == [0, 1, 2, 3, 4]


def test_indexing():
    x = np.array([0.5, 2.0, 0.0, 1.25])
    assert [float(lemmas.indexed(x, np.array(y), 2.0)) for y in (1, 2, 3, 4)] == [0.5, 2.0, 0.0, 1.25]


def test_place_of_one_and_its_misprint():
    """With n = 5 and M = 2 the printed lemma returns 16 for i = 1: 2 · 1 + 2 + 3 + 4 + 5."""
    for i in range(1, 6):
        one_hot = 2.0 * np.eye(5)[i - 1]
        assert lemmas.place_of_one(one_hot, 2.0) == i
    assert lemmas.place_of_one(2.0 * np.eye(5)[0], 2.0, as_printed=True) == 16
    assert lemmas.place_of_one(np.array([-3.0, 0.0, 7.0]), 2.0) == 3


@pytest.mark.parametrize("y", [1, 2, 3, 4])
def test_switch_among_networks(y):
    hidden = GENERATOR.uniform(-2, 2, (4, 5))
    outputs, biases = GENERATOR.standard_normal((4, 5)), GENERATOR.standard_normal(4)

    def switched(hidden, as_printed):
        return float(lemmas.switched(hidden, outputs, biases, np.array(y), 2.0, as_printed))

    def exact(hidden):
        return pytest.approx(outputs[y - 1] @ np.maximum(hidden[y - 1], 0) + biases[y - 1], abs=1e-12)

    assert switched(hidden, False) == exact(hidden)
    assert switched(np.abs(hidden), True) == exact(np.abs(hidden))
    # What is left over is network y - 1's negative part.
    left = outputs[y - 2] @ np.minimum(hidden[y - 2], 0) if y > 1 else 0.0
    assert switched(hidden, True) - left == exact(hidden)


def test_norm_is_zero_at_zero_of_unit_norm_elsewhere_and_lipschitz():
    x = GENERATOR.standard_normal((500, 6)) * 10.0 ** GENERATOR.uniform(-3, 1, (500, 1))
    assert not lemmas.norm_c(np.zeros(6), 0.0).any() and not lemmas.norm_c(np.full(6, 3.0), 0.1).any()
    np.testing.assert_allclose(np.linalg.norm(lemmas.norm_c(x, 0.0), axis=1), 1.0)
    floor, y = 0.3, x + 0.1 * GENERATOR.standard_normal(x.shape)
    change = np.linalg.norm(lemmas.norm_c(x, floor) - lemmas.norm_c(y, floor), axis=1)
    assert (change <= 2 / floor * np.linalg.norm(x - y, axis=1)).all()
    # Below C it is linear.
    np.testing.assert_allclose(lemmas.norm_c(np.array([0.1, -0.1]), 1.0), [0.1, -0.1])


def test_nearest_subset_is_the_nearest():
    for count in (1, 2, 7):
        values, target = GENERATOR.standard_normal(count), float(GENERATOR.standard_normal())
        every = np.arange(2**count)[:, None] >> np.arange(count) & 1
        best = np.abs(every @ values - target).min()
        chosen = pruning.nearest_subset(values, target)
        assert abs(values[chosen].sum() - target) == pytest.approx(best, abs=1e-12)


def test_pruned_networks_are_linear_and_near_their_targets():
    generator = np.random.default_rng(1)
    first, second = pruning.random_network(generator, 3, 2, 14)
    targets = generator.uniform(-0.5, 0.5, (2, 2, 3))
    one, other = (pruning.prune(first, second, target) for target in targets)
    x = generator.standard_normal((40, 3))
    for pruned, target in ((one, targets[0]), (other, targets[1])):
        bound = pruned.errors.max() * np.abs(x).sum(axis=1).max()
        assert np.median(pruned.errors) < 3e-3
        assert np.abs(pruned(x) - x @ target.T).max() <= bound + 1e-12
        # Entries are kept or zeroed.
        for kept, whole in ((pruned.first, first), (pruned.second, second)):
            assert ((kept == whole) | (kept == 0)).all()
    np.testing.assert_array_equal(one.first, other.first)
    assert np.abs(one(x) - other(x)).max() > 0.1


def test_variation():
    same = np.repeat(np.tri(4)[None] / np.arange(1, 5)[:, None], 3, axis=0)
    assert variation(same) == 0.0
    # Two patterns of one key each, all queries moved: 2 for each position.
    moved = np.stack([np.eye(5)[[0, 0, 0, 0, 0]], np.eye(5)[[1, 1, 2, 3, 4]]])
    assert variation(moved) == 10.0
    three = random_patterns(np.random.default_rng(2), 3, 4)
    pairs = [((three[i] - three[j]) ** 2).sum() for i, j in ((0, 1), (0, 2), (1, 2))]
    assert variation(three) == pytest.approx(np.mean(pairs))
    with pytest.raises(ValueError, match="varies from nothing"):
        variation(same[:1])


def test_dirichlet_baseline_against_simulation():
    values = [dirichlet_baseline(positions) for positions in (15, 16, 17, 19, 20)]
    np.testing.assert_allclose(values, [2.89, 3.00, 3.10, 3.30, 3.39], atol=0.006)
    drawn = random_patterns(np.random.default_rng(3), 600, 19)
    np.testing.assert_allclose(drawn.sum(axis=-1), 1.0)
    assert variation(drawn) == pytest.approx(3.295, abs=0.05)


def test_likeness_to_a_stack():
    patterns = np.array([[[1, 0, 0], [0.25, 0.75, 0], [0.5, 0.2, 0.3]], [[1, 0, 0], [0.6, 0.4, 0], [0, 1, 0]]])
    # The start token has nothing open; then the bracket at position 1, twice.
    assert stack_shares(patterns, np.array([0, 1, 1])) == pytest.approx(((0.75 + 0.2 + 0.4 + 1) / 4, 0.5))
