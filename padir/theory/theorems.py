"""Section 4.1.2's theorems as numbers, on random Ising models."""

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
    """Which random models.

    Attributes:
      spins: N of the models.
      models: how many for each N.
      largest_scale: parameters are normal, their standard deviation uniform up to this.
      seed: of models, laws and functions.
    """

    spins: Sequence[int] = (3, 4, 5)
    models: int = 60
    largest_scale: float = 1.0
    seed: int = 0

    def __post_init__(self):
        # The data grow with 4^N: 6 spins have 63 blocks of 64 states, and 21 parameters.
        require_in(self, "spins", 2, 6)
        require_in(self, "models", 1)
        require_in(self, "largest_scale", 0.0)


class Draws(NamedTuple):
    """What one model and one law of M blocks are measured with, at random.

    Attributes:
      functions: two of state and block, [2, M, X].
      frequencies: of pairs (x, K), not normalised, [M, X].
      moves: from the model to two others, [2, P].
    """

    functions: np.ndarray
    frequencies: np.ndarray
    moves: np.ndarray

    @classmethod
    def of(cls, random: np.random.Generator, n: int, laws: int) -> Draws:
        """For all 2^n - 1 blocks of n spins, with the laws as a first axis."""
        pairs = (2**n - 1, 2**n)
        return cls(
            random.normal(size=(laws, 2, *pairs)),
            random.gamma(0.1, size=(laws, *pairs)),
            random.normal(size=(laws, 2, n * (n + 1) // 2)),
        )


def random_model(random: np.random.Generator, n: int, largest_scale: float) -> np.ndarray:
    """theta [P]: normal, with a random standard deviation."""
    return largest_scale * random.uniform() * random.normal(size=n * (n + 1) // 2)


def random_law(random: np.random.Generator, n: int, *, adaptive: bool) -> BlockLaw:
    """All 2^n - 1 blocks with random probabilities; for every state its own ones if adaptive."""
    shape = (2**n - 1, 2**n if adaptive else 1)
    log_probs = log_softmax(2.0 * random.normal(size=shape), axis=0)
    return BlockLaw(np.arange(1, 2**n), np.broadcast_to(log_probs, (2**n - 1, 2**n)))


def largest_ratio(a: jax.Array, b: jax.Array) -> jax.Array:
    """The largest v·Av / v·Bv over v, for symmetric A and positive B; A ⪯ B says that it is at most 1."""
    lower = jnp.linalg.cholesky(b)
    half = jax.scipy.linalg.solve_triangular(lower, a, lower=True)
    whole = jax.scipy.linalg.solve_triangular(lower, half.T, lower=True)
    return jnp.linalg.eigvalsh((whole + whole.T) / 2.0)[-1]


def law_measures(draws: Draws, theta: jax.Array, law: BlockLaw) -> dict[str, jax.Array]:
    """What the theorems say of one model and one law of blocks.

    Returns:
      equality: of Lemmas 4.1.2 and 4.3.3, the largest |Hessian - covariance of the score|.
      gamma: Γ, [P, P]; all others are scalars.
      tightness: of Theorems 4.1.2 and 4.1.3, `largest_ratio(Γ, I⁻¹)`, which must be at most the next.
      poincare: C_P of the chain on states.
      stationarity, reversibility: the largest |pP - p| and |p(x)P(x,y) - p(y)P(y,x)|.
      dirichlet: of Proposition 4.1.1, definition against covariances, for functions of the state and of (x, K).
      convexity: the Hessian's smallest eigenvalue far from the minimum, on random data.
      chord: loss half-way minus the mean of the ends', on random data: at most 0.
    """
    p = jnp.exp(log_probabilities(theta))
    weights = population(theta, law)
    # Only of the pairs that there are.
    data = jnp.where(weights > 0, draws.frequencies, 0.0)
    data = data / jnp.sum(data)
    left, right = theta + draws.moves
    # One program for both Hessians, and one for the three losses.
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
    """Proposition 4.1.1: the largest |definition - mean of covariances| for two functions [2, M, X]; a scalar.

    Of the state, with the chain on states; and of (x, K), with that of (4.26).
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
    """Dirichlet form and variance, for the chain (4.26) on pairs (x, K), of f(x, K) = 1[K is the first block].

    (4.26) has a factor 1[K_1 = K_2]: that chain never changes K, f never changes, and its form is 0 while its variance
    is not. So no Poincaré inequality holds for it, and Theorem 4.1.3 read with it promises nothing. Definition 4.1.8
    draws K anew in every step; as a chain on states alone it is reversible, its Dirichlet form is Proposition 4.1.1's
    for functions of x, and the theorem's proof needs no more: given x_{-K} and K, ∇ log p(x_K | x_{-K}, K) differs from
    ∇ log p(x), a function of x, by a constant. That chain is the one measured here.
    """
    log_p = log_probabilities(theta)
    f = jnp.zeros(law.log_probs.shape).at[0].set(1.0)
    weights = population(theta, law)
    mean = jnp.sum(weights * f)
    return block_dirichlet_form(log_p, law, f, f), jnp.sum(weights * (f - mean) ** 2)


class Case(NamedTuple):
    """A random model.

    Attributes:
      theta: its parameters, [P].
      laws: of all blocks: k = 1..N, random weights, and random adaptive weights; N + 2 of them along the first axis.
      draws: for each law, too.
    """

    theta: np.ndarray
    laws: BlockLaw
    draws: Draws

    @classmethod
    def of(cls, random: np.random.Generator, n: int, largest_scale: float) -> Case:
        """Drawn by NumPy: compiling JAX's generator would take longer than all else in `model_measures`."""
        theta = random_model(random, n, largest_scale)
        laws = [among_all_blocks(n, uniform_law(n, k)) for k in range(1, n + 1)]
        laws += [random_law(random, n, adaptive=adaptive) for adaptive in (False, True)]
        # All laws have the same blocks, some with probability 0: one program measures them all.
        return cls(theta, jax.tree.map(lambda *fields: np.stack(fields), *laws), Draws.of(random, n, n + 2))


@jax.jit
def model_measures(case: Case) -> dict[str, Any]:
    """All measures of one random model: per k, for random weights, and for random adaptive weights."""
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
    """Measures random models; data by N, with lists over the models, and the claims."""
    by_n = {}
    for n in settings.spins:
        random = np.random.default_rng((settings.seed, n))
        cases = (Case.of(random, n, settings.largest_scale) for _ in range(settings.models))
        # One at a time: the kernels of all blocks of 5 spins have 31 · 32 · 32 entries a law and model.
        measures = [jax.tree.map(np.asarray, model_measures(case)) for case in cases]
        by_n[str(n)] = jax.tree.map(lambda *values: np.stack(values), *measures)
    claims = theorem_claims(by_n)
    return {"settings": asdict(settings), "by_spins": jax.tree.map(np.ndarray.tolist, by_n)}, claims


def theorem_claims(by_n: dict[str, Any]) -> list[Claim]:
    """The claims, from measures that have the models as their first axis."""
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
            "Theorem 4.1.1, Γ_{k+1} ⪯ Γ_k: largest eigenvalue of Γ_k⁻¹ Γ_{k+1}, less 1",
            max(float(np.max(data["ordering"])) for data in by_n.values()) - 1.0, "<=", 1e-9,
        ),
        Claim("Theorem 4.1.2, k-Gibbs: largest eigenvalue of I Γ over C_P, less 1", ratio("uniform") - 1, "<=", 1e-9),
        Claim("Theorem 4.1.2, random weights, the same", ratio("weighted") - 1, "<=", 1e-9),
        Claim("Theorem 4.1.3, adaptive weights, the same (chain on states)", ratio("adaptive") - 1, "<=", 1e-9),
        Claim(
            "k-Gibbs has at least k times the gap of 1-Gibbs: smallest gap_k / (k gap_1), plus 1e-9",
            min(float(np.min(gap_ratio(data))) for data in by_n.values()) + 1e-9, ">=", 1.0,
        ),
        Claim("Proposition 4.1.1: largest |definition - covariances|", worst("dirichlet"), "<=", 1e-10),
        Claim("p is stationary: largest |pP - p|", worst("stationarity"), "<=", 1e-12),
        Claim("block dynamics are reversible: largest |flow - flow backwards|", worst("reversibility"), "<=", 1e-12),
        Claim(
            "footnote 12: independent parallel is reversible for its own π; largest |flow - flow backwards|",
            max(float(np.max(data["parallel_reversibility"])) for data in by_n.values()), "<=", 1e-12,
        ),
        Claim(
            "Proposition 4.3.6, convexity: smallest eigenvalue of a Hessian on random data",
            min(float(np.min(group["convexity"])) for group in groups), ">=", -1e-12,
        ),
        Claim("convexity along chords: largest excess half-way", worst("chord"), "<=", 1e-12),
        Claim(
            "Theorem 4.1.3 with the chain on pairs (x, K) that (4.26) prints: smallest E(f, f) / Var(f) of 1[K = K_1]",
            min(float(np.min(np.abs(data["frozen_form"]) / data["frozen_variance"])) for data in by_n.values()),
            ">", 1e-12, "that chain never changes K, so it has no Poincaré constant; the one on states has, see above",
        ),
    ]  # fmt: skip
