"""Markov chains on all states: transition matrices, spectral gaps, Dirichlet forms and hitting times."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from padir.theory.ising import fields_and_couplings, log_conditional, num_spins, same_outside, spins
from padir.theory.pseudolikelihood import BlockLaw


def block_kernels(log_p: jax.Array, law: BlockLaw) -> jax.Array:
    """The transition matrices of redrawing each block.

    This is (4.26) without its factor 1[K_1 = K_2]: the chain on pairs (x, K), which never changes K.

    Args:
      log_p: [X], log probabilities of the states.
      law: the law of the M blocks.

    Returns:
      [M, X, X]; entry (K, x, y) is 1[x_{-K} = y_{-K}] p(y_K | x_{-K}, K).
    """
    return jax.vmap(lambda block, log_prob: _kernel(log_p + log_prob, block))(law.blocks, law.log_probs)


def _kernel(log_weights: jax.Array, block: jax.Array) -> jax.Array:
    agree = same_outside(log_weights.shape[0], block)
    return jnp.where(agree, jnp.exp(log_conditional(log_weights, block))[None, :], 0.0)


@jax.jit
def block_dynamics(log_p: jax.Array, law: BlockLaw) -> jax.Array:
    """The transition matrix [X, X] of the chain that draws a block K ~ p(K | x), then x_K given x_{-K} and K.

    This is Definition 4.1.6 (weighted block dynamics), or 4.1.8 (adaptively weighted) if the law depends on x. The
    chain is reversible for p: its flow from x to y through K is p(x, K) p(y_K | x_{-K}, K) =
    p(x_K | x_{-K}, K) p(y_K | x_{-K}, K) p(x_{-K}, K), which is symmetric in x and y.
    """

    def add(total: jax.Array, one: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        block, log_prob = one
        return total + jnp.exp(log_prob)[:, None] * _kernel(log_p + log_prob, block), None

    # One block at a time: the kernels of all 252 blocks of 5 among 10 spins would take 2 GB.
    size = log_p.shape[0]
    return jax.lax.scan(add, jnp.zeros((size, size)), (law.blocks, law.log_probs))[0]


@jax.jit
def block_marginals(log_p: jax.Array, law: BlockLaw) -> jax.Array:
    """P(x_i = +1 | x_{-K}, K) of every spin: [M, X, N]. A perfect parallel decoder would output these marginals."""
    n = (log_p.shape[0] - 1).bit_length()
    return block_kernels(log_p, law) @ jnp.asarray(spins(n) > 0, float)


@jax.jit
def product_dynamics(plus: jax.Array, blocks: jax.Array) -> jax.Array:
    """The transition matrix [X, X] of drawing a block uniformly, and then its spins independently of each other.

    Parallel decoding can implement only chains of this kind (Proposition 4.1.3). With one spin per block and `plus`
    from `block_marginals` it is 1-Gibbs. With larger blocks p is in general not stationary, and the chain is not
    reversible for p.

    Args:
      plus: [M, X, N], probability that each spin of the block becomes +1.
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
    """The transition matrix [X, X] of redrawing all spins at once, each given the old values (Definition 4.1.11)."""
    table = jnp.asarray(spins(num_spins(theta)))
    fields, couplings = fields_and_couplings(theta)
    # log p(y_i | x_{-i}) = log sigmoid(2 y_i (h_i + Σ_j J_ij x_j)); x on the first axis, y on the second.
    local = fields + table @ couplings
    return jnp.exp(jnp.sum(jax.nn.log_sigmoid(2.0 * local[:, None, :] * table[None]), axis=-1))


@jax.jit
def independent_parallel_stationary(theta: jax.Array) -> jax.Array:
    """The stationary distribution of the independent parallel sampler: [X].

    The chapter's footnote 12 leaves it open, but for Ising models it is known. With u_i(x) = h_i + Σ_j J_ij x_j, the
    step from x to y has probability Π_i exp(y_i u_i(x)) / (2 cosh u_i(x)). Let π(x) ∝ exp(h·x) Π_i cosh u_i(x). Then
    π(x) P(x, y) ∝ exp(h·x + h·y + Σ_ij J_ij x_i y_j) is symmetric, so P is reversible for π. All entries of P are
    positive, so π is its only stationary distribution. It differs from the model's p unless J = 0.
    """
    table = jnp.asarray(spins(num_spins(theta)))
    fields, couplings = fields_and_couplings(theta)
    local = fields + table @ couplings
    # log cosh u = log(e^u + e^-u) - log 2.
    return jax.nn.softmax(table @ fields + jnp.sum(jnp.logaddexp(local, -local), axis=-1))


