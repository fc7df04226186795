"""Training of the one-layer model: steps in `lax.scan`, seeds in `vmap`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from padir import rng
from padir.checks import finite, whole
from padir.errors import PadirError
from padir.topics.masked_language_modelling import (
    CROSS_ENTROPY,
    LOSSES,
    MaskingConfig,
    Rows,
    expected_rows,
    masked,
    rows_of,
    weighted_loss,
)
from padir.topics.single_layer import Parameters, logits_by_counts
from padir.topics.topic_model import Lengths, TopicModel, sample_lda
from padir.types import Array

SGD, ADAM = "sgd", "adam"
Batches = Callable[[Array], Rows]


@dataclass(frozen=True)
class TopicTraining:
    """How a model is trained.

    Attributes:
      loss: 'cross_entropy', or 'squared' error summed over the vocabulary.
      optimizer: 'sgd' without momentum, or 'adam'.
      learning_rate: positive. That of SGD is constant; see `decay`.
      steps: updates, one batch each.
      l2: λ of the penalty λ ‖θ‖² on trained matrices; biases are not penalised.
      decay: share of the steps, the last ones, over which the learning rate falls linearly to 0.
      record_every: steps between two records of the history.
      mask_visible: whether MASK is a key of attention. The thesis's theory says so; its authors' code leaves it out.
    """

    loss: str = CROSS_ENTROPY
    optimizer: str = ADAM
    learning_rate: float = 0.01
    steps: int = 1000
    l2: float = 0.0
    decay: float = 0.0
    record_every: int = 10
    mask_visible: bool = True

    def __post_init__(self):
        if self.loss not in LOSSES:
            raise PadirError(f"TopicTraining.loss: no {self.loss!r}; choose {' or '.join(LOSSES)}")
        if self.optimizer not in (SGD, ADAM):
            raise PadirError(f"TopicTraining.optimizer: no {self.optimizer!r}; choose {SGD} or {ADAM}")
        whole("TopicTraining.steps", self.steps)
        whole("TopicTraining.record_every", self.record_every)
        for name in ("learning_rate", "l2", "decay"):
            finite(f"TopicTraining.{name}", getattr(self, name))
        if self.learning_rate <= 0.0 or self.l2 < 0.0 or not 0.0 <= self.decay <= 1.0:
            raise PadirError("TopicTraining: learning_rate must be positive, l2 at least 0, decay from 0 to 1")
        if self.steps % self.record_every:
            raise PadirError(
                f"TopicTraining.record_every: {self.steps} steps are not a multiple of {self.record_every}; change one"
            )

    def transformation(self) -> optax.GradientTransformation:
        """The optimizer."""
        kept = round(self.steps * (1.0 - self.decay))
        schedule = optax.join_schedules(
            [
                optax.constant_schedule(self.learning_rate),
                optax.linear_schedule(self.learning_rate, 0.0, max(1, self.steps - kept)),
            ],
            [kept],
        )
        return optax.sgd(schedule) if self.optimizer == SGD else optax.adam(schedule)


@dataclass(frozen=True)
class Trained:
    """Results of several seeds.

    Attributes:
      parameters: trained and frozen ones, each with a leading axis of seeds.
      history: the mean loss since the last record, 'loss', and the Frobenius norm of each trained part, by name,
        [seeds, records]. Norms are those at the steps of `steps`.
      steps: [records] int, the steps of the records, counted from 0, before which nothing is trained. The loss of
        record 0 is NaN.
    """

    parameters: Parameters
    history: dict[str, np.ndarray]
    steps: np.ndarray

    def of(self, seed: int) -> Parameters:
        """The parameters of one seed, as NumPy float64."""
        return jax.tree.map(lambda leaf: np.asarray(leaf[seed], np.float64), self.parameters)


def lda_rows(
    key: Array, model: TopicModel, lengths: Lengths, concentration: float, masking: MaskingConfig, batch: int
) -> Rows:
    """Rows of a fresh batch of LDA documents."""
    of_documents, of_masks = jax.random.split(key)
    words, inside, _ = sample_lda(of_documents, model, batch, lengths, concentration)
    tokens, chosen = masked(of_masks, words, inside, model.words, masking)
    return rows_of(words, tokens, chosen, inside, model.vocabulary, masking)


def few_topics_rows(key: Array, documents: Array, masking: MaskingConfig, batch: int) -> Rows:
    """Rows of some infinite documents (Assumption 2.1.1), with the expectation over masks and labels.

    Args:
      key: a JAX key.
      documents: [C, V] float32, the p_w to choose from.
      masking: the probabilities.
      batch: documents of a batch.
    """
    return expected_rows(documents[jax.random.randint(key, (batch,), 0, len(documents))], masking)


def rows_loss(parameters: Parameters, rows: Rows, loss: str, mask_visible: bool = True) -> Array:
    """The objective (2.1) of a batch: the mean over documents of the mean over their masked positions."""
    logits = logits_by_counts(parameters, rows.counts, rows.document, rows.query, mask_visible)
    return weighted_loss(logits, rows.labels, loss)


def random_parameters(key: Array, shapes: Mapping[str, Sequence[int]], scale: float) -> Parameters:
    """Matrices from N(0, scale²) and biases of 0, float32.

    Args:
      key: a JAX key.
      shapes: the shape of each part that the model has.
      scale: standard deviation of the matrices' entries.
    """
    parts = {}
    for name, shape in shapes.items():
        drawn = scale * jax.random.normal(rng.stream(key, name), tuple(shape))
        parts[name] = drawn if len(shape) == 2 else jnp.zeros(tuple(shape))
    return Parameters(**parts)


def train(
    seeds: Sequence[int], start: Callable[[Array], Parameters], names: Sequence[str], training: TopicTraining,
    batches: Batches,
) -> Trained:  # fmt: skip
    """Trains one model for each seed, all at once, in float32.

    Args:
      seeds: the seeds, of parameters and of batches.
      start: makes the parameters to start from of a key. Parts that are not trained stay as they are.
      names: the names of the trained parts.
      training: how to train.
      batches: makes a batch of a key.

    Raises:
      PadirError: a part has no parameters to train.
    """
    with jax.enable_x64(False):
        run = jax.jit(jax.vmap(functools.partial(_train, start, tuple(names), training, batches)))
        parameters, mean_loss, norms = run(jnp.asarray(seeds, jnp.uint32))
        history = {name: np.asarray(values, np.float64) for name, values in norms.items()}
        history["loss"] = np.asarray(mean_loss, np.float64)
    return Trained(parameters, history, np.arange(0, training.steps + 1, training.record_every))


def _train(
    start: Callable[[Array], Parameters], names: tuple[str, ...], training: TopicTraining, batches: Batches, seed: Array
) -> tuple[Parameters, Array, dict[str, Array]]:
    """One seed: the parameters, the mean loss of each interval, and norms at its ends; record 0 is the start."""
    fixed = start(rng.stream(jax.random.key(seed), "topics/parameters"))
    trained: dict[str, Any] = {name: getattr(fixed, name) for name in names}
    if lacking := [name for name, part in trained.items() if part is None]:
        raise PadirError(f"topics: {', '.join(lacking)} cannot be trained: the model has none")
    optimizer = training.transformation()
    stream = rng.stream(jax.random.key(seed), "topics/batches")

    def objective(trained, rows):
        loss = rows_loss(fixed._replace(**trained), rows, training.loss, training.mask_visible)
        penalty = sum((part**2).sum() for part in trained.values() if part.ndim == 2)
        return loss + training.l2 * penalty, loss

    def update(carry, step):
        trained, state = carry
        rows = batches(jax.random.fold_in(stream, step))
        gradient, loss = jax.grad(objective, has_aux=True)(trained, rows)
        change, state = optimizer.update(gradient, state, trained)
        return (optax.apply_updates(trained, change), state), loss

    def interval(carry, steps):
        carry, loss = jax.lax.scan(update, carry, steps)
        return carry, (loss.mean(), {name: jnp.linalg.norm(part) for name, part in carry[0].items()})

    steps = jnp.arange(training.steps).reshape(-1, training.record_every)
    (last, _), (loss, norms) = jax.lax.scan(interval, (trained, optimizer.init(trained)), steps)
    first = {name: jnp.linalg.norm(part) for name, part in trained.items()}
    norms = {name: jnp.concatenate([first[name][None], norms[name]]) for name in norms}
    return fixed._replace(**last), jnp.concatenate([jnp.full(1, jnp.nan), loss]), norms
