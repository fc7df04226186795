"""Probes: what they can learn, what they cannot, and what they are given (spec, test 19)."""

import jax
import numpy as np
import pytest

from padir.decoding.verifiers import Probe
from padir.errors import PadirError
from padir.verifier.training import ProbeTraining, train_probe, validation_rows


def examples(count=1200, size=6, seed=0):
    """Features whose first two numbers tell the label with a margin, at a scale and offset of their own."""
    generator = np.random.default_rng(seed)
    features = generator.normal(size=(count, size))
    labels = features[:, 0] + features[:, 1] > 0
    features[:, 0] += np.where(labels, 0.5, -0.5)
    return 30 * features + 100, labels, np.arange(count) // 3


def test_a_separable_set_is_learnt_completely():
    found = train_probe(*examples())
    assert (found.accuracy, found.training_accuracy) == (1.0, 1.0)
    assert (found.training_examples, found.validation_examples) == (1080, 120)
    fresh, labels, _ = examples(seed=1)
    said = np.asarray(found.probe(None, None, fresh.astype(np.float32)))
    assert ((said > 0.5) == labels).mean() > 0.995


def test_shuffled_labels_cannot_be_learnt():
    features, labels, groups = examples(count=4000)
    shuffled = np.random.default_rng(2).permutation(labels)
    found = train_probe(features, shuffled, groups, ProbeTraining(validation_share=0.5))
    # Three standard errors of 2,000 coins.
    assert abs(found.accuracy - 0.5) < 3 * 0.5 / np.sqrt(found.validation_examples)


def test_only_hidden_layers_learn_what_is_not_linear():
    generator = np.random.default_rng(3)
    features = generator.uniform(-1, 1, size=(1500, 2))
    labels = features[:, 0] * features[:, 1] > 0
    groups = np.arange(1500)
    linear = train_probe(features, labels, groups)
    deep = train_probe(features, labels, groups, ProbeTraining(hidden=(32,), weight_decay=0.0, epochs=60))
    assert linear.accuracy < 0.65 and deep.accuracy > 0.95
    assert [kernel.shape for kernel, _ in deep.probe.layers] == [(2, 32), (32, 1)]


def test_the_best_epoch_is_kept():
    """What is kept after many epochs is what is kept after as many as the best one has."""
    features, labels, groups = examples(count=300)
    shuffled = np.random.default_rng(4).permutation(labels)
    long = train_probe(features, shuffled, groups, ProbeTraining(epochs=30))
    assert long.best_epoch < 30  # What cannot be learnt is overfitted soon.
    short = train_probe(features, shuffled, groups, ProbeTraining(epochs=long.best_epoch))
    assert short.best_epoch == long.best_epoch
    jax.tree.map(np.testing.assert_array_equal, short.probe, long.probe)


def test_groups_are_kept_whole():
    groups = np.array(["a", "b", "c", "a", "d", "e", "b", "f", "g", "h"])
    held_out = validation_rows(groups, 0.2, seed=0)
    assert 2 <= held_out.sum() <= 3
    assert not set(groups[held_out]) & set(groups[~held_out])
    assert (validation_rows(groups, 0.2, seed=0) == held_out).all()
    assert any((validation_rows(groups, 0.2, seed=seed) != held_out).any() for seed in range(1, 4))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": np.ones(1200)}, "do not have both labels"),
        ({"labels": np.full(1200, 2)}, "must be 1"),
        ({"labels": np.ones(7)}, r"labels \[7\]"),
        ({"features": np.full((1200, 6), np.nan)}, "not finite"),
        ({"groups": np.zeros(1200)}, "training examples do not have both labels"),
    ],
)
def test_unusable_examples_are_refused(change, message):
    given = dict(zip(("features", "labels", "groups"), examples(), strict=True))
    with pytest.raises(PadirError, match=message):
        train_probe(**given | change)


@pytest.mark.parametrize(
    "options",
    [{"hidden": (0,)}, {"epochs": 0}, {"learning_rate": 0.0}, {"weight_decay": -1.0}, {"validation_share": 1.0}],
)
def test_impossible_settings_are_refused(options):
    with pytest.raises(PadirError, match="ProbeTraining"):
        ProbeTraining(**options)


def test_a_linear_probe_is_a_weighted_sum():
    probe = Probe(((np.array([[2.0], [-1.0]]), np.array([0.5])),), np.array([1.0, 0.0]), np.array([2.0, 1.0]))
    assert probe.log_odds(np.array([[3.0, 1.0]])).tolist() == [1.5]
