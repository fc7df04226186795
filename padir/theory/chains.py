"""Markov chains over all states: transition matrices, spectral gaps, Dirichlet forms, hitting times."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from padir.theory.ising import fields_and_couplings, log_conditional, num_spins, same_outside, spins
from padir.theory.pseudolikelihood import BlockLaw


def block_kernels(log_p: jax.Array, law: BlockLaw) -> jax.Array:
    """Redrawing a given block: [M, X, X], entry (K, x, y) = 1[x_{-K} = y_{-K}] p(y_K | x_{-K}, K).

    This is (4.26) without its 1[K_1 = K_2]: the chain on pairs (x, K) that keeps K for ever.

    Args:
      log_p: [X], the distribution.
      law: of the blocks.
    """
    return jax.vmap(lambda block, log_prob: _kernel(log_p + log_prob, block))(law.blocks, law.log_probs)


def _kernel(log_weights: jax.Array, block: jax.Array) -> jax.Array:
    agree = same_outside(log_weights.shape[0], block)
    return jnp.where(agree, jnp.exp(log_conditional(log_weights, block))[None, :], 0.0)


@jax.jit
def block_dynamics(log_p: jax.Array, law: BlockLaw) -> jax.Array:
    """The chain on states that draws a block K ~ p(K | x), then x_K given x_{-K} and K: [X, X].

    Definition 4.1.6 (weighted), or 4.1.8 (adaptively weighted) if the law depends on x. It is reversible for p: from
    x to y through K it flows p(x, K) p(y_K | x_{-K}, K) = p(x_K | x_{-K}, K) p(y_K | x_{-K}, K) p(x_{-K}, K), which
    is symmetric in x and y.
    """

    def add(total: jax.Array, one: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        block, log_prob = one
        return total + jnp.exp(log_prob)[:, None] * _kernel(log_p + log_prob, block), None

    # Block by block: the kernels of all 252 blocks of 5 of 10 spins would take 2 GB.
    size = log_p.shape[0]
    return jax.lax.scan(add, jnp.zeros((size, size)), (law.blocks, law.log_probs))[0]


@jax.jit
def block_marginals(log_p: jax.Array, law: BlockLaw) -> jax.Array:
    """P(x_i = +1 | x_{-K}, K) of every spin: [M, X, N]; what a parallel decoder that knew the model would say."""
    n = (log_p.shape[0] - 1).bit_length()
    return block_kernels(log_p, law) @ jnp.asarray(spins(n) > 0, float)


@jax.jit
def product_dynamics(plus: jax.Array, blocks: jax.Array) -> jax.Array:
    """The chain that draws a block, all alike, and then its spins independently of each other: [X, X].

    The only kind that parallel decoding can implement (Proposition 4.1.3). With one spin per block and `plus` from
    `block_marginals` it is 1-Gibbs; with more it is not reversible for p, nor is p stationary in general.

    Args:
      plus: [M, X, N], probability that a spin of the block becomes +1.
      blocks: [M] int.
    """
    values = jnp.asarray(spins(plus.shape[-1]))

    def kernel(plus: jax.Array, block: jax.Array) -> jax.Array:
        drawn = ((block >> jnp.arange(plus.shape[-1])) & 1) > 0
        chance = jnp.where(values[None] > 0, plus[:, None], 1.0 - plus[:, None])
        agree = same_outside(len(values), block)
        return jnp.where(agree, jnp.prod(jnp.where(drawn, chance, 1.0), axis=-1), 0.0)

    return jnp.mean(jax.vmap(kernel)(plus, blocks), axis=0)


@jax.jit
def independent_parallel(theta: jax.Array) -> jax.Array:
    """All spins redrawn at once, each given the others' old values (Definition 4.1.11): [X, X]."""
    table = jnp.asarray(spins(num_spins(theta)))
    fields, couplings = fields_and_couplings(theta)
    # log p(y_i | x_{-i}) = log sigmoid(2 y_i (h_i + Σ_j J_ij x_j)), for all x, then y.
    local = fields + table @ couplings
    return jnp.exp(jnp.sum(jax.nn.log_sigmoid(2.0 * local[:, None, :] * table[None]), axis=-1))


@jax.jit
def independent_parallel_stationary(theta: jax.Array) -> jax.Array:
    """The independent parallel sampler's own stationary distribution: [X].

    The chapter's footnote 12 leaves it open; for Ising models it is known. With u_i(x) = h_i + Σ_j J_ij x_j the step
    from x to y has probability Π_i exp(y_i u_i(x)) / (2 cosh u_i(x)). Let π(x) ∝ exp(h·x) Π_i cosh u_i(x); then
    π(x) P(x, y) ∝ exp(h·x + h·y + Σ_ij J_ij x_i y_j), which is symmetric: P is reversible for π. Every entry of P is
    positive, so π is the only one. It is not the model's p unless J = 0.
    """
    table = jnp.asarray(spins(num_spins(theta)))
    fields, couplings = fields_and_couplings(theta)
    local = fields + table @ couplings
    # log cosh u = log(e^u + e^-u) - log 2.
    return jax.nn.softmax(table @ fields + jnp.sum(jnp.logaddexp(local, -local), axis=-1))


