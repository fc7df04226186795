"""Exact chains on the number of +1 spins in the clique of (4.6), for cliques of any size.

All spins in the clique have the same field h and the same coupling J, and the spins outside are independent of them.
For both samplers it therefore matters only how many spins of the clique are at +1, not which ones. So this number m is
itself a Markov chain on 0..c, with c = `|C|` (an exact lumping). R_1 is m = c, and R_{-1} is m = 0.
"""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import softmax

from padir.errors import PadirError
from padir.theory.ising import require_float64


def log_binomials(n: int) -> np.ndarray:
    """Logarithms of the binomial coefficients C(i, j) for i, j in 0..n: [n + 1, n + 1]; -inf if C(i, j) = 0."""
    rows = [[math.log(math.comb(i, j)) if j <= i else -math.inf for j in range(n + 1)] for i in range(n + 1)]
    return np.array(rows)


def block_overlaps(n: int, clique: int, k: int) -> np.ndarray:
    """P(a uniform block of k among n spins contains j spins of the clique) for j = 0..clique: [clique + 1].

    Raises:
      PadirError: the clique or the block has more than n spins, the clique fewer than 2 or the block fewer than 1.
    """
    if not 2 <= clique <= n or not 1 <= k <= n:
        raise PadirError(
            f"blocks of {k} and a clique of {clique} among {n} spins: a block must have 1 to {n} spins and the clique "
            f"2 to {n}"
        )
    # Python's integers, because binomials of thousands of spins exceed every float.
    total = math.comb(n, k)
    return np.array([math.comb(clique, j) * math.comb(n - clique, k - j) / total if j <= k else 0.0
                     for j in range(clique + 1)])  # fmt: skip


def log_weights(clique: int, coupling: jax.Array | float, field: jax.Array | float) -> jax.Array | np.ndarray:
    """log p(x), up to a constant, of one state of the clique with m spins at +1: [clique + 1].

    With c = `|C|`, the sum of its spins is S = 2m - c, and the sum of the products of all pairs is (S² - c) / 2.
    """
    require_float64()
    total = 2.0 * np.arange(clique + 1) - clique
    return field * total + coupling * (total**2 - clique) / 2.0


def mode_probability(clique: int, coupling: float, field: float) -> float:
    """P(R_1): the probability that redrawing a block with the whole clique reaches R_1, from any state."""
    return float(softmax(log_weights(clique, coupling, field) + log_binomials(clique)[clique])[-1])


def k_gibbs(n: int, clique: int, k: int, coupling: jax.Array, field: jax.Array) -> jax.Array:
    """Transition matrix of k-Gibbs on the number of +1 spins: [clique + 1, clique + 1] (Definition 4.1.10)."""
    return block_gibbs(clique, jnp.asarray(block_overlaps(n, clique, k)), coupling, field)


@functools.partial(jax.jit, static_argnums=0)
def block_gibbs(clique: int, overlaps: jax.Array, coupling: jax.Array, field: jax.Array) -> jax.Array:
    """Transition matrix [clique + 1, clique + 1] of redrawing j random spins with probability `overlaps[j]`.

    Of the c - j spins that stay, r are at +1, where r has a hypergeometric distribution. The j spins are redrawn
    jointly: afterwards m' spins are at +1 with probability ∝ C(j, m' - r) exp(log_weights[m']).
    """
    number = np.arange(clique + 1)
    choose = jnp.asarray(log_binomials(clique))
    weights = log_weights(clique, coupling, field)
    before, rest = number[:, None], number[None, :]
    plus = number[None, :] - number[:, None]

    def add(total: jax.Array, one: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        j, chance = one
        # kept [m, r]: log P(r of the c - j spins that stay are at +1).
        stay = clique - j - rest
        possible = (rest <= before) & (stay >= 0) & (stay <= clique - before)
        kept = choose[before, rest] + choose[clique - before, jnp.clip(stay, 0, clique)] - choose[clique, clique - j]
        # logits [r, m']: m' - r of the j redrawn spins are at +1.
        logits = jnp.where((plus >= 0) & (plus <= j), choose[j, np.clip(plus, 0, clique)], -jnp.inf) + weights
        return total + chance * jnp.where(possible, jnp.exp(kept), 0.0) @ jax.nn.softmax(logits, axis=1), None

    return jax.lax.scan(add, jnp.zeros((clique + 1, clique + 1)), (jnp.asarray(number), overlaps))[0]


@functools.partial(jax.jit, static_argnums=0)
def independent_parallel(clique: int, coupling: jax.Array, field: jax.Array) -> jax.Array:
    """Transition matrix of the independent parallel sampler: [clique + 1, clique + 1] (Definition 4.1.11).

    For each of the m spins at +1 the other spins sum to 2m - 1 - c. For each of the c - m spins at -1 they sum to
    2m + 1 - c. So the next number of +1 spins is the sum of two independent binomial variables.
    """
    size = clique + 1
    choose = log_binomials(clique)
    before = jnp.arange(size)[:, None]
    number = np.arange(size)

    def binomial(trials: jax.Array, log_odds: jax.Array) -> jax.Array:
        # [m, number]: log P(number of +1 among `trials`), -inf beyond the trials.
        log_prob = jnp.asarray(choose)[trials, number] + number * jax.nn.log_sigmoid(log_odds)
        failures = jnp.maximum(trials - number, 0)
        return jnp.where(number <= trials, log_prob + failures * jax.nn.log_sigmoid(-log_odds), -jnp.inf)

    log_odds = 2.0 * field + 2.0 * coupling * (2.0 * before - clique)
    stay = binomial(before, log_odds - 2.0 * coupling)
    turn = binomial(clique - before, log_odds + 2.0 * coupling)
    # P(m, m') = Σ_a stay[m, a] turn[m, m' - a].
    gap = number[None, :] - number[:, None]
    shifted = jnp.where(gap >= 0, turn[:, np.clip(gap, 0, clique)], -jnp.inf)
    return jnp.sum(jnp.exp(stay[:, :, None] + shifted), axis=1)
