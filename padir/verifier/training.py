"""Trains a probe on labelled features: which hidden states of a generator belong to prefixes that are fine."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax

from padir import rng
from padir.checks import finite, whole
from padir.decoding.verifiers import Probe
from padir.errors import PadirError
from padir.types import Array


@dataclass(frozen=True)
class ProbeTraining:
    """How a probe is trained; learning rate and weight decay are the thesis's (section 3.2.2).

    Attributes:
      hidden: sizes of hidden layers; none is a linear probe.
      learning_rate, weight_decay: of AdamW.
      epochs: passes over the examples. The parameters that are kept are those after the epoch with the lowest loss on
        the validation examples.
      batch_size: examples of an update; all of them, where there are fewer.
      validation_share: share of the examples that only choose the epoch and tell the accuracy. Groups are kept whole.
      seed: of initial parameters, split and order.
    """

    hidden: tuple[int, ...] = ()
    learning_rate: float = 3e-3
    weight_decay: float = 0.1
    epochs: int = 50
    batch_size: int = 64
    validation_share: float = 0.1
    seed: int = 0

    def __post_init__(self):
        object.__setattr__(self, "hidden", tuple(self.hidden))
        for size in self.hidden:
            whole("ProbeTraining.hidden", size)
        for name in ("epochs", "batch_size"):
            whole(f"ProbeTraining.{name}", getattr(self, name))
        for name in ("learning_rate", "weight_decay"):
            finite(f"ProbeTraining.{name}", getattr(self, name))
        if self.learning_rate <= 0 or self.weight_decay < 0:
            raise PadirError("ProbeTraining: learning_rate must be above 0, and weight_decay at least 0")
        if not 0.0 < self.validation_share < 1.0:
            raise PadirError(f"ProbeTraining.validation_share: {self.validation_share} is not between 0 and 1")


@dataclass(frozen=True)
class TrainedProbe:
    """A probe, and how well it does.

    Attributes:
      probe: its parameters are those of the best epoch.
      accuracy: on validation examples, share that it puts on the right side of 1/2.
      training_accuracy: the same on training examples.
      best_epoch: counted from 1.
      training_examples, validation_examples: their numbers.
    """

    probe: Probe
    accuracy: float
    training_accuracy: float
    best_epoch: int
    training_examples: int
    validation_examples: int


def validation_rows(groups: np.ndarray, share: float, seed: int) -> np.ndarray:
    """Random whole groups that together have at least this share of the examples: groups [n] → [n] bool."""
    names, members = np.unique(groups, return_inverse=True)
    order = np.random.default_rng(seed).permutation(len(names))
    sizes = np.bincount(members)[order]
    taken = np.searchsorted(np.cumsum(sizes), share * len(groups)) + 1
    return np.isin(members, order[:taken])


def train_probe(
    features: np.ndarray, labels: np.ndarray, groups: np.ndarray, config: ProbeTraining = ProbeTraining()
) -> TrainedProbe:
    """Trains with cross-entropy and AdamW.

    Args:
      features: [n, E], of prefixes.
      labels: [n], 1 or True where a prefix is fine, else 0.
      groups: [n] of any type. Examples of one group, such as those of one source, are never divided between training
        and validation: they resemble one another.
      config: optimiser, epochs and split.

    Returns:
      The probe of the best epoch, which standardises features by the mean and spread of the training examples.

    Raises:
      PadirError: shapes differ, a feature is not finite, a label is neither 0 nor 1, or training or validation examples
        do not have both labels.
    """
    features = np.asarray(features, np.float32)
    labels, groups = _checked(features, np.asarray(labels), np.asarray(groups))
    held_out = validation_rows(groups, config.validation_share, config.seed)
    for name, chosen in (("training", ~held_out), ("validation", held_out)):
        if len(np.unique(labels[chosen])) < 2:
            raise PadirError(
                f"the {int(chosen.sum())} {name} examples do not have both labels, fine and wrong; give more, and of "
                "more groups"
            )
    train, test = ((features[chosen], labels[chosen]) for chosen in (~held_out, held_out))
    probe = Probe.fresh((features.shape[1], *config.hidden), rng.stream(config.seed, "parameters"))
    spread = train[0].std(axis=0)
    probe = probe.replace(mean=jnp.asarray(train[0].mean(axis=0)), scale=jnp.asarray(np.where(spread > 0, spread, 1.0)))
    probe, best = _trained(probe, train, test, rng.stream(config.seed, "batches"), config)
    accuracies = [float(((probe.log_odds(each) > 0) == (label > 0)).mean()) for each, label in (test, train)]
    return TrainedProbe(probe, *accuracies, int(best) + 1, len(train[1]), len(test[1]))


def _checked(features: np.ndarray, labels: np.ndarray, groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Labels as float32 [n], and groups [n]."""
    count = len(features)
    if features.ndim != 2 or labels.shape != (count,) or groups.shape != (count,):
        raise PadirError(
            f"features {list(features.shape)}, labels {list(labels.shape)} and groups {list(groups.shape)} must be "
            "[n, E], [n] and [n]"
        )
    if not np.isfinite(features).all():
        raise PadirError("features: some are not finite")
    if not np.isin(labels, (0, 1)).all():
        raise PadirError("labels: must be 1 (the prefix is fine) or 0")
    return labels.astype(np.float32), groups


Examples = tuple[np.ndarray, np.ndarray]


@partial(jax.jit, static_argnames="config")
def _trained(probe: Probe, train: Examples, test: Examples, key: Array, config: ProbeTraining) -> tuple[Probe, Array]:
    """The probe after the epoch with the lowest validation loss, and the epoch's number, from 0."""
    count = train[1].shape[0]
    size = min(config.batch_size, count)
    optimizer = optax.adamw(config.learning_rate, weight_decay=config.weight_decay)

    def loss(layers: tuple, features: Array, labels: Array) -> Array:
        return optax.sigmoid_binary_cross_entropy(probe.replace(layers=layers).log_odds(features), labels).mean()

    def update(carry: tuple, rows: Array) -> tuple[tuple, None]:
        layers, state = carry
        changes, state = optimizer.update(jax.grad(loss)(layers, train[0][rows], train[1][rows]), state, layers)
        return (optax.apply_updates(layers, changes), state), None

    def epoch(carry: tuple, number: Array) -> tuple[tuple, None]:
        layers, state, best = carry
        order = jax.random.permutation(jax.random.fold_in(key, number), count)
        # The examples that fill no whole batch have their turn in other epochs.
        batches = order[: count // size * size].reshape(-1, size)
        (layers, state), _ = jax.lax.scan(update, (layers, state), batches)
        found = (loss(layers, *test), layers, number)
        best = jax.tree.map(partial(jnp.where, found[0] < best[0]), found, best)
        return (layers, state, best), None

    first = probe.layers, optimizer.init(probe.layers), (jnp.float32(jnp.inf), probe.layers, jnp.int32(0))
    (_, _, (_, layers, number)), _ = jax.lax.scan(epoch, first, jnp.arange(config.epochs))
    return probe.replace(layers=layers), number
