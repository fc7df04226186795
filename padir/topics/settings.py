"""Settings of `padir learn topics`."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from padir.checks import finite, whole
from padir.errors import PadirError
from padir.theory.settings import require_ascending, require_in
from padir.topics.masked_language_modelling import CROSS_ENTROPY, SQUARED, MaskingConfig
from padir.topics.topic_model import MOST_DOCUMENTS, Lengths, TopicModel
from padir.topics.training import ADAM, SGD, LdaBatches, TopicTraining

_COUNTS = (
    *("batch_size", "num_seeds", "value_steps", "joint_steps", "second_steps", "all_steps", "held_out", "grid"),
    *("exact_steps", "exact_seeds", "sentences"),
)

# C(T, 3) documents are enumerated: see `TopicModel`.
_MOST_TOPICS = max(topics for topics in range(4, 200) if math.comb(topics, 3) <= MOST_DOCUMENTS)


@dataclass(frozen=True)
class TopicsConfig:
    """The settings of the experiment; `gin/runs/learn_topics.gin` sets the sizes.

    Attributes:
      model: topics and their words, as in the thesis.
      lengths: how long documents are, as in the thesis.
      concentration: of the Dirichlet distribution of a document's topics, as in the thesis.
      masking: probabilities of masking.
      batch_size: fresh documents for each step (ours; the thesis does not give it).
      num_seeds, seed: runs of each kind, and the first of their seeds.
      sgd_rate, adam_rate: learning rates of Figures 2.1, 2.2 and 2.5. The thesis's are 0.01; SGD then needs about 300
        times the steps, since losses here are sums over the vocabulary with a mean over few masked positions. Where
        everything is trained, SGD has a third of its rate for cross-entropy and a tenth for squared error.
      value_steps: steps of W^V alone, under uniform attention.
      l2: λ of regularised runs (ours; the thesis does not give it).
      stages: the training of Figure 2.4; stages_scale is the standard deviation of its first matrices.
      joint_rates, joint_sgd_rates, joint_steps: of Table 2.1, with Adam and with SGD. The thesis's rates of SGD
        are 0.01 and 0.03; see sgd_rate.
      second_rate, second_steps: of attention alone, with Adam and squared error.
      all_steps: steps of runs that train everything, or embeddings alone.
      held_out: documents that losses and attention are measured on.
      exact_steps, exact_seeds: of embeddings on the exact loss, and how many of them are trained.
      grid: points of each axis of Figures 2.7 and 2.8.
      sentences: documents whose attention in a random encoder is measured.
    """

    model: TopicModel = dataclasses.field(default_factory=TopicModel)
    lengths: Lengths = dataclasses.field(default_factory=Lengths)
    concentration: float = 0.1
    masking: MaskingConfig = dataclasses.field(default_factory=MaskingConfig)
    batch_size: int = 40
    num_seeds: int = 3
    seed: int = 0
    sgd_rate: float = 3.0
    adam_rate: float = 0.01
    value_steps: int = 1500
    l2: float = 1e-4
    stages: TopicTraining = dataclasses.field(
        default_factory=lambda: TopicTraining(CROSS_ENTROPY, SGD, 10.0, 1200, 3e-4)
    )
    stages_scale: float = 1e-3
    joint_rates: tuple[float, ...] = (0.003, 0.01, 0.03)
    joint_sgd_rates: tuple[float, ...] = (10.0, 30.0)
    joint_steps: int = 4000
    second_rate: float = 0.003
    second_steps: int = 1500
    all_steps: int = 1500
    held_out: int = 2000
    exact_steps: int = 30_000
    exact_seeds: int = 16
    grid: int = 221
    sentences: int = 400

    def __post_init__(self):
        if self.model.words_per_topic < 2:
            raise PadirError("TopicModel.words_per_topic: with 1 no two words share a topic; use at least 2")
        for name in _COUNTS:
            whole(f"TopicsConfig.{name}", getattr(self, name))
        for name in ("concentration", "sgd_rate", "adam_rate", "stages_scale", "second_rate", "l2"):
            finite(f"TopicsConfig.{name}", getattr(self, name))
            if getattr(self, name) <= 0.0:
                raise PadirError(f"TopicsConfig.{name}: {getattr(self, name)} must be positive")
        # A gin file writes tuples as lists.
        for name, most in (("joint_rates", 1.0), ("joint_sgd_rates", 1e3)):
            object.__setattr__(self, name, tuple(getattr(self, name)))
            require_in(self, name, 1e-6, most)
            require_ascending(self, name)
        require_in(self, "seed", 0, 2**31)
        if not 4 <= self.model.topics <= _MOST_TOPICS:
            raise PadirError(
                f"TopicsConfig.model: {self.model.topics} topics; documents have 3 of them, and all sets of 3 are "
                f"enumerated: use 4 to {_MOST_TOPICS}"
            )
        if not self.masking.p_m * self.masking.p_r > 0:
            raise PadirError(
                f"TopicsConfig.masking: p_m = {self.masking.p_m}, p_r = {self.masking.p_r}; the bounds of "
                "Theorem 2.1.3 divide by both, so use numbers above 0"
            )

    @property
    def seeds(self) -> list[int]:
        """The seeds of the runs. Different first seeds give different runs."""
        return [1000 * self.seed + index for index in range(self.num_seeds)]

    @property
    def batches(self) -> LdaBatches:
        """The training data."""
        return LdaBatches(self.model, self.lengths, self.concentration, self.masking, self.batch_size)

    def of_figures(self, loss: str, optimizer: str, l2: float, steps: int) -> TopicTraining:
        """The training of a panel of Figures 2.1, 2.2 and 2.5."""
        rate = self.sgd_rate if optimizer == SGD else self.adam_rate
        return TopicTraining(loss, optimizer, rate, steps, l2, record_every=every(steps))

    def of_joint(self) -> dict[str, TopicTraining]:
        """The training of each row of Table 2.1."""
        steps = self.joint_steps
        rates = [("Adam", ADAM, rate) for rate in self.joint_rates] + [("SGD", SGD, r) for r in self.joint_sgd_rates]
        return {
            f"{name}, {rate:g}": TopicTraining(CROSS_ENTROPY, optimizer, rate, steps, record_every=every(steps))
            for name, optimizer, rate in rates
        }

    def of_second(self) -> TopicTraining:
        """The training of attention under a frozen W^V, squared error; the learning rate falls in the second half."""
        steps = self.second_steps
        return TopicTraining(SQUARED, ADAM, self.second_rate, steps, decay=0.5, record_every=every(steps))

    def quick(self) -> TopicsConfig:
        """Fewer seeds and points, for a run of about a minute."""
        return dataclasses.replace(self, num_seeds=1, exact_seeds=4, grid=111, sentences=200, held_out=500)


def every(steps: int) -> int:
    """Steps between records: the largest divisor of `steps` up to 50."""
    return max(each for each in range(1, 51) if steps % each == 0)
