"""Weighted pseudolikelihood (Definitions 4.1.2, 4.1.3, 4.1.7): loss, asymptotic variance, minimum.

Data are pairs (x, K) of a state and a block, kept as a table of frequencies [M, X]: there are M·X different pairs
however many samples were drawn, so a fit costs the same for any sample size.
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
    """How the block K is chosen, given the state.

    Attributes:
      blocks: [M] int, the blocks (bit i: spin i is in K).
      log_probs: [M, X], log p(K | x), columns normalised; all columns alike if K does not depend on x.
    """

    blocks: jax.Array | np.ndarray
    log_probs: jax.Array | np.ndarray


class Fit(NamedTuple):
    """Minima that were searched for.

    Attributes:
      theta: [B, P].
      gradient_norm: of the loss, there: [B].
      steps: taken, by all of them: [].
    """

    theta: jax.Array
    gradient_norm: jax.Array
    steps: jax.Array


def uniform_law(n: int, k: int) -> BlockLaw:
    """All blocks of size k alike: k-pseudolikelihood in training, k-Gibbs in sampling."""
    return alike_law(n, blocks_of_size(n, k))


def alike_law(n: int, blocks: np.ndarray) -> BlockLaw:
    """These blocks [M], all alike whatever the state.

    Raises:
      PadirError: a spin is in no block: its field could not be estimated, nor the spin redrawn.
    """
    if np.bitwise_or.reduce(blocks) != 2**n - 1:
        raise PadirError(f"blocks {blocks.tolist()} do not cover all {n} spins")
    return BlockLaw(blocks, np.full((len(blocks), 2**n), -np.log(len(blocks))))


def among_all_blocks(n: int, law: BlockLaw) -> BlockLaw:
    """The same law over all 2^n - 1 blocks, those it never draws with probability 0: so laws can be stacked."""
    log_probs = np.full((2**n - 1, 2**n), -np.inf)
    log_probs[law.blocks - 1] = law.log_probs
    return BlockLaw(np.arange(1, 2**n), log_probs)


def with_blocks(law: BlockLaw, count: int) -> BlockLaw:
    """The same law with `count` blocks, its first one repeated with probability 0: so laws share a program."""
    more = count - len(law.blocks)
    log_probs = np.pad(law.log_probs, ((0, more), (0, 0)), constant_values=-np.inf)
    return BlockLaw(np.concatenate([law.blocks, np.full(more, law.blocks[0])]), log_probs)


def conditional_log_probs(theta: jax.Array, law: BlockLaw) -> jax.Array:
    """log p_theta(x_K | x_{-K}, K) of (4.1): [M, X]. Without K after the bar if the law does not depend on x."""
    return jax.vmap(log_conditional)(log_probabilities(theta) + law.log_probs, law.blocks)


def population(theta: jax.Array, law: BlockLaw) -> jax.Array:
    """p(x) p(K | x): [M, X], the frequencies of infinitely many samples."""
    return jnp.exp(log_probabilities(theta) + law.log_probs)


def sample(random: np.random.Generator, theta: jax.Array, law: BlockLaw, size: int, repetitions: int = 1) -> np.ndarray:
    """Frequencies [repetitions, M, X] of `size` pairs (x, K) each, drawn from the population."""
    table = np.asarray(population(theta, law))
    return random.multinomial(size, table.ravel(), size=repetitions).reshape(repetitions, *table.shape) / size


def loss(theta: jax.Array, law: BlockLaw, frequencies: jax.Array) -> jax.Array:
    """L_PL: minus the mean of log p_theta(x_K | x_{-K}, K) over pairs with these frequencies [M, X]."""
    log_probs = conditional_log_probs(theta, law)
    return -jnp.sum(frequencies * jnp.where(frequencies > 0, log_probs, 0.0))


@jax.jit
def hessian(theta: jax.Array, law: BlockLaw, frequencies: jax.Array) -> jax.Array:
    """Second derivatives of the loss: [P, P]."""
    return jax.hessian(loss)(theta, law, frequencies)


@jax.jit
def score_covariance(theta: jax.Array, law: BlockLaw) -> jax.Array:
    """Cov over the population of -∇ log p_theta(x_K | x_{-K}, K): [P, P], with its mean subtracted."""
    weights = population(theta, law)[..., None]
    # Impossible pairs have weight 0, and a gradient of no meaning.
    scores = jnp.where(weights > 0, jax.jacfwd(conditional_log_probs)(theta, law), 0.0)
    centred = scores - jnp.sum(weights * scores, axis=(0, 1))
    return jnp.einsum("mxp,mxq->pq", weights * centred, centred)


def fisher_information(theta: jax.Array) -> jax.Array:
    """I: the covariance of T(x), which is that of ∇ log p. [P, P] (Definition 4.1.1 prints ∇p for ∇ log p.)"""
    table = jnp.asarray(statistics(num_spins(theta)))
    weights = jnp.exp(log_probabilities(theta))
    centred = table - weights @ table
    return (weights[:, None] * centred).T @ centred


@jax.jit
def asymptotic_covariance(theta: jax.Array, law: BlockLaw) -> jax.Array:
    """Γ of sqrt(n) (estimate - theta) → N(0, Γ): [P, P] (Lemma 4.1.1)."""
    return sandwich(hessian(theta, law, population(theta, law)), score_covariance(theta, law))


def sandwich(hessian: jax.Array, covariance: jax.Array) -> jax.Array:
    """H⁻¹ S H⁻¹ of a loss's Hessian and its score's covariance, as Lemma 4.1.1 has it: [P, P]."""
    inverse = jnp.linalg.inv(hessian)
    return inverse @ covariance @ inverse.T


def smoothness(law: BlockLaw, n: int) -> jax.Array:
    """An upper bound on the Hessian's eigenvalues, everywhere: how many statistics a block can change, at most.

    The Hessian is a mean of covariances of T(x) given x_{-K}; the largest eigenvalue of one is at most its trace, and
    a statistic in [-1, 1] has variance at most 1, or 0 if the block leaves it alone.
    """
    touches = ((law.blocks[:, None] >> jnp.arange(n)) & 1) > 0
    first, second = np.triu_indices(n, 1)
    pairs = touches[:, first] | touches[:, second]
    return jnp.max(touches.sum(axis=1) + pairs.sum(axis=1)).astype(float)


class _Fitted(NamedTuple):
    """What fits of one law share, and B of them, ready to be differentiated many times.

    Attributes:
      law: of the M blocks.
      statistics: T, [X, P].
      agree: [M, X, X], 1.0 where two states agree outside the block.
      frequencies: [B, M, X].
      outside: [B, M, X], frequency of what is outside the block.
    """

    law: BlockLaw
    statistics: jax.Array
    agree: jax.Array
    frequencies: jax.Array
    outside: jax.Array

    @classmethod
    def of(cls, law: BlockLaw, frequencies: jax.Array) -> _Fitted:
        """frequencies [B, M, X]."""
        size = frequencies.shape[-1]
        agree = jax.vmap(lambda block: same_outside(size, block))(law.blocks).astype(float)
        outside = jnp.einsum("mxy,bmy->bmx", agree, frequencies)
        return cls(law, jnp.asarray(statistics((size - 1).bit_length())), agree, frequencies, outside)

    def conditionals(self, theta: jax.Array) -> jax.Array:
        """theta [B, P] → p_theta(x_K | x_{-K}, K): [B, M, X]."""
        logits = theta @ self.statistics.T
        # One shift for all states: those of a fit are within the 700 that float64's exponent spans.
        logits -= jnp.max(logits, axis=-1, keepdims=True)
        weights = jnp.exp(logits[:, None] + self.law.log_probs)
        total = jnp.einsum("mxy,bmy->bmx", self.agree, weights)
        return weights / jnp.where(total > 0, total, 1.0)

    def gradient(self, theta: jax.Array) -> jax.Array:
        """∇L_PL: the mean of E[T | x_{-K}, K] - T(x). [B, P] → [B, P]."""
        expected = jnp.sum(self.outside * self.conditionals(theta), axis=1)
        return (expected - jnp.sum(self.frequencies, axis=1)) @ self.statistics

    def hessian(self, theta: jax.Array) -> jax.Array:
        """∇²L_PL: the mean of Cov(T | x_{-K}, K). [B, P] → [B, P, P]."""
        conditionals = self.conditionals(theta)
        expected = jnp.sum(self.outside * conditionals, axis=1)
        square = jnp.einsum("bx,xp,xq->bpq", expected, self.statistics, self.statistics)
        means = jnp.einsum("mxy,bmy,yp->bmxp", self.agree, conditionals, self.statistics)
        return square - jnp.einsum("bmx,bmxp,bmxq->bpq", self.frequencies, means, means)


@functools.partial(jax.jit, static_argnames=("max_steps",))
def gradient_descent(law: BlockLaw, frequencies: jax.Array, *, tolerance: float = 1e-9, max_steps: int = 20_000) -> Fit:
    """Minimises the loss from theta = 0 with the fixed step 1 / smoothness, which never increases it.

    The loss is convex (Proposition 4.3.6), so a small gradient means a value near the minimum's. It has no minimum if
    the data are separable (few samples): the gradient then stays above the tolerance.

    Args:
      law: of the blocks.
      frequencies: [B, M, X], of B fits side by side.
      tolerance: stops where all gradients' norms are at most this.
      max_steps: stops there, too.

    Returns:
      B fits.
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
    """Minimises the loss by 5 Newton steps from `start`, near the minimum: the check on gradient descent.

    Args:
      law: of the blocks.
      frequencies: [B, M, X].
      start: [B, P].

    Returns:
      B fits.
    """
    fitted = _Fitted.of(law, jnp.asarray(frequencies))

    def step(_: int, theta: jax.Array) -> jax.Array:
        return theta - jnp.linalg.solve(fitted.hessian(theta), fitted.gradient(theta)[..., None])[..., 0]

    theta = jax.lax.fori_loop(0, 5, step, start)
    return Fit(theta, jnp.linalg.norm(fitted.gradient(theta), axis=-1), jnp.asarray(5))
