"""The thesis's lemmas on ReLU networks, as it proves them and, where a misprint changes the value, as it prints them.

A network is a list of layers {"kernel": [a, b], "bias": [b]} with ReLU between them, as in `transformer.mlp`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

Layer = dict[str, np.ndarray]


def relu(x: np.ndarray) -> np.ndarray:
    """max(x, 0)."""
    return np.maximum(x, 0.0)


def evaluate(layers: Sequence[Layer], x: np.ndarray) -> np.ndarray:
    """A network's output in float64: [..., a] → [..., b]."""
    for index, layer in enumerate(layers):
        x = x @ layer["kernel"] + layer["bias"]
        if index + 1 < len(layers):
            x = relu(x)
    return x


def interpolation(points: np.ndarray, values: np.ndarray, direction: np.ndarray) -> list[Layer]:
    """Lemma 2.2.15: two layers, 2n hidden units, through n points.

    Args:
      points: [n, a], whose projections on the direction differ.
      values: [n, b].
      direction: w, [a].

    Returns:
      f(x) = Σ z_i [ReLU(⟨w, x - x_i⟩ + γ) - ReLU(⟨w, x - x_i⟩ - γ)], where 2γ is the smallest distance of projections.
    """
    projections = points @ direction
    order = np.argsort(projections)
    projections, values = projections[order], np.asarray(values, float)[order]
    gamma = np.diff(projections).min() / 2 if len(points) > 1 else 1.0
    slopes = np.zeros_like(values)
    for index, value in enumerate(values):
        slopes[index] = value / gamma - 2 * slopes[:index].sum(axis=0)
    kernel = np.tile(np.asarray(direction, float)[:, None], (1, 2 * len(points)))
    bias = np.concatenate([gamma - projections, -gamma - projections])
    return [
        {"kernel": kernel, "bias": bias},
        {"kernel": np.concatenate([slopes, -slopes]), "bias": np.zeros(values.shape[1])},
    ]


def indexed(x: np.ndarray, y: np.ndarray, limit: float) -> np.ndarray:
    """Lemma 2.2.17: x_y, of x [..., n] in [0, M] and y [...] in 1..n, with M = `limit`."""
    i = np.arange(1, x.shape[-1] + 1)
    y = np.asarray(y, float)[..., None]
    terms = relu(x + limit * (y - i)) - relu(x + limit * (y - i - 1))
    return terms.sum(axis=-1) - limit * (y[..., 0] - 1)


def place_of_one(x: np.ndarray, limit: float, as_printed: bool = False) -> np.ndarray:
    """Lemma 2.2.18: i, of x [..., n] that is M or more at i and 0 or less elsewhere.

    As printed, with a stray + M, it is another number.
    """
    i = np.arange(1, x.shape[-1] + 1)
    return (i * (relu(x + limit * as_printed) - relu(x - limit))).sum(axis=-1) / limit


def switched(
    hidden: np.ndarray, outputs: np.ndarray, biases: np.ndarray, y: np.ndarray, limit: float, as_printed: bool = False
) -> np.ndarray:
    """Lemma 2.2.19: the y-th of K networks with one hidden layer.

    Args:
      hidden: h, pre-activations [..., K, w] of all networks, of absolute values below M.
      outputs: a, [K, w].
      biases: b, [K].
      y: [...] in 1..K.
      limit: M.
      as_printed: whether the gate is that of Lemma 2.2.17, with M(y - k - 1). Then what networks k < y add cancels only
        if their pre-activations are not negative. (Our reading: the specification gives the printed lemma's fault, not
        its formula.)

    Returns:
      Σ_i a_{y,i} ReLU(h_{y,i}) + b_y, [...].
    """
    behind = np.asarray(y, float)[..., None] - np.arange(1, len(outputs) + 1)
    step = behind[..., None]
    if as_printed:
        units = relu(hidden + limit * step) - relu(hidden + limit * (step - 1)) - limit * (relu(step) - relu(step - 1))
    else:
        units = relu(hidden + limit * step) - relu(hidden + limit * (2 * step - 1)) + limit * relu(step - 1)
    chosen = relu(behind + 1) - 2 * relu(behind) + relu(behind - 1)
    return (outputs * units).sum(axis=(-1, -2)) + (biases * chosen).sum(axis=-1)


def softmax(x: np.ndarray) -> np.ndarray:
    """Softmax over the last axis."""
    weights = np.exp(x - x.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def norm_c(x: np.ndarray, floor: float) -> np.ndarray:
    """LN_C of the last axis in float64; 0 where the formula has no value. See `transformer.layer_norm`."""
    centred = x - x.mean(axis=-1, keepdims=True)
    divisor = np.maximum(np.linalg.norm(centred, axis=-1, keepdims=True), floor)
    return np.divide(centred, divisor, out=np.zeros_like(centred), where=divisor > 0)


def attention_module(x: np.ndarray, key: np.ndarray, query: np.ndarray, value: np.ndarray, floor: float) -> np.ndarray:
    """LN_C(W_V X σ(mask + (W_K X)ᵀ W_Q X)) + X of (2.42), without the MLP: x [L, m], one row a position → [L, m]."""
    logits = (x @ query.T) @ (x @ key.T).T
    logits = np.where(np.tri(len(x), dtype=bool), logits, -np.inf)
    return norm_c(softmax(logits) @ x @ value.T, floor) + x
