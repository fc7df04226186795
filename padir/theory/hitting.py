"""Figure 4.3: steps from R_{-1} to R_1, simulated, exact, and as the propositions bound them."""

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

# The sampler's name beside 'k = …'.
PARALLEL = "independent parallel"


@dataclass(frozen=True)
class HittingSettings:
    """The figure's models and chains.

    Attributes:
      spins: N.
      clique: |C|.
      field: h_i, of all spins.
      couplings: J. The chapter's text does not print the figure's; in this range all that its caption says can be
        seen: independent parallel does not arrive (below 4 it does), k < |C| slows down as J grows.
      block_sizes: k of the simulated k-Gibbs samplers; the exact times are of all k.
      wide_couplings: J of the exact curves and the bounds, which begin to say something at larger J.
      enumerated_spins: N of the model whose chains are enumerated whole, to check the counted ones.
      budget: steps after which a run is given up.
      repetitions: runs per point.
      seed: of the runs.
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
    """Simulates and computes.

    Returns:
      `simulated` and `exact`: by sampler ('k = 4', PARALLEL), by J in order; `wide`: expected steps over
      wide_couplings; `parallel_reached`: over them, P(independent parallel arrives within the budget); `bounds`:
      Proposition 4.1.4's bound on them; `tails`: the worst J at that proposition's T; `lumping`: how far the counted
      chain is from the enumerated one.
    """
    names = [f"k = {k}" for k in range(1, settings.spins + 1)]
    overlaps = np.stack([clique.block_overlaps(settings.spins, settings.clique, k) for k in range(1, len(names) + 1)])
    split = len(settings.couplings)
    couplings = jnp.asarray([*settings.couplings, *settings.wide_couplings])
    # One program for all samplers but independent parallel and for all J.
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
    """`_summary` of k-Gibbs by its block overlaps [|C| + 1], by J [J]."""
    size, field = settings.clique, settings.field
    return jax.vmap(lambda j: _summary(settings, clique.block_gibbs(size, overlaps, j, field)))(couplings)


def _parallel(settings: HittingSettings, couplings: jax.Array) -> dict[str, jax.Array]:
    """`_summary` of the independent parallel sampler, by J [J]."""
    size, field = settings.clique, settings.field
    return jax.vmap(lambda j: _summary(settings, clique.independent_parallel(size, j, field)))(couplings)


def _summary(settings: HittingSettings, matrix: jax.Array) -> dict[str, jax.Array]:
    """Of a counted chain [|C| + 1, |C| + 1] from m = 0: itself, expected steps, mean, sd and reach in the budget."""
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
    """By sampler: steps [J][repetitions], the budget where it was not enough, and how many runs arrived [J]."""
    n, repetitions = settings.spins, settings.repetitions
    thetas = np.stack([clique_parameters(n, settings.clique, j, settings.field) for j in settings.couplings])
    thetas = jnp.asarray(np.repeat(thetas, repetitions, axis=0))
    target = jnp.asarray(mode(n, settings.clique, 1))
    key = jax.random.key(settings.seed)
    # Spins outside the clique start anywhere: they have no influence on it.
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
    """Proposition 4.1.4's bounds on the expected steps over wide_couplings, and its tail probabilities.

    If every step arrives with probability at least 1 - c_{R_1}, the expectation is at most 1 / (1 - c_{R_1}).

    Two bounds: with ‖h‖₁ of all spins, as printed; and with the clique's own, which is the same proposition: the spins
    outside are independent of the clique, so every step acts on it as the step on N spins whose outer fields are 0.

    Args:
      settings: of the figure.
      matrices: [N, J, |C| + 1, |C| + 1], the counted chains of k = 1..N over wide_couplings.
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
    """`steps`, and P(R_1 missed for so long) from the worst start; matrix [|C| + 1, |C| + 1]."""
    return {"steps": steps, "missed": float(np.linalg.matrix_power(matrix[:-1, :-1], steps).sum(axis=1).max())}


def _lumping(settings: HittingSettings) -> dict[str, Any]:
    """Expected steps by full enumeration, at the first J, beside the counted chain's."""
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
