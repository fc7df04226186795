"""The walk as a network of conductances, against its matrix, against plain Python, and against closed forms."""

import numpy as np
import pytest

from padir.theory.dyck_words import dyck_tree
from padir.theory.level_laws import PrefixTree, exact_values, full_tree, target_law, total_variation
from padir.theory.value_guided import guided_by, random_tree
from padir.theory.walks import Chain, Walk, gap_bound, gap_with_exact_values, leaf_mass_bounds, mixing_steps


@pytest.fixture
def random():
    return np.random.default_rng(0)


def noisy(random, tree, outcome, noise=1.0):
    exact = exact_values(tree, outcome)
    return guided_by(tree, outcome, [value * np.exp(noise * random.normal(size=value.shape)) for value in exact])


def test_the_matrix_is_algorithm_2(random):
    """Weights are π_ref(a|y) V̂(y∘a) for a child and V̂(y) for the parent: nodes are numbered level by level."""
    tree = random_tree(random, 2, 2)
    values = [random.random(size) for size in tree.sizes()]
    matrix = Chain.of(Walk.of(tree, values)).transition
    first = tree.chances[0] * values[1]
    np.testing.assert_allclose(matrix[0], [0, *first / first.sum(), 0, 0, 0, 0], atol=1e-15)
    weights = [values[1][1], *tree.chances[1][2:] * values[2][2:]]
    np.testing.assert_allclose(matrix[2][[0, 5, 6]], np.array(weights) / np.sum(weights), atol=1e-15)
    assert matrix[3].tolist() == [0, 1, 0, 0, 0, 0, 0]
    np.testing.assert_allclose(Chain.of(Walk.of(tree, values)).lazy()[2, 2], 0.5)


@pytest.mark.parametrize("ends", [0.0, 0.3])
def test_the_leaf_law_is_the_target_whatever_the_values_are(random, ends):
    tree = random_tree(random, 3, 4, ends)
    outcome = [random.random(size) for size in tree.sizes()]
    walk = Walk.of(tree, noisy(random, tree, outcome, 2.0))
    chain = Chain.of(walk)
    np.testing.assert_allclose(chain.stationary @ chain.lazy(), chain.stationary, atol=1e-12)
    np.testing.assert_allclose(np.concatenate(walk.stationary()), chain.stationary, atol=1e-15)
    mass, law = walk.leaf_law()
    assert total_variation(law, target_law(tree, outcome)) < 1e-12
    assert mass == pytest.approx(chain.stationary[chain.leaves].sum())


def test_exact_values(random):
    tree = random_tree(random, 3, 4)
    outcome = [random.random(size) for size in tree.sizes()]
    walk = Walk.of(tree, exact_values(tree, outcome))
    first = walk.first_leaf()
    assert (first.moves, first.queries) == pytest.approx((16, 10))
    assert total_variation(first.law, target_law(tree, outcome)) < 1e-12
    assert walk.leaf_law()[0] == pytest.approx(1 / 8)
    assert Chain.of(walk).gap() == pytest.approx(gap_with_exact_values(4)) == pytest.approx(0.0380602)
    # Twice the moves, with laziness.
    lazy = Chain.of(walk).lazy()[~Chain.of(walk).leaves][:, ~Chain.of(walk).leaves]
    assert np.linalg.inv(np.eye(len(lazy)) - lazy)[0].sum() == pytest.approx(32)


