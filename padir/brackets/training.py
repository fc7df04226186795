"""Training of bracket Transformers: all steps in one program, one seed after the other or side by side."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Literal, get_args

import jax
import jax.numpy as jnp
import optax

from padir import rng
from padir.brackets import contrastive, sequences
from padir.brackets.language import DyckLanguage
from padir.brackets.sequences import Sequences
from padir.brackets.transformer import BracketNetwork, Params, apply, apply_to_counts, counts_of, init
from padir.checks import finite, whole
from padir.errors import PadirError
from padir.objectives.losses import cross_entropy, weighted_mean
from padir.types import Array

Data = Literal["complete", "prefixes"]
Task = Literal["next", "copy"]


@dataclass(frozen=True)
class BracketTraining:
    """What is trained on, and how: Adam on the cross-entropy of fresh sequences.

    Attributes:
      data: 'complete' words of lengths 2, 4, .., `longest`, or 'prefixes' of length `longest`.
      task: 'next' token, or 'copy', whose target is the token itself.
      longest: longest sequences.
      steps, batch_size: updates, and sequences for each.
      learning_rate: of Adam.
      decay: the share of the steps, the last ones, in which the learning rate falls evenly to 0 (ours: a network then
        depends less on the step at which it stops).
      contrastive: weight of the contrastive term (2.58), a mean over positions.
    """

    data: Data = "complete"
    task: Task = "next"
    longest: int = 28
    steps: int = 1500
    batch_size: int = 64
    learning_rate: float = 3e-3
    decay: float = 0.0
    contrastive: float = 0.0

    def __post_init__(self):
        for name, of in (("data", Data), ("task", Task)):
            if getattr(self, name) not in get_args(of):
                choices = ", ".join(get_args(of))
                raise PadirError(f"BracketTraining.{name} = {getattr(self, name)!r}: must be one of {choices}")
        for name in ("longest", "steps", "batch_size"):
            whole(f"BracketTraining.{name}", getattr(self, name))
        for name in ("learning_rate", "contrastive", "decay"):
            finite(f"BracketTraining.{name}", getattr(self, name))
        if self.learning_rate <= 0:
            raise PadirError(f"BracketTraining.learning_rate: {self.learning_rate} is not a positive number")
        if self.contrastive < 0:
            raise PadirError(f"BracketTraining.contrastive: {self.contrastive} is below 0")
        if not 0 <= self.decay <= 1:
            raise PadirError(f"BracketTraining.decay: {self.decay} is a share of the steps; use 0 to 1")
        if self.data == "complete" and self.longest % 2:
            raise PadirError(f"BracketTraining.longest: {self.longest} is odd, but complete words have even lengths")


def learning_rates(training: BracketTraining) -> optax.Schedule:
    """Step, from 0 → the learning rate of its update."""
    falling = round(training.decay * training.steps)
    if not falling:
        return optax.constant_schedule(training.learning_rate)
    return optax.linear_schedule(training.learning_rate, 0.0, falling, training.steps - falling)


def draw(training: BracketTraining, language: DyckLanguage, key: Array, rows: int) -> Sequences:
    """Draws sequences of the training distribution."""
    sampler = sequences.complete if training.data == "complete" else sequences.prefixes
    return sampler(language, key, rows, training.longest)


def losses(
    network: BracketNetwork,
    language: DyckLanguage,
    training: BracketTraining,
    params: Params,
    batch: Sequences,
    key: Array,
) -> tuple[Array, Array]:
    """Cross-entropy in nats per token, and the contrastive term, [] each; the second is 0 if it has no weight.

    Raises:
      PadirError: the contrastive term is asked of a network that does not see counts only.
    """
    if network.by_counts:
        counts = counts_of(language, batch.ranks)
        of_counts = functools.partial(apply_to_counts, network, language, params)
        logits = of_counts(counts, batch.ranks)
    else:
        logits, _ = apply(network, language, params, batch.tokens, batch.ranks)
    if training.task == "copy":
        # The start token has no logit and is not copied.
        entropy = cross_entropy(logits[:, 1:], batch.tokens[:, 1:] - 1)
    else:
        entropy = cross_entropy(logits[:, :-1], batch.tokens[:, 1:] - 1)
    loss = weighted_mean(entropy, batch.predicts.astype(jnp.float32))
    if not training.contrastive:
        return loss, jnp.zeros(())
    if not network.by_counts:
        raise PadirError(
            "BracketTraining.contrastive: needs one layer behind a minimal first one, without positions; set "
            "BracketNetwork.layers = 1, positions = 'none' and inputs to other than 'tokens'"
        )
    kinds, pairs = contrastive.random_pairs(language, key, len(batch.tokens))
    return loss, contrastive.distance(language, of_counts, counts, batch.ranks, batch.predicts, kinds, pairs, logits)


def train(
    network: BracketNetwork, language: DyckLanguage, training: BracketTraining, seeds: Array
) -> tuple[Params, Array]:
    """Trains a network from each seed.

    Args:
      network: the architecture. With `uniform` attention, queries and keys get no gradient and do not move.
      language: the language.
      training: data, steps and learning rate.
      seeds: [S] keys, such as `keys_of` gives. They decide parameters and data, whatever the contrastive weight.

    Returns:
      Parameters, each with a leading axis S, and the cross-entropy of each step [S, steps] in nats.
    """
    return _train(network, language, training, initial(network, language, seeds), seeds)


@functools.partial(jax.jit, static_argnums=(0, 1))
def initial(network: BracketNetwork, language: DyckLanguage, seeds: Array) -> Params:
    """The parameters that training begins with: see `train`."""
    return jax.lax.map(lambda seed: init(network, language, rng.stream(seed, "parameters")), seeds)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _train(
    network: BracketNetwork, language: DyckLanguage, training: BracketTraining, params: Params, seeds: Array
) -> tuple[Params, Array]:
    """Trains networks from given parameters, each with a leading axis S."""
    optimizer = optax.adam(learning_rates(training))

    def objective(params: Params, batch: Sequences, key: Array) -> tuple[Array, Array]:
        entropy, term = losses(network, language, training, params, batch, key)
        return entropy + training.contrastive * term, entropy

    def of_seed(given: tuple[Params, Array]) -> tuple[Params, Array]:
        """Trains one network, from its parameters and the key of its data."""
        params, seed = given

        def update(state, step: Array):
            """One step of Adam on a fresh batch."""
            params, moments = state
            batch = draw(training, language, rng.stream(seed, "data", step), training.batch_size)
            key = rng.stream(seed, "contrastive", step)
            gradients, entropy = jax.grad(objective, has_aux=True)(params, batch, key)
            updates, moments = optimizer.update(gradients, moments)
            return (optax.apply_updates(params, updates), moments), entropy

        (params, _), entropies = jax.lax.scan(update, (params, optimizer.init(params)), jnp.arange(training.steps))
        return params, entropies

    # One after the other: on a CPU, batched products of small matrices are slower than as many single ones.
    return jax.lax.map(of_seed, (params, seeds))


def keys_of(seed: int, name: str, count: int) -> Array:
    """Keys of so many runs: [count]. A run's key depends on the base seed, the name and its index only."""
    return jax.vmap(lambda index: rng.stream(seed, f"brackets/{name}", index))(jnp.arange(count))
