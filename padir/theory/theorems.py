"""Checks the theorems of section 4.1.2 numerically, on random Ising models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import log_softmax

from padir.theory.chains import (
    block_dirichlet_form,
    block_dynamics,
    block_kernels,
    dirichlet_form,
    independent_parallel,
    independent_parallel_stationary,
    spectral_gap,
)
from padir.theory.claims import Claim
from padir.theory.ising import log_probabilities, num_spins
from padir.theory.pseudolikelihood import (
    BlockLaw,
    among_all_blocks,
    fisher_information,
    hessian,
    loss,
    population,
    sandwich,
    score_covariance,
    uniform_law,
)
from padir.theory.settings import require_in


@dataclass(frozen=True)
class TheoremSettings:
    """Settings of the random models.

    Attributes:
      spins: values of N.
      models: number of models for each N.
      largest_scale: parameters are normal; the standard deviation of each model is uniform from 0 to this.
      seed: random seed of models, laws and functions.
    """

    spins: Sequence[int] = (3, 4, 5)
    models: int = 60
    largest_scale: float = 1.0
    seed: int = 0

    def __post_init__(self):
        # The data grow with 4^N: 6 spins have 63 blocks, 64 states and 21 parameters.
        require_in(self, "spins", 2, 6)
        require_in(self, "models", 1)
        require_in(self, "largest_scale", 0.0)


class Draws(NamedTuple):
    """Random quantities for measuring one model with one law of M blocks.

    Attributes:
      functions: [2, M, X], two functions of state and block.
      frequencies: [M, X], frequencies of pairs (x, K), not normalised.
      moves: [2, P], differences between the model's parameters and those of two others.
    """

    functions: np.ndarray
    frequencies: np.ndarray
    moves: np.ndarray

    @classmethod
    def of(cls, random: np.random.Generator, n: int, laws: int) -> Draws:
        """Draws them for all 2^n - 1 blocks of n spins, with the laws as the first axis."""
        pairs = (2**n - 1, 2**n)
        return cls(
            random.normal(size=(laws, 2, *pairs)),
            random.gamma(0.1, size=(laws, *pairs)),
            random.normal(size=(laws, 2, n * (n + 1) // 2)),
        )


def random_model(random: np.random.Generator, n: int, largest_scale: float) -> np.ndarray:
    """Random parameters theta [P]: normal, with a random standard deviation."""
    return largest_scale * random.uniform() * random.normal(size=n * (n + 1) // 2)


def random_law(random: np.random.Generator, n: int, *, adaptive: bool) -> BlockLaw:
    """A law on all 2^n - 1 blocks with random probabilities, which depend on the state if `adaptive`."""
    shape = (2**n - 1, 2**n if adaptive else 1)
    log_probs = log_softmax(2.0 * random.normal(size=shape), axis=0)
    return BlockLaw(np.arange(1, 2**n), np.broadcast_to(log_probs, (2**n - 1, 2**n)))


def largest_ratio(a: jax.Array, b: jax.Array) -> jax.Array:
    """The maximum over v of v·Av / v·Bv, for symmetric A and positive definite B; A ⪯ B if it is at most 1."""
    lower = jnp.linalg.cholesky(b)
    half = jax.scipy.linalg.solve_triangular(lower, a, lower=True)
    whole = jax.scipy.linalg.solve_triangular(lower, half.T, lower=True)
    return jnp.linalg.eigvalsh((whole + whole.T) / 2.0)[-1]


def law_measures(draws: Draws, theta: jax.Array, law: BlockLaw) -> dict[str, jax.Array]:
    """Measures what the theorems state, for one model and one law of blocks.

    Returns:
      A dictionary with the following keys; all values but gamma are scalars.

      * equality: the largest difference between the Hessian and the covariance of the score (Lemmas 4.1.2, 4.3.3).
      * gamma: Γ, [P, P].
      * tightness: `largest_ratio(Γ, I⁻¹)`, which Theorems 4.1.2 and 4.1.3 bound by `poincare`.
      * poincare: the Poincaré constant C_P of the chain on states.
      * stationarity: the largest absolute entry of pP - p.
      * reversibility: the largest absolute value of p(x)P(x,y) - p(y)P(y,x).
      * dirichlet: the difference between the two sides of Proposition 4.1.1; see `dirichlet_difference`.
      * convexity: the smallest eigenvalue of the Hessian, on random data and far from the minimum.
      * chord: the loss at a midpoint minus the mean of the losses at both ends, on random data; at most 0.
    """
    p = jnp.exp(log_probabilities(theta))
    weights = population(theta, law)
    # Pairs of probability 0 must not occur in the random data.
    data = jnp.where(weights > 0, draws.frequencies, 0.0)
    data = data / jnp.sum(data)
    left, right = theta + draws.moves
    # vmap gives one program for both Hessians and one for all three losses.
    places, tables = jnp.stack([theta, left]), jnp.stack([weights, data])
    here, there = jax.vmap(lambda place, table: hessian(place, law, table))(places, tables)
    along = jnp.stack([left, (left + right) / 2.0, right])
    losses = jax.vmap(lambda place: loss(place, law, data))(along)
    covariance = score_covariance(theta, law)
    gamma = sandwich(here, covariance)
    transition = block_dynamics(jnp.log(p), law)
    flow = p[:, None] * transition
    return {
        "equality": jnp.max(jnp.abs(here - covariance)),
        "gamma": gamma,
        "tightness": largest_ratio(gamma, jnp.linalg.inv(fisher_information(theta))),
        "poincare": 1.0 / spectral_gap(transition, p),
        "stationarity": jnp.max(jnp.abs(p @ transition - p)),
        "reversibility": jnp.max(jnp.abs(flow - flow.T)),
        "dirichlet": dirichlet_difference(draws.functions, jnp.log(p), law, transition),
        "convexity": jnp.linalg.eigvalsh(there)[0],
        "chord": losses[1] - (losses[0] + losses[2]) / 2.0,
    }


def dirichlet_difference(functions: jax.Array, log_p: jax.Array, law: BlockLaw, transition: jax.Array) -> jax.Array:
    """The difference between the two sides of Proposition 4.1.1, definition and mean of covariances; a scalar.

    It is the larger of two: for functions of the state with the chain on states, and for functions of (x, K) with the
    chain of (4.26).

    Args:
      functions: [2, M, X], two functions of state and block.
      log_p: [X], log probabilities of the states.
      law: the law of the M blocks.
      transition: [X, X], the chain on states.
    """
    f, g = functions
    on_states = dirichlet_form(transition, jnp.exp(log_p), f[0], g[0])
    flows = jnp.exp(log_p + law.log_probs)
    on_pairs = jnp.sum(jax.vmap(dirichlet_form)(block_kernels(log_p, law), flows, f, g))
    alike = jnp.broadcast_to(f[0], f.shape), jnp.broadcast_to(g[0], g.shape)
    return jnp.maximum(
        jnp.abs(on_states - block_dirichlet_form(log_p, law, *alike)),
        jnp.abs(on_pairs - block_dirichlet_form(log_p, law, f, g)),
    )


def frozen_pairs(theta: jax.Array, law: BlockLaw) -> tuple[jax.Array, jax.Array]:
    """Dirichlet form and variance of f(x, K) = 1[K is the first block], for the chain (4.26) on pairs (x, K).

    (4.26) has a factor 1[K_1 = K_2], so that its chain never changes K. Therefore f is constant along the chain: its
    Dirichlet form is 0, but its variance is not. No Poincaré inequality holds for this chain, and Theorem 4.1.3 is
    empty for it.

    Definition 4.1.8 draws a new K in every step. As a chain on states alone it is reversible, and for functions of x
    its Dirichlet form is the one of Proposition 4.1.1. The theorem's proof needs no more: given x_{-K} and K,
    ∇ log p(x_K | x_{-K}, K) and ∇ log p(x), a function of x, differ only by a constant. `law_measures` uses this chain.
    """
    log_p = log_probabilities(theta)
    f = jnp.zeros(law.log_probs.shape).at[0].set(1.0)
    weights = population(theta, law)
    mean = jnp.sum(weights * f)
    return block_dirichlet_form(log_p, law, f, f), jnp.sum(weights * (f - mean) ** 2)


class Case(NamedTuple):
    """A random model with its laws.

    Attributes:
      theta: [P], its parameters.
      laws: N + 2 laws along the first axis: uniform on blocks of k = 1..N spins, random, and random adaptive.
      draws: the random quantities for each law, along the first axis.
    """

    theta: np.ndarray
    laws: BlockLaw
    draws: Draws

    @classmethod
    def of(cls, random: np.random.Generator, n: int, largest_scale: float) -> Case:
        """Draws a case with NumPy; compiling JAX's generator would take longer than the rest of `model_measures`."""
        theta = random_model(random, n, largest_scale)
        laws = [among_all_blocks(n, uniform_law(n, k)) for k in range(1, n + 1)]
        laws += [random_law(random, n, adaptive=adaptive) for adaptive in (False, True)]
        # All laws have the same blocks (some with probability 0), so that one program measures them all.
        return cls(theta, jax.tree.map(lambda *fields: np.stack(fields), *laws), Draws.of(random, n, n + 2))


