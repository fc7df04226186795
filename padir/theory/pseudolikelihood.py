"""Weighted pseudolikelihood (Definitions 4.1.2, 4.1.3, 4.1.7): loss, asymptotic variance, and minimisation.

Data are pairs (x, K) of a state and a block, stored as a table of frequencies [M, X]. The size of the table does not
depend on the number of samples, and neither does the cost of a fit.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from padir.errors import PadirError
from padir.theory.ising import (
    blocks_of_size,
    log_conditional,
    log_probabilities,
    num_spins,
    same_outside,
    statistics,
)


class BlockLaw(NamedTuple):
    """The distribution of the block K given the state x.

    Attributes:
      blocks: [M] int, the blocks; bit i is set if spin i is in K.
      log_probs: [M, X], log p(K | x). Each column is normalised. All columns are equal if K does not depend on x.
    """

    blocks: jax.Array | np.ndarray
    log_probs: jax.Array | np.ndarray


class Fit(NamedTuple):
    """The results of B fits.

    Attributes:
      theta: [B, P], the parameters found.
      gradient_norm: [B], norm of the gradient of the loss at `theta`.
      steps: [], number of steps, which is the same for all fits.
    """

    theta: jax.Array
    gradient_norm: jax.Array
    steps: jax.Array


def uniform_law(n: int, k: int) -> BlockLaw:
    """The uniform law on all blocks of size k, as in k-pseudolikelihood (training) and k-Gibbs (sampling)."""
    return alike_law(n, blocks_of_size(n, k))


def alike_law(n: int, blocks: np.ndarray) -> BlockLaw:
    """The uniform law on the given blocks [M], independent of the state.

    Raises:
      PadirError: a spin is in no block, so that its field cannot be estimated and it cannot be redrawn.
    """
    if np.bitwise_or.reduce(blocks) != 2**n - 1:
        raise PadirError(f"blocks {blocks.tolist()} do not cover all {n} spins")
    return BlockLaw(blocks, np.full((len(blocks), 2**n), -np.log(len(blocks))))


def among_all_blocks(n: int, law: BlockLaw) -> BlockLaw:
    """The same law on all 2^n - 1 blocks, so that laws can be stacked; further blocks have probability 0."""
    log_probs = np.full((2**n - 1, 2**n), -np.inf)
    log_probs[law.blocks - 1] = law.log_probs
    return BlockLaw(np.arange(1, 2**n), log_probs)


def with_blocks(law: BlockLaw, count: int) -> BlockLaw:
    """The same law with `count` blocks, so that laws share a compiled program; further blocks have probability 0."""
    more = count - len(law.blocks)
    log_probs = np.pad(law.log_probs, ((0, more), (0, 0)), constant_values=-np.inf)
    return BlockLaw(np.concatenate([law.blocks, np.full(more, law.blocks[0])]), log_probs)


def conditional_log_probs(theta: jax.Array, law: BlockLaw) -> jax.Array:
    """log p_theta(x_K | x_{-K}, K) of (4.1): [M, X]. It equals log p_theta(x_K | x_{-K}) if K is independent of x."""
    return jax.vmap(log_conditional)(log_probabilities(theta) + law.log_probs, law.blocks)


def population(theta: jax.Array, law: BlockLaw) -> jax.Array:
    """p(x) p(K | x): [M, X], the frequencies in the limit of infinitely many samples."""
    return jnp.exp(log_probabilities(theta) + law.log_probs)


def sample(random: np.random.Generator, theta: jax.Array, law: BlockLaw, size: int, repetitions: int = 1) -> np.ndarray:
    """Draws `repetitions` samples of `size` pairs (x, K) each; returns their frequencies [repetitions, M, X]."""
    table = np.asarray(population(theta, law))
    return random.multinomial(size, table.ravel(), size=repetitions).reshape(repetitions, *table.shape) / size


def loss(theta: jax.Array, law: BlockLaw, frequencies: jax.Array) -> jax.Array:
    """L_PL: the negative mean of log p_theta(x_K | x_{-K}, K) over pairs with these frequencies [M, X]."""
    log_probs = conditional_log_probs(theta, law)
    return -jnp.sum(frequencies * jnp.where(frequencies > 0, log_probs, 0.0))


@jax.jit
def hessian(theta: jax.Array, law: BlockLaw, frequencies: jax.Array) -> jax.Array:
    """Second derivatives of the loss: [P, P]."""
    return jax.hessian(loss)(theta, law, frequencies)


@jax.jit
def score_covariance(theta: jax.Array, law: BlockLaw) -> jax.Array:
    """The covariance of the score ∇ log p_theta(x_K | x_{-K}, K) over the population: [P, P]."""
    weights = population(theta, law)[..., None]
    # Impossible pairs have weight 0, and their gradients are meaningless.
    scores = jnp.where(weights > 0, jax.jacfwd(conditional_log_probs)(theta, law), 0.0)
    centred = scores - jnp.sum(weights * scores, axis=(0, 1))
    return jnp.einsum("mxp,mxq->pq", weights * centred, centred)


def fisher_information(theta: jax.Array) -> jax.Array:
    """The Fisher information I: [P, P], the covariance of T(x) and thus of ∇ log p.

    Definition 4.1.1 prints ∇p instead of ∇ log p.
    """
    table = jnp.asarray(statistics(num_spins(theta)))
    weights = jnp.exp(log_probabilities(theta))
    centred = table - weights @ table
    return (weights[:, None] * centred).T @ centred


@jax.jit
def asymptotic_covariance(theta: jax.Array, law: BlockLaw) -> jax.Array:
    """The asymptotic covariance Γ: [P, P], with sqrt(n) (estimate - theta) → N(0, Γ) (Lemma 4.1.1)."""
    return sandwich(hessian(theta, law, population(theta, law)), score_covariance(theta, law))


def sandwich(hessian: jax.Array, covariance: jax.Array) -> jax.Array:
    """H⁻¹ S H⁻¹ (Lemma 4.1.1): [P, P], for the Hessian H of a loss and the covariance S of its score."""
    inverse = jnp.linalg.inv(hessian)
    return inverse @ covariance @ inverse.T


def smoothness(law: BlockLaw, n: int) -> jax.Array:
    """An upper bound on the eigenvalues of the Hessian at every theta: the most statistics that a block can change.

    The Hessian is a mean of covariances of T(x) given x_{-K}. The largest eigenvalue of a covariance is at most its
    trace. A statistic in [-1, 1] has a variance of at most 1, or 0 if the block does not change it.
    """
    touches = ((law.blocks[:, None] >> jnp.arange(n)) & 1) > 0
    first, second = np.triu_indices(n, 1)
    pairs = touches[:, first] | touches[:, second]
    return jnp.max(touches.sum(axis=1) + pairs.sum(axis=1)).astype(float)


class _Fitted(NamedTuple):
    """Precomputed tables for B fits with the same law, from which gradients and Hessians are computed quickly.

    Attributes:
      law: the law of the M blocks.
      statistics: [X, P], T of all states.
      agree: [M, X, X], 1.0 if two states agree outside the block.
      frequencies: [B, M, X], the data.
      outside: [B, M, X], frequency of the spins outside the block.
    """

    law: BlockLaw
    statistics: jax.Array
    agree: jax.Array
    frequencies: jax.Array
    outside: jax.Array

    @classmethod
    def of(cls, law: BlockLaw, frequencies: jax.Array) -> _Fitted:
        """Computes the tables for frequencies [B, M, X]."""
        size = frequencies.shape[-1]
        agree = jax.vmap(lambda block: same_outside(size, block))(law.blocks).astype(float)
        outside = jnp.einsum("mxy,bmy->bmx", agree, frequencies)
        return cls(law, jnp.asarray(statistics((size - 1).bit_length())), agree, frequencies, outside)

    def conditionals(self, theta: jax.Array) -> jax.Array:
        """p_theta(x_K | x_{-K}, K) [B, M, X] for theta [B, P]."""
        logits = theta @ self.statistics.T
        # One shift is enough for all states: the logits of a fit differ by less than 700, so exp does not underflow.
        logits -= jnp.max(logits, axis=-1, keepdims=True)
        weights = jnp.exp(logits[:, None] + self.law.log_probs)
        total = jnp.einsum("mxy,bmy->bmx", self.agree, weights)
        return weights / jnp.where(total > 0, total, 1.0)

    def gradient(self, theta: jax.Array) -> jax.Array:
        """∇L_PL [B, P], the mean of E[T | x_{-K}, K] - T(x), for theta [B, P]."""
        expected = jnp.sum(self.outside * self.conditionals(theta), axis=1)
        return (expected - jnp.sum(self.frequencies, axis=1)) @ self.statistics

    def hessian(self, theta: jax.Array) -> jax.Array:
        """∇²L_PL [B, P, P], the mean of Cov(T | x_{-K}, K), for theta [B, P]."""
        conditionals = self.conditionals(theta)
        expected = jnp.sum(self.outside * conditionals, axis=1)
        square = jnp.einsum("bx,xp,xq->bpq", expected, self.statistics, self.statistics)
        means = jnp.einsum("mxy,bmy,yp->bmxp", self.agree, conditionals, self.statistics)
        return square - jnp.einsum("bmx,bmxp,bmxq->bpq", self.frequencies, means, means)


@functools.partial(jax.jit, static_argnames=("max_steps",))
def gradient_descent(law: BlockLaw, frequencies: jax.Array, *, tolerance: float = 1e-9, max_steps: int = 20_000) -> Fit:
    """Minimises the loss from theta = 0 with the fixed step size 1 / smoothness, which never increases the loss.

    The loss is convex (Proposition 4.3.6), so a small gradient means that the loss is close to its minimum. If the data
    are separable, as with few samples, there is no minimum and the gradient may not reach the tolerance.

    Args:
      law: the law of the blocks.
      frequencies: [B, M, X], the data of B fits, which run in parallel.
      tolerance: stop when the norms of all gradients are at most this.
      max_steps: stop after this number of steps.

    Returns:
      The B fits.
    """
    fitted = _Fitted.of(law, jnp.asarray(frequencies))
    count, n = frequencies.shape[0], (frequencies.shape[-1] - 1).bit_length()
    rate = 1.0 / smoothness(law, n)

    def unfinished(carry: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
        _, gradient, steps = carry
        return (jnp.max(jnp.linalg.norm(gradient, axis=-1)) > tolerance) & (steps < max_steps)

    def descend(carry: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        theta, gradient, steps = carry
        theta = theta - rate * gradient
        return theta, fitted.gradient(theta), steps + 1

    start = jnp.zeros((count, n * (n + 1) // 2))
    carry = start, fitted.gradient(start), jnp.zeros((), int)
    theta, gradient, steps = jax.lax.while_loop(unfinished, descend, carry)
    return Fit(theta, jnp.linalg.norm(gradient, axis=-1), steps)


@jax.jit
def newton(law: BlockLaw, frequencies: jax.Array, start: jax.Array) -> Fit:
    """Minimises the loss with 5 Newton steps from a point near the minimum, to check gradient descent.

    Args:
      law: the law of the blocks.
      frequencies: [B, M, X], the data of B fits.
      start: [B, P], the starting points.

    Returns:
      The B fits.
    """
    fitted = _Fitted.of(law, jnp.asarray(frequencies))

    def step(_: int, theta: jax.Array) -> jax.Array:
        return theta - jnp.linalg.solve(fitted.hessian(theta), fitted.gradient(theta)[..., None])[..., 0]

    theta = jax.lax.fori_loop(0, 5, step, start)
    return Fit(theta, jnp.linalg.norm(fitted.gradient(theta), axis=-1), jnp.asarray(5))