@jax.jit
def spectral_gap(transition: jax.Array, stationary: jax.Array) -> jax.Array:
    """1 minus the second largest eigenvalue of a reversible chain.

    Its inverse is the Poincaré constant of Definition 4.1.5, because the second eigenvector of I - P minimises
    E(f, f) / Var(f).

    Args:
      transition: [X, X], reversible for `stationary`.
      stationary: [X], the stationary distribution, positive.
    """
    root = jnp.sqrt(stationary)
    symmetric = root[:, None] * transition / root
    return 1.0 - jnp.linalg.eigvalsh((symmetric + symmetric.T) / 2.0)[-2]


def dirichlet_form(transition: jax.Array, stationary: jax.Array, f: jax.Array, g: jax.Array) -> jax.Array:
    """E_P(f, g) of Definition 4.1.4: half the mean of (f(x) - f(y)) (g(x) - g(y)) over steps from x to y.

    Args:
      transition: [X, X], the chain.
      stationary: [X], its stationary distribution.
      f, g: [X], functions of the state.
    """
    flow = stationary[:, None] * transition
    return jnp.sum(flow * (f[:, None] - f) * (g[:, None] - g)) / 2.0


def block_dirichlet_form(log_p: jax.Array, law: BlockLaw, f: jax.Array, g: jax.Array) -> jax.Array:
    """The right-hand side of Proposition 4.1.1: E_{(x_{-K}, K)} Cov_{x_K | x_{-K}, K}(f, g).

    Args:
      log_p: [X], log probabilities of the states.
      law: the law of the M blocks.
      f, g: [M, X], functions of block and state. All rows are equal for a function of the state alone.
    """
    kernels = block_kernels(log_p, law)

    def mean(values: jax.Array) -> jax.Array:
        return jnp.einsum("mxy,my->mx", kernels, values)

    return jnp.sum(jnp.exp(log_p + law.log_probs) * (mean(f * g) - mean(f) * mean(g)))


@jax.jit
def expected_hitting_times(transition: jax.Array, target: jax.Array) -> jax.Array:
    """The expected number of steps until the target is reached, from each state: [X]; 0 for states in the target.

    States are eliminated one by one, and the paths through an eliminated state are added to the transitions between the
    others (after Grassmann, Taksar and Heyman). Nothing is ever subtracted: 1 - P(x, x) is summed from the other
    entries. Therefore even results of 1e200 are accurate to many digits, where solving (I - P) t = 1 would return
    noise.

    Args:
      transition: [X, X], a chain that can reach the target from every state.
      target: [X] bool.
    """
    size = transition.shape[0]
    # Targets are ordered first, because elimination goes from the last state down to the first one outside the target.
    order = jnp.argsort(~target, stable=True)
    count = jnp.sum(target)
    matrix = transition[order][:, order]
    index = jnp.arange(size)

    def eliminate(i: int, carry: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        matrix, costs, exits = carry
        state = size - 1 - i
        leave = jnp.sum(jnp.where(index < state, matrix[state], 0.0))
        # Only rows of earlier states matter; changes to rows in the target have no effect.
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
    """P(the target has not been reached after t steps) for t = 0..steps: [steps + 1].

    Args:
      transition: [X, X], the chain.
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
    """Mean and standard deviation of min(T, budget) for a hitting time T.

    Args:
      survival: [..., budget + 1], P(T > t) for t = 0..budget.

    Returns:
      (mean, standard deviation), each [...], in steps.
    """
    budget = survival.shape[-1] - 1
    alive = survival[..., :budget]
    mean = jnp.sum(alive, axis=-1)
    square = jnp.sum(alive * (2 * jnp.arange(budget) + 1), axis=-1)
    return mean, jnp.sqrt(jnp.maximum(square - mean**2, 0.0))
