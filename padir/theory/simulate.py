"""Simulates the samplers step by step, as they are defined, on the full space of N spins.

This module does not use `clique`, so that simulated hitting times are an independent check of the exact ones.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from padir.theory.ising import fields_and_couplings, log_probabilities, num_spins


def k_gibbs_step(key: jax.Array, log_p: jax.Array, state: jax.Array, *, n: int, k: jax.Array | int) -> jax.Array:
    """One step of k-Gibbs: draws k of n spins, then their values given the other spins (Definition 4.1.10).

    Args:
      key: random key of this step.
      log_p: [2^n], log probabilities of the states.
      state: the current state, an integer.
      n: N.
      k: spins per step.

    Returns:
      The next state, an integer.
    """
    which, what = jax.random.split(key)
    rank = jnp.argsort(jnp.argsort(jax.random.uniform(which, (n,))))
    block = jnp.sum((rank < k) << jnp.arange(n))
    agree = ((jnp.arange(2**n) ^ state) & ~block) == 0
    logits = jnp.where(agree, log_p, -jnp.inf)
    return draw(jax.random.uniform(what), jnp.exp(logits - jnp.max(logits)))


def draw(uniform: jax.Array, weights: jax.Array) -> jax.Array:
    """Draws a state with probability proportional to its weight; never one of weight 0.

    It is the first state at which the cumulative sum of the weights reaches the share 1 - uniform, in (0, 1]. To avoid
    a slow cumulative sum over all states, a row of about 2^(n/2) states is found first, and then the state in it.

    Args:
      uniform: a uniform random number in [0, 1).
      weights: [2^n], not negative.
    """
    n = weights.size.bit_length() - 1
    rows = weights.reshape(2 ** (n // 2), -1)
    total = jnp.cumsum(jnp.sum(rows, axis=1))
    goal = (1.0 - uniform) * total[-1]
    row = jnp.sum(total < goal)
    inside = jnp.cumsum(rows[row])
    # The rest is positive, but rounding could make it exceed the sum of the row.
    left = jnp.minimum(goal - jnp.where(row > 0, total[row - 1], 0.0), inside[-1])
    return row * rows.shape[1] + jnp.sum(inside < left)


def independent_parallel_step(key: jax.Array, theta: jax.Array, state: jax.Array) -> jax.Array:
    """One step of the independent parallel sampler (Definition 4.1.11); state and result are integers."""
    n = num_spins(theta)
    fields, couplings = fields_and_couplings(theta)
    values = 2.0 * ((state >> jnp.arange(n)) & 1) - 1.0
    plus = jax.random.bernoulli(key, jax.nn.sigmoid(2.0 * (fields + couplings @ values)))
    return jnp.sum(plus << jnp.arange(n))


def steps_to_target(
    key: jax.Array,
    step: Callable[[jax.Array, jax.Array, jax.Array], jax.Array],
    models: jax.Array,
    starts: jax.Array,
    target: jax.Array,
    budget: int,
) -> jax.Array:
    """Runs B chains in parallel and counts their steps until they reach the target.

    Args:
      key: random key.
      step: maps (key, model, state) to the next state.
      models: [B, ...], the models as `step` takes them.
      starts: [B] int, the first states.
      target: [X] bool.
      budget: maximum number of steps.

    Returns:
      [B] int, the number of steps; budget + 1 if the target was not reached within the budget.
    """
    chains = len(starts)

    def unfinished(carry: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
        t, _, steps = carry
        return (t < budget) & jnp.any(steps > budget)

    def advance(carry: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        t, states, steps = carry
        keys = jax.random.split(jax.random.fold_in(key, t), chains)
        # Chains that have reached the target go on, but their count does not change.
        states = jax.vmap(step)(keys, models, states)
        return t + 1, states, jnp.where((steps > budget) & target[states], t + 1, steps)

    steps = jnp.where(target[starts], 0, budget + 1)
    return jax.lax.while_loop(unfinished, advance, (jnp.zeros((), int), starts, steps))[2]


@functools.partial(jax.jit, static_argnames="budget")
def k_gibbs_steps(
    key: jax.Array, thetas: jax.Array, starts: jax.Array, target: jax.Array, k: jax.Array | int, *, budget: int
) -> jax.Array:
    """`steps_to_target` for k-Gibbs on the models `thetas` [B, P]."""
    n = num_spins(thetas)
    step = functools.partial(k_gibbs_step, n=n, k=k)
    return steps_to_target(key, step, jax.vmap(log_probabilities)(thetas), starts, target, budget)


@functools.partial(jax.jit, static_argnames=("budget",))
def independent_parallel_steps(
    key: jax.Array, thetas: jax.Array, starts: jax.Array, target: jax.Array, *, budget: int
) -> jax.Array:
    """`steps_to_target` for the independent parallel sampler on the models `thetas` [B, P]."""
    return steps_to_target(key, independent_parallel_step, thetas, starts, target, budget)
