"""Proposition 4.1.5 and Corollary 4.1.1 on cliques large enough for them to say something.

With the |C| = 4 of Figure 4.3 the proposition's T is below one step. The counted chains of `clique` are exact for any
size, so both can be checked where they speak.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from padir.theory import chains, clique
from padir.theory.bounds import (
    Clique,
    mode_reached_per_step,
    separating_model,
    steps_stuck,
    steps_to_mode,
    stuck_exponent,
)
from padir.theory.settings import require_in


@dataclass(frozen=True)
class SeparationSettings:
    """Which cliques.

    Attributes:
      cliques: |C| = N of Proposition 4.1.5's models.
      j_0: J - ‖h‖₁ of them.
      h_clique: the sum of their fields.
      deltas: probabilities of failure.
      corollary_steps: M of Corollary 4.1.1.
      spares: N - k in the corollary.
    """

    cliques: Sequence[int] = (4, 6, 8, 12, 16, 24, 32, 48)
    j_0: float = 0.75
    h_clique: float = 1.0
    deltas: Sequence[float] = (0.1, 0.5)
    corollary_steps: Sequence[int] = (1, 1000, 10**6)
    spares: Sequence[int] = (0, 1)

    def __post_init__(self):
        require_in(self, "cliques", 2)
        require_in(self, "deltas", 1e-9, 1.0 - 1e-9)
        require_in(self, "corollary_steps", 1)
        require_in(self, "spares", 0)


def separation(settings: SeparationSettings) -> dict[str, Any]:
    """Exact probabilities beside what the bounds promise.

    Returns:
      `stuck`: per clique, the proposition's exponent, the samplers' expected steps to R_1 from the quickest start
      (inf beyond 1e308) and, per delta, T and the probability of having left Σ x_i ≤ -2 by then, from the worst start.
      `corollary`: per (delta, M, N - k) the model and its exact probability of failure. `constant`: models on which the
      constant of Proposition 4.1.4 with 2|C| - 2, as (4.49) prints it, is no bound.
    """
    return {
        "settings": asdict(settings),
        "stuck": [_stuck(settings, size) for size in settings.cliques],
        "corollary": [
            _corollary(delta, steps, spare)
            for delta in settings.deltas
            for steps in settings.corollary_steps
            for spare in settings.spares
        ],
        "constant": [_constant(size) for size in (2, 3, 4, 6)],
    }


def absorbed_by(matrix: np.ndarray, target: np.ndarray, steps: int) -> np.ndarray:
    """P(the target was reached within `steps`), per start; by squaring, so any number of steps is cheap.

    Args:
      matrix: [X, X], a chain.
      target: [X] bool.
      steps: whole number.
    """
    absorbing = np.where(target[:, None], np.eye(len(matrix)), matrix)
    return np.linalg.matrix_power(absorbing, steps)[:, target].sum(axis=1)


def _stuck(settings: SeparationSettings, size: int) -> dict[str, Any]:
    model = Clique(size, size, settings.j_0 + settings.h_clique, settings.h_clique / size)
    parallel = clique.independent_parallel(size, model.coupling, model.field)
    number = np.arange(size + 1)
    starts = 2 * number - size <= -2
    by_delta = []
    for delta in settings.deltas:
        promised = steps_stuck(model, delta)
        left = absorbed_by(np.asarray(parallel), ~starts, int(promised))[starts].max() if promised >= 1 else 0.0
        by_delta.append({"delta": delta, "steps": promised, "left": float(left)})
    times = chains.expected_hitting_times(parallel, jnp.asarray(number == size))
    return {
        "clique": size,
        "coupling": model.coupling,
        "exponent": stuck_exponent(model),
        "expected_steps_to_mode": float(jnp.min(times[starts])),
        "n_gibbs_expected_steps": 1.0 / clique.mode_probability(size, model.coupling, model.field),
        "by_delta": by_delta,
    }


def _corollary(delta: float, steps: int, spare: int) -> dict[str, Any]:
    model, k = separating_model(delta, steps, spare=spare)
    size = model.clique
    number = np.arange(size + 1)
    starts = 2 * number - size <= -2
    gibbs = np.asarray(clique.k_gibbs(model.n, size, k, model.coupling, model.field))
    parallel = clique.independent_parallel(size, model.coupling, model.field)
    missed = 1.0 - gibbs[starts, -1].min()
    arrived = absorbed_by(np.asarray(parallel), number == size, steps)[starts].max()
    return {
        "delta": delta,
        "steps": steps,
        "n": model.n,
        "clique": size,
        "k": k,
        "coupling": model.coupling,
        "field": model.field,
        "assumption_4_1_5": model.strongly_ferromagnetic,
        "k_gibbs_steps_promised": steps_to_mode(model, k, delta / 2.0),
        "k_gibbs_missed_first_step": float(missed),
        "independent_parallel_arrived": float(arrived),
        "failure": float(missed + arrived),
    }


def _constant(size: int) -> dict[str, Any]:
    """Assumption 4.1.5 barely met: J_0 and h near 0, where the two forms of the constant differ most."""
    model = Clique(size, size, 0.002, 0.001 / size)
    return {
        "clique": size,
        "coupling": model.coupling,
        "field": model.field,
        "assumption_4_1_5": model.strongly_ferromagnetic,
        "mode_probability": clique.mode_probability(size, model.coupling, model.field),
        "bound_of_the_proof": mode_reached_per_step(model, size),
        "bound_as_printed": mode_reached_per_step(model, size, form="printed"),
    }
