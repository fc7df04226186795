"""Checks Proposition 4.1.5 and Corollary 4.1.1 on cliques for which their bounds are not empty.

With `|C|` = 4, as in Figure 4.3, T of the proposition is below one step. The lumped chains of `clique` are exact for
any size, so both can be checked on larger cliques.
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
    """The models of the checks.

    Attributes:
      cliques: values of `|C|` = N for Proposition 4.1.5.
      j_0: J - ‖h‖₁ of these models.
      h_clique: the sum of the fields of these models.
      deltas: probabilities of failure.
      corollary_steps: values of M for Corollary 4.1.1.
      spares: values of N - k for the corollary.
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
    """Computes exact probabilities and the bounds on them.

    Returns:
      A dictionary with the following keys.

      * stuck: for each clique, the exponent of Proposition 4.1.5 and the expected steps of the samplers to R_1 from the
        fastest start (inf above 1e308). For each delta, also T and the probability of leaving Σ x_i ≤ -2 within T steps
        from the worst start.
      * corollary: for each (delta, M, N - k), the model and its exact probability of failure.
      * constant: models for which Proposition 4.1.4 gives no bound with the constant that (4.49) prints.
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
    """P(the target is reached within `steps`) from each start: [X].

    The matrix power is computed by repeated squaring, so large numbers of steps are cheap.

    Args:
      matrix: [X, X], a chain.
      target: [X] bool.
      steps: number of steps.
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
    """A model with J_0 and h near 0, which just meets Assumption 4.1.5; the two constants differ most here."""
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
