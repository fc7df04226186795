"""Figures 4.1 and 4.2: the error of k-pseudolikelihood beside its exact asymptotic prediction (layer 8)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from padir.theory.claims import Claim
from padir.theory.ising import clique_parameters
from padir.theory.pseudolikelihood import asymptotic_covariance, gradient_descent, newton, sample, uniform_law


@dataclass(frozen=True)
class EstimationSettings:
    """What is fitted.

    Attributes:
      coupling: J; the figures differ in it.
      spins: N = |C|; all fields are 0.
      sample_sizes: n, pairs (x, K) each; the text does not print the figures'.
      repetitions: fits per point of the figure.
      check_repetitions: further fits at the largest n, enough to see the small differences between large k.
      seed: of the samples.
    """

    coupling: float
    spins: int = 4
    sample_sizes: Sequence[int] = (500, 1000, 2000, 4000, 8000, 16000)
    repetitions: int = 10
    check_repetitions: int = 1000
    seed: int = 0


def estimation(settings: EstimationSettings) -> tuple[dict[str, Any], list[Claim]]:
    """Fits k = 1..N by gradient descent, for every sample size.

    Returns:
      Data: per k, tr(Γ_k), and per sample size the prediction tr(Γ_k) / n and the squared errors ‖estimate - theta‖²;
      and the claims.
    """
    n = settings.spins
    theta = jnp.asarray(clique_parameters(n, n, settings.coupling, 0.0))
    by_k, fits = {}, []
    for k in range(1, n + 1):
        law = uniform_law(n, k)
        covariance = asymptotic_covariance(theta, law)
        trace = float(jnp.trace(covariance))
        key = jax.random.fold_in(jax.random.key(settings.seed), k)
        points = []
        for size in settings.sample_sizes:
            errors, quality = _errors(jax.random.fold_in(key, size), theta, law, size, settings.repetitions)
            fits.append(quality)
            points.append({"n": size, "predicted": trace / size, "squared_errors": errors.tolist()})
        largest = max(settings.sample_sizes)
        checked, quality = _errors(jax.random.fold_in(key, 0), theta, law, largest, settings.check_repetitions)
        fits.append(quality)
        by_k[str(k)] = {
            "trace": trace,
            # Of one squared error, were the estimate normal: Var ‖z‖² = 2 tr(Γ²).
            "predicted_sd_times_n": float(np.sqrt(2.0 * jnp.sum(covariance**2))),
            "points": points,
            "check": {"n": largest, "repetitions": len(checked), "mean": float(checked.mean())},
        }
    data = {"settings": asdict(settings), "by_k": by_k, "fits": {"count": sum(q["count"] for q in fits)}}
    return data, _claims(by_k, fits)


def _errors(key: jax.Array, theta: jax.Array, law, size: int, repetitions: int) -> tuple[np.ndarray, dict[str, float]]:
    """Squared errors [repetitions], and how near to the minimum the fits are."""
    keys = jax.random.split(key, repetitions)
    tables = jax.vmap(lambda one: sample(one, theta, law, size))(keys)
    fit = gradient_descent(law, tables)
    exact = newton(law, tables, fit.theta)
    quality = {
        "count": repetitions,
        "gradient_norm": float(jnp.max(fit.gradient_norm)),
        "from_newton": float(jnp.max(jnp.linalg.norm(exact.theta - fit.theta, axis=-1))),
    }
    return np.asarray(jnp.sum((fit.theta - theta) ** 2, axis=-1)), quality


def _claims(by_k: dict[str, Any], fits: Sequence[dict[str, float]]) -> list[Claim]:
    models = list(by_k.values())
    pairs = list(zip(models, models[1:], strict=False))
    first, last = (
        np.array([np.mean(point["squared_errors"]) for point in model["points"]]) for model in (models[0], models[-1])
    )

    def deviation(model: dict[str, Any], mean: float, n: int, repetitions: int) -> float:
        """How many standard errors a mean is from the prediction."""
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
        Claim("and at the optimum: largest distance to Newton's", max(q["from_newton"] for q in fits), "<=", 1e-6),
        Claim(
            "Theorem 4.1.1, exactly: tr(Γ_k) falls with k; smallest tr(Γ_k) / tr(Γ_{k+1})",
            min(a["trace"] / b["trace"] for a, b in pairs), ">", 1.0,
        ),
        Claim(
            "the figure: k = N has a smaller mean error than k = 1 for every n; smallest ratio",
            float(np.min(first / last)), ">", 1.0,
        ),
        Claim(
            f"mean errors of {repetitions} fits fall with k at the largest n; smallest ratio of neighbours",
            min(a["check"]["mean"] / b["check"]["mean"] for a, b in pairs), ">", 1.0,
        ),
        Claim("the figure's means at the largest n are tr(Γ_k) / n; most standard errors apart", figure, "<=", 4.0),
        Claim(f"the means of {repetitions} fits, too; most standard errors apart", check, "<=", 4.0),
    ]  # fmt: skip
