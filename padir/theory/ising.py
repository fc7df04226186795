"""Ising models by enumeration (Definition 4.1.12): states, probabilities and conditional probabilities.

A model of N spins is given by its parameter vector theta [P], with P = N + N(N-1)/2: the fields h_1..h_N, followed by
the couplings J_{12}, J_{13}, …, J_{N-1,N}. It is an exponential family, p(x) ∝ exp(theta · T(x)).

Sums over pairs are over *unordered* pairs, as in (4.5). (4.6) writes i ≠ j, which could mean that each pair counts
twice. The proofs count each pair once (4.3.7 has the log-odds 2h_j + 2J Σ x_i), and so do we.

A state is an integer from 0 to 2^N - 1; spin i is +1 if bit i is set. A block, which is the set K of spins that are
masked or redrawn, is an integer, too; bit i is set if spin i is in K.
"""

from __future__ import annotations

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np

from padir.errors import PadirError

# With 2^12 states a dense transition matrix has 128 MiB.
MAX_SPINS = 12


def require_float64() -> None:
    """Checks that JAX computes in float64: theorems are checked to 1e-8, and hitting times reach 1e200.

    Raises:
      PadirError: JAX computes in float32.
    """
    if not jax.config.jax_enable_x64:
        raise PadirError("padir.theory computes in float64: call it inside `with jax.enable_x64(True):`")


@functools.lru_cache
def spins(n: int) -> np.ndarray:
    """All states of `n` spins: [2^n, n] float64, -1 or +1."""
    if not 1 <= n <= MAX_SPINS:
        raise PadirError(f"{n} spins: enumeration works for 1 to {MAX_SPINS} spins")
    return 2.0 * ((np.arange(2**n)[:, None] >> np.arange(n)) & 1) - 1.0


@functools.lru_cache
def statistics(n: int) -> np.ndarray:
    """T(x) of all states: [2^n, P] float64, the spins followed by the products of all unordered pairs."""
    first, second = np.triu_indices(n, 1)
    return np.concatenate([spins(n), spins(n)[:, first] * spins(n)[:, second]], axis=1)


def num_spins(theta: jax.Array) -> int:
    """The number of spins N of a parameter vector [..., P].

    Raises:
      PadirError: no model has P parameters.
    """
    size = theta.shape[-1]
    n = (math.isqrt(8 * size + 1) - 1) // 2
    if n * (n + 1) // 2 != size:
        raise PadirError(f"{size} parameters: a model of N spins must have N + N(N-1)/2 parameters")
    return n


def fields_and_couplings(theta: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The fields h [N], and the couplings J as a symmetric matrix [N, N] with a zero diagonal."""
    n = num_spins(theta)
    upper = jnp.zeros((n, n), theta.dtype).at[np.triu_indices(n, 1)].set(theta[n:])
    return theta[:n], upper + upper.T


def clique_parameters(n: int, clique: int, coupling: float, field: float) -> np.ndarray:
    """The model (4.6): spins 0..clique-1 form a clique, and the others are independent.

    Args:
      n: N.
      clique: `|C|`, from 2 to n.
      coupling: J of each pair in the clique.
      field: h_i of each spin.

    Returns:
      theta [P] float64.

    Raises:
      PadirError: `clique` is out of range.
    """
    if not 2 <= clique <= n:
        raise PadirError(f"a clique of {clique} among {n} spins: it must have 2 to {n} spins")
    _, second = np.triu_indices(n, 1)
    return np.concatenate([np.full(n, float(field)), np.where(second < clique, float(coupling), 0.0)])


@jax.jit
def log_probabilities(theta: jax.Array) -> jax.Array:
    """log p(x) of all states: theta [P] → [2^N]. The partition function is the exact sum over all states."""
    require_float64()
    return jax.nn.log_softmax(jnp.asarray(statistics(num_spins(theta))) @ theta)


def log_conditional(log_weights: jax.Array, block: jax.Array | int) -> jax.Array:
    """log p(x_K | x_{-K}) of all states, for the distribution p ∝ exp(log_weights).

    With log_weights = log p(x) + log p(K | x), this is log p(x_K | x_{-K}, K) of (4.1). It depends on K if the choice
    of the block depends on x and so contains information about x_K.

    Args:
      log_weights: [X]; -inf for states of probability 0.
      block: K.

    Returns:
      [X]; -inf where log_weights is -inf.
    """
    agree = same_outside(log_weights.shape[0], block)
    possible = jnp.isfinite(log_weights)
    top = jax.lax.stop_gradient(jnp.max(jnp.where(agree, log_weights, -jnp.inf), axis=1))
    # Impossible states are replaced first, because the gradient of an infinite value would be NaN.
    shifted = jnp.where(possible, log_weights - jnp.where(jnp.isfinite(top), top, 0.0), 0.0)
    # A matrix product and not a segment sum, because scattering is slow on a CPU.
    total = agree.astype(float) @ jnp.where(possible, jnp.exp(shifted), 0.0)
    return jnp.where(possible, shifted - jnp.log(jnp.where(possible, total, 1.0)), -jnp.inf)


def same_outside(size: int, block: jax.Array | int) -> jax.Array:
    """Whether two of `size` states agree outside a block, x_{-K} = y_{-K}: [X, X] bool."""
    index = jnp.arange(size)
    return ((index[:, None] ^ index) & ~block) == 0


def blocks_of_size(n: int, k: int) -> np.ndarray:
    """All blocks of k among n spins: [C(n, k)] int."""
    if not 1 <= k <= n:
        raise PadirError(f"blocks of {k} among {n} spins: k must be from 1 to {n}")
    return np.array([sum(1 << i for i in block) for block in itertools.combinations(range(n), k)])


def mode(n: int, clique: int, sign: int) -> np.ndarray:
    """The mode R_sign of (4.7) and (4.8): [2^n] bool, whether all spins of the clique are equal to `sign`."""
    return np.all(spins(n)[:, :clique] == sign, axis=1)