@jax.jit
def model_measures(case: Case) -> dict[str, Any]:
    """All measures of one random model, for its uniform, random and random adaptive laws."""
    theta = case.theta
    n = num_spins(theta)
    adaptive = jax.tree.map(lambda values: values[n + 1], case.laws)
    measures = jax.vmap(law_measures, in_axes=(0, None, 0))(case.draws, theta, case.laws)
    gammas = measures.pop("gamma")[:n]
    parallel = independent_parallel(theta)
    own = independent_parallel_stationary(theta)
    flow = own[:, None] * parallel
    frozen_form, frozen_variance = frozen_pairs(theta, adaptive)
    return {
        "uniform": jax.tree.map(lambda values: values[:n], measures),
        "weighted": jax.tree.map(lambda values: values[n], measures),
        "adaptive": jax.tree.map(lambda values: values[n + 1], measures),
        "ordering": jax.vmap(largest_ratio)(gammas[1:], gammas[:-1]),
        "trace": jnp.trace(gammas, axis1=1, axis2=2),
        "parallel_reversibility": jnp.max(jnp.abs(flow - flow.T)),
        "frozen_form": frozen_form,
        "frozen_variance": frozen_variance,
    }


def theorems(settings: TheoremSettings) -> tuple[dict[str, Any], list[Claim]]:
    """Measures random models.

    Returns:
      (data, claims). For each N, the data have lists with one entry per model.
    """
    by_n = {}
    for n in settings.spins:
        random = np.random.default_rng((settings.seed, n))
        cases = (Case.of(random, n, settings.largest_scale) for _ in range(settings.models))
        # One model at a time to save memory: for 5 spins, the kernels of each law have 31 · 32 · 32 entries.
        measures = [jax.tree.map(np.asarray, model_measures(case)) for case in cases]
        by_n[str(n)] = jax.tree.map(lambda *values: np.stack(values), *measures)
    claims = theorem_claims(by_n)
    return {"settings": asdict(settings), "by_spins": jax.tree.map(np.ndarray.tolist, by_n)}, claims


