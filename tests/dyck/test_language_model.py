"""The language model learns, and is stored as it is."""

import dataclasses

import jax
import numpy as np
import pytest
import tiny_dyck

from padir.dyck import language_model
from padir.dyck.language_model import adamw, closing_accuracy, debiased, load_params, model_of, save_params, words_of

CONFIG = tiny_dyck.CONFIG


def test_learning_rate_rises_and_falls_linearly():
    _, schedule = adamw(dataclasses.replace(CONFIG, steps=25))
    rates = [float(schedule(step)) for step in (0, 1, 5, 15, 25)]
    np.testing.assert_allclose(rates, [0.0, 0.002, 0.01, 0.005, 0.0], atol=1e-9)


def test_only_matrices_decay():
    """With gradients of 0, AdamW changes a parameter by its decay alone: rate · 0.1 · parameter."""
    optimizer, _ = adamw(dataclasses.replace(CONFIG, warmup_steps=1, steps=3))
    params = {"matrix": np.full((2, 2), 3.0, np.float32), "scale": np.full(2, 3.0, np.float32)}
    nothing, state = jax.tree.map(np.zeros_like, params), optimizer.init(params)
    _, state = optimizer.update(nothing, state, params)
    updates, _ = optimizer.update(nothing, state, params)
    np.testing.assert_allclose(updates["matrix"], -0.01 * 0.1 * 3.0, rtol=1e-6)
    np.testing.assert_array_equal(updates["scale"], 0.0)


def test_the_average_without_the_initial_parameters():
    """Of parameters 5, 8, 2 after an initial 1: their mean with weights d², d and 1, whatever the initial one is."""
    average = 1.0
    for value in (5.0, 8.0, 2.0):
        average = 0.8 * average + 0.2 * value
    expected = (0.64 * 5 + 0.8 * 8 + 2) / (0.64 + 0.8 + 1)
    assert debiased(np.float64(average), np.float64(1.0), 0.8**3) == pytest.approx(expected)


def test_it_learns_and_is_stored(tmp_path):
    params, history = language_model.train_language_model(CONFIG)
    assert history["step"] == list(range(1, 41))
    # A bracket can be told by chance with log 4; what is forced is soon known.
    assert np.mean(history["loss"][-5:]) < 1.0 < history["loss"][0]
    save_params(tmp_path / "model.npz", params)
    jax.tree.map(np.testing.assert_array_equal, load_params(tmp_path / "model.npz", CONFIG), params)


def test_accuracy_of_closing_brackets_is_counted():
    """Against the model's likeliest tokens, one prefix after the other."""
    generator = tiny_dyck.generator()
    words = np.asarray(words_of(CONFIG.grammar, jax.random.key(0), 8))
    model, params = model_of(CONFIG), generator.params

    def logits(words):
        network, source = model.module(params).network, np.ones((8, 1), np.int32)
        return model.target_logits(network, model.encode(network, source), source, words)

    likeliest = np.asarray(logits(words)).argmax(axis=-1)
    right = [
        likeliest[row, place] == token
        for row, word in enumerate(words)
        for place, token in enumerate(word)
        if token in (4, 6)
    ]
    assert len(right) == 8 * 3
    assert closing_accuracy(CONFIG, params, words) == pytest.approx(np.mean(right))