@jax.jit
def spectral_gap(transition: jax.Array, stationary: jax.Array) -> jax.Array:
    """1 - the second largest eigenvalue of a reversible chain; its inverse is the Poincaré constant.

    Of Definition 4.1.5: E(f, f) / Var(f) is smallest at the second eigenvector of I - P.

    Args:
      transition: [X, X], reversible for `stationary`.
      stationary: [X], positive.
    """
    root = jnp.sqrt(stationary)
    symmetric = root[:, None] * transition / root
    return 1.0 - jnp.linalg.eigvalsh((symmetric + symmetric.T) / 2.0)[-2]


def dirichlet_form(transition: jax.Array, stationary: jax.Array, f: jax.Array, g: jax.Array) -> jax.Array:
    """E_P(f, g) by its definition: half the mean of (f(x) - f(y)) (g(x) - g(y)) over steps x → y (Definition 4.1.4)."""
    flow = stationary[:, None] * transition
    return jnp.sum(flow * (f[:, None] - f) * (g[:, None] - g)) / 2.0


def block_dirichlet_form(log_p: jax.Array, law: BlockLaw, f: jax.Array, g: jax.Array) -> jax.Array:
    """The right-hand side of Proposition 4.1.1: E_{(x_{-K}, K)} Cov_{x_K | x_{-K}, K}(f, g).

    Args:
      log_p: [X].
      law: of the M blocks.
      f: [M, X], a function of block and state; the same rows for a function of the state.
      g: like f.
    """
    kernels = block_kernels(log_p, law)

    def mean(values: jax.Array) -> jax.Array:
        return jnp.einsum("mxy,my->mx", kernels, values)

    return jnp.sum(jnp.exp(log_p + law.log_probs) * (mean(f * g) - mean(f) * mean(g)))


@jax.jit
def expected_hitting_times(transition: jax.Array, target: jax.Array) -> jax.Array:
    """Expected steps until `target`, from every state: [X]; 0 in the target.

    States are eliminated one by one, the paths through them added to those between the others (after Grassmann,
    Taksar and Heyman). Nothing is ever subtracted: 1 - P(x, x) is summed from the other entries. So every entry is
    right to many digits even where it is 1e200, and solving (I - P) t = 1 would return noise.

    Args:
      transition: [X, X]; the target can be reached from everywhere.
      target: [X] bool.
    """
    size = transition.shape[0]
    # Targets first: elimination goes from the last state to the first that is no target.
    order = jnp.argsort(~target, stable=True)
    count = jnp.sum(target)
    matrix = transition[order][:, order]
    index = jnp.arange(size)

    def eliminate(i: int, carry: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        matrix, costs, exits = carry
        state = size - 1 - i
        leave = jnp.sum(jnp.where(index < state, matrix[state], 0.0))
        # Rows of states before this one; what is done to the target's rows has no effect.
        share = jnp.where(index < state, matrix[:, state] / leave, 0.0)
        matrix = matrix + share[:, None] * jnp.where(index < state, matrix[state], 0.0)
        return matrix, costs + share * costs[state], exits.at[state].set(leave)

    def back(state: int, carry: jax.Array) -> jax.Array:
        onward = jnp.sum(jnp.where(index < state, matrix[state] * carry, 0.0))
        return carry.at[state].set((costs[state] + onward) / exits[state])

    start = (matrix, jnp.ones(size), jnp.ones(size))
    matrix, costs, exits = jax.lax.fori_loop(0, size - count, eliminate, start)
    times = jax.lax.fori_loop(count, size, back, jnp.zeros(size))
    return times[jnp.argsort(order)]


def survival(transition: jax.Array, target: jax.Array, start: jax.Array, steps: int) -> jax.Array:
    """P(target not reached after t steps), t = 0..steps: [steps + 1].

    Args:
      transition: [X, X].
      target: [X] bool.
      start: [X], the distribution at t = 0.
      steps: the last t.
    """

    def step(alive: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
        alive = jnp.where(target, 0.0, alive @ transition)
        return alive, jnp.sum(alive)

    alive = jnp.where(target, 0.0, start)
    return jnp.concatenate([jnp.sum(alive)[None], jax.lax.scan(step, alive, length=steps)[1]])


def mean_and_sd_within(survival: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Mean and standard deviation of min(T, budget) for a hitting time T; `survival` [..., budget + 1] is P(T > t)."""
    budget = survival.shape[-1] - 1
    alive = survival[..., :budget]
    mean = jnp.sum(alive, axis=-1)
    square = jnp.sum(alive * (2 * jnp.arange(budget) + 1), axis=-1)
    return mean, jnp.sqrt(jnp.maximum(square - mean**2, 0.0))