def theorem_claims(by_n: dict[str, Any]) -> list[Claim]:
    """The claims about the theorems.

    Args:
      by_n: the measures for each N, as arrays with the models as their first axis.
    """
    groups = [part for data in by_n.values() for part in (data["uniform"], data["weighted"], data["adaptive"])]

    def worst(name: str) -> float:
        return max(float(np.max(group[name])) for group in groups)

    def ratio(kind: str) -> float:
        return max(float(np.max(data[kind]["tightness"] / data[kind]["poincare"])) for data in by_n.values())

    def gap_ratio(data: dict[str, Any]) -> np.ndarray:
        constants = data["uniform"]["poincare"]
        return constants[:, :1] / constants / np.arange(1, constants.shape[1] + 1)

    count = sum(len(data["trace"]) for data in by_n.values())
    return [
        Claim(f"Lemmas 4.1.2 and 4.3.3, {count} models: largest |Hessian - Cov(score)|", worst("equality"), "<=", 1e-8),
        Claim(
            "Theorem 4.1.1, Γ_{k+1} ⪯ Γ_k: largest eigenvalue of Γ_k⁻¹ Γ_{k+1}, minus 1",
            max(float(np.max(data["ordering"])) for data in by_n.values()) - 1.0, "<=", 1e-9,
        ),
        Claim(
            "Theorem 4.1.2, k-Gibbs: largest eigenvalue of I Γ, divided by C_P, minus 1",
            ratio("uniform") - 1, "<=", 1e-9,
        ),
        Claim(
            "Theorem 4.1.2, random weights: largest eigenvalue of I Γ, divided by C_P, minus 1",
            ratio("weighted") - 1, "<=", 1e-9,
        ),
        Claim(
            "Theorem 4.1.3, adaptive weights, chain on states: largest eigenvalue of I Γ, divided by C_P, minus 1",
            ratio("adaptive") - 1, "<=", 1e-9,
        ),
        Claim(
            "k-Gibbs has at least k times the spectral gap of 1-Gibbs: smallest gap_k / (k gap_1), plus 1e-9",
            min(float(np.min(gap_ratio(data))) for data in by_n.values()) + 1e-9, ">=", 1.0,
        ),
        Claim("Proposition 4.1.1: largest difference between its two sides", worst("dirichlet"), "<=", 1e-10),
        Claim("block dynamics have p as stationary distribution: largest |pP - p|", worst("stationarity"), "<=", 1e-12),
        Claim("block dynamics are reversible: largest |p(x)P(x,y) - p(y)P(y,x)|", worst("reversibility"), "<=", 1e-12),
        Claim(
            "footnote 12, independent parallel is reversible for its own stationary distribution π: largest "
            "|π(x)P(x,y) - π(y)P(y,x)|",
            max(float(np.max(data["parallel_reversibility"])) for data in by_n.values()), "<=", 1e-12,
        ),
        Claim(
            "Proposition 4.3.6, convexity: smallest eigenvalue of a Hessian on random data",
            min(float(np.min(group["convexity"])) for group in groups), ">=", -1e-12,
        ),
        Claim(
            "Proposition 4.3.6, convexity: largest loss at a midpoint minus the mean of the losses at the ends",
            worst("chord"), "<=", 1e-12,
        ),
        Claim(
            "Theorem 4.1.3 with the chain on pairs (x, K) that (4.26) prints: smallest E(f, f) / Var(f) of 1[K = K_1]",
            min(float(np.min(np.abs(data["frozen_form"]) / data["frozen_variance"])) for data in by_n.values()),
            ">", 1e-12, "that chain never changes K, so it has no Poincaré constant; the chain on states has one",
        ),
    ]  # fmt: skip
