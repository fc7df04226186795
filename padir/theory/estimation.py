"""Figures 4.1 and 4.2: the error of k-pseudolikelihood and its exact asymptotic prediction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from padir.theory.claims import Claim
from padir.theory.ising import clique_parameters
from padir.theory.pseudolikelihood import (
    BlockLaw,
    asymptotic_covariance,
    gradient_descent,
    newton,
    sample,
    uniform_law,
    with_blocks,
)
from padir.theory.settings import require_in


@dataclass(frozen=True)
class EstimationSettings:
    """Settings of the fits.

    Attributes:
      coupling: J, in which the two figures differ.
      spins: N = `|C|`; all fields are 0.
      sample_sizes: values of n, the number of pairs (x, K). The chapter does not give those of its figures.
      repetitions: fits per point of the figure.
      check_repetitions: additional fits at the largest n, enough to show the small differences between large k.
      seed: random seed of the samples.
    """

    coupling: float
    spins: int = 4
    sample_sizes: Sequence[int] = (500, 1000, 2000, 4000, 8000, 16000)
    repetitions: int = 10
    check_repetitions: int = 1000
    seed: int = 0

    def __post_init__(self):
        require_in(self, "spins", 2, 6)
        require_in(self, "sample_sizes", 1)
        require_in(self, "repetitions", 2)
        require_in(self, "check_repetitions", 2)


def estimation(settings: EstimationSettings) -> tuple[dict[str, Any], list[Claim]]:
    """Fits the model by gradient descent, for each k = 1..N and each sample size.

    Returns:
      (data, claims). For each k the data contain tr(Γ_k) and, for each sample size, the prediction tr(Γ_k) / n and the
      squared errors ‖estimate - theta‖².
    """
    n = settings.spins
    theta = jnp.asarray(clique_parameters(n, n, settings.coupling, 0.0))
    by_k, fits = {}, []
    for k in range(1, n + 1):
        # All k share one compiled program, because each has the same number of blocks and of fits.
        law = with_blocks(uniform_law(n, k), math.comb(n, n // 2))
        random = np.random.default_rng((settings.seed, k))
        runs = [(size, settings.repetitions) for size in settings.sample_sizes]
        runs.append((max(settings.sample_sizes), settings.check_repetitions))
        tables = np.concatenate([sample(random, theta, law, size, count) for size, count in runs])
        errors, quality = _errors(theta, law, tables)
        fits.append(quality)
        *figure, check = np.split(errors, np.cumsum([count for _, count in runs])[:-1])
        by_k[str(k)] = _summary(theta, law, settings, figure, check)
    data = {"settings": asdict(settings), "by_k": by_k, "fits": fits}
    return data, estimation_claims(by_k, fits)


def _errors(theta: jax.Array, law: BlockLaw, tables: np.ndarray) -> tuple[np.ndarray, dict[str, float]]:
    """Squared errors [B] of fits to frequencies [B, M, X], and how close the fits are to the minimum."""
    fit = gradient_descent(law, tables)
    exact = newton(law, tables, fit.theta)
    quality = {
        "count": len(tables),
        "steps": int(fit.steps),
        "gradient_norm": float(jnp.max(fit.gradient_norm)),
        "from_newton": float(jnp.max(jnp.linalg.norm(exact.theta - fit.theta, axis=-1))),
    }
    return np.asarray(jnp.sum((fit.theta - theta) ** 2, axis=-1)), quality


def _summary(
    theta: jax.Array, law: BlockLaw, settings: EstimationSettings, figure: Sequence[np.ndarray], check: np.ndarray
) -> dict[str, Any]:
    """The data of one k: the prediction, the figure's errors by sample size, and the check at the largest size."""
    covariance = asymptotic_covariance(theta, law)
    trace, largest = float(jnp.trace(covariance)), max(settings.sample_sizes)
    return {
        "trace": trace,
        # For a normal z with covariance Γ, Var ‖z‖² = 2 tr(Γ²).
        "predicted_sd_times_n": float(np.sqrt(2.0 * jnp.sum(covariance**2))),
        "points": [
            {"n": size, "predicted": trace / size, "squared_errors": errors.tolist()}
            for size, errors in zip(settings.sample_sizes, figure, strict=True)
        ],
        "check": {
            "n": largest,
            "repetitions": len(check),
            "mean": float(check.mean()),
            "share_within_trace": float(np.mean(check * largest <= trace)),
            "share_within_100_traces": float(np.mean(check * largest <= 100.0 * trace)),
        },
    }


def estimation_claims(by_k: dict[str, Any], fits: Sequence[dict[str, float]]) -> list[Claim]:
    """The claims about Figures 4.1 and 4.2.

    Args:
      by_k: the data by k; see `estimation`.
      fits: for each k, how close its fits are to the minimum.
    """
    models = list(by_k.values())
    pairs = list(zip(models, models[1:], strict=False))
    first, last = (
        np.array([np.mean(point["squared_errors"]) for point in model["points"]]) for model in (models[0], models[-1])
    )

    def deviation(model: dict[str, Any], mean: float, n: int, repetitions: int) -> float:
        """The distance between a mean and its prediction, in standard errors."""
        return abs(mean * n - model["trace"]) / (model["predicted_sd_times_n"] / np.sqrt(repetitions))

    at_largest = [(model, max(model["points"], key=lambda point: point["n"])) for model in models]
    figure = max(
        deviation(model, np.mean(point["squared_errors"]), point["n"], len(point["squared_errors"]))
        for model, point in at_largest
    )
    check = max(deviation(m, m["check"]["mean"], m["check"]["n"], m["check"]["repetitions"]) for m in models)
    repetitions = models[0]["check"]["repetitions"]
    return [
        Claim("gradient descent converged: largest gradient norm", max(q["gradient_norm"] for q in fits), "<=", 1e-8),
        Claim(
            "gradient descent reached the minimum: largest distance to Newton's method",
            max(q["from_newton"] for q in fits), "<=", 1e-6,
        ),
        Claim(
            "Theorem 4.1.1, exactly: tr(Γ_k) decreases with k; smallest tr(Γ_k) / tr(Γ_{k+1})",
            min(a["trace"] / b["trace"] for a, b in pairs), ">", 1.0,
        ),
        Claim(
            "figure: k = N has a smaller mean error than k = 1 for every n; smallest ratio of the two",
            float(np.min(first / last)), ">", 1.0,
        ),
        Claim(
            f"mean errors of {repetitions} fits decrease with k at the largest n; smallest ratio of k to k + 1",
            min(a["check"]["mean"] / b["check"]["mean"] for a, b in pairs), ">", 1.0,
        ),
        Claim(
            "figure: mean errors at the largest n equal tr(Γ_k) / n; largest difference in standard errors",
            figure, "<=", 4.0,
        ),
        Claim(
            f"mean errors of {repetitions} fits equal tr(Γ_k) / n; largest difference in standard errors",
            check, "<=", 4.0,
        ),
        Claim(
            "section 4.1.2, after Lemma 4.1.1: error <= tr(Γ) / n with probability 0.99; smallest share of such fits",
            min(m["check"]["share_within_trace"] for m in models), ">=", 0.99,
            "tr(Γ) / n is the mean error itself; with Markov's inequality the bound for 0.99 is 100 tr(Γ) / n",
        ),
        Claim(
            "Markov's inequality: error <= 100 tr(Γ) / n with probability 0.99; smallest share of such fits",
            min(m["check"]["share_within_100_traces"] for m in models), ">=", 0.99,
        ),
    ]  # fmt: skip
