"""The linear verifier and the value function learn what can be told from features."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_dyck

from padir.dyck import judges
from padir.dyck.judges import ActionHead, labelled, train_value, train_verifiers, value_loss
from padir.dyck.mistakes import collect

CONFIG = tiny_dyck.CONFIG


def test_repetitions_hold_out_the_examples_they_should():
    """And a separable set is learnt."""
    labels = np.random.default_rng(0).integers(0, 2, 80)
    features = np.zeros((80, 16), np.float32)
    features[:, 0] = labels
    trained = train_verifiers(dataclasses.replace(CONFIG, verifier_epochs=800), features, labels)
    assert [(each.training_examples, each.validation_examples) for each in trained] == [(60, 20)] * 2
    assert all(each.accuracy == 1.0 for each in trained)
    kernels = [each.probe.layers[0][0] for each in trained]
    assert not np.allclose(kernels[0], kernels[1])


def test_labels_are_one_for_fine_and_zero_for_wrong_prefixes():
    generator = tiny_dyck.generator()
    mistakes = collect(generator, "errors")
    features, labels = labelled(generator, mistakes)
    assert labels.tolist() == [1] * 40 + [0] * 40 and features.shape == (80, 16)
    np.testing.assert_allclose(features[40:], generator.features(mistakes.prefixes), rtol=1e-6)


def test_values_of_prefixes_and_of_continuations():
    """The loss by hand: one prefix with log-odds 0 and its next token with log 3, which ended well."""
    kernel = jnp.zeros((2, 9)).at[0, 4].set(1.0)
    head = ActionHead(kernel, jnp.zeros(9), mean=jnp.ones(2), scale=jnp.full(2, 2.0))
    features = jnp.array([[1.0 + 2.0 * np.log(3.0), 5.0]])
    own, children = head(None, None, features)
    assert float(own[0]) == pytest.approx(0.5) and children.shape == (1, 8)
    assert float(children[0, 4]) == pytest.approx(0.75)
    loss = value_loss(head, features, jnp.array([4]), jnp.array([1.0]))
    assert float(loss) == pytest.approx(-np.log(0.5) - np.log(0.75))


def test_fitting_finds_the_values():
    """Outcomes are coins with chance 0.8 after token 3 and 0.2 after token 5, both as likely."""
    random = np.random.default_rng(1)
    following = random.choice([3, 5], 4000)
    outcome = (random.random(4000) < np.where(following == 3, 0.8, 0.2)).astype(np.float32)
    features = np.zeros((4000, 2), np.float32)
    head = ActionHead(jnp.zeros((2, 9)), jnp.zeros(9), jnp.zeros(2), jnp.ones(2))
    examples = features, following, outcome
    fitted, loss = judges._fitted(head, examples, examples, jax.random.key(0), 100)
    own, children = fitted(None, None, jnp.zeros((1, 2)))
    np.testing.assert_allclose([own[0], children[0, 3], children[0, 5]], [0.5, 0.8, 0.2], atol=0.03)
    assert float(loss) == pytest.approx(np.log(2) - 0.8 * np.log(0.8) - 0.2 * np.log(0.2), abs=0.02)


def test_it_is_trained_on_the_models_own_completions():
    head, result = train_value(tiny_dyck.generator(num_rollouts=128))
    assert head.kernel.shape == (16, 9) and np.isfinite(head.kernel).all()
    assert 128 * 2 <= result["prefixes"] <= 128 * 4
    assert 0 <= result["share_valid"] < 0.5 and result["validation_loss"] > 0
