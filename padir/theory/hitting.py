"""Figure 4.3: the number of steps from R_{-1} to R_1, simulated, computed exactly, and bounded by the propositions."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from padir.theory import chains, clique
from padir.theory.bounds import Clique, mode_reached_per_step, steps_to_mode
from padir.theory.ising import MAX_SPINS, clique_parameters, log_probabilities, mode
from padir.theory.pseudolikelihood import uniform_law
from padir.theory.settings import require_ascending, require_in
from padir.theory.simulate import independent_parallel_steps, k_gibbs_steps

# The name of this sampler in the data, where the others are called 'k = …'.
PARALLEL = "independent parallel"


@dataclass(frozen=True)
class HittingSettings:
    """The models and chains of the figure.

    Attributes:
      spins: N.
      clique: `|C|`.
      field: h_i of all spins.
      couplings: values of J. The chapter does not give those of its figure. In this range everything that its caption
        says can be seen: independent parallel does not reach R_1 (below 4 it does), and k-Gibbs with k < `|C|` becomes
        slower as J grows.
      block_sizes: values of k of the simulated k-Gibbs samplers. Exact times are computed for all k.
      wide_couplings: values of J for the exact curves and the bounds, which are not empty at larger J.
      enumerated_spins: N of the model whose chains are enumerated on all states, to check the lumped chains.
      budget: number of steps after which a run is given up.
      repetitions: runs per point.
      seed: random seed of the runs.
    """

    spins: int = 10
    clique: int = 4
    field: float = 5.0
    couplings: Sequence[float] = (4.0, 4.5, 5.0, 5.5, 6.0, 6.5, 7.0, 7.5, 8.0)
    block_sizes: Sequence[int] = (2, 3, 4, 5, 6, 8, 10)
    wide_couplings: Sequence[float] = tuple(float(j) for j in np.geomspace(0.5, 80.0, 45).round(3))
    enumerated_spins: int = 10
    budget: int = 1000
    repetitions: int = 10
    seed: int = 0

    def __post_init__(self):
        require_in(self, "spins", 2, MAX_SPINS)
        require_in(self, "clique", 2, self.spins)
        require_in(self, "block_sizes", 1, self.spins)
        require_in(self, "enumerated_spins", self.clique, MAX_SPINS)
        require_in(self, "budget", 1)
        require_in(self, "repetitions", 2)
        for name in ("couplings", "wide_couplings"):
            require_in(self, name, 0.0)
            require_ascending(self, name)


def hitting(settings: HittingSettings) -> dict[str, Any]:
    """Simulates the samplers and computes their exact hitting times and bounds.

    Returns:
      A dictionary with the following keys.

      * simulated, exact: steps for each sampler ('k = 4', …, or PARALLEL), in the order of `couplings`.
      * wide: exact expected steps for each sampler, in the order of `wide_couplings`.
      * parallel_reached: P(independent parallel reaches R_1 within the budget), in the order of `wide_couplings`.
      * bounds: Proposition 4.1.4's bounds on the expected steps, in the order of `wide_couplings`.
      * tails: P(R_1 is missed) at the T of Proposition 4.1.4, for the worst J.
      * lumping: the difference between lumped and enumerated chains.
    """
    names = [f"k = {k}" for k in range(1, settings.spins + 1)]
    overlaps = np.stack([clique.block_overlaps(settings.spins, settings.clique, k) for k in range(1, len(names) + 1)])
    split = len(settings.couplings)
    couplings = jnp.asarray([*settings.couplings, *settings.wide_couplings])
    # One compiled program for all k and all J.
    gibbs = jax.jit(jax.vmap(functools.partial(_gibbs, settings), in_axes=(0, None)))(jnp.asarray(overlaps), couplings)
    parallel = jax.jit(functools.partial(_parallel, settings))(couplings)
    summaries = {name: jax.tree.map(lambda values, at=at: values[at], gibbs) for at, name in enumerate(names)}
    summaries[PARALLEL] = parallel
    bounds, tails = _bounds(settings, np.asarray(gibbs["matrix"])[:, split:])
    numbers = ("expected", "mean_within_budget", "sd_within_budget", "reached_within_budget")
    return {
        "settings": asdict(settings),
        "simulated": _simulate(settings),
        "exact": {name: {key: all_j[key][:split].tolist() for key in numbers} for name, all_j in summaries.items()},
        "wide": {name: all_j["expected"][split:].tolist() for name, all_j in summaries.items()},
        "parallel_reached": parallel["reached_within_budget"][split:].tolist(),
        "bounds": bounds,
        "tails": tails,
        "lumping": _lumping(settings),
    }


def _gibbs(settings: HittingSettings, overlaps: jax.Array, couplings: jax.Array) -> dict[str, jax.Array]:
    """`_summary` of k-Gibbs with block overlaps [clique + 1], for each of the couplings [J]."""
    size, field = settings.clique, settings.field
    return jax.vmap(lambda j: _summary(settings, clique.block_gibbs(size, overlaps, j, field)))(couplings)


def _parallel(settings: HittingSettings, couplings: jax.Array) -> dict[str, jax.Array]:
    """`_summary` of the independent parallel sampler, for each of the couplings [J]."""
    size, field = settings.clique, settings.field
    return jax.vmap(lambda j: _summary(settings, clique.independent_parallel(size, j, field)))(couplings)


def _summary(settings: HittingSettings, matrix: jax.Array) -> dict[str, jax.Array]:
    """A lumped chain [clique + 1, clique + 1], and its expected steps and steps within the budget, from m = 0."""
    target = jnp.arange(settings.clique + 1) == settings.clique
    alive = chains.survival(matrix, target, jnp.zeros(settings.clique + 1).at[0].set(1.0), settings.budget)
    mean, sd = chains.mean_and_sd_within(alive)
    return {
        "matrix": matrix,
        "expected": chains.expected_hitting_times(matrix, target)[0],
        "mean_within_budget": mean,
        "sd_within_budget": sd,
        "reached_within_budget": 1.0 - alive[-1],
    }


def _simulate(settings: HittingSettings) -> dict[str, Any]:
    """For each sampler: the steps [J][repetitions], at most the budget, and how many runs reached R_1 [J]."""
    n, repetitions = settings.spins, settings.repetitions
    thetas = np.stack([clique_parameters(n, settings.clique, j, settings.field) for j in settings.couplings])
    thetas = jnp.asarray(np.repeat(thetas, repetitions, axis=0))
    target = jnp.asarray(mode(n, settings.clique, 1))
    key = jax.random.key(settings.seed)
    # Spins outside the clique start at random, because they do not influence it.
    starts = jax.random.randint(jax.random.fold_in(key, 0), (len(thetas),), 0, 2**n)
    starts = starts & ~(2**settings.clique - 1)
    runs = {
        f"k = {k}": k_gibbs_steps(jax.random.fold_in(key, k), thetas, starts, target, k, budget=settings.budget)
        for k in settings.block_sizes
    }
    runs[PARALLEL] = independent_parallel_steps(
        jax.random.fold_in(key, n + 1), thetas, starts, target, budget=settings.budget
    )
    result = {}
    for name, steps in runs.items():
        steps = np.asarray(steps).reshape(len(settings.couplings), repetitions)
        result[name] = {
            "steps": np.minimum(steps, settings.budget).tolist(),
            "reached": (steps <= settings.budget).sum(axis=1).tolist(),
        }
    return result


def _bounds(settings: HittingSettings, matrices: np.ndarray) -> tuple[dict[str, Any], list[dict[str, float]]]:
    """Proposition 4.1.4's bounds on the expected steps for `wide_couplings`, and its tail probabilities.

    If every step reaches R_1 with probability at least 1 - c_{R_1}, the expected number is at most 1 / (1 - c_{R_1}).

    There are two bounds. One takes ‖h‖₁ over all spins, as printed. The other takes it over the clique only. It follows
    from the same proposition: spins outside the clique are independent of it, so their fields can be set to 0.

    Args:
      settings: the settings of the figure.
      matrices: [N, J, clique + 1, clique + 1], the lumped chains of k = 1..N for `wide_couplings`.
    """
    bounds: dict[str, Any] = {"all fields": {}, "clique's fields": {}}
    tails = []
    for k in range(settings.clique, settings.spins + 1):
        for form, outside in (("all fields", settings.field), ("clique's fields", 0.0)):
            models = [
                Clique(settings.spins, settings.clique, j, settings.field, outside) for j in settings.wide_couplings
            ]
            bounds[form][f"k = {k}"] = [1.0 / mode_reached_per_step(model, k) for model in models]
            for delta in (0.1, 0.01):
                cases = [
                    {"coupling": model.coupling, **_tail(matrix, steps_to_mode(model, k, delta))}
                    for model, matrix in zip(models, matrices[k - 1], strict=True)
                ]
                worst = max(cases, key=lambda case: case["missed"])
                tails.append({"k": k, "fields": form, "delta": delta, "cases": len(cases), **worst})
    return bounds, tails


def _tail(matrix: np.ndarray, steps: int) -> dict[str, float]:
    """`steps`, and P(R_1 is not reached within `steps`) from the worst start; matrix [clique + 1, clique + 1]."""
    return {"steps": steps, "missed": float(np.linalg.matrix_power(matrix[:-1, :-1], steps).sum(axis=1).max())}


def _lumping(settings: HittingSettings) -> dict[str, Any]:
    """Expected steps for the first J, from the chain on all states and from the lumped chain."""
    n, coupling = settings.enumerated_spins, settings.couplings[0]
    theta = jnp.asarray(clique_parameters(n, settings.clique, coupling, settings.field))
    target = jnp.asarray(mode(n, settings.clique, 1))
    k = settings.clique
    enumerated = {
        f"k = {k}": chains.block_dynamics(log_probabilities(theta), uniform_law(n, k)),
        PARALLEL: chains.independent_parallel(theta),
    }
    counted = {
        f"k = {k}": clique.k_gibbs(n, settings.clique, k, coupling, settings.field),
        PARALLEL: clique.independent_parallel(settings.clique, coupling, settings.field),
    }
    result = {}
    for name, matrix in enumerated.items():
        whole = chains.expected_hitting_times(matrix, target)
        few = chains.expected_hitting_times(counted[name], jnp.arange(settings.clique + 1) == settings.clique)
        starts = np.asarray(mode(n, settings.clique, -1))
        result[name] = {
            "counted": float(few[0]),
            "enumerated": np.asarray(whole)[starts][[0, -1]].tolist(),
            "largest_relative_difference": float(np.max(np.abs(np.asarray(whole)[starts] / float(few[0]) - 1.0))),
        }
    return result
