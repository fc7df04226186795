"""Runs of the samplers, in the full space of N spins and step by step as they are defined.

Nothing of `clique` is used here: the simulated hitting times check the exact ones.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from padir.theory.ising import fields_and_couplings, log_probabilities, num_spins


def k_gibbs_step(key: jax.Array, log_p: jax.Array, state: jax.Array, *, n: int, k: jax.Array | int) -> jax.Array:
    """Draws k of n spins without replacement, then their values given the others (Definition 4.1.10).

    Args:
      key: of this step.
      log_p: [2^n].
      state: integer.
      n: N.
      k: spins per step.

    Returns:
      The next state.
    """
    which, what = jax.random.split(key)
    rank = jnp.argsort(jnp.argsort(jax.random.uniform(which, (n,))))
    block = jnp.sum((rank < k) << jnp.arange(n))
    agree = ((jnp.arange(2**n) ^ state) & ~block) == 0
    logits = jnp.where(agree, log_p, -jnp.inf)
    return draw(jax.random.uniform(what), jnp.exp(logits - jnp.max(logits)))


def draw(uniform: jax.Array, weights: jax.Array) -> jax.Array:
    """The state at which the sum of the weights [2^n] reaches a share 1 - uniform, in (0, 1], of the whole.

    So each comes with probability in proportion to its weight, and one of weight 0 never. First a row of about
    2^(n/2) states, then the state: one sum over all of 1,024 is slow.
    """
    n = weights.size.bit_length() - 1
    rows = weights.reshape(2 ** (n // 2), -1)
    total = jnp.cumsum(jnp.sum(rows, axis=1))
    goal = (1.0 - uniform) * total[-1]
    row = jnp.sum(total < goal)
    inside = jnp.cumsum(rows[row])
    # What is left is above 0; rounding may leave it above the row's own sum.
    left = jnp.minimum(goal - jnp.where(row > 0, total[row - 1], 0.0), inside[-1])
    return row * rows.shape[1] + jnp.sum(inside < left)


def independent_parallel_step(key: jax.Array, theta: jax.Array, state: jax.Array) -> jax.Array:
    """Draws every spin given the others' old values (Definition 4.1.11); state and result are integers."""
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
    """Steps that chains take until the target, side by side.

    Args:
      key: of all randomness.
      step: key, model, state → next state.
      models: [B, ...], what `step` takes.
      starts: [B] int, states.
      target: [X] bool.
      budget: chains stop here.

    Returns:
      [B] int; budget + 1 if not reached within the budget.
    """
    chains = len(starts)

    def unfinished(carry: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
        t, _, steps = carry
        return (t < budget) & jnp.any(steps > budget)

    def advance(carry: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        t, states, steps = carry
        keys = jax.random.split(jax.random.fold_in(key, t), chains)
        # Chains that have arrived go on, unheeded.
        states = jax.vmap(step)(keys, models, states)
        return t + 1, states, jnp.where((steps > budget) & target[states], t + 1, steps)

    steps = jnp.where(target[starts], 0, budget + 1)
    return jax.lax.while_loop(unfinished, advance, (jnp.zeros((), int), starts, steps))[2]


@functools.partial(jax.jit, static_argnames="budget")
def k_gibbs_steps(
    key: jax.Array, thetas: jax.Array, starts: jax.Array, target: jax.Array, k: jax.Array | int, *, budget: int
) -> jax.Array:
    """`steps_to_target` of k-Gibbs; thetas [B, P]."""
    n = num_spins(thetas)
    step = functools.partial(k_gibbs_step, n=n, k=k)
    return steps_to_target(key, step, jax.vmap(log_probabilities)(thetas), starts, target, budget)


@functools.partial(jax.jit, static_argnames=("budget",))
def independent_parallel_steps(
    key: jax.Array, thetas: jax.Array, starts: jax.Array, target: jax.Array, *, budget: int
) -> jax.Array:
    """`steps_to_target` of the independent parallel sampler; thetas [B, P]."""
    return steps_to_target(key, independent_parallel_step, thetas, starts, target, budget)