@pytest.mark.parametrize("ends", [0.0, 0.4])
def test_the_first_leaf_by_recursion_by_equations_and_by_walking(random, ends):
    tree = random_tree(random, 2, 4, ends)
    # No output behind the second child of the root but the last one: V̂ is positive where V* is 0.
    outcome = [np.where(np.arange(size) < size // 2, 1.0, 0.0) + (np.arange(size) == size - 1) for size in tree.sizes()]
    values = guided_by(tree, outcome, [0.1 + random.random(size) for size in tree.sizes()])
    walk = Walk.of(tree, values)
    chain, first = Chain.of(walk), walk.first_leaf()
    law, moves = chain.first_leaf()
    reached = np.concatenate(first.law)
    np.testing.assert_allclose(reached[reached > 0], law, atol=1e-12)
    assert first.moves == pytest.approx(moves, rel=1e-12) and sum(law) == pytest.approx(1)
    leaf, taken = chain.simulate(random, 4000)
    counts = np.bincount(leaf, minlength=len(chain.leaves))[chain.leaves]
    assert np.all(np.abs(counts / 4000 - law) < 5 * np.sqrt(law * (1 - law) / 4000) + 1e-9)
    assert abs(taken.mean() - moves) < 5 * taken.std() / np.sqrt(4000)
    # Every walk goes down as often as its leaf is deep, and once more for each move up.
    depth = chain.lengths[leaf]
    assert abs(np.mean((taken + depth) / 2) - first.queries) < 5 * taken.std() / np.sqrt(4000)


def test_nothing_lies_behind_a_value_of_zero():
    tree = full_tree(2, 3)
    values = [np.ones(size) for size in tree.sizes()]
    values[1][0] = 0.0
    walk = Walk.of(tree, values)
    assert len(Chain.of(walk).leaves) == 8 and sum(Chain.of(walk).leaves) == 4
    np.testing.assert_allclose(walk.first_leaf().law[3], [0, 0, 0, 0, 0.25, 0.25, 0.25, 0.25])
    assert Chain.of(walk).gap() > gap_with_exact_values(3)


def test_bounds_hold_and_those_of_the_leaf_mass_are_attained(random):
    tree = random_tree(random, 2, 5)
    outcome = [random.random(size) for size in tree.sizes()]
    exact, kappa = exact_values(tree, outcome), 2.0
    low, high = leaf_mass_bounds(5, kappa)
    for power, mass in ((1.0, low), (-1.0, high)):
        walk = Walk.of(tree, guided_by(tree, outcome, [value * kappa**power for value in exact]))
        assert walk.leaf_law()[0] == pytest.approx(mass)
    chain = Chain.of(
        Walk.of(
            tree,
            guided_by(tree, outcome, [value * kappa ** random.choice([-1.0, 1.0], value.shape) for value in exact]),
        )
    )
    assert chain.gap() >= gap_bound(5, kappa) == pytest.approx((1 - np.cos(np.pi / 10)) / 8)
    steps = mixing_steps(5, kappa, 0.1)
    assert steps == np.ceil(8 / (1 - np.cos(np.pi / 10)) * np.log(2 * np.sqrt(10) / 0.2))
    after = chain.from_root(steps)
    assert 0.5 * np.abs(after - chain.stationary).sum() <= 0.1
    np.testing.assert_allclose(chain.from_root(7), np.linalg.matrix_power(chain.lazy(), 7)[0], atol=1e-12)


def test_without_laziness_the_walk_has_period_2(random):
    tree = random_tree(random, 2, 3)
    chain = Chain.of(Walk.of(tree, noisy(random, tree, [np.ones(size) for size in tree.sizes()])))
    assert chain.spectrum[0][0] == pytest.approx(-1.0)
    np.testing.assert_allclose(chain.stationary @ chain.transition, chain.stationary, atol=1e-15)
    after = np.linalg.matrix_power(chain.transition, 100)[0]
    assert after[chain.lengths % 2 == 1].sum() == 0.0


def test_dyck_words_of_8_letters():
    tree = dyck_tree(8).tree
    verifier = [np.ones(size) for size in tree.sizes()]
    target = target_law(tree, verifier)
    walk = Walk.of(tree, verifier)
    first = walk.first_leaf()
    assert sum(tree.sizes()) == 809
    assert total_variation(first.law, target) == pytest.approx(0.01494, abs=5e-6)
    assert first.moves == pytest.approx(1219.3, abs=0.05)
    assert walk.leaf_law()[0] == pytest.approx(0.0011578, abs=5e-8)
    assert Chain.of(walk).gap() == pytest.approx(0.0375503, abs=5e-8)
    exact = Walk.of(tree, exact_values(tree, verifier))
    assert exact.first_leaf().moves == pytest.approx(64)
    assert Chain.of(exact).gap() == pytest.approx(0.0096074, abs=5e-8)


def test_a_leaf_is_what_has_no_children():
    tree = PrefixTree([np.array([0, 0]), np.array([1, 1])], [np.array([0.5, 0.5]), np.array([0.25, 0.75])])
    assert [leaf.tolist() for leaf in tree.leaves()] == [[False], [True, False], [True, True]]
    outcome = [np.ones(1), np.ones(2), np.ones(2)]
    walk = Walk.of(tree, exact_values(tree, outcome))
    # E[length] = 1.5. From the root half of the walks end at once; the others go back half of the time.
    assert walk.leaf_law()[0] == pytest.approx(1 / 3)
    assert walk.first_leaf().law[1][0] == pytest.approx(2 / 3)
