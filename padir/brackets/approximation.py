"""B11 and B12: pruned random networks, and the lemmas that Theorems 2.2.1 to 2.2.3 are made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from padir.brackets import lemmas, pruning
from padir.brackets.exact import generator_of
from padir.brackets.settings import BracketsConfig
from padir.theory.claims import Claim

_SIZE = 4


def prunings(config: BracketsConfig) -> dict[str, Any]:
    """B11: errors of pruned networks by units for each weight, and two targets that share a matrix."""
    generator = generator_of(config, "pruning")
    by_units: dict[str, Any] = {}
    for units in config.units:
        # Meeting in the middle of 32 takes most of the time, and its sixteen entries are enough.
        repetitions = config.prunings if units <= 16 else 1
        errors = []
        for _ in range(repetitions):
            first, second = pruning.random_network(generator, _SIZE, _SIZE, units)
            errors.append(pruning.prune(first, second, _target(generator)).errors)
        by_units[str(units)] = {"median": float(np.median(errors)), "largest": float(np.max(errors))}
    units = max(config.units)
    first, second = pruning.random_network(generator, _SIZE, _SIZE, units)
    one, other = (pruning.prune(first, second, _target(generator)) for _ in range(2))
    x = generator.standard_normal((200, _SIZE))
    return {
        "by_units": by_units,
        "shared": float(np.abs(one.first - other.first).max()),
        "outputs_differ": float(np.abs(one(x) - other(x)).max()),
        "entries": float(max(one.errors.max(), other.errors.max())),
        "units": units,
    }


def _target(generator: np.random.Generator) -> np.ndarray:
    """A matrix of spectral norm at most 1."""
    drawn = generator.uniform(-1, 1, (_SIZE, _SIZE))
    return drawn / max(1.0, np.linalg.norm(drawn, 2))


def of_prunings(found: Mapping[str, Any]) -> list[Claim]:
    """B11: errors fall exponentially with the units, and one matrix says nothing."""
    medians = {int(units): row["median"] for units, row in found["by_units"].items()}
    searched = [units for units in medians if units <= 16]
    rates = np.polyfit(searched, np.log([medians[units] for units in searched]), 1)[0] if len(searched) > 1 else 0.0
    return [
        Claim("B11: change of log(median error) for each unit more, 16 units at most", float(rates), "<=", -0.5),
        Claim(f"B11: largest error of 16 entries at {found['units']} units, two targets", found["entries"],
              "<=", 1e-3),
        Claim("B11: difference of the first matrices of both pruned networks", found["shared"], "<=", 0.0),
        Claim("B11: while their outputs differ by", found["outputs_differ"], ">=", 0.1),
    ]  # fmt: skip


def lemma_ratios(config: BracketsConfig) -> dict[str, float]:
    """B12: for each lemma the largest error, or the largest ratio to its bound, on random inputs."""
    generator, trials = generator_of(config, "lemmas"), config.trials
    return {
        "2.2.8": _softmax_ratio(generator, trials),
        "2.2.10": _norm_ratio(generator, trials),
        "2.2.13": _attention_ratio(generator, trials),
        **_of_networks(generator, trials),
    }


def _softmax_ratio(generator: np.random.Generator, trials: int) -> float:
    """‖softmax x - softmax y‖_1 / (e^{2ε} - 1), ε = ‖x - y‖_∞."""
    x = 3 * generator.standard_normal((trials, 6))
    y = x + 10.0 ** generator.uniform(-3, 0.5, (trials, 1)) * generator.uniform(-1, 1, (trials, 6))
    epsilon = np.abs(x - y).max(axis=1)
    return float((np.abs(lemmas.softmax(x) - lemmas.softmax(y)).sum(axis=1) / np.expm1(2 * epsilon)).max())


def _norm_ratio(generator: np.random.Generator, trials: int) -> float:
    """‖LN_C x - LN_C y‖ C / (2 ‖x - y‖), on both sides of the norm C = 0.5."""
    x = generator.standard_normal((trials, 5)) * 10.0 ** generator.uniform(-1.5, 0.5, (trials, 1))
    y = x + generator.standard_normal((trials, 5)) * 10.0 ** generator.uniform(-3, 0, (trials, 1))
    change = np.linalg.norm(lemmas.norm_c(x, 0.5) - lemmas.norm_c(y, 0.5), axis=1)
    return float((change * 0.5 / 2 / np.linalg.norm(x - y, axis=1)).max())


def _attention_ratio(generator: np.random.Generator, trials: int) -> float:
    """‖f(X) - f(Y)‖ C / (200 L² ‖X - Y‖) in the largest 2-norm of a position, weights of norm 1, positions up to 4L."""
    largest = 0.0
    for trial in range(max(1, trials // 5)):
        layers, floor = 1 + trial % 3, 0.1
        key, query, value = (_of_norm_one(generator, 5) for _ in range(3))
        x = generator.standard_normal((6, 5))
        x *= 4 * layers / np.linalg.norm(x, axis=1, keepdims=True) * generator.uniform(0, 1, (6, 1))
        y = x + 10.0 ** generator.uniform(-4, -1) * generator.standard_normal((6, 5))
        y *= np.minimum(1.0, 4 * layers / np.linalg.norm(y, axis=1, keepdims=True))
        change = lemmas.attention_module(x, key, query, value, floor) - lemmas.attention_module(
            y, key, query, value, floor
        )
        ratio = np.linalg.norm(change, axis=1).max() / np.linalg.norm(x - y, axis=1).max()
        largest = max(largest, ratio * floor / (200 * layers**2))
    return float(largest)


def _of_norm_one(generator: np.random.Generator, size: int) -> np.ndarray:
    drawn = generator.standard_normal((size, size))
    return drawn / np.linalg.norm(drawn, 2)


def _of_networks(generator: np.random.Generator, trials: int) -> dict[str, float]:
    """Largest errors of Lemmas 2.2.15 and 2.2.17 to 2.2.19."""
    points, values = generator.standard_normal((7, 3)), generator.standard_normal((7, 2))
    network = lemmas.interpolation(points, values, generator.standard_normal(3))
    n, limit = 5, 2.0
    x, y = generator.uniform(0, limit, (trials, n)), generator.integers(1, n + 1, trials)
    rows = np.arange(trials)
    # M or more at y, 0 or less elsewhere.
    place = -generator.uniform(0, 3, (trials, n))
    place[rows, y - 1] = limit + generator.uniform(0, 3, trials)
    hidden = generator.uniform(-limit, limit, (trials, n, 4))
    outputs, biases = generator.standard_normal((n, 4)), generator.standard_normal(n)
    chosen = np.maximum(hidden, 0.0)
    exact = (outputs[y - 1] * chosen[rows, y - 1]).sum(axis=1) + biases[y - 1]

    def switch_error(hidden: np.ndarray, exact: np.ndarray, as_printed: bool) -> float:
        return float(np.abs(lemmas.switched(hidden, outputs, biases, y, limit, as_printed) - exact).max())

    exact_positive = (outputs[y - 1] * np.abs(hidden)[rows, y - 1]).sum(axis=1) + biases[y - 1]
    return {
        "2.2.15": float(np.abs(lemmas.evaluate(network, points) - values).max()),
        "2.2.17": float(np.abs(lemmas.indexed(x, y, limit) - x[rows, y - 1]).max()),
        "2.2.18": float(np.abs(lemmas.place_of_one(place, limit) - y).max()),
        "2.2.18 as printed": float(np.abs(lemmas.place_of_one(place, limit, True) - y).max()),
        "2.2.19": switch_error(hidden, exact, False),
        "2.2.19 as printed": switch_error(hidden, exact, True),
        "2.2.19 as printed, positive": switch_error(np.abs(hidden), exact_positive, True),
    }


def of_lemmas(found: Mapping[str, float]) -> list[Claim]:
    """B12."""
    bound = "the largest ratio to its bound"
    return [
        Claim(f"B12: Lemma 2.2.8, softmax changes by at most exp(2ε) - 1: {bound}", found["2.2.8"], "<=", 1.0),
        Claim(f"B12: Lemma 2.2.10, LN_C is 2/C-Lipschitz: {bound}", found["2.2.10"], "<=", 1.0),
        Claim(f"B12: Lemma 2.2.13, attention is 200 L²/C-Lipschitz: {bound}", found["2.2.13"], "<=", 1.0),
        Claim("B12: Lemma 2.2.15, interpolation: largest error", found["2.2.15"], "<=", 1e-9),
        Claim("B12: Lemma 2.2.17, indexing: largest error", found["2.2.17"], "<=", 1e-9),
        Claim("B12: Lemma 2.2.18 as printed: largest error", found["2.2.18 as printed"], "<=", 1e-9,
              "a stray + M adds up over all coordinates"),
        Claim("B12: Lemma 2.2.18 without it: largest error", found["2.2.18"], "<=", 1e-9),
        Claim("B12: Lemma 2.2.19 with Lemma 2.2.17's gate: largest error", found["2.2.19 as printed"], "<=", 1e-9,
              "where a pre-activation of network y - 1 is negative, what it adds is not cancelled"),
        Claim("B12: the same where all pre-activations are positive", found["2.2.19 as printed, positive"],
              "<=", 1e-9),
        Claim("B12: Lemma 2.2.19 with the gate M(2(y - k) - 1): largest error", found["2.2.19"], "<=", 1e-9),
    ]  # fmt: skip
