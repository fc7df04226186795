"""What is trained on the language model's hidden states: a linear verifier, and a value function of all next tokens."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct

from padir import rng
from padir.data.dyck import IDS
from padir.dyck.generator import Generator, draw_prompts, nucleus, plain
from padir.dyck.mistakes import Mistakes, fine_prefixes
from padir.dyck.settings import DyckConfig
from padir.types import Array
from padir.verifier.training import ProbeTraining, TrainedProbe, train_probe


def labelled(generator: Generator, mistakes: Mistakes) -> tuple[np.ndarray, np.ndarray]:
    """Features [n, E] and labels [n] of wrong prefixes, 0, and as many fine ones of the same lengths, 1."""
    fine = fine_prefixes(generator.config, mistakes.prefixes.lengths, "verifier/fine")
    features = np.concatenate([generator.features(fine), generator.features(mistakes.prefixes)])
    return features, np.repeat([1, 0], [len(fine.lengths), len(mistakes.kinds)])


def train_verifiers(config: DyckConfig, features: np.ndarray, labels: np.ndarray) -> list[TrainedProbe]:
    """Trains a linear verifier `repetitions` times, each with another split, initial parameters and order."""
    count = len(labels)
    # Half an example less, so that rounding cannot take one more.
    share = (config.num_validation - 0.5) / count
    return [
        train_probe(
            features,
            labels,
            np.arange(count),
            ProbeTraining(epochs=config.verifier_epochs, validation_share=share, seed=config.seed + repetition),
        )
        for repetition in range(config.repetitions)
    ]


@struct.dataclass
class ActionHead:
    """A `ValueFunction` that reads hidden states: how likely a prefix, and each continuation, is to end well.

    Attributes:
      kernel: [E, V + 1] float32; the last output is of the prefix itself, the others of its continuations.
      bias: [V + 1] float32.
      mean, scale: [E] float32, of the features that it was trained on.
    """

    kernel: Array
    bias: Array
    mean: Array
    scale: Array

    def log_odds(self, features: Array) -> Array:
        """Features [..., E] float32 → [..., V + 1] float32."""
        return (features - self.mean) / self.scale @ self.kernel + self.bias

    def __call__(self, tokens: Array, lengths: Array, features: Array) -> tuple[Array, Array]:
        del tokens, lengths
        values = jax.nn.sigmoid(self.log_odds(features))
        return values[:, -1], values[:, :-1]


def train_value(generator: Generator) -> tuple[ActionHead, dict[str, float]]:
    """Trains a value function on the outcome, at every prefix of the language model's own completions.

    Whether a completion ends well, given a prefix of it, is a coin whose probability is the prefix's value under the
    generator. So cross-entropy fits values, which the linear verifier's labels do not.

    Returns:
      (the value function; loss on the tenth that is held out, the loss of the best constant, counts).
    """
    config = generator.config
    prompts = draw_prompts(config, config.ood_grammar, "value/prompts", config.num_rollouts)
    rollouts = generator.complete(prompts, plain(nucleus(1.0)), stream="value/completions")
    hidden = generator.read(rollouts.outputs)[0]
    places = np.arange(config.room)
    inside = (places >= prompts.lengths[:, None]) & (places < rollouts.outputs.lengths[:, None])
    row, place = np.nonzero(inside)
    features, following = hidden[row, place], rollouts.outputs.tokens[row, place]
    outcome = rollouts.valid[row].astype(np.float32)
    held_out = row % 10 == 0
    train, test = ((features[of], following[of], outcome[of]) for of in (~held_out, held_out))
    head = ActionHead(
        kernel=jnp.zeros((features.shape[1], IDS.vocab_size + 1), jnp.float32),
        bias=jnp.zeros((IDS.vocab_size + 1,), jnp.float32),
        mean=jnp.asarray(train[0].mean(axis=0)),
        scale=jnp.asarray(np.maximum(train[0].std(axis=0), 1e-6)),
    )
    head, loss = _fitted(head, train, test, rng.stream(config.seed, "dyck/value"), config.value_epochs)
    mean = float(outcome.mean())
    entropy = -sum(p * np.log(p) for p in (mean, 1.0 - mean) if p > 0)
    return head, {
        "validation_loss": float(loss),
        "loss_of_a_constant": 2 * entropy,
        "prefixes": len(outcome),
        "share_valid": float(rollouts.valid.mean()),
    }


# Examples of an update of the value function, and its learning rate.
_BATCH, _RATE = 512, 1e-2
Examples = tuple[np.ndarray, np.ndarray, np.ndarray]


def value_loss(head: ActionHead, features: Array, following: Array, outcome: Array) -> Array:
    """Cross-entropy of the outcomes [n] float32, twice: given prefixes' features [n, E], and next tokens [n], too."""
    log_odds = head.log_odds(features)
    of_next = jnp.take_along_axis(log_odds, following[:, None], axis=1)[:, 0]
    both = sum(optax.sigmoid_binary_cross_entropy(of, outcome) for of in (log_odds[:, -1], of_next))
    return both.mean()


@partial(jax.jit, static_argnames="epochs")
def _fitted(head: ActionHead, train: Examples, test: Examples, key: Array, epochs: int) -> tuple[ActionHead, Array]:
    """The head after some epochs of Adam with a rate that falls to 0, and its loss on the test examples."""
    count = len(train[2])
    size = min(_BATCH, count)
    updates = epochs * (count // size)
    optimizer = optax.adam(optax.cosine_decay_schedule(_RATE, updates))

    def loss(weights: tuple[Array, Array], rows: Array) -> Array:
        return value_loss(head.replace(kernel=weights[0], bias=weights[1]), *(field[rows] for field in train))

    def update(carry: tuple, number: Array) -> tuple[tuple, None]:
        weights, state = carry
        rows = jax.random.randint(jax.random.fold_in(key, number), (size,), 0, count)
        changes, state = optimizer.update(jax.grad(loss)(weights, rows), state)
        return (optax.apply_updates(weights, changes), state), None

    first = (head.kernel, head.bias), optimizer.init((head.kernel, head.bias))
    ((kernel, bias), _), _ = jax.lax.scan(update, first, jnp.arange(updates))
    head = head.replace(kernel=kernel, bias=bias)
    return head, value_loss(head, *test)
