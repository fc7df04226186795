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
from padir.progress import progress
from padir.topics.masked_language_modelling import (
    CROSS_ENTROPY,
    LOSSES,
    Batch,
    MaskingConfig,
    Rows,
    batch_of,
    expected_rows,
    masked,
    weighted_loss,
)
from padir.topics.single_layer import Parameters, logits_by_counts
from padir.topics.topic_model import Lengths, TopicModel, sample_lda
from padir.types import Array

SGD, ADAM = "sgd", "adam"
# Distinguishes the random numbers of batches from others of the same seed.
_BATCHES = 1


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

    def rates(self) -> np.ndarray:
        """The learning rate of each step, [steps] float32."""
        falling = max(1, round(self.steps * self.decay))
        left = (self.steps - np.arange(self.steps)) / falling if self.decay else np.ones(self.steps)
        return (self.learning_rate * np.minimum(1.0, left)).astype(np.float32)


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


@dataclass(frozen=True)
class LdaBatches:
    """Batches of fresh LDA documents."""

    model: TopicModel
    lengths: Lengths
    concentration: float
    masking: MaskingConfig
    batch_size: int

    def draw(self, generator: np.random.Generator, steps: int) -> Batch:
        """Batches for so many steps, on the first axis."""
        shape = (steps, self.batch_size)
        documents = sample_lda(generator, self.model, shape, self.lengths, self.concentration)
        tokens, chosen = masked(generator, documents, self.model.words, self.masking)
        return batch_of(documents, tokens, chosen, self.model.vocabulary)

    def rows(self, batch: Batch) -> Rows:
        """The rows of one step."""
        return batch.rows()


@dataclass(frozen=True)
class FewTopicsBatches:
    """Batches of infinite documents (Assumption 2.1.1) of τ topics, with the expectation over masks and labels."""

    model: TopicModel
    present: int
    masking: MaskingConfig
    batch_size: int

    def draw(self, generator: np.random.Generator, steps: int) -> np.ndarray:
        """The frequencies p_w of documents for so many steps, [steps, batch_size, V] float32."""
        documents = self.model.documents(self.present).astype(np.float32)
        return documents[generator.integers(0, len(documents), (steps, self.batch_size))]

    def rows(self, batch: Array) -> Rows:
        """The rows of one step."""
        return expected_rows(batch, self.masking)


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
    seeds: Sequence[int],
    start: Callable[[Array], Parameters],
    names: Sequence[str],
    training: TopicTraining,
    batches: LdaBatches | FewTopicsBatches,
) -> Trained:
    """Trains one model for each seed, all at once, in float32.

    Args:
      seeds: the seeds, of parameters and of batches.
      start: makes the parameters to start from of a key. Parts that are not trained stay as they are.
      names: the names of the trained parts.
      training: how to train.
      batches: the data.

    Raises:
      PadirError: a part has no parameters to train.
    """
    with jax.enable_x64(False):
        keys = [rng.stream(seed, "topics/parameters") for seed in seeds]
        fixed = jax.tree.map(lambda *leaves: jnp.stack(leaves), *[start(key) for key in keys])
        trained = {name: getattr(fixed, name) for name in names}
        if lacking := [name for name, part in trained.items() if part is None]:
            raise PadirError(f"topics: {', '.join(lacking)} cannot be trained: the model has none")
        fixed = fixed._replace(**dict.fromkeys(names))
        generators = [np.random.default_rng([seed, _BATCHES]) for seed in seeds]
        setting = _Setting(training.loss, training.optimizer, training.mask_visible, batches)
        state = jax.vmap(setting.transformation().init)(trained)
        records = [{**_norms(trained), "loss": np.full(len(seeds), np.nan)}]
        for rates in progress(training.rates().reshape(-1, training.record_every), label="training", unit="records"):
            drawn = [batches.draw(generator, len(rates)) for generator in generators]
            trained, state, loss = _interval(setting, trained, state, fixed, _stacked(drawn), rates, training.l2)
            records.append({**_norms(trained), "loss": np.asarray(loss)})
        history = {name: np.stack([record[name] for record in records], axis=1) for name in records[0]}
    return Trained(fixed._replace(**trained), history, np.arange(0, training.steps + 1, training.record_every))


def _stacked(drawn: Sequence[Any]) -> Any:
    """Batches of several seeds on a first axis. The last axes of `Batch`es may differ, and are padded with zeros."""

    def together(*leaves: np.ndarray) -> np.ndarray:
        longest = max(leaf.shape[-1] for leaf in leaves)
        return np.stack([np.pad(leaf, [(0, 0)] * (leaf.ndim - 1) + [(0, longest - leaf.shape[-1])]) for leaf in leaves])

    return jax.tree.map(together, *drawn)


def _norms(parts: Mapping[str, Array]) -> dict[str, np.ndarray]:
    """The Frobenius norm of each part, [seeds] float64."""
    return {
        name: np.sqrt(np.square(np.asarray(part, np.float64)).reshape(len(part), -1).sum(axis=1))
        for name, part in parts.items()
    }


@dataclass(frozen=True)
class _Setting:
    """What a compiled program depends on, besides shapes."""

    loss: str
    optimizer: str
    mask_visible: bool
    batches: LdaBatches | FewTopicsBatches

    def transformation(self) -> optax.GradientTransformation:
        """The optimizer, for a learning rate of 1 that still has to be subtracted."""
        return optax.identity() if self.optimizer == SGD else optax.scale_by_adam()


@functools.partial(jax.jit, static_argnums=0)
def _interval(
    setting: _Setting, trained: Any, state: Any, fixed: Parameters, batches: Any, rates: Array, l2: float
) -> tuple[Any, Any, Array]:
    """Steps of all seeds: the trained parts, the optimizer's state, and the mean loss."""
    optimizer = setting.transformation()

    def objective(trained, fixed, batch):
        rows = setting.batches.rows(batch)
        loss = rows_loss(fixed._replace(**trained), rows, setting.loss, setting.mask_visible)
        penalty = sum(jnp.square(part).sum() for part in trained.values() if part.ndim == 2)
        return loss + l2 * penalty, loss

    def of_seed(trained, state, fixed, batches):
        def update(carry, step):
            trained, state = carry
            batch, rate = step
            gradient, loss = jax.grad(objective, has_aux=True)(trained, fixed, batch)
            change, state = optimizer.update(gradient, state)
            trained = jax.tree.map(lambda part, by: part - rate * by, trained, change)
            return (trained, state), loss

        (trained, state), losses = jax.lax.scan(update, (trained, state), (batches, rates))
        return trained, state, losses.mean()

    return jax.vmap(of_seed)(trained, state, fixed, batches)
